package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/weirproxy/weir/config/kube/event"
)

const keysObjects = `
{apiVersion: v1, kind: ConfigMap, metadata: {name: controller}, data: {proxy-set-headers: default/requests, add-headers: default/responses}}
---
{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 80}]}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: web}, spec: {ingressClassName: weir, rules: [{host: web.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}}]}}
---
`

// keyMap is a ConfigMap with one HTTP header.
func keyMap(name, header, value string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s}, data: {%s: %q}}", name, header, value)
}

// scriptIn are the directives of the only route.
func scriptIn(t *testing.T, r *Routing) string {
	t.Helper()
	if len(r.Routes) != 1 {
		t.Fatalf("there are %d routes", len(r.Routes))
	}
	switch one := r.Routes[0]; {
	case one.Closure != nil:
		return "closed"
	case one.Script == nil:
		return "none"
	default:
		return strings.ReplaceAll(one.Script.Host+one.Script.Location, "\n", "")
	}
}

// A key names a ConfigMap. Its HTTP headers are in the first routes. A change of the ConfigMap takes effect, and so does
// another name. A deleted ConfigMap keeps its last state.
func TestKeyHeadersAreFollowed(t *testing.T) {
	const response = `more_set_headers "X-B: b";`
	observe(t, headersConfig, keysObjects+keyMap("requests", "X-A", "1")+"\n---\n"+keyMap("responses", "X-B", "b"), func(t *testing.T, w *watched) {
		f := func(want string) {
			t.Helper()
			if c := w.one(t); c.Routing == nil || scriptIn(t, c.Routing) != want {
				t.Fatalf("the routing is %+v, want %s", c.Routing, want)
			}
		}
		f(response + `proxy_set_header X-A "1";`)
		w.put(keyMap("requests", "X-A", "2"))
		f(response + `proxy_set_header X-A "2";`)
		w.put(keyMap("requests", "X-A", "a\u00ad\"\\é"))
		f(response + "proxy_set_header X-A \"a\u00ad\\\"\\\\é\";")
		w.put(keyMap("requests", "X-A", "$nothing"))
		f("closed")
		w.put(keyMap("requests", "X-A", strings.Repeat("a", maxHeaders)))
		if r := w.latest(t); scriptIn(t, r) != "closed" || !strings.Contains(fmt.Sprint(r.Events), "has more than 16384 bytes") {
			t.Errorf("with a large ConfigMap there is %s, and the events %v", scriptIn(t, r), r.Events)
		}
		w.put(keyMap("requests", "X-A", "3"))
		f(response + `proxy_set_header X-A "3";`)
		w.put(keyMap("responses", "X-B", "$nothing"))
		f(`proxy_set_header X-A "3";`)
		w.put(keyMap("responses", "X-B", "b"))
		f(response + `proxy_set_header X-A "3";`)
		w.remove(keyMap("requests", "X-A", "3"))
		r := w.one(t).Routing // the routes are the same, and there is an event
		if scriptIn(t, r) != response+`proxy_set_header X-A "3";` || len(r.Events) != 1 || !strings.Contains(r.Events[0].Message, "weir uses the last state of the ConfigMap default/requests") {
			t.Errorf("after the deletion there is %s, and the events %v", scriptIn(t, r), r.Events)
		}
		w.put(keyMap("requests", "X-A", "4"))
		f(response + `proxy_set_header X-A "4";`)
		w.put(keyMap("other", "X-C", "c") + "\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: controller}, data: {proxy-set-headers: default/other}}")
		f(`proxy_set_header X-C "c";`)
		if n := len(w.named.known()); n != 1 {
			t.Errorf("%d ConfigMaps are watched in the end", n)
		}
		w.put("{apiVersion: v1, kind: ConfigMap, metadata: {name: controller}, data: {}}")
		f("none")
	})
}

// Without the ConfigMap of proxy-set-headers, or the right to read it, weir closes the Ingress, and says so. add-headers
// closes nothing.
func TestKeyHeadersAreMissing(t *testing.T) {
	observe(t, headersConfig, keysObjects, func(t *testing.T, w *watched) {
		tells := func(r *Routing, reason event.Reason, kind, part string) {
			t.Helper()
			for _, e := range r.Events {
				if e.Reason == reason && e.Object.Kind == kind && strings.Contains(e.Message, part) {
					return
				}
			}
			t.Errorf("there is no event %s on the %s with %q: %v", reason, kind, part, r.Events)
		}
		r := w.one(t).Routing
		if scriptIn(t, r) != "closed" {
			t.Errorf("without the ConfigMap there is %s", scriptIn(t, r))
		}
		tells(r, event.ReasonAccess, "Ingress", "because applications may trust HTTP headers that only the proxy sets: the ConfigMap default/requests, which proxy-set-headers of ingress-nginx's ConfigMap names, does not exist; create it")
		tells(r, event.ReasonAccess, "ConfigMap", "All paths of all Ingresses answer 503")
		tells(r, event.ReasonUndone, "ConfigMap", "weir sets no HTTP headers of add-headers: the ConfigMap default/responses")
		w.mu.Lock()
		w.server.mu.Lock()
		w.refused[namedMaps] = apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "other", nil)
		w.server.mu.Unlock()
		w.mu.Unlock()
		w.put("{apiVersion: v1, kind: ConfigMap, metadata: {name: controller}, data: {proxy-set-headers: default/other}}\n---\n" + keyMap("other", "X-A", "1"))
		r = w.latest(t)
		if scriptIn(t, r) != "closed" {
			t.Errorf("without the right there is %s", scriptIn(t, r))
		}
		tells(r, event.ReasonAccess, "Ingress", "weir may not list and watch it")
		w.server.mu.Lock()
		delete(w.refused, namedMaps)
		w.server.mu.Unlock()
		time.Sleep(time.Minute) // client-go asks again after some time
		if r := w.latest(t); scriptIn(t, r) != `proxy_set_header X-A "1";` || len(r.Events) > 0 {
			t.Errorf("with the right there is %s, and the events %v", scriptIn(t, r), r.Events)
		}
	})
}

// The ConfigMaps of keys come before those of all Ingresses, of which weir watches a limited number.
func TestKeyHeadersComeFirst(t *testing.T) {
	objects := keysObjects + keyMap("requests", "X-A", "1") + "\n---\n"
	for i := range mostNamed + 2 {
		older := namingMap(fmt.Sprintf("a-%03d", i), fmt.Sprintf("a-%03d", i))
		objects += strings.Replace(older, "metadata: {", "metadata: {creationTimestamp: '2020-01-01T00:00:00Z', ", 1) + "\n---\n"
	}
	observe(t, headersConfig, objects, func(t *testing.T, w *watched) {
		for _, r := range w.one(t).Routing.Routes {
			if r.Ingress == "web" && (r.Closure != nil || r.Script == nil) {
				t.Errorf("the route %s is closed by %+v, and its script %v", r.Name, r.Closure, r.Script)
			}
		}
	})
}
