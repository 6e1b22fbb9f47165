package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/e2e/freeport"
)

// calling has the routes for which weir itself asks a backend.
const calling = `
listeners:
  web: {address: '@web', protocol: http}
  websecure: {address: '@websecure', protocol: tls}
certificates: [{self_signed: {hosts: [edit.shop.test, split.shop.test]}}]
routes:
  - {name: pages, listeners: [web, websecure], hosts: [edit.shop.test], paths: [/pages], errors: [{status: ["500-599"], backend: pages, path: "/{status}.html"}], backend: broken}
  - {name: mirrored, listeners: [web, websecure], hosts: [split.shop.test], paths: [/m], mirror: [{backend: next, percent: 50}], backend: echo}
backends:
  echo: {endpoints: ['@echo']}
  next: {endpoints: ['@next']}
  broken: {endpoints: ['@broken'], ejection: {failures: 0}}
  pages: {endpoints: ['@pages']}
`

// serve starts an HTTP server for a name in a configuration.
func (w *weir) serve(name string, h http.HandlerFunc) {
	w.t.Helper()
	address := freePort(w.t)
	l, err := freeport.Listen(address)
	if err != nil {
		w.t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	go s.Serve(l)
	w.t.Cleanup(func() { s.Close() })
	w.address[name] = address
}

// called sends a request for a host to the listener web.
func called(t *testing.T, w *weir, method, host, target string, lines ...string) (*http.Response, []byte) {
	t.Helper()
	c := dial(t, w.at("web"))
	defer c.Close()
	resp, body, err := ask(c, bufio.NewReader(c), method, host, target, lines...)
	if err != nil {
		t.Fatal(err)
	}
	return resp, body
}

// A page of another backend replaces the body of an error response. Without a page the client gets the original.
func TestRouteErrorPages(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	w.serve("broken", func(rw http.ResponseWriter, r *http.Request) {
		status := 200
		fmt.Sscanf(r.URL.Path, "/pages/%d", &status)
		rw.WriteHeader(status)
		io.WriteString(rw, "original")
	})
	w.serve("pages", func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/501.html" {
			rw.WriteHeader(404)
		}
		rw.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(rw, "<p>%s %s", r.Method, r.URL.Path)
	})
	w.address["echo"], w.address["next"] = freePort(t), freePort(t)
	w.start(calling)
	for _, test := range []struct {
		method, target string
		status         int
		body           string
	}{
		{"GET", "/pages/200", 200, "original"},
		{"GET", "/pages/404", 404, "original"},
		{"GET", "/pages/500", 500, "<p>GET /500.html"},
		{"POST", "/pages/503", 503, "<p>GET /503.html"},
		{"HEAD", "/pages/503", 503, ""},
		{"GET", "/pages/501", 501, "original"},
	} {
		resp, body := called(t, w, test.method, "edit.shop.test", test.target)
		if resp.StatusCode != test.status || string(body) != test.body {
			t.Errorf("%s %s: %s %q", test.method, test.target, resp.Status, body)
		}
		if test.method == "HEAD" {
			continue
		}
		out := string(curl(t, "--http2", "-X", test.method, "--connect-to", "::"+w.at("websecure"), "--write-out", " %{http_code} %{http_version}", "https://edit.shop.test"+test.target))
		if want := fmt.Sprintf("%s %d 2", test.body, test.status); out != want {
			t.Errorf("over HTTP/2: %s %s: %q, not %q", test.method, test.target, out, want)
		}
	}
	w.wantMetric(5, "weir_error_pages_total", "route", "pages", "result", "sent")
	w.wantMetric(2, "weir_error_pages_total", "route", "pages", "result", "failed")
}

// Another backend gets a copy of every second request. The client does not wait for it.
func TestRouteMirrors(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	copied, release := make(chan string, 100), make(chan struct{})
	w.serve("echo", func(rw http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(rw, "echo %d", n)
	})
	w.serve("next", func(rw http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		copied <- fmt.Sprintf("%s %s %d", r.Method, r.URL.Path, n)
		<-release
		rw.WriteHeader(500)
	})
	w.address["broken"], w.address["pages"] = freePort(t), freePort(t)
	w.start(calling)
	post := func(i, size int) {
		t.Helper()
		out := string(curl(t, "--http2", "--data-binary", strings.Repeat("x", size), "--connect-to", "::"+w.at("websecure"), fmt.Sprintf("https://split.shop.test/m/%d", i)))
		if want := fmt.Sprintf("echo %d", size); out != want {
			t.Errorf("request %d: %q, not %q", i, out, want)
		}
	}
	for i := range 10 { // no copy has an answer yet
		post(i, 1000*i)
	}
	got := map[string]bool{}
	for range 5 {
		select {
		case one := <-copied:
			got[one] = true
		case <-time.After(patience):
			t.Fatalf("the mirror got only %v", got)
		}
	}
	for i := 1; i < 10; i += 2 {
		if one := fmt.Sprintf("POST /m/%d %d", i, 1000*i); !got[one] {
			t.Errorf("the mirror did not get %q, but %v", one, got)
		}
	}
	close(release)
	post(10, 70000)
	post(11, 70000) // too large for a copy
	eventually(t, "copies are counted", func() error {
		sent, large := w.metric("weir_mirrored_requests_total", "route", "mirrored", "backend", "next", "result", "sent"), w.metric("weir_mirrored_requests_total", "route", "mirrored", "result", "too_large")
		if sent != 5 || large != 1 {
			return fmt.Errorf("%v were sent, and %v are too large", sent, large)
		}
		return nil
	})
	if len(copied) > 0 {
		t.Errorf("the mirror got %s as well", <-copied)
	}
}
