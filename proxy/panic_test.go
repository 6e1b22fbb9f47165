package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/accesslog"
)

// A panic ends its own connection, and no other.
func TestPanicsEndOneConnection(t *testing.T) {
	r := newChallenged(t)
	other := r.dialTLS("tls", "open.example.org", nil)
	if _, err := r.validate("panic.example.org", nil); err == nil {
		t.Error("the handshake succeeded")
	}
	if got := next(t, r.told, "panic"); got != "tls: a fault of the tests" {
		t.Errorf("told was %q", got)
	}
	const request = "GET / HTTP/1.1\r\nHost: open.example.org\r\n\r\n"
	other.write(request)
	s := serveOnce(r.app.accept(), ok("x"))
	other.wantResponse(200, "x")
	r.record()

	r.proxy.SetLog(func(*accesslog.Record) { panic("inside Await") })
	other.write(request)
	serveOnce(s, ok("y"))
	if got := next(t, r.told, "panic"); got != "tls: inside Await" {
		t.Errorf("told was %q", got)
	}
	r.proxy.SetLog(nil)
	third := r.dialTLS("tls", "open.example.org", nil)
	third.write(request)
	serveOnce(s, ok("z"))
	third.wantResponse(200, "z")
}

// faulty is a client's connection on which weir panics. The panic comes after weir has read the first bytes,
// when weir reads again or writes.
type faulty struct {
	net.Conn
	first  *strings.Reader
	onRead bool
}

func (c *faulty) Read(p []byte) (int, error) {
	if n, err := c.first.Read(p); err == nil {
		return n, nil
	}
	if c.onRead {
		panic("a fault in Read")
	}
	return c.Conn.Read(p)
}

func (c *faulty) Write(p []byte) (int, error) {
	if !c.onRead {
		panic("a fault in Write")
	}
	return len(p), nil
}

// An exchange that panics releases its endpoint and its connection, in every phase. The rig checks for
// remaining goroutines and descriptors.
func TestPanicsGiveBackWhatTheyHold(t *testing.T) {
	f := func(request string, onRead bool, want string) {
		t.Helper()
		app := newEndpoint(t)
		r := newRig(t, plain, nil, "@app", app.address)
		told := make(chan string, 1)
		r.adjust(func(p *Proxy) { p.Panicked = func(_ string, value any, _ []byte) { told <- fmt.Sprint(value) } })
		client, ours := net.Pipe()
		defer client.Close()
		r.serve(conn.New(&faulty{Conn: ours, first: strings.NewReader(request), onRead: onRead}), "web")
		s := app.accept()
		if !onRead {
			serveOnce(s, ok("x"))
		}
		if got := next(t, told, "panic"); !strings.HasPrefix(got, want) {
			t.Errorf("told was %q, want %q", got, want)
		}
		if _, err := io.Copy(io.Discard, s); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the endpoint's connection stays open")
		}
		eventually(t, "the endpoint is released", func() error {
			if n := r.set.Backend("app").InFlight(); n != 0 {
				return fmt.Errorf("%d exchanges are in flight", n)
			}
			return nil
		})
		s.Close()
	}
	f(get, false, "a fault in Write")
	f(post(10)+"12345", true, "a fault in Read, in an upload:")
}

// A tunnel that panics, in either of its two goroutines, releases its endpoint and its connection.
func TestPanicsInTunnels(t *testing.T) {
	f := func(onRead bool, want string) {
		t.Helper()
		app := newEndpoint(t)
		r := newRig(t, `
listeners: {raw: {address: 'unix:/a', protocol: tcp}}
routes: [{listeners: [raw], backend: app}]
backends: {app: {protocol: tcp, endpoints: ['@app']}}
`, nil, "@app", app.address)
		told := make(chan string, 1)
		panicked := func(_ string, value any, stack []byte) {
			if !strings.Contains(string(stack), "direction") {
				t.Errorf("not where it happened: %s", stack)
			}
			told <- fmt.Sprint(value)
		}
		r.adjust(func(p *Proxy) { p.Panicked = panicked })
		client, ours := net.Pipe()
		defer client.Close()
		r.serve(conn.New(&faulty{Conn: ours, first: strings.NewReader("x"), onRead: onRead}), "raw")
		s := app.accept()
		if !onRead {
			s.write("y")
		}
		if got := next(t, told, "panic"); !strings.HasPrefix(got, want) {
			t.Errorf("told was %q, want %q", got, want)
		}
		if _, err := io.Copy(io.Discard, s); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the endpoint's connection stays open")
		}
		eventually(t, "the endpoint is released", func() error {
			if n := r.set.Backend("app").InFlight(); n != 0 {
				return fmt.Errorf("%d tunnels are in flight", n)
			}
			return nil
		})
		s.Close()
	}
	f(true, "a fault in Read")
	f(false, "a fault in Write")
}
