package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// clientLimitsConfig limits the connections of each client, over two listeners.
const clientLimitsConfig = `
listeners:
  web: {address: '@web', protocol: http, proxy_protocol: edge}
  websecure: {address: '@websecure', protocol: tls, proxy_protocol: edge}
proxy_protocol:
  edge: {rules: [{from: [127.0.0.0/8], header: optional}]}
certificates:
  - self_signed: {hosts: [shop.test]}
limits:
  clients: {LIMITS, prefix: {ipv4: 32, ipv6: 64}, except: [192.0.2.0/24]}
routes:
  - {listeners: [web, websecure], backend: app}
backends:
  app: {endpoints: ['@app']}
`

type clientLimitsTest struct {
	*weir
	connections int
}

func startClientLimits(t *testing.T, limits string) *clientLimitsTest {
	t.Helper()
	t.Parallel()
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	return &clientLimitsTest{weir: w.start(strings.Replace(clientLimitsConfig, "LIMITS", limits, 1))}
}

// open opens a connection of the client to the listener. It returns nil if weir closes the
// connection without a byte, instead of an answer to a request.
func (e *clientLimitsTest) open(listener, client string) net.Conn {
	e.t.Helper()
	e.connections++
	c := dialWith(e.t, e.at(listener), v1Header(fmt.Sprintf("%s:%d", client, 10000+e.connections), "192.0.2.2:80"))
	e.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	end := &byteCount{Conn: c}
	var over net.Conn = end
	if listener == "websecure" {
		over = tls.Client(end, &tls.Config{ServerName: "shop.test", InsecureSkipVerify: true})
	}
	resp, _, err := ask(over, bufio.NewReader(over), "GET", "shop.test", "/")
	switch {
	case err != nil && end.read == 0:
		return nil
	case err != nil || resp.StatusCode != 200:
		e.t.Fatalf("%s of %s: %v, %v after %d bytes", listener, client, resp, err, end.read)
	}
	return c
}

// byteCount counts the bytes that the other end sent.
type byteCount struct {
	net.Conn
	read int
}

func (b *byteCount) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	b.read += n
	return n, err
}

func (e *clientLimitsTest) rejects(reason string, client string) {
	e.t.Helper()
	e.logged("the refusal of "+client, func(l entry) bool {
		return l.text("reason") == reason && strings.HasPrefix(l.text("client"), client+":")
	})
}

// connections: open at once, over all listeners and over a reload.
func TestClientLimitConnections(t *testing.T) {
	e := startClientLimits(t, "connections: 3")
	const client = "203.0.113.1"
	held := []net.Conn{e.open("web", client), e.open("websecure", client), e.open("web", client)}
	for _, listener := range []string{"web", "websecure"} {
		if e.open(listener, client) != nil {
			t.Errorf("a fourth connection is served on %s", listener)
		}
	}
	e.rejects("client_connections", client)
	for i := range 5 {
		if i < 3 && e.open("websecure", "203.0.113.2") == nil {
			t.Error("the limit of one client refuses another")
		}
		if e.open("web", "192.0.2.9") == nil {
			t.Error("a client of except is refused")
		}
	}
	held[1].Close()
	eventually(t, "the place of a closed connection is free", func() error {
		if e.open("web", client) == nil {
			return errNotYet
		}
		return nil
	})
	if e.open("web", client) != nil {
		t.Error("one end frees two places")
	}
}

// rate: new connections, with a burst.
func TestClientLimitRate(t *testing.T) {
	e := startClientLimits(t, "rate: 1/h, burst: 4")
	for i := range 6 {
		if c := e.open([]string{"web", "websecure"}[i%2], "203.0.113.1"); (c != nil) != (i < 4) {
			t.Errorf("connection %d is served: %t", i+1, c != nil)
		}
	}
	e.rejects("client_rate", "203.0.113.1")
	if e.open("websecure", "203.0.113.2") == nil {
		t.Error("the rate of one client refuses another")
	}
	for range 6 {
		if e.open("web", "192.0.2.9") == nil {
			t.Error("a client of except is refused")
		}
	}
}
