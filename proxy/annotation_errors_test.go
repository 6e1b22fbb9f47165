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
	wantAnswers(t, i, map[string]string{
		"GET http://all.test/x?y=z":                      "200 app GET /x?y=z",
		"GET http://all.test/x?y=z\nWant-Status: 404":    "404 errors GET /?y=z",
		"GET http://all.test/x\nWant-Status: 500":        "500 app GET /x",
		"GET http://all.test/x\nContent-Length: 2\n\nxx": "200 errors GET /",
		"GET http://own.test/x\nWant-Status: 404":        "404 app GET /x",
		"GET http://own.test/x\nContent-Length: 2\n\nxx": "200 errors GET /",
		"GET http://nobody.test/x\nWant-Status: 404":     "404 app GET /x",
		"HEAD http://all.test/x\nWant-Status: 404":       "404 ",
	})
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

// The Service of kubernetes.ingress_nginx.default_backend shows the errors of an Ingress of another namespace.
func TestIngressErrorsOfAllNamespaces(t *testing.T) {
	file := strings.Replace(ingressFile, "class: weir", "class: weir, ingress_nginx: {config_map: a/controller, default_backend: web/errors}", 1)
	i := newIngressRig(t, file, ingress("a/shared", 1, "shared.test Prefix / app, shared.test Prefix /empty empty", "custom-http-errors: 404,503")+
		ingress("web/errors", 1, "errors.test Prefix / errors"))
	wantAnswers(t, i, map[string]string{
		"GET http://shared.test/x?y\nWant-Status: 404": "404 errors GET /?y",
		"GET http://shared.test/x\nWant-Status: 500":   "500 app GET /x",
		"GET http://shared.test/empty":                 "200 errors GET /",
	})
	wantLines(t, i.ask("GET http://shared.test/x\nWant-Status: 404"), "X-Code: 404", "X-Namespace: a", "X-Ingress-Name: shared", "X-Service-Name: app")
}

// A default backend without an endpoint shows no errors: the one of all Ingresses does.
func TestIngressErrorsWithoutEndpoint(t *testing.T) {
	file := strings.Replace(ingressFile, "class: weir", "class: weir, ingress_nginx: {config_map: a/controller, default_backend: web/errors}", 1)
	i := newIngressRig(t, file, ingress("a/down", 1, "down.test Prefix / app", "custom-http-errors: 404", "default-backend: empty")+
		ingress("a/up", 1, "up.test Prefix / app, empty.test Prefix / empty", "custom-http-errors: 404", "default-backend: pages")+ingress("a/pages", 1, "pages.test Prefix / pages")+
		ingress("web/errors", 1, "errors.test Prefix / errors"))
	for host, want := range map[string]string{"down.test": "errors GET /", "up.test": "pages GET /"} {
		if got := i.ask("GET http://" + host + "/x\nWant-Status: 404"); got.first != want {
			t.Errorf("%s: %q, want %q", host, got.first, want)
		}
	}
}

// The page for 401 has the challenge of the response that it replaces, as in nginx. Other statuses have none.
func TestIngressErrorsKeepChallenges(t *testing.T) {
	i := newIngressRig(t, "", ingress("a/basic", 1, "basic.test Prefix / app", "auth-type: basic", "auth-secret: users", "auth-realm: Staff", "custom-http-errors: 401,403", "default-backend: errors")+
		secretManifest("a/users", "auth", "ada:{PLAIN}secret\n")+ingress("a/errors", 1, "errors.test Prefix / errors"))
	got := i.ask("GET http://basic.test/\nWant-Status: 401")
	if all := got.Header.Values("WWW-Authenticate"); got.first != "errors GET /" || len(all) != 1 || all[0] != `Basic realm="Staff"` {
		t.Errorf("%s %q with the challenges %q", got.Status, got.first, all)
	}
	got = i.ask("GET http://basic.test/\nWant-Status: 403\nAuthorization: Basic YWRhOnNlY3JldA==")
	if all := got.Header.Values("WWW-Authenticate"); got.StatusCode != 403 || got.first != "errors GET /" || len(all) != 0 {
		t.Errorf("%s %q with the challenges %q", got.Status, got.first, all)
	}
}

// The case of ingress-nginx's test/e2e/annotations/default_backend.go. The X-Request-Id that the
// server gets is weir's, and not the client's.
func TestIngressDefaultBackend(t *testing.T) {
	i := newIngressRig(t, "", ingress("a/default-backend", 1, "default-backend Prefix / empty", "default-backend: errors")+ingress("a/errors", 1, "errors.test Prefix / errors"))
	got := i.ask("GET http://default-backend/alma/armud")
	if got.StatusCode != 200 || got.first != "errors GET /alma/armud" {
		t.Errorf("%d %q", got.StatusCode, got.first)
	}
	wantLines(t, got, "X-Code: 503", "X-Ingress-Name: default-backend", "X-Service-Name: empty")
}

// wantAnswers checks the status and the first line of the response to each request.
func wantAnswers(t *testing.T, i *ingressRig, wants map[string]string) {
	t.Helper()
	for request, want := range wants {
		a := i.ask(request)
		if got := strings.TrimPrefix(a.Status, "HTTP/1.1 ")[:4] + a.first; got != want {
			t.Errorf("%s: %q, want %q", request, got, want)
		}
	}
}

// wantLines checks that a server got HTTP headers, each once.
func wantLines(t *testing.T, got reaction, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if strings.Count(got.body, "\n"+line+"\n") != 1 {
			t.Errorf("no %q in\n%s", line, got.body)
		}
	}
}

// The cases of ingress-nginx's customhttperrors.go and disableproxyintercepterrors.go: the annotations change.
func TestIngressErrorsChange(t *testing.T) {
	more := ingress("a/errors", 1, "errors.test Prefix / errors") + ingress("a/else", 2, "customerrors.foo.com Prefix /else app", "custom-http-errors: 404, 503", "default-backend: errors")
	i := newIngressRig(t, "", more)
	f := func(annotations []string, want map[string]string) {
		t.Helper()
		i.change(ingress("a/customerrors", 1, "customerrors.foo.com Prefix / app", annotations...) + more)
		for request, want := range want {
			path, status, _ := strings.Cut(request, " ")
			got := i.ask("GET http://customerrors.foo.com" + path + "\nWant-Status: " + status)
			if server, _, _ := strings.Cut(got.first, " "); server != want {
				t.Errorf("%v: %s with %s is answered by %q, want %s", annotations, path, status, got.first, want)
			}
			if want == "errors" {
				wantLines(t, got, "X-Code: "+status, "X-Service-Name: app", "X-Ingress-Name: "+map[bool]string{true: "else", false: "customerrors"}[path == "/else"])
			}
		}
	}
	f([]string{"custom-http-errors: 404,500", "default-backend: errors"}, map[string]string{"/ 404": "errors", "/ 500": "errors", "/ 503": "app", "/else 404": "errors", "/else 503": "errors", "/else 500": "app"})
	f([]string{"custom-http-errors: 503", "default-backend: errors"}, map[string]string{"/ 503": "errors", "/ 404": "app", "/ 500": "app", "/else 503": "errors"})
	f([]string{"custom-http-errors: 503"}, map[string]string{"/ 503": "app"}) // of the controller's default backend, see e2e/kube/testdata/nginx
	f([]string{"custom-http-errors: 404", "disable-proxy-intercept-errors: true", "default-backend: errors"}, map[string]string{"/ 404": "app"})
	f([]string{"custom-http-errors: 404", "disable-proxy-intercept-errors: false", "default-backend: errors"}, map[string]string{"/ 404": "errors"})
}

// The request for the page of a target that only raw_targets accepts has the same target.
func TestIngressErrorsOfRawTargets(t *testing.T) {
	file := strings.Replace(ingressFile, "protocol: http}", "protocol: http, lenient: [raw_targets]}", 1)
	i := newIngressRig(t, file, ingress("a/raw", 1, "raw.test Prefix / app", "custom-http-errors: 404", "default-backend: errors")+ingress("a/errors", 1, "errors.test Prefix / errors"))
	wantAnswers(t, i, map[string]string{"GET http://raw.test/x?y=\u00e4\nWant-Status: 404": "404 errors GET /?y=\u00e4"})
}
