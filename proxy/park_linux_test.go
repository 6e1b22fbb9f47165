package proxy

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/accesslog"
)

// wantParked waits until every connection is parked, and no goroutine serves one.
func (r *rig) wantParked() {
	r.Helper()
	buf := make([]byte, 1<<20)
	eventually(r, "all connections are parked", func() error {
		r.mu.Lock()
		for c := range r.open {
			if !c.Parked() {
				r.mu.Unlock()
				return fmt.Errorf("one is %v, and not parked:\n%s", c.State(), buf[:runtime.Stack(buf, true)])
			}
		}
		r.mu.Unlock()
		stacks := string(buf[:runtime.Stack(buf, true)])
		for _, f := range []string{"proxy.(*Proxy).Serve(", "proxy.(*parkedClient).resume(", "proxy.(*http2Session).resume(", "tunnel.(*direction).run("} {
			if strings.Contains(stacks, f) {
				return errors.New(stacks)
			}
		}
		return nil
	})
}

// weir counts a parked tunnel, and logs and measures its end, as it does for every other tunnel.
func TestParkedTunnel(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, raw, nil, "@ssh", e.address)
	c := r.dial("tcp")
	s := e.accept()
	for range 20 { // makes the tunnel so busy that it waits in the poller and not in the lot
		c.write("question")
		s.wantRead("question")
		s.write("answer")
		c.wantRead("answer")
	}
	r.wantParked()
	if n := r.count(conn.Tunnel); n != 1 {
		t.Errorf("%d connections are tunnels", n)
	}
	if n := r.counter("weir_tunnels_open", "route", "git"); n != 1 {
		t.Errorf("%v tunnels are open", n)
	}
	if n := r.counter("weir_bytes_total", "route", "git", "direction", "in"); n != 160 {
		t.Errorf("%v bytes in", n)
	}
	if n := r.set.Backend("ssh").InFlight(); n != 1 {
		t.Errorf("%d are in flight", n)
	}
	c.write("question")
	s.wantRead("question")
	r.wantParked()
	s.Close()
	c.wantEnd(false)
	c.Close()
	r.record().want(t, "kind", "tunnel", "listener", "tcp", "route", "git", "backend", "ssh", "endpoint", e.address, "reason", "eof",
		"bytes_in", 168, "bytes_out", 120, "retries", 0, "client", c.LocalAddr())
	if n := r.set.Backend("ssh").InFlight(); n != 0 {
		t.Errorf("%d are in flight", n)
	}
	r.wantNoLog()
}

// An upgraded connection is parked without its session, which serves other connections meanwhile.
func TestParkedUpgrade(t *testing.T) {
	long(t)
	for _, text := range []string{plain, secure} {
		e := newEndpoint(t)
		r := newRig(t, text, nil, "@app", e.address)
		dial := func() *peer {
			if text == secure {
				return r.dialTLS("web", "a", nil)
			}
			return r.dial("web")
		}
		c := dial()
		c.write(upgrade)
		s := serveOnce(e.accept(), "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		c.head()
		for range 20 {
			s.write("tick")
			c.wantRead("tick")
		}
		c.write("tock")
		s.wantRead("tock")
		r.wantParked()

		var other *peer
		for range 5 { // other connections use the session's memory
			d := dial()
			d.write("GET /another/longer/path HTTP/1.1\r\nHost: A\r\nUser-Agent: somebody else\r\n\r\n")
			if other == nil {
				other = e.accept()
			}
			serveOnce(other, ok("x"))
			d.wantResponse(200, "x")
			r.record().want(t, "kind", "http")
			d.Close()
		}
		c.write("tock")
		s.wantRead("tock")
		r.wantParked()
		s.Close()
		c.wantEnd(false)
		c.Close()
		rec := r.record()
		rec.want(t, "kind", "upgrade", "status", 101, "bytes_in", 8, "bytes_out", 80, "method", "GET", "target", "/ws", "host", "a",
			"user_agent", nil, "endpoint", e.address, "reason", "eof", "http_version", "1.1")
		if text == secure {
			rec.want(t, "sni", "a", "tls_version", "TLS 1.3")
		}
	}
}

// The events that end tunnels also end parked ones: a cut, a reload, the limits.
func TestParkedTunnelIsCut(t *testing.T) {
	f := func(tune func(*config.Config), end func(r *rig, e *endpoint), reason string) {
		t.Helper()
		e := newEndpoint(t)
		r := newRig(t, raw, tune, "@ssh", e.address)
		c := r.dial("tcp")
		s := e.accept()
		c.write("x")
		s.wantRead("x")
		r.wantParked()
		end(r, e)
		c.wantEnd(true)
		s.wantEnd(true)
		r.record().want(t, "kind", "tunnel", "reason", reason)
		if n := r.counter("weir_tunnels_open", "route", "git"); n != 0 {
			t.Errorf("%v tunnels are open", n)
		}
	}
	f(nil, func(r *rig, _ *endpoint) { r.only().Cut() }, "cut")
	f(nil, func(r *rig, e *endpoint) {
		for _, c := range r.load(strings.Replace(raw, "git", "other", 1), nil, "@ssh", e.address) {
			c.Cut()
		}
	}, "cut")
	nothing := func(*rig, *endpoint) {}
	f(func(c *config.Config) { c.Routes[0].TunnelIdle = 500 * time.Millisecond }, nothing, "idle")
	f(func(c *config.Config) { c.Routes[0].MaxLifetime = 500 * time.Millisecond }, nothing, "lifetime")
}

// A panic in a tunnel ends only that tunnel, parked before or not.
func TestTunnelPanics(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, raw, nil, "@ssh", e.address)
	told := make(chan any, 2)
	panicked := func(listener string, value any, stack []byte) {
		if listener != "tcp" || len(stack) == 0 {
			t.Errorf("listener %s, stack %q", listener, stack)
		}
		told <- value
	}
	r.adjust(func(p *Proxy) { p.Panicked = panicked })
	c := r.dial("tcp")
	s := e.accept()
	r.wantParked()
	r.proxy.SetLog(func(*accesslog.Record) { panic("no luck") })
	s.Close()
	c.wantEnd(false)
	c.Close()
	if v := next(r, told, "panic"); v != "no luck" {
		t.Errorf("told of %v", v)
	}
	if n := r.counter("weir_tunnels_open", "route", "git"); n != 0 {
		t.Errorf("%v tunnels are open", n)
	}
}
