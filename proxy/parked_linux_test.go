package proxy

import (
	"crypto/tls"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

// A parked client is like any other client: weir counts it, serves its next request with any session,
// and parks it again.
func TestParkedClient(t *testing.T) {
	long(t)
	for _, text := range []string{plain, secure} {
		e := newEndpoint(t)
		r := newRig(t, text, nil, "@app", e.address)
		c := patient(r.dialClient(text))
		c.write("GET /one HTTP/1.1\r\nHost: a\r\nUser-Agent: robot\r\n\r\n")
		s := serveOnce(patient(e.accept()), ok(strings.Repeat("x", 100_000)))
		c.wantResponse(200, strings.Repeat("x", 100_000))
		r.record().want(t, "target", "/one")
		for _, path := range []string{"/two", "/three"} {
			r.wantParked()
			if n := r.count(conn.Idle); n != 1 {
				t.Errorf("%d connections are idle", n)
			}
			if r.only().Polled() {
				t.Error("the runtime's poller has the connection")
			}
			c.write("GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path)
			serveOnce(s, ok("y"))
			c.wantResponse(200, "y")
			rec := r.record()
			rec.want(t, "kind", "http", "target", path, "client", c.LocalAddr(), "listener", "web", "user_agent", nil, "status", 200)
			if text == secure {
				rec.want(t, "sni", "a", "tls_version", "TLS 1.3", "tls_policy", "default")
			} else {
				rec.want(t, "bytes_in", len("GET /two HTTP/1.1\r\nHost: a\r\n\r\n")+len(path)-len("/two"))
			}
		}
		r.wantParked()
		c.Close()
		eventually(t, "the connection ends", func() error { return r.wantOpen(0) })
		r.wantNoLog()
	}
}

// patient gives a peer more time, because connections must be parked first.
func patient(p *peer) *peer {
	p.SetDeadline(time.Now().Add(3 * patience))
	return p
}

func (r *rig) dialClient(text string) *peer {
	r.Helper()
	if text == secure {
		return r.dialTLS("web", "a", nil)
	}
	return r.dial("web")
}

func (r *rig) wantOpen(n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.open) != n {
		return fmt.Errorf("%d connections are open, not %d", len(r.open), n)
	}
	return nil
}

// A connection that was parked keeps the identity that a certificate proved.
func TestParkedClientsCertificate(t *testing.T) {
	r := newCertRig(t, "", everyField)
	cert, chain := r.ca.issue()
	c := patient(r.dialTLS("tls", robots, presenting(cert)))
	for range 2 {
		if got := r.hear(c, robots, inParts(forgeries())[0]); !slices.Equal(got, told(chain)) {
			t.Errorf("the endpoint heard of %q", got)
		}
		r.wantParked()
	}
	c.write("GET / HTTP/1.1\r\nHost: %s\r\n\r\n", open) // of a host with another policy
	c.wantResponse(421, "this host needs a connection of its own\n")
}

// The limit of idle connections counts from the last exchange. Single bytes that form no request do not
// prolong it.
func TestParkedClientsLimit(t *testing.T) {
	long(t)
	const limit = 3 * time.Second
	f := func(text string, drip func(c *peer)) {
		t.Helper()
		e := newEndpoint(t)
		r := newRig(t, text, func(c *config.Config) { c.Listeners[0].Timeouts.KeepAlive = limit }, "@app", e.address)
		c := patient(r.dialClient(text))
		c.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		serveOnce(patient(e.accept()), ok(""))
		c.wantResponse(200, "")
		begun := time.Now()
		r.wantParked()
		r.record()
		if drip != nil {
			drip(c)
		}
		c.wantEnd(false)
		if took := time.Since(begun); took < limit-100*time.Millisecond {
			t.Errorf("it ended after %v", took)
		}
		c.Close()
		r.wantNoLog()
	}
	for _, text := range []string{plain, secure} {
		f(text, nil)
	}
	f(secure, func(c *peer) { // the beginning of a record
		for _, b := range []byte{23, 3, 3, 0} {
			c.Conn.(*tls.Conn).NetConn().Write([]byte{b})
		}
	})
}

// A parked client that sends empty lines is parked again, and weir counts the empty lines.
func TestParkedClientsEmptyLines(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, plain, nil, "@app", e.address)
	c := patient(r.dial("web"))
	c.write(get)
	s := serveOnce(patient(e.accept()), ok(""))
	c.wantResponse(200, "")
	c.write("\r\n\r\n")
	r.wantParked()
	c.write("\r\n" + get)
	serveOnce(s, ok(""))
	c.wantResponse(200, "")
	c.write("\r\n\r\n\r\n")
	r.wantParked()
	c.write("\r\n\r\n" + get)
	c.wantResponse(400, "*")
}

// The head of a request may arrive in pieces, and the first piece may wake a parked connection. The
// head has a time limit of its own, and a client that exceeds it gets a response.
func TestParkedClientsSlowHead(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, plain, func(c *config.Config) { c.Listeners[0].Timeouts.RequestHead = 1500 * time.Millisecond }, "@app", e.address)
	c := patient(r.dial("web"))
	c.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	serveOnce(patient(e.accept()), ok(""))
	c.wantResponse(200, "")
	r.record()
	r.wantParked()
	c.write("GET / HTTP/1.1\r\nHo")
	c.wantResponse(408, "the client did not send the whole request head in time\n")
	r.record().want(t, "status", 408, "reason", "slow_head")
}

// A connection without bytes is parked before its first request, too. Its first bytes may then be
// those of any protocol that may begin a connection.
func TestParkedBeforeTheFirstRequest(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, secure2, nil, "@app", e.address)
	c, d := patient(r.dial("web")), patient(r.dial("web"))
	r.wantParked()
	c.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	s := serveOnce(patient(e.accept()), ok("x"))
	c.wantResponse(200, "x")
	r.record().want(t, "http_version", "1.1")
	two := greet2(d)
	id := two.request(true, "/")
	serveOnce(s, ok("y"))
	two.want2(id, 200, "y")
	r.record().want(t, "http_version", "2")
	r.wantParked()
	c.write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") // too late for the preface
	c.wantResponse(505, "*")
	r.record()
}

// The events that end connections also end parked ones.
func TestParkedClientIsCut(t *testing.T) {
	for _, text := range []string{plain, secure} {
		e := newEndpoint(t)
		r := newRig(t, text, nil, "@app", e.address)
		c, half := patient(r.dialClient(text)), patient(r.dialClient(text))
		r.wantParked()
		half.closeWrite()
		half.wantEnd(false)
		eventually(t, "the other one is left", func() error { return r.wantOpen(1) })
		r.only().Cut()
		c.wantEnd(false)
		r.wantNoLog()
	}
}

// Parked clients keep no table that a reload has replaced.
func TestParkedClientsHoldNoTable(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, secure2, nil, "@app", e.address)
	a, two := patient(r.dialTLS("tls", "a", nil)), r.dial2("tls")
	patient(two.peer)
	a.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	s := serveOnce(patient(e.accept()), ok("x"))
	a.wantResponse(200, "x")
	r.record() // the endpoint's connection can be used again
	id := two.request(true, "/")
	serveOnce(s, ok("y"))
	two.want2(id, 200, "y")
	r.record()
	r.wantParked()
	old := weak.Make(r.proxy.table.Load())
	r.load(secure2, nil, "@app", e.address)
	eventually(t, "the table is gone", func() error {
		runtime.GC()
		if old.Value() != nil {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	a.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	serveOnce(s, ok("z"))
	a.wantResponse(200, "z")
}

// If reloads remove a listener or change its protocol, a client on the listener gets one more response.
func TestParkedClientsListenerGoes(t *testing.T) {
	const web = "  web: {address: '@1', protocol: http, http2: {prior_knowledge: true}}\n"
	f := func(now ...string) {
		t.Helper()
		e := newEndpoint(t)
		r := newRig(t, secure2, nil, "@app", e.address)
		c := patient(r.dial("web"))
		c.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		s := serveOnce(patient(e.accept()), ok("x"))
		c.wantResponse(200, "x")
		r.wantParked()
		for range 3 {
			r.load(strings.NewReplacer(now...).Replace(secure2), nil, "@app", e.address)
		}
		c.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		serveOnce(s, ok("y"))
		if res := c.wantResponse(200, "y"); !res.Close {
			t.Error("the client is not told that this was the last")
		}
		c.wantEnd(false)
	}
	f(web, "", "[tls, web]", "[tls]")
	f(web, "  web: {address: '@1', protocol: tls}\n")
}

// Weir forgets a removed listener when no connection can need it any more. The listener does not keep
// other listeners of its table in memory.
func TestDepartedListenersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Proxy{Metrics: NewMetrics(prometheus.NewRegistry())}
		swap := func(listeners ...config.Listener) {
			t.Helper()
			table, err := NewTable(&config.Config{Listeners: listeners}, Parts{Metrics: p.Metrics})
			if err != nil {
				t.Fatal(err)
			}
			p.Swap(table)
		}
		f := func(name string, want bool) {
			t.Helper()
			if table, e := p.edge(name); (e != nil) != want || e != nil && table.edges[name] != e {
				t.Errorf("%s is known: %t, want %t", name, e != nil, want)
			}
		}
		web := config.Listener{Name: "web", Protocol: config.ProtocolHTTP, Timeouts: config.ListenerTimeouts{KeepAlive: time.Hour}}
		raw := config.Listener{Name: "raw", Protocol: config.ProtocolTCP, Timeouts: config.ListenerTimeouts{KeepAlive: time.Hour}}
		stay := config.Listener{Name: "stay", Protocol: config.ProtocolHTTP}
		swap(stay, web, raw)
		for range 3 {
			swap(stay)
			f("web", true)
			f("raw", true)
		}
		if table, _ := p.edge("web"); len(table.edges) != 1 {
			t.Errorf("it holds %d listeners", len(table.edges))
		}
		time.Sleep(2 * time.Minute)
		swap(stay)
		f("web", true)
		f("raw", false)
		time.Sleep(time.Hour)
		swap(stay)
		f("web", false)
		f("stay", true)
	})
}

// An HTTP/2 connection is parked when no exchange runs on it. A drain sends GOAWAY on a parked
// connection. Frames other than requests get an answer, but do not prolong the deadline.
func TestParkedHTTP2(t *testing.T) {
	long(t)
	for _, listener := range wires2 {
		e := newEndpoint(t)
		r := newRig(t, secure2, nil, "@app", e.address)
		c := r.dial2(listener)
		patient(c.peer)
		id := c.request(true, "/one", "user-agent: robot")
		s := serveOnce(patient(e.accept()), ok("x"))
		c.want2(id, 200, "x")
		r.record().want(t, "target", "/one", "user_agent", "robot")
		for _, path := range []string{"/two", "/three"} {
			r.wantParked()
			if r.only().Polled() {
				t.Error("the runtime's poller has the connection")
			}
			c.alive() // the PING wakes it
			r.wantParked()
			id = c.request(true, path)
			serveOnce(s, ok("y"))
			c.want2(id, 200, "y")
			r.record().want(t, "kind", "http", "target", path, "client", c.LocalAddr(), "listener", listener, "user_agent", nil, "http_version", "2")
		}
		r.wantParked()
		r.proxy.SetDraining(true)
		c.wantAway("NO_ERROR ")
		r.wantNoLog()
	}
}

// An exchange that takes longer than the linger prevents its connection from being parked until the
// exchange has ended.
func TestParkedBehindALongExchange(t *testing.T) {
	r, e := newRig2(t, nil)
	c := r.dial2("tls")
	patient(c.peer)
	id := c.request(true, "/")
	s := patient(e.accept())
	s.head()
	eventually(t, "the wait for bytes was told that it may not be parked", func() error {
		if !r.only().ParkDenied() {
			return fmt.Errorf("it has not")
		}
		return nil
	})
	s.write(ok("late"))
	c.want2(id, 200, "late")
	r.wantParked()
	r.record()
}

// The limit of idle connections ends parked ones, in two steps as HTTP/2 requires. Neither PINGs nor the
// beginning of a record prolong it.
func TestParkedHTTP2Limit(t *testing.T) {
	long(t)
	const limit = 3 * time.Second
	f := func(drip func(c *client2)) {
		t.Helper()
		r, _ := newRig2(t, func(c *config.Config) { c.Listeners[0].Timeouts.KeepAlive = limit })
		c := r.dial2("tls")
		patient(c.peer)
		begun := time.Now()
		r.wantParked()
		drip(c)
		c.until("to be told to go", func() bool { return len(c.away) > 0 })
		if took := time.Since(begun); took < limit-100*time.Millisecond || c.away[0] != "2147483647 NO_ERROR " {
			t.Errorf("after %v came %q", took, c.away)
		}
		for c.step() == nil {
		}
	}
	f(func(*client2) {})
	f(func(c *client2) { c.alive() })
	f(func(c *client2) {
		c.alive() // after that, only the beginning of a record
		c.Conn.(*tls.Conn).NetConn().Write([]byte{23, 3, 3, 0})
	})
}

// A parked connection ends at once if weir cuts it, or if its client ends it.
func TestParkedHTTP2IsCut(t *testing.T) {
	for _, listener := range wires2 {
		r, _ := newRig2(t, nil)
		c, d := r.dial2(listener), r.dial2(listener)
		patient(c.peer)
		r.wantParked()
		d.Close()
		eventually(t, "the client's end is noticed", func() error { return r.wantOpen(1) })
		r.only().Cut()
		for c.step() == nil {
		}
		eventually(t, "the connection ends", func() error { return r.wantOpen(0) })
		r.wantNoLog()
	}
}
