package kube

import (
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

// Merge and the next Routing use the same route and backend objects as the conversion. In a
// cluster with thousands of Ingresses, copies would take most of the memory.
func TestRoutesAndBackendsAreShared(t *testing.T) {
	file := mustParse(t, plainConfig+"routes: [{listeners: [web], hosts: [a.example], backend: app}]\nbackends: {app: {endpoints: [\"a:1\"]}}\n")
	c := &Converter{File: file}
	m := mustRead(t, good)
	r := c.Convert(&m.Objects)
	if len(r.Routes) == 0 || len(r.Backends) == 0 || len(file.Routes) == 0 {
		t.Fatalf("there are %d routes, %d backends, and %d routes of the file", len(r.Routes), len(r.Backends), len(file.Routes))
	}
	merged := r.Merge(file, map[string][]config.Endpoint{r.Backends[0].Name: {{Address: "10.0.0.1:80", Weight: 1}}})
	for i, route := range merged.Routes {
		if n := len(file.Routes); i < n && route != file.Routes[i] || i >= n && route != r.Routes[i-n] {
			t.Errorf("Merge copied the route %s", route.Name)
		}
	}
	for i, b := range merged.Backends[:len(file.Backends)] {
		if b != file.Backends[i] {
			t.Errorf("Merge copied the backend %s", b.Name)
		}
	}
	for i, b := range merged.Backends[len(file.Backends):] {
		if (b == &r.Backends[i].Backend) != (i > 0) {
			t.Errorf("Merge copied a backend without endpoints, or changed one: %s", b.Name)
		}
	}
	if r.Backends[0].Endpoints != nil {
		t.Error("Merge changed a backend")
	}

	b, one := r.Backends[0], []config.Endpoint{{Address: "10.0.0.1:80", Weight: 1}}
	was := b.with(one, nil)
	if b.with(slices.Clone(one), was) != was {
		t.Error("a backend whose endpoints are the same was copied")
	}
	if e := b.with([]config.Endpoint{{Address: "10.0.0.2:80", Weight: 1}}, was).Endpoints; e[0].Address != "10.0.0.2:80" {
		t.Errorf("the endpoints are still %v", e)
	}
	if never := b.with(nil, nil); never != &b.Backend {
		t.Error("a backend without endpoints was copied")
	} else if lost := b.with(nil, was); lost == never || len(lost.Endpoints) > 0 || b.with(nil, lost) != lost {
		t.Errorf("a backend that has lost its endpoints is %p %+v, and was %p at first", lost, lost, never)
	}
	if again := r.MergeWith(file, []*config.Backend{was}); again.Backends[len(file.Backends)] != was {
		t.Error("MergeWith copied a backend")
	}

	m.Ingresses = append(m.Ingresses, mustRead(t, strings.NewReplacer("good", "more", "wild", "open").Replace(good)).Ingresses...)
	next := c.Convert(&m.Objects)
	for _, route := range r.Routes {
		if !slices.Contains(next.Routes, route) {
			t.Errorf("the route %s of an unchanged Ingress is another one", route.Name)
		}
	}
	for _, b := range r.Backends {
		if !slices.Contains(next.Backends, b) {
			t.Errorf("the backend %s of an unchanged Ingress is another one", b.Name)
		}
	}
}
