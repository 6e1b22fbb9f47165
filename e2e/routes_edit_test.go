package e2e

import (
	"bufio"
	"net/http"
	"strings"
	"testing"

	"github.com/weirproxy/weir/e2e/freeport"
)

// changes has one route for each kind of change.
const changes = `
listeners:
  web: {address: '@web', protocol: http, http2: {prior_knowledge: true}}
  websecure: {address: '@websecure', protocol: tls}
certificates: [{self_signed: {hosts: [edit.shop.test]}}]
routes:
  - name: edited
    listeners: [web, websecure]
    hosts: [edit.shop.test]
    paths: [/headers]
    request:
      set: {X-Tenant: blue, X-Client: "{client}", X-Url: "{scheme}://{host}{uri}"}
      add: {X-Via: weir}
      remove: [X-Debug, "X-Internal-*"]
    response: {set: {X-Frame-Options: DENY, X-Request-Id: "{request_id}"}, add: {Vary: Accept}, remove: [Server, X-Powered-By]}
    backend: echo
  - {name: refused, listeners: [web], hosts: [edit.shop.test], paths: [/headers/small], max_body: 1B, response: {set: {X-Frame-Options: DENY, X-Request-Id: "{request_id}"}}, backend: echo}
  - {name: prefix, listeners: [web, websecure], hosts: [edit.shop.test], paths: [/old], rewrite: {prefix: /new}, backend: echo}
  - {name: whole, listeners: [web, websecure], hosts: [edit.shop.test], paths: [/any], rewrite: {path: /fixed}, backend: echo}
  - {name: rehost, listeners: [web, websecure], hosts: [edit.shop.test], paths: [/host], rewrite: {host: internal.test}, backend: echo}
  - {name: stripped, listeners: [web], hosts: [edit.shop.test], paths: [/strip], rewrite: {prefix: /}, backend: echo}
  - {name: h2c, listeners: [web], hosts: [edit.shop.test], paths: [/h2c], rewrite: {prefix: /new, host: internal.test}, backend: h2c}
  - {name: moved, listeners: [web, websecure], hosts: [edit.shop.test], paths: [/moved], redirect: {to: "https://www.shop.test/here{uri}", status: 301}}
  - {name: swapped, listeners: [web, websecure], hosts: [edit.shop.test], paths: [/swap], redirect: {host: other.test, prefix: /swapped, scheme: https, port: 8443, status: 302}}
  - {name: closed, listeners: [web, websecure], hosts: [edit.shop.test], paths: [/closed], respond: {status: 503, body: "back soon\n", type: text/plain, headers: {Retry-After: "120"}}}
  - {name: nothing, listeners: [web, websecure], hosts: [edit.shop.test], paths: [/nothing], respond: {status: 204}}
backends: {echo: {endpoints: ['@echo']}, h2c: {protocol: h2c, endpoints: ['@h2c']}}
`

// startChanges starts weir with routes that change requests. The backend answers with the request that it received.
func startChanges(t *testing.T) *weir {
	t.Helper()
	t.Parallel()
	w := newWeir(t)
	w.address["echo"], w.address["h2c"] = newWebBackend(t, "echo").address, newH2CBackend(t).address
	return w.start(changes)
}

// newH2CBackend is newWebBackend for HTTP/2 without TLS.
func newH2CBackend(t *testing.T) *webBackend {
	t.Helper()
	b := &webBackend{name: "h2c", address: freePort(t)}
	l, err := freeport.Listen(b.address)
	if err != nil {
		t.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	b.server = &http.Server{Handler: b, Protocols: &protocols}
	go b.server.Serve(l)
	t.Cleanup(func() { b.server.Close() })
	return b
}

// edited sends a request for edit.shop.test to the listener web.
func edited(t *testing.T, w *weir, method, target string, lines ...string) (*http.Response, []byte) {
	t.Helper()
	c := dial(t, w.at("web"))
	defer c.Close()
	resp, body, err := ask(c, bufio.NewReader(c), method, "Edit.Shop.test", target, lines...)
	if err != nil {
		t.Fatal(err)
	}
	return resp, body
}

func TestRouteChangesHeaders(t *testing.T) {
	w := startChanges(t)
	sent := []string{"X-Tenant: red", "x_tenant: red", "X-Via: client", "X-Debug: 1", "X-Internal-User: root", "X_Internal_User: root", "X-Kept: 1"}
	args := []string{"--connect-to", "::" + w.at("websecure")}
	for _, line := range sent {
		args = append(args, "-H", line)
	}
	for protocol, got := range map[string]seen{
		"HTTP/1.1": curlSeen(t, append([]string{"-H", "Host: edit.shop.test", "http://" + w.at("web") + "/headers?a=b"}, args[2:]...)...),
		"HTTP/2":   curlSeen(t, append(args, "--http2", "https://edit.shop.test/headers?a=b")...),
	} {
		h := got.Header
		scheme := "http"
		if protocol == "HTTP/2" {
			scheme = "https"
		}
		for name, want := range map[string]string{"X-Tenant": "blue", "X-Client": "127.0.0.1", "X-Url": scheme + "://edit.shop.test/headers?a=b", "X-Via": "client weir", "X-Kept": "1",
			"X-Debug": "", "X-Internal-User": "", "X_internal_user": "", "X_tenant": "", "X-Real-Ip": "127.0.0.1"} {
			if got := strings.Join(h[name], " "); got != want {
				t.Errorf("%s: %s is %q, not %q", protocol, name, got, want)
			}
		}
	}
	id := func(resp *http.Response) string {
		t.Helper()
		if resp.Header.Get("X-Frame-Options") != "DENY" || len(resp.Header["X-Request-Id"]) != 1 {
			t.Errorf("the headers are %v", resp.Header)
		}
		return resp.Header.Get("X-Request-Id")
	}
	resp, body := edited(t, w, "GET", "/headers", "X-Request-Id: forged")
	if got := id(resp); len(got) != 32 || !strings.Contains(string(body), got) || resp.Header.Get("Vary") != "Accept" || resp.Header.Get("Server") != "" {
		t.Errorf("the answer to %s has %v", body, resp.Header)
	}
	// weir's own answers have the same headers, and the id of the log.
	resp, _ = edited(t, w, "POST", "/headers/small", "X-Request-Id: forged", "Content-Length: 2")
	if got := id(resp); resp.StatusCode != 413 || len(got) != 32 {
		t.Errorf("%s, with the id %q", resp.Status, got)
	} else {
		w.logged("the refused request", func(e entry) bool { return e.text("route") == "refused" && e.text("request_id") == got })
	}
}

func TestRouteResponds(t *testing.T) {
	w := startChanges(t)
	for _, method := range []string{"GET", "POST", "HEAD"} {
		resp, body := edited(t, w, method, "/closed/a")
		want := "back soon\n"
		if method == "HEAD" {
			want = ""
		}
		if h := resp.Header; resp.StatusCode != 503 || string(body) != want || h.Get("Content-Length") != "10" || h.Get("Content-Type") != "text/plain" || h.Get("Retry-After") != "120" {
			t.Errorf("%s: %s %v %q", method, resp.Status, h, body)
		}
	}
	w.logged("the answer", func(e entry) bool { return e.text("route") == "closed" && e.text("reason") == "respond" })
	resp, _ := edited(t, w, "GET", "/nothing")
	if h := resp.Header; resp.StatusCode != 204 || len(h["Content-Length"])+len(h["Content-Type"]) != 0 {
		t.Errorf("%s with %v", resp.Status, h)
	}
	args := []string{"--http2", "--include", "--connect-to", "::" + w.at("websecure")}
	if got := string(curl(t, append(args, "https://edit.shop.test/closed")...)); !strings.HasPrefix(got, "HTTP/2 503") || !strings.HasSuffix(got, "\r\n\r\nback soon\n") || !strings.Contains(got, "retry-after: 120\r\n") {
		t.Errorf("%s", got)
	}
	if got := string(curl(t, append(args, "https://edit.shop.test/nothing")...)); !strings.HasPrefix(got, "HTTP/2 204") || strings.Contains(got, "content-") {
		t.Errorf("%s", got)
	}
}

func TestRouteRewrites(t *testing.T) {
	w := startChanges(t)
	f := func(target, uri, host string) {
		t.Helper()
		c := dial(t, w.at("web"))
		defer c.Close()
		got, err := askSeen(c, "Edit.Shop.test", target)
		if err != nil || got.URI != uri || got.Host != host || got.Header.Get("X-Forwarded-Host") != "Edit.Shop.test" {
			t.Errorf("%s becomes %s of %s with %v: %v", target, got.URI, got.Host, got.Header, err)
		}
		w.logged("what the client sent", func(e entry) bool { return e.text("target") == target && e.text("host") == "Edit.Shop.test" })
	}
	f("/old/a?b", "/new/a?b", "Edit.Shop.test")
	f("/old", "/new", "Edit.Shop.test")
	f("/any/a?b=c", "/fixed?b=c", "Edit.Shop.test")
	f("/host/a", "/host/a", "internal.test")
	f("/strip/a", "/a", "Edit.Shop.test")
	f("/strip?a", "/?a", "Edit.Shop.test")
	f("/h2c/a?b", "/new/a?b", "internal.test")
	if resp, body := edited(t, w, "GET", "/strip//evil.example/"); resp.StatusCode != 400 {
		t.Errorf("%s: %s", resp.Status, body)
	}
	w.logged("the refusal", func(e entry) bool { return e.text("reason") == "rewrite" })
	got := curlSeen(t, "--http2", "--connect-to", "::"+w.at("websecure"), "https://edit.shop.test/old/a?b")
	if got.URI != "/new/a?b" || got.Header.Get("X-Forwarded-Host") != "edit.shop.test" {
		t.Errorf("over HTTP/2: %+v", got)
	}
}

func TestRouteRedirects(t *testing.T) {
	w := startChanges(t)
	f := func(target string, status int, location string) {
		t.Helper()
		if resp, _ := edited(t, w, "GET", target); resp.StatusCode != status || resp.Header.Get("Location") != location {
			t.Errorf("%s is answered with %s to %s", target, resp.Status, resp.Header.Get("Location"))
		}
	}
	f("/moved/a?b", 301, "https://www.shop.test/here/moved/a?b")
	f("/moved", 301, "https://www.shop.test/here/moved")
	f("/swap/a?b", 302, "https://other.test:8443/swapped/a?b")
	f("/swap", 302, "https://other.test:8443/swapped")
	w.logged("the redirect", func(e entry) bool { return e.text("route") == "swapped" && e.text("reason") == "redirect" })
}
