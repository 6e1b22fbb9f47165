package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
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

// An attacker with all addresses of a /64 gets no more than the rate, and others do not notice.
func TestClientLimitRateAttacked(t *testing.T) {
	e := startClientLimits(t, "rate: 5/s, burst: 20")
	begun := time.Now()
	var served, closed, n atomic.Int64
	var attack sync.WaitGroup
	for range 8 {
		attack.Go(func() {
			for closed.Load() < 1000 && !t.Failed() {
				source := fmt.Sprintf("[2001:db8:0:1::%x]:%d", rand.Uint32N(1<<16), 1000+n.Add(1))
				c, err := net.Dial("tcp", e.at("web"))
				if err != nil {
					t.Error(err)
					return
				}
				c.SetDeadline(time.Now().Add(patience))
				c.Write(append(v1Header(source, "[2001:db8::2]:80"), "GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n"...))
				if got, _ := c.Read(make([]byte, 1)); got > 0 {
					served.Add(1)
				} else {
					closed.Add(1)
				}
				c.Close()
			}
		})
	}
	for range 10 { // each of its own network
		if e.open("websecure", fmt.Sprintf("203.0.113.%d", e.connections)) == nil {
			t.Error("an attack from another network refuses a client")
		}
	}
	attack.Wait()
	if most := 20 + 5*int64(time.Since(begun)/time.Second+1); served.Load() > most || served.Load() < 20 {
		t.Errorf("%d connections of the attacker were served in %v, at most %d are allowed", served.Load(), time.Since(begun), most)
	}
	if n := e.metric("weir_connections_rejected_total", "reason", "client_rate"); n < 1000 {
		t.Errorf("%v connections were counted as refused, and %d were", n, closed.Load())
	}
	eventually(t, "the attacker is served again after the attack", func() error {
		e.connections++
		c := dialWith(t, e.at("web"), v1Header(fmt.Sprintf("[2001:db8:0:1::1]:%d", 20000+e.connections), "[2001:db8::2]:80"))
		defer c.Close()
		_, _, err := ask(c, bufio.NewReader(c), "GET", "shop.test", "/")
		return err
	})
}

// placesConfig has listeners whose connections end soon, and others.
const placesConfig = `
listeners:
  web: {address: '@web', protocol: http, proxy_protocol: edge}
  websecure: {address: '@websecure', protocol: tls, proxy_protocol: edge}
  raw: {address: '@raw', protocol: tcp, proxy_protocol: edge}
  brief: {address: '@brief', protocol: http, proxy_protocol: edge, timeouts: {keep_alive: 1s, request_head: 1s}}
  briefsecure: {address: '@briefsecure', protocol: tls, proxy_protocol: edge, timeouts: {handshake: 1s}}
  briefraw: {address: '@briefraw', protocol: tcp, proxy_protocol: edge}
  gone: {address: '@gone', protocol: http, proxy_protocol: edge}
proxy_protocol:
  edge: {rules: [{from: [127.0.0.0/8], header: require}]}
certificates: [{self_signed: {hosts: [shop.test]}}]
limits: {clients: {connections: 3}}
routes:
  - {listeners: [web, websecure, brief, briefsecure, gone], backend: app}
  - {listeners: [raw], backend: lines}
  - {listeners: [briefraw], max_lifetime: 1s, backend: lines}
backends:
  app: {endpoints: ['@app']}
  lines: {protocol: tcp, endpoints: ['@lines']}
`

// However a connection ends, its place is free again, once: also if it was parked, or if weir ended it.
func TestClientLimitPlacesComeBack(t *testing.T) {
	long(t)
	t.Parallel()
	w := newWeir(t)
	app := newWebBackend(t, "app")
	w.address["app"], w.address["lines"] = app.address, newEchoBackend(t).address
	e := &clientLimitsTest{weir: w.start(placesConfig)}
	closeAll := func(all []net.Conn) {
		for _, c := range all {
			c.Close()
		}
	}
	// ended waits until weir has ended connections.
	ended := func(all []net.Conn) {
		for _, c := range all {
			c.SetDeadline(time.Now().Add(patience))
			for err := error(nil); err == nil; {
				if _, err = c.Read(make([]byte, 1000)); os.IsTimeout(err) {
					t.Error("weir did not end a connection")
				}
			}
			c.Close()
		}
	}
	for i, way := range []struct {
		name, listener string
		first          string // what the client sends; empty: a request
		parked         bool
		end            func([]net.Conn)
	}{
		{"idle clients that leave", "web", "", true, closeAll},
		{"idle clients that reset", "websecure", "", true, func(all []net.Conn) {
			for _, c := range all {
				c.(*net.TCPConn).SetLinger(0)
				c.Close()
			}
		}},
		{"idle clients of HTTP/2", "websecure", "h2", true, closeAll},
		{"idle tunnels", "raw", "hello", true, closeAll},
		{"keep_alive", "brief", "", false, ended},
		{"request_head", "brief", "GET / HT", false, ended},
		{"handshake", "briefsecure", "\x16\x03\x01\x02", false, ended},
		{"no handshake", "websecure", "\x16\x03\x01\xff\xff", false, ended},
		{"max_lifetime", "briefraw", "hello", false, ended},
		{"a request that the client gives up", "web", "GET /hold HTTP/1.1\r\nHost: shop.test\r\n\r\n", false, func(all []net.Conn) {
			for range all {
				app.arrived(t)
			}
			closeAll(all)
		}},
		{"a drain", "web", "", true, func(all []net.Conn) {
			w.post("/drain")
			for _, c := range all {
				if resp, _, err := ask(c, bufio.NewReader(c), "GET", "shop.test", "/"); err != nil || !resp.Close {
					t.Errorf("%v, %v: weir does not announce the end", resp, err)
				}
			}
			ended(all)
			w.post("/undrain")
		}},
		{"a removed listener", "gone", "", true, func(all []net.Conn) {
			w.reload(strings.Replace(strings.Replace(placesConfig, ", gone]", "]", 1), "\n  gone:", "\n  # gone:", 1))
			closeAll(all)
		}},
	} {
		client := fmt.Sprintf("203.0.113.%d", i+1)
		var held []net.Conn
		for range 3 {
			held = append(held, e.begin(way.listener, client, way.first))
		}
		if way.parked {
			w.wantMetric(3, "weir_connections_parked")
			if e.open("web", client) != nil {
				t.Errorf("%s: a fourth connection is served", way.name)
			}
		}
		way.end(held)
		w.wantMetric(0, "weir_connections_open")
		var again []net.Conn
		for range 3 {
			again = append(again, e.open("web", client))
		}
		if e.open("websecure", client) != nil {
			t.Errorf("%s: four connections are served afterwards", way.name)
		}
		for _, c := range again {
			if c == nil {
				t.Fatalf("%s: a place is not free again", way.name)
			}
			c.Close()
		}
		w.wantMetric(0, "weir_connections_open")
	}
}

// begin opens a connection that weir serves, and sends first: "" is a request, and h2 a request over HTTP/2.
func (e *clientLimitsTest) begin(listener, client, first string) net.Conn {
	e.t.Helper()
	if first == "" {
		if c := e.open(listener, client); c != nil {
			return c
		}
		e.t.Fatalf("%s is refused on %s", client, listener)
	}
	e.connections++
	c := dialWith(e.t, e.at(listener), v1Header(fmt.Sprintf("%s:%d", client, 10000+e.connections), "192.0.2.2:80"))
	e.t.Cleanup(func() { c.Close() })
	if first == "h2" {
		over := tls.Client(c, &tls.Config{ServerName: "shop.test", InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		h := h2frames(e.t, over)
		if err := h.head(1, true, getFields()...); err != nil {
			e.t.Fatal(err)
		}
		return over
	}
	if _, err := io.WriteString(c, first); err != nil {
		e.t.Fatal(err)
	}
	return c
}
