package e2e

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
)

// matchConfig has a route for each way in which a route selects requests. Each test below is
// about one of them.
const matchConfig = `
listeners:
  web: {address: '@web', protocol: http, proxy_protocol: edge}
  websecure: {address: '@websecure', protocol: tls, proxy_protocol: edge}
proxy_protocol:
  edge: {rules: [{from: [127.0.0.0/8], header: optional}]}
certificates:
  - self_signed: {hosts: [shop.test, "*.shop.test", "*.eu.shop.test", "*.b.eu.shop.test"]}
routes:
  - {name: plain, listeners: [web, websecure], hosts: [shop.test], backend: echo}
  - {name: one-label, listeners: [web, websecure], hosts: ["*.shop.test"], backend: echo}
  - {name: any-depth, listeners: [web, websecure], hosts: ["**.eu.shop.test"], backend: echo}
  - {name: expression, listeners: [web, websecure], hosts: [shop.test], paths: ["~/v[0-9]+/items(/|$)"], backend: echo}
  - {name: by-method, listeners: [web, websecure], hosts: [shop.test], paths: [/cart], match: {methods: [POST, PUT]}, backend: next}
  - {name: by-header, listeners: [web, websecure], hosts: [shop.test], paths: [/cart], match: {methods: [POST], headers: {X-Canary: always}}, backend: echo}
  - {name: by-query, listeners: [web, websecure], hosts: [shop.test], paths: [/cart], match: {query: {beta: "*", v: "~[0-9]+"}}, backend: next}
  - {name: by-cookie, listeners: [web, websecure], hosts: [shop.test], paths: [/cart], match: {cookies: {tester: "yes"}}, backend: next}
  - {name: by-client, listeners: [web, websecure], hosts: [shop.test], paths: [/admin], match: {clients: [203.0.113.0/24]}, backend: next}
backends:
  echo: {endpoints: ['@echo']}
  next: {endpoints: ['@next']}
`

// matchTest is a weir with matchConfig.
type matchTest struct {
	*weir
	requests int
}

func startMatch(t *testing.T) *matchTest {
	t.Helper()
	t.Parallel()
	w := newWeir(t)
	w.address["echo"], w.address["next"] = newWebBackend(t, "echo").address, newWebBackend(t, "next").address
	return &matchTest{weir: w.start(matchConfig)}
}

// wants sends a request to both listeners, from the client 192.0.2.1 or from the one behind "from",
// and checks its route; "" is 404.
func (m *matchTest) wants(route, request string, fields ...string) {
	m.t.Helper()
	request, from, given := strings.Cut(request, " from ")
	if !given {
		from = "192.0.2.1"
	}
	method, target, _ := strings.Cut(request, " ")
	host, path, _ := strings.Cut(target, "/")
	for _, listener := range []string{"web", "websecure"} {
		m.requests++
		client := fmt.Sprintf("%s:%d", from, 10000+m.requests)
		var c net.Conn = dialWith(m.t, m.at(listener), v1Header(client, "192.0.2.2:80"))
		if listener == "websecure" {
			c = tls.Client(c, &tls.Config{ServerName: host, InsecureSkipVerify: true})
		}
		resp, body, err := ask(c, bufio.NewReader(c), method, host, "/"+path, append(fields, "Connection: close")...)
		if err != nil {
			m.t.Fatalf("%s on %s: %v", request, listener, err)
		}
		want := 200
		if route == "" {
			want = 404
		}
		if resp.StatusCode != want {
			m.t.Errorf("%s on %s: %s, want %d: %s", request, listener, resp.Status, want, body)
		}
		var s seen
		if err := json.Unmarshal(body, &s); want == 200 && (err != nil || s.URI != "/"+path) {
			m.t.Errorf("%s on %s arrives as %s", request, listener, body)
		}
		if e := m.logged("the client "+client, func(e entry) bool { return e.text("client") == client }); e.text("route") != route {
			m.t.Errorf("%s on %s goes to %q, want %q", request, listener, e.text("route"), route)
		}
	}
}

func TestMatchIsValid(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	w.write(matchConfig)
	if out, err := exec.Command(executable(t), "check", "-c", w.config).CombinedOutput(); err != nil || strings.Contains(string(out), "warning") {
		t.Errorf("weir check: %v\n%s", err, out)
	}
}

func TestMatchPlain(t *testing.T) {
	m := startMatch(t)
	m.wants("plain", "GET shop.test/")
	m.wants("plain", "GET shop.test/cart")
	m.wants("plain", "GET shop.test/carts")
}

func TestMatchOneLabel(t *testing.T) {
	m := startMatch(t)
	m.wants("one-label", "GET www.shop.test/")
	m.wants("one-label", "POST www.shop.test/cart") // no fall-through to the paths of another host
	m.wants("one-label", "GET eu.shop.test/")
	m.wants("", "GET a.b.shop.test/")
}

func TestMatchAnyDepth(t *testing.T) {
	m := startMatch(t)
	m.wants("any-depth", "GET a.eu.shop.test/")
	m.wants("any-depth", "GET a.b.eu.shop.test/")
	m.wants("any-depth", "GET a.b.c.eu.shop.test/")
	m.wants("one-label", "GET eu.shop.test/")
}

func TestMatchExpression(t *testing.T) {
	m := startMatch(t)
	m.wants("expression", "GET shop.test/v1/items")
	m.wants("expression", "GET shop.test/v22/items/7?x=1")
	m.wants("plain", "GET shop.test/v1/itemsx")
	m.wants("plain", "GET shop.test/x/v1/items") // anchored at the start
	m.wants("plain", "GET shop.test/V1/items")
}

func TestMatchMethod(t *testing.T) {
	m := startMatch(t)
	m.wants("by-method", "POST shop.test/cart", "Content-Length: 0")
	m.wants("by-method", "PUT shop.test/cart/7", "Content-Length: 0")
	m.wants("plain", "DELETE shop.test/cart")
	m.wants("by-method", "POST shop.test/cart?beta&v=1", "Content-Length: 0", "Cookie: tester=yes") // a method goes first
}

func TestMatchHeader(t *testing.T) {
	m := startMatch(t)
	m.wants("by-header", "POST shop.test/cart", "Content-Length: 0", "x-canary: always") // more conditions win
	m.wants("by-method", "POST shop.test/cart", "Content-Length: 0", "X-Canary: Always")
	m.wants("by-method", "PUT shop.test/cart", "Content-Length: 0", "X-Canary: always")
	m.wants("by-method", "POST shop.test/cart", "Content-Length: 0", "X-Canary: never", "X-Canary: always") // the first one counts
	m.wants("plain", "GET shop.test/cart", "X-Canary: always")
}

func TestMatchQuery(t *testing.T) {
	m := startMatch(t)
	m.wants("by-query", "GET shop.test/cart?beta=&v=12")
	m.wants("by-query", "GET shop.test/cart/x?v=%31&beta=on")
	m.wants("plain", "GET shop.test/cart?beta=on&v=12x") // the whole value
	m.wants("plain", "GET shop.test/cart?v=12")
	m.wants("plain", "GET shop.test/cart?beta&v=x&v=1") // the first one counts
	m.wants("by-query", "GET shop.test/cart?beta&v=1", "Cookie: tester=yes")
}

func TestMatchCookie(t *testing.T) {
	m := startMatch(t)
	m.wants("by-cookie", "GET shop.test/cart", "Cookie: a=b; tester=yes")
	m.wants("plain", "GET shop.test/cart", "Cookie: tester=yes1")
	m.wants("plain", "GET shop.test/cart", "Cookie: tester=no; tester=yes") // the first one counts
	m.wants("plain", "GET shop.test/", "Cookie: tester=yes")
}

func TestMatchClient(t *testing.T) {
	m := startMatch(t)
	m.wants("by-client", "GET shop.test/admin/x from 203.0.113.7")
	m.wants("plain", "GET shop.test/admin/x from 198.51.100.7")
}
