package proxy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/accesslog"
)

// parked2 opens a WebSocket as the only stream of its connection. Both the tunnel and the connection are
// parked.
func (r *rig) parked2(e *endpoint, listener string) (*client2, uint32, *peer) {
	r.Helper()
	c := r.dial2(listener)
	patient(c.peer)
	id, s := c.open2(e)
	patient(s)
	r.wantParked()
	return c, id, s
}

// A tunnel within an HTTP/2 connection is parked together with the connection. Meanwhile other tunnels and
// requests of the connection begin and end.
func TestParkedTunnelOverHTTP2(t *testing.T) {
	long(t)
	r, e := newRig2(t, nil)
	for _, listener := range wires2 {
		c := r.dial2(listener)
		patient(c.peer)
		id, s := c.open2(e)
		patient(s)
		ping := func(id uint32, s *peer) {
			t.Helper()
			c.data(id, false, "question")
			s.wantRead("question")
			got := c.on(id).body.Len()
			s.write("answer")
			c.until("the answer", func() bool { return c.on(id).body.Len() == got+len("answer") })
		}
		for range 20 {
			ping(id, s)
		}
		r.wantParked()
		if n := r.count(conn.Tunnel); n != 1 {
			t.Errorf("%d connections are tunnels", n)
		}
		if r.only().Polled() {
			t.Error("the runtime's poller has the connection")
		}

		s.write("news") // bytes in the other direction need not wake the connection
		c.until("the news", func() bool { return strings.HasSuffix(c.on(id).body.String(), "news") })
		if !r.only().Parked() {
			t.Error("the connection was woken for what it was to send")
		}
		ping(id, s)

		r.wantParked()
		request := c.request(true, "/")
		s2 := serveOnce(e.accept(), ok("x"))
		c.want2(request, 200, "x")
		r.record().want(t, "kind", "http", "status", 200)
		s2.Close()
		other, s2 := c.open2(e)
		ping(other, s2)
		r.wantParked()
		ping(id, s)
		ping(other, s2)
		r.wantParked()

		c.data(other, true, "") // one direction ends after the other
		s2.wantEnd(false)
		r.wantParked()
		s2.Close()
		c.answer(other)
		r.record().want(t, "kind", "upgrade", "reason", "eof", "bytes_in", 16, "bytes_out", 12, "http_version", "2", "target", "/ws", "status", 101)
		r.wantParked()
		ping(id, s)
		s.Close()
		c.until("the end", func() bool { return c.on(id).ended })
		c.data(id, true, "")
		r.record().want(t, "kind", "upgrade", "reason", "eof", "bytes_in", 23*8)
		r.wantParked()
		if n := r.count(conn.Idle); n != 1 {
			t.Errorf("%d connections are idle", n)
		}
		c.alive()
		c.Close()
		eventually(t, "the connection ends", func() error { return r.wantOpen(0) })
	}
	r.wantNoLog()
}

// A connection with tunnels has no idle limit. After the tunnels have ended, it has one.
func TestParkedTunnelsLimits(t *testing.T) {
	long(t)
	const limit = 1500 * time.Millisecond
	r, e := newRig2(t, func(cfg *config.Config) {
		for i := range cfg.Listeners {
			cfg.Listeners[i].Timeouts.KeepAlive = limit
		}
	})
	c, id, s := r.parked2(e, "web")
	time.Sleep(limit + limit/4) // within this time the idle limit would have ended it
	c.data(id, false, "still")
	s.wantRead("still")
	r.wantParked()
	begun := time.Now()
	s.reset()
	c.wantReset(id, "CANCEL")
	r.record().want(t, "kind", "upgrade", "reason", "endpoint_reset")
	c.wantAway("NO_ERROR ")
	if took := time.Since(begun); took < limit-100*time.Millisecond {
		t.Errorf("it was ended after %v", took)
	}
	r.wantNoLog()
}

// The events that end tunnels also end parked ones, and nothing else on their connection.
func TestParkedTunnelOverHTTP2Ends(t *testing.T) {
	long(t)
	f := func(tune func(*config.Config), end func(r *rig, e *endpoint, c *client2, id uint32, s *peer), reset, reason string, reports bool) {
		t.Helper()
		r, e := newRig2(t, tune)
		c := r.dial2("web")
		patient(c.peer)
		id, s := c.open2(e)
		patient(s)
		c.data(id, false, "x")
		s.wantRead("x")
		r.wantParked()
		end(r, e, c, id, s)
		switch {
		case reset != "":
			c.wantReset(id, reset)
			c.alive()
		case !reports:
			s.wantEnd(true)
		}
		r.record().want(t, "kind", "upgrade", "reason", reason)
		if n := r.counter("weir_tunnels_open", "route", "*"); n != 0 {
			t.Errorf("%v tunnels are open", n)
		}
		if n := r.set.Backend("app").InFlight(); n != 0 {
			t.Errorf("%d are in flight", n)
		}
	}
	type end = func(r *rig, e *endpoint, c *client2, id uint32, s *peer)
	nothing := end(func(*rig, *endpoint, *client2, uint32, *peer) {})
	f(nil, func(_ *rig, _ *endpoint, c *client2, id uint32, _ *peer) { c.framer.WriteRSTStream(id, 8) }, "", "client_reset", false)
	f(nil, func(_ *rig, _ *endpoint, c *client2, _ uint32, _ *peer) { c.reset() }, "", "client_reset", false)
	f(nil, func(r *rig, _ *endpoint, _ *client2, _ uint32, _ *peer) { r.only().Cut() }, "", "cut", false)
	f(nil, func(_ *rig, _ *endpoint, _ *client2, _ uint32, s *peer) { s.reset() }, "CANCEL", "endpoint_reset", true)
	f(nil, func(r *rig, e *endpoint, _ *client2, _ uint32, _ *peer) {
		for _, c := range r.load(strings.Replace(secure2, "backend: app", "paths: [/other], backend: app", 1), nil, "@app", e.address) {
			c.Cut()
		}
	}, "CANCEL", "cut", false)
	f(func(cfg *config.Config) { cfg.Routes[0].TunnelIdle = 3 * time.Second }, nothing, "CANCEL", "idle", false)
	f(func(cfg *config.Config) { cfg.Routes[0].MaxLifetime = 4 * time.Second }, nothing, "CANCEL", "lifetime", false)
}

// A drain sends GOAWAY on a connection with parked tunnels, and ends the connection after them.
func TestDrainOfParkedTunnelsOverHTTP2(t *testing.T) {
	long(t)
	r, e := newRig2(t, nil)
	c, id, s := r.parked2(e, "tls")
	r.proxy.SetDraining(true)
	c.until("the GOAWAY", func() bool { return len(c.away) > 0 })
	c.data(id, false, "question")
	s.wantRead("question")
	s.write("answer")
	c.until("the answer", func() bool { return c.on(id).body.String() == "answer" })
	c.until("the second GOAWAY", func() bool { return len(c.away) == 2 })
	r.wantParked()
	ours := r.only()
	told := make(chan conn.State, 1) // the connection's state when weir logs the tunnel: a drain waits until the tunnel ends
	r.proxy.SetLog(func(*accesslog.Record) { told <- ours.State() })
	s.Close()
	c.data(id, true, "")
	c.wantAway("NO_ERROR ")
	c.Close()
	if state := next(r, told, "the record"); state == conn.Idle {
		t.Error("the stream was closed before the tunnel was logged")
	}
	r.wantNoLog()
}

// The age of a connection with parked tunnels counts from the last byte in one of them. Weir uses the age
// when it ends connections because memory is short.
func TestTunnelsOverHTTP2ReportIdle(t *testing.T) {
	r, e := newRig2(t, nil)
	c, id, s := r.parked2(e, "web")
	ours := r.only()
	eventually(t, "it is idle", func() error {
		if age, known := ours.QuietFor(time.Now()); !known || age < 500*time.Millisecond {
			return fmt.Errorf("for %v, %t", age, known)
		}
		return nil
	})
	begun := time.Now()
	s.write("x")
	c.until("the byte", func() bool { return c.on(id).body.Len() == 1 })
	eventually(t, "the byte is noted, in tenths of a second", func() error {
		if age, known := ours.QuietFor(time.Now()); !known || age > time.Since(begun)+200*time.Millisecond {
			return fmt.Errorf("it is idle for %v, %t", age, known)
		}
		return nil
	})
	if s := ours.State(); s != conn.Tunnel {
		t.Errorf("it is %v", s)
	}

	beside := c.request(true, "/")
	b := e.accept()
	b.head()
	r.proxy.CutTunnels(func(c *conn.Conn) bool { return c == ours })
	c.wantReset(id, "CANCEL")
	s.wantEnd(true)
	r.record().want(t, "kind", "upgrade", "reason", "cut")
	b.write(ok("x"))
	c.want2(beside, 200, "x")
	c.alive()
}

// A tunnel to an HTTP/2 endpoint is parked as well, for clients of both versions.
func TestParkedTunnelToHTTP2Endpoint(t *testing.T) {
	long(t)
	e := newEndpoint(t)
	r := newRig(t, strings.Replace(h2cBackend, "protocol: http}", "protocol: http, http2: {prior_knowledge: true}}", 1), nil, "@app", e.address)
	c := patient(r.dial("web"))
	c.write("GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	p, fr := e.acceptH2(xhttp2.Setting{ID: xhttp2.SettingEnableConnectProtocol, Val: 1})
	patient(p)
	first := nextFrame[*xhttp2.HeadersFrame](t, fr).StreamID
	fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: first, BlockFragment: []byte{0x88}, EndHeaders: true})
	c.head()
	r.wantParked()
	fr.WriteData(first, false, []byte("hello"))
	c.wantRead("hello")
	c.write("world")
	if d := nextFrame[*xhttp2.DataFrame](t, fr); string(d.Data()) != "world" {
		t.Errorf("%q", d.Data())
	}
	r.wantParked()
	fr.WriteRSTStream(first, xhttp2.ErrCodeCancel)
	c.wantEnd(true)
	r.record().want(t, "kind", "upgrade", "reason", "endpoint_reset", "target", "/ws", "bytes_in", 5, "bytes_out", 5)

	two := r.dial2("web") // with streams at both ends
	patient(two.peer)
	id := two.socket2("/ws")
	second := nextFrame[*xhttp2.HeadersFrame](t, fr).StreamID
	fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: second, BlockFragment: []byte{0x88}, EndHeaders: true})
	two.until("the tunnel", func() bool { return len(two.on(id).heads) > 0 })
	r.wantParked()
	fr.WriteData(second, true, []byte("hello"))
	two.until("the end", func() bool { return two.on(id).ended && two.on(id).body.String() == "hello" })
	r.wantParked()
	two.data(id, true, "world")
	if d := nextFrame[*xhttp2.DataFrame](t, fr); string(d.Data()) != "world" {
		t.Errorf("%q", d.Data())
	}
	r.record().want(t, "kind", "upgrade", "reason", "eof", "bytes_in", 5, "bytes_out", 5)
	two.alive()
}
