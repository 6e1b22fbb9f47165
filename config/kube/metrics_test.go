package kube

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
)

// series returns the series of reg with whole numbers as values, without times.
func series(t *testing.T, reg *prometheus.Registry) map[string]int {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := strings.TrimPrefix(f.GetName(), "weir_kubernetes_")
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			switch {
			case strings.HasSuffix(f.GetName(), "_seconds") && m.Histogram == nil:
				all[name] = 0
			case m.Histogram != nil:
				all[name] = int(m.Histogram.GetSampleCount())
			case m.Counter != nil:
				all[name] = int(m.Counter.GetValue())
			default:
				all[name] = int(m.Gauge.GetValue())
			}
		}
	}
	return all
}

func TestMetrics(t *testing.T) {
	text := strings.Replace(plainConfig, "class: weir", "class: weir, namespaces: [default]", 1)
	more := `
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: bad}, spec: {ingressClassName: weir, rules: [{host: "-.example", http: {paths: [{path: a, pathType: Exact, backend: {service: {name: b, port: {number: 1}}}}]}}]}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: theirs}, spec: {ingressClassName: other}}
---
{apiVersion: v1, kind: Service, metadata: {name: alone}, spec: {ports: [{port: 80}]}}
---
` + slice("a-1", "a", "10.0.0.1")
	observe(t, text, ingressAndService+more, func(t *testing.T, w *watched) {
		reg := prometheus.NewPedanticRegistry()
		m := NewMetrics(reg)
		if got := series(t, reg); len(got) != 0 {
			t.Errorf("without a cluster there is %v", got)
		}
		still, err := NewSource(Options{File: mustParse(t, text), List: w.List, Changed: func(Change) {}})
		if err != nil {
			t.Fatal(err)
		}
		m.Show(still)
		if got := series(t, reg); !reflect.DeepEqual(got, map[string]int{"synced": 0}) {
			t.Errorf("before all is known there is %v", got)
		}
		w.next()
		m.Show(w.Source)
		m.Applied(&Change{Routing: &Routing{}, Since: time.Now()})
		m.Applied(&Change{Endpoints: map[string][]config.Endpoint{}, Since: time.Now()})
		m.Applied(&Change{Node: &Node{}})
		m.Trouble(Secrets)
		want := map[string]int{"synced": 1, "last_sync_timestamp_seconds": 0, "change_duration_seconds routes": 1, "change_duration_seconds endpoints": 1,
			"watch_errors_total secrets": 1, "faults ingresses InvalidHost": 1,
			"objects ingresses in_use": 1, "objects ingresses faulty": 1, "objects ingresses unused": 1,
			"objects services in_use": 1, "objects services faulty": 0, "objects services unused": 1,
			"objects secrets in_use": 1, "objects secrets faulty": 0, "objects secrets unused": 0,
			"objects endpointslices in_use": 1, "objects endpointslices faulty": 0, "objects endpointslices unused": 0,
			"objects ingressclasses in_use": 0, "objects ingressclasses faulty": 0, "objects ingressclasses unused": 0}
		got := series(t, reg)
		for name := range got {
			if strings.HasPrefix(name, "objects nodes") {
				delete(got, name)
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("there is\n%v, want\n%v", got, want)
		}
		if w.LastSync().IsZero() || len(w.Events()) != 1 {
			t.Errorf("last sync %v, events %v", w.LastSync(), w.Events())
		}
	})
}

// The placeholder for the cluster takes nothing from the file.
func TestPending(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		base := mustParse(t, text)
		r := Pending(base)
		var got []string
		for _, route := range r.Routes {
			got = append(got, route.Name+" "+route.TLSPolicy)
			if len(route.Hosts)+len(route.Paths) > 0 {
				t.Errorf("%s is for some only", route.Name)
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s has %q, want %q", text, got, want)
		}
		if c := r.Merge(base, nil); len(c.Routes) != len(base.Routes)+len(want) || len(c.Backends) != len(base.Backends)+1 {
			t.Errorf("merged there is %s", file.Effective(c))
		}
	}
	const listeners = "listeners: {web: {address: ':80', protocol: http}, websecure: {address: ':443', protocol: tls}}\nkubernetes: {}\ncertificates: [{self_signed: {hosts: [a.example]}}]\n"
	f(listeners, "kubernetes/web default", "kubernetes/websecure default")
	f(listeners+"backends: {a: {endpoints: ['a:1']}}\nroutes: [{listeners: [web], backend: a}]\n", "kubernetes/websecure default")
	f(listeners+"backends: {a: {endpoints: ['a:1']}}\nroutes: [{listeners: [web, websecure], hosts: [a.example], backend: a}]\n", "kubernetes/web default", "kubernetes/websecure default")
	f(listeners+"backends: {a: {endpoints: ['a:1'], protocol: tcp}}\nroutes: [{listeners: [websecure], tls: passthrough, backend: a}]\n", "kubernetes/web default")
	f(listeners+"tls_policies: {old: {min_version: '1.0'}}\nbackends: {a: {endpoints: ['a:1']}}\nroutes: [{listeners: [websecure], paths: [/a], tls_policy: old, backend: a}]\n",
		"kubernetes/web default", "kubernetes/websecure old")
	f("listeners: {a: {address: ':80', protocol: http}, b: {address: ':81', protocol: http}}\nkubernetes: {listeners: [b]}\nbackends: {a: {endpoints: ['a:1']}}\nroutes: [{listeners: [a], backend: a}]\n", "kubernetes/b default")
}
