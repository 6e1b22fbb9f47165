package proxy

import (
	"strings"
	"testing"
)

// The cases of ingress-nginx's test/e2e/annotations/upstreamvhost.go and xforwardedprefix.go, and of backendprotocol.go
// for AUTO_HTTP.
func TestIngressForward(t *testing.T) {
	i := newIngressRig(t, "", ingress("a/vhost", 1, "vhost.test Prefix / app", "upstream-vhost: upstreamvhost.bar.com")+
		ingress("a/names", 1, "names.test Prefix / app", "upstream-vhost: $service_name.$namespace.svc:$service_port", "rewrite-target: /new")+
		ingress("a/prefix", 1, "prefix.test Prefix /x app", "x-forwarded-prefix: /test/value", "rewrite-target: /foo")+
		ingress("a/norewrite", 1, "norewrite.test Prefix / app", "x-forwarded-prefix: /test/value")+
		ingress("a/empty", 1, "empty.test Prefix /x app", "x-forwarded-prefix: ", "rewrite-target: /foo")+
		ingress("a/auto", 1, "a.example Prefix / app, a.example Prefix /gone empty", "backend-protocol: auto_http", "default-backend: errors")+ingress("a/errors", 1, "errors.test Prefix / errors"))
	for request, want := range map[string][]string{
		"http://vhost.test/":                              {"app GET /\n", "\nHost: upstreamvhost.bar.com\n", "\nX-Forwarded-Host: vhost.test\n"},
		"http://names.test/":                              {"app GET /new\n", "\nHost: app.a.svc:80\n"},
		"http://prefix.test/x\nX-Forwarded-Prefix: /evil": {"app GET /foo\n", "\nX-Forwarded-Prefix: /test/value\n"},
		"http://norewrite.test/":                          {"app GET /\n"},
		"http://empty.test/x":                             {"app GET /foo\n"},
		"http://a.example/":                               {"app GET /\n"},
		"https://a.example/":                              {"app GET / over TLS\n"},
		"http://a.example/gone":                           {"errors GET /gone\n"},
		"https://a.example/gone":                          {"errors GET /gone over TLS\n"},
	} {
		body := i.ask("GET " + request).body
		for _, line := range want {
			if !strings.Contains(body, line) {
				t.Errorf("%s: no %q in\n%s", request, line, body)
			}
		}
		if strings.Contains(body, "/evil") || strings.Contains(body, "X-Forwarded-Prefix") != strings.HasPrefix(request, "http://prefix.test") {
			t.Errorf("%s: the prefix is wrong:\n%s", request, body)
		}
	}
}
