package proxy

import (
	"strings"
	"testing"
)

// The cases of ingress-nginx's test/e2e/annotations/alias.go, and the one about aliases of affinity.go.
func TestIngressAliases(t *testing.T) {
	i := newIngressRig(t, "", ingress("a/none", 1, "none.test Prefix / app")+
		ingress("a/alias", 1, "foo.test Prefix /bar app", "server-alias: a1.foo.test, a2.foo.test,b.example", "affinity: cookie", "session-cookie-name: SERVERID", "tls: foo.test")+
		ingress("a/second", 2, "foo.test Prefix /second app")+
		ingress("a/canary", 2, "foo.test Prefix /bar alt", "canary: true", "canary-by-header: x")+
		ingress("a/named", 3, "named.test Prefix / named")+
		ingress("a/takes", 1, "takes.test Prefix / app", "server-alias: named.test,*.wild.test,a1.foo.test")+
		ingress("b/other", 2, "foo.test Prefix /other other"))
	for request, want := range map[string]string{
		"https://b.example/bar":            "app GET /bar",
		"https://b.example/second":         "app GET /second",
		"https://b.example/other":          "404", // of another namespace
		"https://b.example/bar\nx: always": "alt GET /bar",
		"http://a1.foo.test/bar":           "308 https://a1.foo.test/bar",
		"http://a2.foo.test/bar":           "308 https://a2.foo.test/bar",
		"http://a3.foo.test/bar":           "404",
		"http://none.test/":                "app GET /",
		"http://named.test/":               "named GET /", // a host with a rule is no alias
		"http://x.wild.test/":              "app GET /",
		"http://takes.test/":               "app GET /",
	} {
		if got := i.ask("GET " + request).short(); got != want {
			t.Errorf("%s: %q, want %q", request, got, want)
		}
	}
	if cookie := i.ask("GET https://b.example/bar").Header.Get("Set-Cookie"); !strings.HasPrefix(cookie, "SERVERID=") {
		t.Errorf("the alias sets the cookie %q", cookie)
	}
}
