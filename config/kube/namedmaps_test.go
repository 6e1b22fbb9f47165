package kube

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/weirproxy/weir/config/kube/controller"
	"github.com/weirproxy/weir/config/kube/event"
)

const headersConfig = `
listeners: {web: {address: ":80", protocol: http}}
kubernetes: {class: weir, ingress_nginx: {config_map: default/controller}}
`

const headersObjects = `
{apiVersion: v1, kind: ConfigMap, metadata: {name: controller}, data: {global-allowed-response-headers: "X-A,X-B"}}
---
{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 80}]}}
---
`

// namingMap is an Ingress with custom-headers.
func namingMap(name, configMap string) string {
	return fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: %s, annotations: {nginx.ingress.kubernetes.io/custom-headers: default/%s}}, spec: {ingressClassName: weir, rules: [{host: %s.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}}]}}`, name, configMap, name)
}

// authenticated is an Ingress with auth-proxy-set-headers.
func authenticated(name, configMap string) string {
	return strings.Replace(namingMap(name, configMap), "nginx.ingress.kubernetes.io/custom-headers", `nginx.ingress.kubernetes.io/auth-url: "http://auth.shop.svc/check", nginx.ingress.kubernetes.io/auth-proxy-set-headers`, 1)
}

// headersIn are the HTTP headers that a routing sets, and the reason of a closed route.
func headersIn(r *Routing) string {
	var all []string
	for _, one := range r.Routes {
		switch {
		case one.Closure != nil:
			all = append(all, "closed")
		case one.Response == nil:
			all = append(all, "none")
		default:
			for _, h := range one.Response.Set {
				all = append(all, h.Name+"="+string(h.Value))
			}
		}
	}
	return strings.Join(all, " ")
}

// A change of a ConfigMap that an annotation names takes effect, and so does its removal. The first routes
// have its HTTP headers: weir does not serve requests without them for a moment.
func TestNamedMapsAreFollowed(t *testing.T) {
	const first = `{apiVersion: v1, kind: ConfigMap, metadata: {name: headers}, data: {X-A: "1"}}`
	observe(t, headersConfig, headersObjects+namingMap("web", "headers")+"\n---\n"+first, func(t *testing.T, w *watched) {
		f := func(want string) {
			t.Helper()
			if c := w.one(t); c.Routing == nil || headersIn(c.Routing) != want {
				t.Fatalf("the routing is %+v, want %s", c.Routing, want)
			}
		}
		f("X-A=1")
		w.put(`{apiVersion: v1, kind: ConfigMap, metadata: {name: headers}, data: {X-A: "2", X-B: "3"}}`)
		f("X-A=2 X-B=3")
		w.put(`{apiVersion: v1, kind: ConfigMap, metadata: {name: headers}, data: {X-C: "2"}}`)
		f("closed")
		w.put(first)
		f("X-A=1")
		w.remove(first)
		f("closed")
		w.put(namingMap("web", "other") + "\n---\n" + strings.ReplaceAll(first, "headers", "other"))
		f("X-A=1")
		asked := w.selectionsOf(namedMaps)
		if len(asked) != 2 || asked[0].Namespace != "default" || asked[0].Fields != "metadata.name=headers" {
			t.Errorf("weir watches %+v", asked)
		}
		if n := len(w.named.known()); n != 1 {
			t.Errorf("%d ConfigMaps are watched in the end", n)
		}
	})
}

// Without the right to read the ConfigMap, weir serves the Ingress without its HTTP headers, and says so in an
// event. It is no trouble with the cluster. When somebody grants the right, the HTTP headers take effect.
func TestNamedMapsWithoutARight(t *testing.T) {
	const headers = `{apiVersion: v1, kind: ConfigMap, metadata: {name: headers}, data: {X-A: "1"}}`
	observe(t, headersConfig, headersObjects+headers, func(t *testing.T, w *watched) {
		w.one(t)
		w.mu.Lock()
		w.server.mu.Lock()
		w.refused[namedMaps] = apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "headers", nil)
		w.server.mu.Unlock()
		w.mu.Unlock()
		w.put(namingMap("web", "headers"))
		c := w.latest(t)
		if headersIn(c) != "none" || len(c.Events) != 1 || c.Events[0].Reason != event.ReasonUndone || !strings.Contains(c.Events[0].Message, "list and watch") {
			t.Errorf("without the right the routing is %s, and has the events %v", headersIn(c), c.Events)
		}
		w.mu.Lock()
		if len(w.troubles) > 0 {
			t.Errorf("weir reports %v", w.troubles)
		}
		w.mu.Unlock()
		w.server.mu.Lock()
		delete(w.refused, namedMaps)
		w.server.mu.Unlock()
		time.Sleep(time.Minute) // weir asks again after some time
		if c := w.latest(t); headersIn(c) != "X-A=1" || len(c.Events) > 0 {
			t.Errorf("with the right the routing is %s, and has the events %v", headersIn(c), c.Events)
		}
	})
}

// auth-proxy-set-headers closes its Ingress while weir cannot read the ConfigMap. A change takes effect.
func TestNamedMapsOfAuthentication(t *testing.T) {
	const headers = `{apiVersion: v1, kind: ConfigMap, metadata: {name: headers}, data: {X-A: "1"}}`
	web := authenticated("web", "headers")
	observe(t, plainConfig, headersObjects+web+"\n---\n"+headers, func(t *testing.T, w *watched) {
		f := func(r *Routing, want string) {
			t.Helper()
			got := "none"
			if r.Routes[0].Closure != nil {
				got = "closed"
			} else if auth := r.Merge(w.converter.File, nil).Auth; len(auth) == 1 {
				got = ""
				for _, h := range auth[0].Subrequest.Add[1:] {
					got += h.Name + "=" + string(h.Value)
				}
			}
			if got != want {
				t.Fatalf("the server gets %s, want %s; %v", got, want, r.Events)
			}
		}
		f(w.one(t).Routing, "X-A=1")
		w.put(strings.Replace(headers, `"1"`, `"2"`, 1))
		f(w.one(t).Routing, "X-A=2")
		w.remove(headers)
		f(w.one(t).Routing, "closed")
		w.mu.Lock()
		w.server.mu.Lock()
		w.refused[namedMaps] = apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "other", nil)
		w.server.mu.Unlock()
		w.mu.Unlock()
		w.put(strings.ReplaceAll(web, "default/headers", "default/other") + "\n---\n" + strings.ReplaceAll(headers, "headers", "other"))
		r := w.latest(t)
		f(r, "closed")
		if len(r.Events) != 1 || r.Events[0].Reason != event.ReasonAccess || !strings.Contains(r.Events[0].Message, "list and watch") {
			t.Errorf("without the right there are the events %v", r.Events)
		}
	})
}

// The number of watches is limited. The ConfigMaps of keys come first, and then those of the oldest Ingresses.
func TestNamedMapsAreLimited(t *testing.T) {
	naming := func(i int) string {
		return strings.Replace(namingMap(fmt.Sprintf("web-%03d", i), fmt.Sprintf("headers-%03d", i)), "metadata: {", `metadata: {creationTimestamp: "2026-01-01T00:00:00Z", `, 1)
	}
	objects := strings.Replace(headersObjects, ", data: {", ", data: {proxy-set-headers: default/requests, ", 1) + "{apiVersion: v1, kind: ConfigMap, metadata: {name: requests}, data: {X-By: weir}}\n---\n"
	for i := range mostNamed + 1 {
		objects += naming(i) + "\n---\n"
	}
	observe(t, headersConfig, objects, func(t *testing.T, w *watched) {
		f := func(c *Routing, without int) {
			t.Helper()
			if got := headersIn(c); strings.Count(got, "none") != without || strings.Count(got, "closed") != len(c.Routes)-without {
				t.Errorf("want %d routes that weir serves without a ConfigMap, and others that wait for one, got %.300s\n%v", without, got, c.Events[len(c.Events)-2:])
			}
			if last := c.Events[len(c.Events)-1]; !strings.Contains(last.Message, manyNamed) {
				t.Errorf("of the ConfigMaps without a watch, the events say %q", last.Message)
			}
		}
		f(w.one(t).Routing, 2)
		if n := len(w.selectionsOf(namedMaps)); n != mostNamed {
			t.Errorf("%d ConfigMaps are watched", n)
		}
		w.put(naming(mostNamed + 1)) // without a new watch
		f(w.latest(t), 3)
		w.remove(naming(0))
		f(w.latest(t), 2)
	})
}

// A ConfigMap that weir could not read at first may not exist: then the event says so. Without an Ingress that names
// it, weir does not watch it, and a failure is no trouble any more.
func TestNamedMapsThatFail(t *testing.T) {
	web := authenticated("web", "missing")
	observe(t, plainConfig, "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 80}]}}", func(t *testing.T, w *watched) {
		says := func(want string) {
			t.Helper()
			if c := w.latest(t); headersIn(c) != "closed" || len(c.Events) != 1 || !strings.Contains(c.Events[0].Message, want) {
				t.Errorf("the routing is %s, with the events %v, want %q", headersIn(c), c.Events, want)
			}
		}
		fail := func(err error) {
			w.server.mu.Lock()
			w.refused[namedMaps] = err
			w.server.mu.Unlock()
			w.of(namedMaps).ResetWatch()
		}
		troubles := func() (n, answers int) {
			w.mu.Lock()
			defer w.mu.Unlock()
			n, answers = len(w.troubles), w.answers
			w.troubles = nil
			return n, answers
		}
		w.one(t)
		fail(errors.New("the API server is away"))
		w.put(web)
		time.Sleep(namedPatience)
		says("has not read the ConfigMap default/missing yet")
		if n, _ := troubles(); n == 0 {
			t.Error("the failure is no trouble")
		}
		fail(nil)
		time.Sleep(time.Minute) // weir asks again after some time
		says("does not exist")

		fail(errors.New("the API server is away"))
		time.Sleep(time.Minute)
		n, before := troubles()
		if n == 0 {
			t.Error("the second failure is no trouble")
		}
		w.remove(web)
		w.latest(t)
		troubles()
		time.Sleep(10 * time.Minute)
		if n, answers := troubles(); n > 0 || answers != before+1 {
			t.Errorf("after the Ingress there are %d troubles, and %d answers after %d", n, answers, before)
		}
	})
}

// selectionsOf returns what a Source asked for.
func (s *server) selectionsOf(kind Kind) []Selection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[kind]
}

// A brace in a ConfigMap of HTTP headers is text: no variable of weir begins there. A ConfigMap with more than 16 KiB
// closes the Ingress, wherever it was read.
func TestHeadersOfConfigMap(t *testing.T) {
	data := map[string]string{"X-Text": " $host {host} {{x}} ", "X-Other": "dropped"}
	edits, _, err := headersOf(&corev1.ConfigMap{Data: data}, []string{" X-Text", "X-Other "})
	if err != nil || len(edits.Set) != 2 || edits.Set[1].Value != "$host {{host} {{{{x}}" {
		t.Errorf("%+v, %v", edits, err)
	}
	data["X-Other"] = strings.Repeat("a", maxHeaders)
	if _, _, err := headersOf(&corev1.ConfigMap{Data: data}, []string{"X-Text", "X-Other"}); err == nil || !strings.Contains(err.Error(), "has more than 16384 bytes") {
		t.Errorf("a large ConfigMap: %v", err)
	}
}

// The keys of ingress-nginx's ConfigMap come before Ingresses.
func TestNamedMapsOfKeysAndObjects(t *testing.T) {
	m := mustRead(t, namingMap("web", "headers"))
	got := m.NamedMaps(controller.Read(map[string]string{"proxy-set-headers": "ns/requests", "add-headers": "ns/responses"}))
	if want := "[ns/requests ns/responses default/headers]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}
