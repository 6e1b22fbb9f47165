package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// limitsConfig has a route for each guard that limits clients.
const limitsConfig = `
listeners:
  web: {address: '@web', protocol: http, proxy_protocol: edge}
  websecure: {address: '@websecure', protocol: tls, proxy_protocol: edge}
  raw: {address: '@raw', protocol: tcp, proxy_protocol: edge}
proxy_protocol:
  edge: {rules: [{from: [127.0.0.0/8], header: optional}]}
certificates:
  - self_signed: {hosts: [guard.shop.test, opened.shop.test]}
rate_limits:
  search: {rate: 10/m, burst: 20, per: client}
  keys: {rate: 1/m, burst: 3, per: "header:X-Api-Key", status: 503}
  logins: {rate: 1/h, burst: 2, per: client}
routes:
  - {name: searched, listeners: [web, websecure], hosts: [guard.shop.test], paths: [/search], rate_limit: search, backend: echo}
  - {name: keyed, listeners: [web, websecure], hosts: [guard.shop.test], paths: [/keys], rate_limit: keys, backend: echo}
  - {name: keyed-too, listeners: [web, websecure], hosts: [guard.shop.test], paths: [/keys/too], rate_limit: keys, backend: echo}
  - {name: crowded, listeners: [web, websecure], hosts: [guard.shop.test], paths: [/slow], in_flight: {most: 2, per: client, status: 503}, backend: waiting}
  - {name: allowed, listeners: [web, websecure], hosts: [guard.shop.test], paths: [/lan], clients: {allow: [203.0.113.0/24], deny: [203.0.113.66/32]}, backend: echo}
  - {name: open, listeners: [web, websecure], hosts: [guard.shop.test], backend: echo}
  - {name: tcp-allowed, listeners: [raw], clients: {allow: [203.0.113.0/24]}, backend: lines}
  - {name: ssh-limited, listeners: [web], first_bytes: ssh, rate_limit: logins, backend: lines}
  - {name: passed, listeners: [websecure], hosts: [app.example.org], tls: passthrough, clients: {allow: [203.0.113.0/24]}, backend: secret}
  - {name: opened, listeners: [websecure], hosts: [opened.shop.test], clients: {allow: [203.0.113.0/24]}, backend: lines}
  - {name: ssh, listeners: [websecure], first_bytes: ssh, clients: {deny: [203.0.113.66/32]}, backend: lines}
backends:
  echo: {endpoints: ['@echo']}
  waiting: {endpoints: ['@waiting']}
  lines: {protocol: tcp, endpoints: ['@lines']}
  secret: {protocol: tcp, endpoints: ['@secret']}
`

// limitsTest is a weir with limitsConfig.
type limitsTest struct {
	*weir
	port int // of the last client
}

func startLimits(t *testing.T) *limitsTest {
	t.Helper()
	t.Parallel()
	w := newWeir(t)
	w.address["echo"], w.address["lines"] = newWebBackend(t, "echo").address, newEchoBackend(t).address
	w.address["waiting"] = serve(t, func(c net.Conn) { io.Copy(io.Discard, c) }) // it never answers
	w.address["secret"] = w.address["lines"]                                     // a client that is passed through gets its own ClientHello
	return &limitsTest{weir: w.start(limitsConfig)}
}

// dialAs connects to a listener as a client with this address. It returns the client with its port.
func (l *limitsTest) dialAs(listener, from string) (c net.Conn, client string) {
	l.t.Helper()
	l.port++
	client = fmt.Sprintf("%s:%d", from, 10000+l.port)
	return dialWith(l.t, l.at(listener), v1Header(client, "192.0.2.2:80")), client
}

// ask sends a request for guard.shop.test to both listeners, and checks the status and the reason
// in the log. It returns the last response.
func (l *limitsTest) ask(from, path string, status int, reason string, fields ...string) (resp *http.Response) {
	l.t.Helper()
	for _, listener := range []string{"web", "websecure"} {
		resp = l.askOn(listener, from, path, status, reason, fields...)
	}
	return resp
}

func (l *limitsTest) askOn(listener, from, path string, status int, reason string, fields ...string) *http.Response {
	l.t.Helper()
	c, client := l.dialAs(listener, from)
	defer c.Close()
	if listener == "websecure" {
		c = tls.Client(c, &tls.Config{ServerName: "guard.shop.test", InsecureSkipVerify: true})
	}
	resp, body, err := ask(c, bufio.NewReader(c), "GET", "guard.shop.test", path, append(fields, "Connection: close")...)
	if err != nil {
		l.t.Fatalf("%s on %s: %v", path, listener, err)
	}
	e := l.logged("the client "+client, func(e entry) bool { return e.text("client") == client })
	if resp.StatusCode != status || e.text("reason") != reason {
		l.t.Errorf("%s on %s for %s: %s with reason %q, want %d with %q: %s", path, listener, from, resp.Status, e.text("reason"), status, reason, body)
	}
	return resp
}

func TestRouteAllowsClients(t *testing.T) {
	l := startLimits(t)
	l.ask("203.0.113.7", "/lan", 200, "")
	l.ask("203.0.113.66", "/lan", 403, "client_denied")
	l.ask("198.51.100.1", "/lan", 403, "client_denied")
	l.ask("198.51.100.1", "/", 200, "")
	l.ask("203.0.113.7", "/LAN", 400, "guarded_path") // the route that gets this spelling has no guard
	l.wantMetric(2, "weir_guard_requests_total", "route", "allowed", "guard", "clients", "result", "allowed")
	l.wantMetric(4, "weir_guard_requests_total", "route", "allowed", "guard", "clients", "result", "client_denied")
}

func TestTunnelsAllowClients(t *testing.T) {
	l := startLimits(t)
	first := map[string]func(net.Conn) (net.Conn, string){ // what the client sends first
		"tcp-allowed": func(c net.Conn) (net.Conn, string) { return c, "hello" },
		"ssh":         func(c net.Conn) (net.Conn, string) { return c, "SSH-2.0-x\r\n" },
		"passed":      func(c net.Conn) (net.Conn, string) { return c, string(clientHello(t)) },
		"opened": func(c net.Conn) (net.Conn, string) {
			return tls.Client(c, &tls.Config{ServerName: "opened.shop.test", InsecureSkipVerify: true}), "hello"
		},
	}
	for route, start := range first {
		listener := "websecure"
		if route == "tcp-allowed" {
			listener = "raw"
		}
		allowed, denied := "203.0.113.7", "198.51.100.1"
		if route == "ssh" {
			denied = "203.0.113.66"
		}
		for from, want := range map[string]bool{allowed: true, denied: false} {
			raw, client := l.dialAs(listener, from)
			c, hello := start(raw)
			err := exchangeBytes(c, hello)
			raw.Close()
			if (err == nil) != want {
				t.Errorf("%s for %s: %v", route, from, err)
			}
			e := l.logged("the client "+client, func(e entry) bool { return e.text("client") == client })
			if denied := e.text("reason") == "client_denied"; e.text("route") != route || denied == want {
				t.Errorf("%s for %s: the log has %v", route, from, e)
			}
		}
		l.wantMetric(1, "weir_guard_requests_total", "route", route, "guard", "clients", "result", "allowed")
		l.wantMetric(1, "weir_guard_requests_total", "route", route, "guard", "clients", "result", "client_denied")
		l.wantMetric(1, "weir_tunnels_ended_total", "route", route, "reason", "client_denied")
	}
}

// exchangeBytes sends a text, and reads it back.
func exchangeBytes(c net.Conn, text string) error {
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, len(text)))
	return err
}

func TestRouteLimitsRate(t *testing.T) {
	l := startLimits(t)
	for i := range 10 { // of each listener
		resp := l.ask("203.0.113.7", "/search", 200, "")
		if got := resp.Header.Get("RateLimit-Policy"); got != `"search";q=20;w=120` {
			t.Errorf("request %d has the policy %q", i, got)
		}
	}
	resp := l.ask("203.0.113.7", "/search", 429, "rate_limited")
	if h := resp.Header; h.Get("Retry-After") == "" || h.Get("RateLimit") != `"search";r=0;t=`+h.Get("Retry-After") {
		t.Errorf("the refusal has %v", h)
	}
	l.ask("203.0.113.8", "/search", 200, "")
	l.wantMetric(2, "weir_rate_limit_keys", "rate_limit", "search")
	l.wantMetric(0, "weir_rate_limit_evictions_total", "rate_limit", "search")
	l.wantMetric(2, "weir_guard_requests_total", "route", "searched", "guard", "rate_limit", "result", "rate_limited")
}

// Routes share the counts, and a reload keeps them.
func TestRouteLimitsRateOfKeys(t *testing.T) {
	l := startLimits(t)
	l.ask("203.0.113.7", "/keys", 200, "", "X-Api-Key: a")
	l.askOn("web", "203.0.113.8", "/keys/too", 200, "", "x-api-key: a")
	l.askOn("web", "203.0.113.8", "/keys/too", 503, "rate_limited", "x-api-key: a")
	l.reload(strings.Replace(limitsConfig, "per: client}", "per: client, status: 403}", 1))
	l.askOn("web", "203.0.113.7", "/keys", 503, "rate_limited", "X-Api-Key: a")
	l.askOn("web", "203.0.113.7", "/keys", 200, "", "X-Api-Key: b")
	for _, client := range []string{"203.0.113.7", "203.0.113.8", "203.0.113.9"} {
		l.askOn("web", client, "/keys", 200, "") // without the header
	}
	l.askOn("web", "203.0.113.10", "/keys", 503, "rate_limited")
}

func TestTunnelsLimitRate(t *testing.T) {
	l := startLimits(t)
	for i, want := range []bool{true, true, false} {
		c, client := l.dialAs("web", "203.0.113.7")
		err := exchangeBytes(c, "SSH-2.0-x\r\n")
		c.Close()
		e := l.logged("the client "+client, func(e entry) bool { return e.text("client") == client })
		if (err == nil) != want || (e.text("reason") == "rate_limited") == want {
			t.Errorf("connection %d: %v, %v", i, err, e)
		}
	}
}

func TestRouteLimitsConcurrency(t *testing.T) {
	l := startLimits(t)
	for range 2 {
		c, _ := l.dialAs("web", "203.0.113.7")
		io.WriteString(c, "GET /slow HTTP/1.1\r\nHost: guard.shop.test\r\n\r\n")
		defer c.Close()
	}
	l.wantMetric(2, "weir_in_flight_open", "route", "crowded")
	l.ask("203.0.113.7", "/slow", 503, "in_flight")
	c, _ := l.dialAs("web", "203.0.113.8")
	io.WriteString(c, "GET /slow HTTP/1.1\r\nHost: guard.shop.test\r\n\r\n")
	l.wantMetric(3, "weir_in_flight_open", "route", "crowded")
	c.Close()
	l.wantMetric(2, "weir_in_flight_open", "route", "crowded")
}
