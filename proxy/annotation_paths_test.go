package proxy

import (
	"strings"
	"testing"
)

// Regular expressions of ingress-nginx, and the new paths of requests, through the conversion and
// the data path.
func TestIngressPatterns(t *testing.T) {
	i := newIngressRig(t, "", ingress("shop/api", 2, "a.example ImplementationSpecific /api(/|$)(.*) api, a.example ImplementationSpecific /v[0-9]+/(.*) api", "use-regex: true", "rewrite-target: /$2")+
		ingress("shop/web", 1, "a.example Prefix / web, a.example Exact /exact web, a.example Prefix /deep/er.html web")+
		ingress("shop/strip", 3, "b.example Prefix /app app", "rewrite-target: /")+
		ingress("shop/cafe", 4, "b.example ImplementationSpecific /caf\u00e9(/.*)? cafe", "rewrite-target: /menu$1")+
		ingress("shop/plain", 5, "x.c.example Prefix /Api api", "use-regex: false"))
	for request, want := range map[string]string{
		"/":                     "web GET /",
		"/api":                  "api GET /",
		"/api/":                 "api GET /",
		"/api/a/b?c=/d":         "api GET /a/b?c=/d",
		"/API/A":                "api GET /A",    // expressions ignore case
		"/apis":                 "web GET /apis", // (/|$)
		"/x/api/y":              "web GET /x/api/y",
		"/v1/x":                 "api GET /", // $2 is a group that the expression does not have
		"/vx/x":                 "web GET /vx/x",
		"/exact":                "web GET /exact",
		"/exactly":              "web GET /exactly",
		"/deep/erxhtml":         "web GET /deep/erxhtml", // the paths of other Ingresses are expressions as well
		"/%61pi/x":              "api GET /x",
		"//api//a%20b%2F":       "api GET /a%20b/", // nginx decodes the path, and encodes what it changed
		"/api/%41%3f%25%22?%41": "api GET /A%3F%25%22?%41",
		"/api//x":               "api GET /x",
	} {
		if got := i.ask("GET http://a.example" + request).short(); got != want {
			t.Errorf("%s: %q, want %q", request, got, want)
		}
	}
	for request, want := range map[string]string{
		"b.example/app":               "app GET /",
		"b.example/app/x?y":           "app GET /?y", // a target without groups replaces the whole path
		"b.example/application":       "app GET /",
		"b.example/caf%c3%a9":         "cafe GET /menu",
		"b.example/caf%C3%A9/t%C3%A9": "cafe GET /menu/t%C3%A9",
		"b.example/x":                 "404",
		"x.c.example/Api":             "api GET /Api",
		"x.c.example/api":             "404", // no Ingress of this host has expressions
	} {
		if got := i.ask("GET http://" + request).short(); got != want {
			t.Errorf("%s: %q, want %q", request, got, want)
		}
	}
}

// An expression of one namespace does not change what paths of another one mean, and does not take
// the requests of an older one.
func TestPatternsOfNamespaces(t *testing.T) {
	f := func(manifests string, want map[string]string) {
		t.Helper()
		t.Run("", func(t *testing.T) {
			i := newIngressRig(t, "", manifests)
			for request, want := range want {
				if got := i.ask("GET http://a.example" + request).first; !strings.HasPrefix(got, want+" ") && got != want {
					t.Errorf("%s: %q, want %q\n%s", request, got, want, manifests)
				}
			}
		})
	}
	// Paths are tried in the order of their lengths, whoever has them.
	f(ingress("one/api", 1, "a.example Prefix /api one")+ingress("two/api", 2, "a.example ImplementationSpecific /api/v2(/|$)(.*) two", "use-regex: true"),
		map[string]string{"/api": "one", "/api/v1": "one", "/api/v2/x": "two", "/API": "no route matches the host and path", "/apis": "no route matches the host and path"})
	f(ingress("one/api", 2, "a.example Prefix /api one")+ingress("two/api", 1, "a.example ImplementationSpecific /api/v2(/|$)(.*) two", "use-regex: true"),
		map[string]string{"/api": "one", "/api/v1": "one", "/api/v2/x": "two"})
	// A younger expression takes no path of an older Ingress of another namespace.
	f(ingress("one/all", 1, "a.example Prefix / one")+ingress("two/all", 2, "a.example ImplementationSpecific /(.*) two", "use-regex: true"),
		map[string]string{"/": "one", "/x": "one"})
	f(ingress("one/api", 1, "a.example Prefix /api one, a.example Exact /app one")+ingress("two/all", 2, "a.example ImplementationSpecific /(ap).*.*.*.* two, a.example ImplementationSpecific /two/.* two", "use-regex: true"),
		map[string]string{"/api": "one", "/api/x": "one", "/app": "one", "/two/x": "two", "/apx": "two"})
	f(ingress("one/all", 1, "a.example ImplementationSpecific /api/(a|b).* one", "use-regex: true")+ingress("two/all", 2, "a.example ImplementationSpecific /api(/|$)(.*)(.*)(.*) two", "use-regex: true"),
		map[string]string{"/api/a": "one", "/api/bc": "one"})
	// Of one namespace nginx's order counts.
	f(ingress("one/all", 1, "a.example Prefix / one")+ingress("one/more", 2, "a.example ImplementationSpecific /(.*) two", "use-regex: true"),
		map[string]string{"/x": "two"})
}

// A dollar of an expression also matches before an encoded line feed at the end of a path, as in nginx. So such a path
// does not lead around a list of clients.
func TestGuardedExpressionsEnd(t *testing.T) {
	i := newIngressRig(t, "", ingress("shop/admin", 1, "a.example ImplementationSpecific /admin$ admin, a.example ImplementationSpecific /metrics(/|$)(.*) admin", "use-regex: true", "whitelist-source-range: 192.0.2.1")+
		ingress("shop/web", 2, "a.example Prefix / web"))
	for path, want := range map[string]string{"/admin": "403", "/admin%0a": "403", "/ADMIN%0A": "403", "/metrics%0a": "403", "/admin%0a%0a": "web GET /admin%0a%0a", "/admin/x": "web GET /admin/x"} {
		if got := i.ask("GET http://a.example" + path).short(); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
