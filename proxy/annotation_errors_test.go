package proxy

import (
	"strings"
	"testing"
)

// The default backend gets what ingress-nginx sends it, and its response replaces the error.
func TestIngressErrors(t *testing.T) {
	i := newIngressRig(t, "", ingress("a/all", 1, "all.test Prefix / app, all.test Prefix /closed app", "custom-http-errors: 404,413,503", "default-backend: errors", "proxy-body-size: 1")+
		ingress("a/own", 1, "own.test Prefix / app", "custom-http-errors: 404,413", "disable-proxy-intercept-errors: true", "default-backend: errors", "proxy-body-size: 1")+
		ingress("a/nobody", 1, "nobody.test Prefix / app", "custom-http-errors: 404")+
		ingress("a/errors", 1, "errors.test Prefix / errors"))
	for request, want := range map[string]string{
		"GET http://all.test/x?y=z":                      "200 app GET /x?y=z",
		"GET http://all.test/x?y=z\nWant-Status: 404":    "404 errors GET /?y=z",
		"GET http://all.test/x\nWant-Status: 500":        "500 app GET /x",
		"GET http://all.test/x\nContent-Length: 2\n\nxx": "200 errors GET /",
		"GET http://own.test/x\nWant-Status: 404":        "404 app GET /x",
		"GET http://own.test/x\nContent-Length: 2\n\nxx": "200 errors GET /",
		"GET http://nobody.test/x\nWant-Status: 404":     "404 app GET /x",
		"HEAD http://all.test/x\nWant-Status: 404":       "404 ",
	} {
		a := i.ask(request)
		if got := strings.TrimPrefix(a.Status, "HTTP/1.1 ")[:4] + a.first; got != want {
			t.Errorf("%s: %q, want %q", request, got, want)
		}
	}
	got := i.ask("GET http://all.test/x?y\nWant-Status: 404\nAccept: text/html\nX-Code: forged\nX_Namespace: forged\nCookie: a=b\nContent-Type: text/css\nX-Forwarded-For: 192.0.2.1").body
	for _, line := range []string{"Host: all.test", "X-Code: 404", "X-Format: text/html", "X-Original-Uri: /x?y", "X-Namespace: a", "X-Ingress-Name: all", "X-Service-Name: app", "X-Service-Port: 80", "Cookie: a=b", "X-Forwarded-For: 127.0.0.1", "X-Request-Id: "} {
		if strings.Count(got, "\n"+line) != 1 {
			t.Errorf("no %q in\n%s", line, got)
		}
	}
	for _, text := range []string{"forged", "text/css", "192.0.2.1"} {
		if strings.Contains(got, text) {
			t.Errorf("there is %q in\n%s", text, got)
		}
	}
}
