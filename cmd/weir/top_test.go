package main

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/cmd/weir/node/status"
)

const observable = `
node: edge1
listeners: {web: {address: '@web', protocol: http}}
routes:
  - {name: hello, listeners: [web], hosts: [hello.test], respond: {body: hello}}
  - {name: other, listeners: [web], hosts: [other.test], respond: {body: hello}}
admin: {address: '@admin'}
`

func TestTopOnce(t *testing.T) {
	r := newRunning(t, observable, "web", "admin")
	admin := r.address("admin")
	f := func(args string, wantStatus int, wants ...string) string {
		t.Helper()
		out, errs, status := weir(append([]string{"top", "--every", "500ms"}, strings.Fields(args)...)...)
		if status != wantStatus {
			t.Errorf("weir top %s: status %d: %s%s", args, status, out, errs)
		}
		for _, want := range wants {
			if !strings.Contains(out+errs, want) {
				t.Errorf("weir top %s prints no %q:\n%s%s", args, want, out, errs)
			}
		}
		return out
	}
	f(admin, 0, "weir top: 1 of 1 healthy", "edge1", "healthy", "hello", "other", "routes by requests")
	if out := f(admin+" --routes other.t --sort name", 0, "routes by name", "other"); strings.Contains(out, "hello") {
		t.Errorf("the search finds all:\n%s", out)
	}
	f(admin+" 127.0.0.1:1", statusError, "1 of 2 healthy", "127.0.0.1:1", "no answer", "PROBLEMS", "cannot query the admin port")
	f(r.address("web"), statusError, "is not the admin port of a weir")
	f("--sort size", statusError, "write one of requests, errors, p99, name")
	f("--every 1ms", statusError, "write at least 500ms")
}

// Routes of several instances are added up. Problems are shown even on a small screen. No text of an
// instance changes the terminal.
func TestTopScreen(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	of := func(node string, requests float64) *status.Overview {
		return &status.Overview{At: now, Node: node, Health: status.Health{Healthy: true}, Routes: status.List[status.Route]{All: 300, Matching: 300, Rows: []status.Route{
			{Name: "shop", Backend: "shop\x1b[2J", Total: 10, Now: status.Rates{Seconds: 5, Requests: requests, P99: requests / 1000}},
			{Name: "blog", Total: 3, Failed: 1, Now: status.Rates{Seconds: 5, Requests: 1, Errors: requests / 10}},
			{Name: "", Total: 1, Now: status.Rates{Seconds: 5}},
		}}}
	}
	b := of("edge2", 30)
	b.Problems = []status.Problem{{Since: now.Add(-90 * time.Second), Text: "the configuration was not loaded"}}
	b.Health = status.Health{Reasons: []string{"weir is draining"}}
	b.Backends = status.List[status.Backend]{Bad: 7, All: 9, Rows: []status.Backend{{Name: "search", Count: 2, Working: 1, Endpoints: []status.Endpoint{{Address: "10.0.0.1:80", Error: "evil\r\n\x9b31m\u202egnp"}}}}}
	b.Certificates = status.List[status.Certificate]{Bad: 5, All: 5, Rows: []status.Certificate{
		{Names: []string{"a.test"}, Error: "no such host", Next: now.Add(90 * time.Second)},
		{Names: []string{"d.test"}, Error: "refused", NotAfter: now.Add(-time.Hour), Next: now.Add(-time.Second)},
		{Names: []string{"e.test"}, Error: "refused", NotAfter: now.Add(time.Hour), Next: now.Add(time.Hour)},
		{Names: []string{"b.test"}, NotAfter: now.Add(-time.Hour), Soon: true},
		{Names: []string{"c.test"}, NotAfter: now.Add(75 * time.Hour), Soon: true},
	}}
	b.Objects = &status.Objects{Faults: status.List[status.Fault]{All: 4, Rows: []status.Fault{{Kind: "Ingress", Object: "shop/web", Reason: "BackendNotFound", Message: "there is no Service shop/cart"}}}, Trouble: "forbidden"}
	s := &topScreen{sort: "requests", answers: []topAnswer{
		{address: "a", overview: of("edge1", 12)}, {address: "b", overview: b}, {address: "http://x:secret@c", err: errors.New("refused")}, {address: "d"}}}
	text := strings.Join(s.lines(), "\n")
	for _, want := range []string{
		"weir top: 1 of 4 healthy", "503: weir is draining", "http://x:xxxxx@c", "no answer", "waiting for the first answer",
		"shop           42      0    -  30ms        20       0        0  shop?[2J",
		"blog          2.0    4.2", "(no route)", "... and 297 more routes",
		"PROBLEMS\nedge2: the configuration was not loaded (for 1m30s)\n",
		"edge2: backend search: 1 of 2 endpoints work: 10.0.0.1:80: evil???31m?gnp", "edge2: 2 more backends",
		"edge2: no certificate for a.test yet: no such host; next attempt in 1m30s",
		"edge2: the certificate of d.test has expired, and cannot be renewed: refused; next attempt in 0s", "edge2: the certificate of e.test cannot be renewed: refused; next attempt in 1h0m0s",
		"edge2: the certificate of b.test has expired", "edge2: the certificate of c.test expires in 3 days",
		"weir cannot watch the cluster: forbidden", "edge2: Ingress shop/web: BackendNotFound: there is no Service shop/cart", "edge2: 3 more faults",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	s.sort = "errors"
	if text = strings.Join(s.lines(), "\n"); strings.Index(text, "\nblog") > strings.Index(text, "\nshop") {
		t.Errorf("the order by errors is\n%s", text)
	}
	s.width, s.height, s.interactive = 40, 22, true
	var frame bytes.Buffer
	if err := s.draw(&frame); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(frame.String(), "\r\n")
	if len(lines) > 22 || !strings.Contains(frame.String(), "PROBLEMS") {
		t.Errorf("a frame of %d lines: %q", len(lines), frame.String())
	}
	for _, line := range lines {
		if plain := strings.NewReplacer("\x1b[H", "", "\x1b[K", "", "\x1b[J", "").Replace(line); len([]rune(plain)) > 40 || strings.ContainsAny(plain, "\x1b\r\n") {
			t.Errorf("the line %q", line)
		}
	}
}

// On 80 columns nothing is wider than the screen, the health and the backend stay, and long problems go on in the next line.
func TestTopOnANarrowScreen(t *testing.T) {
	o := &status.Overview{At: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Node: "ip-10-1-203-104.eu-central-1", Health: status.Health{Reasons: []string{"weir is draining"}},
		Connections: status.Connections{Open: 123456, Parked: 123000, Resident: 3 << 30, States: map[string]int{"active": 456}},
		Problems:    []status.Problem{{Text: "the configuration was not loaded, so an older one is in effect: " + strings.Repeat("word ", 20) + strings.Repeat("x", 100)}},
		Traffic:     status.Traffic{Now: status.Rates{Requests: 12345, Errors: 123, Refused: 1234, P50: 0.00012, P99: 1.2}},
		Routes: status.List[status.Route]{All: 1, Matching: 1, Rows: []status.Route{{Name: "shop.example.org/a/rather/long/path/of/a/route", Backend: "shop-backend",
			Total: 123456789, Failed: 12345, Tunnels: 123, Now: status.Rates{Seconds: 5, Requests: 12345, Errors: 12}}}}}
	s := &topScreen{sort: "requests", width: 80, interactive: true, answers: []topAnswer{{address: "a", overview: o}}}
	for _, width := range []int{80, 40, 10} {
		s.width = width
		for _, line := range s.lines() {
			if len([]rune(line)) > width {
				t.Errorf("on %d columns the line has %d: %s", width, len([]rune(line)), line)
			}
		}
	}
	s.width = 80
	text := strings.Join(s.lines(), "\n")
	for _, want := range []string{"(q ends, r e p n sort)\n", "REQ/S", "5XX/S", "P99", "  503: weir is draining\n", "  shop-backend\n", "older one\n  is in effect: word"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "PARKED") {
		t.Errorf("the least important column is still there:\n%s", text)
	}
}

// A server that is no weir, or another version of it, does not end top.
func TestTopOfGarbage(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, o := range []status.Overview{
		{At: now, Backends: status.List[status.Backend]{Bad: -7, All: -1, Rows: make([]status.Backend, 3)}, Certificates: status.List[status.Certificate]{Bad: -1, Rows: make([]status.Certificate, 1)}},
		{At: now, Routes: status.List[status.Route]{Matching: -5, Rows: make([]status.Route, 3)}, Objects: &status.Objects{Faults: status.List[status.Fault]{All: -5}}},
		{At: now, Backends: status.List[status.Backend]{Bad: 1 << 40}, Uptime: -1, Refresh: 1e300},
	} {
		for _, size := range [][2]int{{0, 0}, {1, 1}, {2, 3}, {80, 24}} {
			s := &topScreen{sort: "requests", width: size[0], height: size[1], answers: []topAnswer{{address: "a", overview: &o}}}
			if lines := s.lines(); len(lines) == 0 {
				t.Errorf("%v: no line", size)
			}
			if err := s.draw(io.Discard); err != nil {
				t.Error(err)
			}
		}
	}
	if wait := (&topOptions{every: time.Second}).waitAfter(&status.Overview{Refresh: 1e300}); wait != longestWait {
		t.Errorf("top waits for %v", wait)
	}
}

// The error of a command never changes the terminal, whatever a server answers.
func TestErrorsCannotChangeTheTerminal(t *testing.T) {
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		io.WriteString(w, "\x1b]0;evil\a\u009b2J\xff no\n")
	}))
	defer evil.Close()
	_, errs, status := weir("top", "--once", evil.URL)
	if status != statusError || strings.ContainsAny(errs, "\x1b\a\u009b") || !strings.Contains(errs, "?]0;evil??2J? no") {
		t.Errorf("status %d: %q", status, errs)
	}
}
