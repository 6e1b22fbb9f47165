package proxy

import (
	"fmt"
	"strings"
	"testing"
)

// canaryManifests are a main Ingress and a canary with these annotations. The canary is the older one.
func canaryManifests(annotations ...string) string {
	return ingress("a/main", 2, "foo.test Prefix /info main") + ingress("a/canary", 1, "foo.test Prefix /info alt", append(annotations, "canary: true")...)
}

// The cases of ingress-nginx's test/e2e/annotations/canary.go. TestIngressAffinityOfCanaries has those about affinity.
func TestIngressCanaries(t *testing.T) {
	f := func(name string, annotations []string, want map[string]string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			t.Helper()
			i := newIngressRig(t, "", canaryManifests(annotations...))
			for headers, want := range want {
				if got, _, _ := strings.Cut(i.ask("GET http://foo.test/info\n"+headers).short(), " "); got != want {
					t.Errorf("with %q the request goes to %q, want %q", headers, got, want)
				}
			}
		})
	}
	header := "canary-by-header: CanaryByHeader"
	f("by header", []string{header}, map[string]string{"": "main", "CanaryByHeader: always": "alt", "canarybyheader: always": "alt", "CanaryByHeader: never": "main", "CanaryByHeader: badheadervalue": "main"})
	f("by header and value", []string{header, "canary-by-header-value: DoCanary"}, map[string]string{"CanaryByHeader: DoCanary": "alt",
		"CanaryByHeader: always": "main", "CanaryByHeader: never": "main", "CanaryByHeader: otherheadervalue": "main"})
	f("by header and pattern", []string{header, "canary-by-header-pattern: ^Do[A-Z][a-z]+y$"}, map[string]string{"CanaryByHeader: DoCanary": "alt", "CanaryByHeader: Docanary": "main"})
	f("by a part of a header", []string{header, "canary-by-header-pattern: anar"}, map[string]string{"CanaryByHeader: DoCanary": "alt", "CanaryByHeader: always": "main"})
	f("the value goes before the pattern", []string{header, "canary-by-header-value: DoCanary", "canary-by-header-pattern: ^Do[A-Z][a-z]+y$"}, map[string]string{"CanaryByHeader: DoCananry": "main"})
	f("an invalid pattern", []string{header, "canary-by-header-pattern: [][**da?$&*", "canary-by-cookie: CanaryByCookie"},
		map[string]string{"CanaryByHeader: DoCanary\nCookie: CanaryByCookie=always": "main", "Cookie: CanaryByCookie=always": "alt"})
	f("by header and cookie", []string{header, "canary-by-header-value: DoCanary", "canary-by-cookie: CanaryByCookie"},
		map[string]string{"CanaryByHeader: otherheadervalue\nCookie: CanaryByCookie=always": "alt"})
	f("the header goes before the cookie", []string{header, "canary-by-cookie: c", "canary-weight: 100"},
		map[string]string{"CanaryByHeader: never\nCookie: c=always": "main", "CanaryByHeader: always\nCookie: c=never": "alt", "CanaryByHeader: x\nCookie: c=never": "main", "Cookie: c=x": "alt"})
	f("by cookie", []string{"canary-by-cookie: Canary-By-Cookie"}, map[string]string{"Cookie: Canary-By-Cookie=always": "alt", "Cookie: a=b; Canary-By-Cookie=never": "main", "Cookie: Canary-By-Cookie=badcookievalue": "main"})
	f("weight 0", []string{"canary-weight: 0"}, map[string]string{"": "main"})
	f("weight 100", []string{"canary-weight: 100"}, map[string]string{"": "alt"})
	f("weight 1000 of 1000", []string{"canary-weight: 1000", "canary-weight-total: 1000"}, map[string]string{"": "alt"})
	f("more than all", []string{"canary-weight: 200"}, map[string]string{"": "alt"})
	f("no weight that is a number", []string{"canary-weight: many", "canary-weight-total: all"}, map[string]string{"": "main"})
}

func TestIngressCanaryWeights(t *testing.T) {
	for _, weights := range [][3]int{{50, 100, 100}, {100, 200, 100}, {1, 100, 2}, {50, 50, 100}, {5, 1000, 1}} { // a total below 100 counts as 100
		i := newIngressRig(t, "", canaryManifests(fmt.Sprint("canary-weight: ", weights[0]), fmt.Sprint("canary-weight-total: ", weights[1])))
		got := 0
		for range 200 {
			if strings.HasPrefix(i.ask("GET http://foo.test/info").first, "alt") {
				got++
			}
		}
		if got != weights[2] {
			t.Errorf("weight %d of %d: %d of 200 requests go to the canary", weights[0], weights[1], got)
		}
	}
}

func TestIngressCanaryWithoutMain(t *testing.T) {
	i := newIngressRig(t, "", ingress("a/canary", 1, "foo.test Prefix /info alt", "canary: true", "canary-by-header: x")+
		ingress("b/main", 2, "bar.test Prefix /info main")+ingress("a/elsewhere", 1, "bar.test Prefix /info alt", "canary: true", "canary-weight: 100")+
		ingress("c/main", 2, "x.c.example Prefix /info main, x.c.example Exact /exact main")+ingress("c/unready", 1, "x.c.example Prefix /info empty", "canary: true", "canary-weight: 100")+
		ingress("c/type", 1, "x.c.example Prefix /exact alt, x.c.example Prefix /info/ alt", "canary: true", "canary-weight: 100"))
	for request, want := range map[string]string{
		"http://foo.test/info\nx: always": "404",
		"http://bar.test/info":            "main GET /info",  // a canary of another namespace
		"http://x.c.example/info":         "main GET /info",  // without an endpoint of the canary
		"http://x.c.example/exact":        "main GET /exact", // another pathType
	} {
		if got := i.ask("GET " + request).short(); got != want {
			t.Errorf("%s: %q, want %q", request, got, want)
		}
	}
}

// The objects change while weir runs, in any order.
func TestIngressCanaryChanges(t *testing.T) {
	by := func(header string) string { return canaryManifests("canary-by-header: " + header) }
	onlyMain := ingress("a/main", 2, "foo.test Prefix /info main")
	i := newIngressRig(t, "", onlyMain)
	check := func(step, header, always, never string) {
		t.Helper()
		for value, want := range map[string]string{"always": always, "never": never} {
			if got, _, _ := strings.Cut(i.ask("GET http://foo.test/info\n"+header+": "+value).short(), " "); got != want {
				t.Errorf("%s: with %s the request goes to %q, want %q", step, value, got, want)
			}
		}
	}
	check("without a canary", "CanaryByHeader", "main", "main")
	i.change(by("CanaryByHeader"))
	check("the main Ingress was first", "CanaryByHeader", "alt", "main")
	i.change(strings.Replace(by("CanaryByHeader"), "annotations: {", `annotations: {foo: "bar", `, 1))
	check("the main Ingress changes", "CanaryByHeader", "alt", "main")
	i.change(by("CanaryByHeader2"))
	check("the canary changes", "CanaryByHeader2", "alt", "main")
	check("the canary has changed", "CanaryByHeader", "main", "main")
	i.change(strings.TrimPrefix(by("CanaryByHeader"), onlyMain))
	check("without a main Ingress", "CanaryByHeader", "404", "404")
	i.change(by("CanaryByHeader"))
	check("the canary was first", "CanaryByHeader", "alt", "main")
}

// A canary is no default backend of its own, and a path without a main path has no effect.
func TestIngressCanaryAlone(t *testing.T) {
	everything := func(name, service string, age int, annotation string) string {
		return strings.Replace(ingress(name, age, "- Prefix / "+service, annotation), "rules: [{host: \"\", http: {paths: [{pathType: Prefix, path: \"/\", backend: {service: {name: "+service+", port: {number: 80}}}}]}},]",
			"defaultBackend: {service: {name: "+service+", port: {number: 80}}}", 1)
	}
	canary := everything("a/canary", "alt", 1, "canary: true")
	i := newIngressRig(t, "", canary)
	f := func(step, request, want string) {
		t.Helper()
		if got := i.ask("GET " + request).short(); got != want {
			t.Errorf("%s: %s: %q, want %q", step, request, got, want)
		}
	}
	f("a canary alone", "http://foo.test/info", "404")
	i.change(canary + everything("a/main", "main", 2, "canary: false"))
	f("beside a default backend", "http://foo.test/info", "main GET /info")
	i.change(ingress("a/canary", 1, "foo.test Prefix /foo alt, foo.test Prefix /bar alt", "canary: true", "canary-by-header: CanaryByHeader") + ingress("a/main", 2, "foo.test Prefix /info main"))
	for path, want := range map[string]string{"/info": "main GET /info", "/foo": "404", "/bar": "404"} {
		f("paths of nobody", "http://foo.test"+path+"\nCanaryByHeader: always", want)
	}
}
