package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/accesslog"
)

// Weir recognizes the preface in pieces of any size, and only where it is allowed.
func TestHTTP2PriorKnowledge(t *testing.T) {
	r, e := newRig2(t, nil)
	for _, cut := range []int{1, 3, 10, 17, 18, 19, 23} {
		p := r.dial("web")
		p.write(xhttp2.ClientPreface[:cut])
		time.Sleep(2 * time.Millisecond) // weir must also accept both pieces if they arrive together
		p.write(xhttp2.ClientPreface[cut:])
		c := settings2(p)
		c.want2(c.request(true, "/..%2f"), 400, "*")
	}
	c := r.dial("web") // HTTP/1.1 works as before
	c.write(get)
	serveOnce(e.accept(), ok("x"))
	c.wantResponse(200, "x")
	c.write(xhttp2.ClientPreface) // not allowed after a request
	c.wantResponse(505, "*")

	c = r.dial("web")
	c.write("PRI * HTTP/2.0\r\nHost: a\r\n\r\n")
	c.wantResponse(505, "*")
	c = r.dial("web")
	c.write("neither\r\n\r\n")
	c.wantEnd(false)
	r.refusal().want(t, "reason", "bad_request_line")
	p := r.dial("web")
	p.write("PRI * HTTP/2.0\r\n\r\nSX\r\n\r\n")
	settings2(p).wantAway("PROTOCOL_ERROR bad_preface")
	r.refusal().want(t, "reason", "bad_preface")

	other, _ := newPlain(t, nil)
	c = other.dial("web")
	c.write(xhttp2.ClientPreface)
	c.wantResponse(505, "*")
}

// short sets limits for clients that are short enough for a test, and long enough for the client of the test
// to act within them.
func short(cfg *config.Config) {
	for i := range cfg.Listeners {
		cfg.Listeners[i].Timeouts = config.ListenerTimeouts{Handshake: patience, RequestHead: 500 * time.Millisecond,
			BodyIdle: 500 * time.Millisecond, KeepAlive: time.Second}
	}
}

// unread limits only the time for which weir waits until its client reads. The test's own client may take as
// long as it needs for its preface and its requests.
func unread(cfg *config.Config) {
	for i := range cfg.Listeners {
		cfg.Listeners[i].Timeouts.BodyIdle = 150 * time.Millisecond
	}
}

func TestHTTP2Deadlines(t *testing.T) {
	long(t)
	r, e := newRig2(t, short)
	for _, listener := range wires2 {
		// First a client that sends no bytes, then one that sends a part of the preface's frame.
		p := r.dialBare2(listener)
		p.write(xhttp2.ClientPreface + "\x00\x00")
		mute := struct {
			io.Writer
			io.Reader
		}{io.Discard, p.r}
		(&client2{peer: p, framer: xhttp2.NewFramer(mute, mute), got: make(map[uint32]*answer2)}).wantAway("ENHANCE_YOUR_CALM slow_head")
		r.refusal().want(t, "reason", "slow_head", "listener", listener, "error", "http2: ENHANCE_YOUR_CALM: the client did not complete "+
			"the HTTP/2 preface, or a frame or header list that it had begun, within 500ms (timeouts.request_head of the listener)")

		c := r.dial2(listener) // an incomplete frame
		c.want2(c.request(true, "/..%2f"), 400, "*")
		r.record()
		c.Write([]byte{0, 0, 9, 1})
		c.wantAway("ENHANCE_YOUR_CALM slow_head")
		r.refusal().want(t, "reason", "slow_head")

		c = r.dial2(listener) // an incomplete head, in complete frames
		c.alive()
		c.framer.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}, EndHeaders: false})
		stop := make(chan struct{})
		go func() {
			defer close(stop)
			for c.beside(func() error { return c.framer.WriteContinuation(1, false, []byte{0x40, 1, 'a', 1, 'b'}) }) == nil {
				time.Sleep(20 * time.Millisecond)
			}
		}()
		c.wantAway("ENHANCE_YOUR_CALM slow_head")
		r.refusal().want(t, "reason", "slow_head")
		c.Close()
		<-stop

		c = r.dial2(listener) // an idle connection, whatever the client sends
		begun := time.Now()
		c.want2(c.request(true, "/..%2f"), 400, "*")
		r.record()
		pinged := make(chan struct{})
		go func(c *client2) {
			defer close(pinged)
			for c.beside(func() error { return c.framer.WritePing(false, [8]byte{}) }) == nil {
				time.Sleep(20 * time.Millisecond)
			}
		}(c)
		c.until("to be told to go", func() bool { return len(c.away) > 0 })
		if d := time.Since(begun); d < time.Second || c.away[0] != "2147483647 NO_ERROR " {
			t.Errorf("after %s came %q", d, c.away)
		}
		c.wantAway("1 NO_ERROR ")
		c.Close()
		<-pinged

		c = r.dial2(listener) // a body that does not arrive
		id := c.request(false, "/", ":method: POST", "content-length: 4")
		s := e.accept()
		s.head()
		c.want2(id, 408, "*")
		r.record().want(t, "status", 408, "reason", "slow_body", "error", fmt.Sprintf("the request's body did not arrive in time "+
			"(listeners.%s.timeouts.body_idle is 500ms)", listener))
		c.alive()

		// The time of an exchange does not count as idle time.
		id = c.request(true, "/")
		s = e.accept()
		s.head()
		time.Sleep(1200 * time.Millisecond)
		s.write(ok("x"))
		c.want2(id, 200, "x")
		r.record()
		s.Close()
	}
	r.wantNoLog()
}

// Weir ends a client that reads nothing, and its exchanges.
func TestHTTP2Deaf(t *testing.T) {
	r, e := newRig2(t, unread)
	for _, listener := range wires2 {
		p := r.dialBare2(listener)
		if tc, ok := p.Conn.(*net.TCPConn); ok {
			tc.SetReadBuffer(4 << 10)
		}
		p.write(xhttp2.ClientPreface)
		c := settings2(p, xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 1<<31 - 1})
		c.framer.WriteWindowUpdate(0, 1<<31-1-65535)
		c.request(true, "/")
		s := e.accept()
		s.head()
		s.write("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
		done := make(chan struct{})
		go func() {
			defer close(done)
			piece := make([]byte, 64<<10)
			for {
				if _, err := s.Write(piece); err != nil {
					return
				}
			}
		}()
		<-done
		rec := r.record()
		if reason := rec["reason"]; reason != "slow_read" && reason != "client_gone" { // either the exchange or the connection ends first
			t.Errorf("it ended with %v", rec)
		}
	}
}

func TestHTTP2StreamDeaf(t *testing.T) {
	r, e := newRig2(t, unread)
	c := r.dial2("tls")
	id := c.request(true, "/")
	serveOnce(e.accept(), ok(strings.Repeat("x", 100_000)))
	c.wantReset(id, "INTERNAL_ERROR")
	rec := r.record()
	rec.want(t, "status", 200, "reason", "slow_read")
	rec.wantError(t, "within 150ms (listeners.tls.timeouts.body_idle)")
	c.alive()
}

// A client that opens its windows byte by byte gets the same responses.
func TestHTTP2Dribble(t *testing.T) {
	r, e := newRig2(t, unread)
	f := func(of string, on func(id uint32) uint32, windows ...xhttp2.Setting) {
		t.Helper()
		p := r.dialBare2("tls")
		p.write(xhttp2.ClientPreface)
		c := settings2(p, windows...)
		id := c.request(true, "/")
		serveOnce(e.accept(), ok(strings.Repeat("x", 100_000)))
		stop := make(chan struct{})
		var dripping sync.WaitGroup
		dripping.Go(func() {
			for c.beside(func() error { return c.framer.WriteWindowUpdate(on(id), 1) }) == nil {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		})
		c.wantReset(id, "INTERNAL_ERROR")
		close(stop)
		dripping.Wait()
		rec := r.record()
		rec.want(t, "status", 200, "reason", "slow_read")
		rec.wantError(t, "listeners.tls.timeouts.body_idle")
		if n := rec["bytes_out"].(int64); n > 90_000 {
			t.Errorf("the window of the %s let %d bytes through", of, n)
		}
		c.Close()
	}
	f("stream", func(id uint32) uint32 { return id })
	f("connection", func(uint32) uint32 { return 0 }, xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 1 << 30})
}

// A drain sends GOAWAY, lets the client finish, and ends the connection.
func TestHTTP2Drain(t *testing.T) {
	for _, how := range []string{"drain", "reload", "late"} {
		for _, listener := range wires2 {
			r, e := newRig2(t, nil)
			c := r.dial2(listener)
			first := c.request(true, "/1")
			s := e.accept()
			s.head()
			switch how {
			case "drain":
				r.proxy.SetDraining(true)
			case "reload":
				r.load(strings.NewReplacer("tls:", "other:", "web:", "another:", "[tls, web]", "[other, another]").Replace(secure2), nil, "@app", e.address)
			case "late": // it connected before the drain and sends its first request during it
				r.proxy.draining.Store(true)
				s.write(ok("1"))
				c.want2(first, 200, "1")
				s = nil
			}
			if s != nil { // the client has not acknowledged the PING, so more of its requests may arrive
				for len(c.away) == 0 {
					f, err := c.framer.ReadFrame()
					if err != nil {
						t.Fatal(err)
					}
					if g, ok := f.(*xhttp2.GoAwayFrame); ok {
						c.away = append(c.away, fmt.Sprint(g.LastStreamID))
					}
				}
				second := c.request(true, "/2")
				serveOnce(e.accept(), ok("2"))
				c.until("the second", func() bool { return c.on(second).ended })
				s.write(ok("1"))
				c.want2(first, 200, "1")
			}
			c.wantAway(" NO_ERROR ")
		}
	}
}

// weir also ends the connection of a client that does not acknowledge the PING.
func TestHTTP2DrainOfTheMute(t *testing.T) {
	r, _ := newRig2(t, nil)
	c := r.dial2("tls")
	c.want2(c.request(true, "/..%2f"), 400, "*")
	r.proxy.SetDraining(true)
	begun := time.Now()
	for {
		if _, err := c.framer.ReadFrame(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if d := time.Since(begun); d < timeout {
		t.Errorf("it took %s", d)
	}
	r.record()
	r.wantNoLog()
}

// The end of weir ends every connection and exchange.
func TestHTTP2Cut(t *testing.T) {
	r, e := newRig2(t, nil)
	c := r.dial2("tls")
	c.request(true, "/")
	s := e.accept()
	s.head()
	r.only().Cut()
	s.wantEnd(false)
	r.record().want(t, "status", 503, "reason", "cut")
	if err := errors.Join(c.step(), c.step(), c.step(), c.step(), c.step()); err == nil {
		t.Error("the connection goes on")
	}
}

func TestHTTP2States(t *testing.T) {
	r, e := newRig2(t, nil)
	c := r.dial2("tls")
	state := func(want conn.State) {
		t.Helper()
		eventually(t, "state "+want.String(), func() error {
			if s := r.only().State(); s != want {
				return errors.New(s.String())
			}
			return nil
		})
	}
	id := c.request(true, "/")
	s := e.accept()
	s.head()
	state(conn.Active)
	s.write(ok("x"))
	c.want2(id, 200, "x")
	state(conn.Idle)
}

// A panic in an exchange ends its connection, and no other.
func TestHTTP2Panics(t *testing.T) {
	r, e := newRig2(t, nil)
	told := make(chan string, 1)
	r.adjust(func(p *Proxy) {
		p.Panicked = func(listener string, value any, _ []byte) { told <- fmt.Sprint(listener, ": ", value) }
	})
	c, other := r.dial2("tls"), r.dial2("tls")
	beside := c.request(true, "/beside")
	s := e.accept()
	s.head()
	r.proxy.SetLog(func(*accesslog.Record) { panic("a fault of the tests") })
	id := c.request(true, "/")
	kept := serveOnce(e.accept(), ok("x"))
	if got := next(t, told, "panic"); got != "tls: a fault of the tests" {
		t.Errorf("told was %q", got)
	}
	r.proxy.SetLog(nil)
	s.wantEnd(false)
	for {
		if err := c.step(); err != nil {
			break
		}
	}
	if c.on(beside).ended {
		t.Errorf("%v, %v", c.on(id), c.on(beside))
	}
	id = other.request(true, "/")
	serveOnce(kept, ok("z"))
	other.want2(id, 200, "z")
	eventually(t, "the endpoint is released", func() error {
		if n := r.set.Backend("app").InFlight(); n != 0 {
			return fmt.Errorf("%d exchanges are in flight", n)
		}
		return nil
	})
}

// faulty2 is a client's connection on which weir panics when it writes.
type faulty2 struct {
	net.Conn
	first io.Reader
}

func (c faulty2) Read(p []byte) (int, error) {
	if n, err := c.first.Read(p); err == nil {
		return n, nil
	}
	return c.Conn.Read(p)
}

func (c faulty2) Write(p []byte) (int, error) { panic("a fault in Write") }

func TestHTTP2PanicsInWriting(t *testing.T) {
	r, _ := newRig2(t, nil)
	told := make(chan string, 1)
	r.adjust(func(p *Proxy) { p.Panicked = func(_ string, value any, _ []byte) { told <- fmt.Sprint(value) } })
	client, ours := net.Pipe()
	defer client.Close()
	go client.Write(make([]byte, 9))
	r.serve(conn.New(faulty2{ours, strings.NewReader(xhttp2.ClientPreface)}), "web")
	if got := next(t, told, "panic"); !strings.HasPrefix(got, "a fault in Write, in a flusher:") {
		t.Errorf("told was %q", got)
	}
}

// stuck requests more bytes than the sockets can hold, and does not read them.
func (r *rig) stuck(e *endpoint, listener string, size int) (c *client2, id uint32) {
	r.Helper()
	p := r.dialBare2(listener)
	p.write(xhttp2.ClientPreface)
	c = settings2(p, xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 1<<31 - 1})
	c.framer.WriteWindowUpdate(0, 1<<31-1-65535)
	id = c.request(true, "/")
	s := e.accept()
	s.head()
	go func() {
		piece := bytes.Repeat([]byte("x"), 64<<10) // and not the whole body: a busy machine takes seconds to copy it
		fmt.Fprintf(s, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size)
		for left := size; left > 0; left -= len(piece) {
			if _, err := s.Write(piece[:min(left, len(piece))]); err != nil {
				return
			}
		}
	}()
	return c, id
}

// A drain does not interrupt a response that is on its way to a slow client.
func TestHTTP2DrainOfTheSlow(t *testing.T) {
	const size = 8 << 20
	r, e := newRig2(t, nil)
	c, id := r.stuck(e, "tls", size)
	r.proxy.SetDraining(true)
	time.Sleep(timeout + timeout/4)
	if a := c.answer(id); a.body.Len() != size || a.reset != "" {
		t.Errorf("%v", a)
	}
	c.wantAway(" NO_ERROR ")
}

// Weir does not wait for a client that breaks the protocol and does not read.
func TestHTTP2FaultOfTheDeaf(t *testing.T) {
	r, e := newRig2(t, nil)
	for _, listener := range wires2 {
		c, id := r.stuck(e, listener, 64<<20)
		c.until("the response's head", func() bool { return len(c.on(id).heads) > 0 })
		c.framer.WriteRawFrame(xhttp2.FrameSettings, 0, 1, nil)
		r.refusal().want(t, "reason", "bad_settings")
		r.record().want(t, "status", 200, "reason", "client_gone")
	}
}

// If the end of weir breaks a response off, the log names that reason, whichever side would send next.
func TestHTTP2CutResponse(t *testing.T) {
	for _, end := range []bool{true, false} {
		r, e := newRig2(t, nil)
		c := r.dial2("tls")
		id := c.request(end, "/")
		s := e.accept()
		s.head()
		s.write("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12")
		c.until("the response's head", func() bool { return len(c.on(id).heads) > 0 })
		r.only().Cut()
		r.record().want(t, "status", 200, "reason", "cut")
	}
}

// A frame that begins at the moment when the previous one ends does not extend the idle time of a connection.
func TestHTTP2IdleByHalfFrames(t *testing.T) {
	r, _ := newRig2(t, func(c *config.Config) {
		for i := range c.Listeners {
			c.Listeners[i].Timeouts.KeepAlive, c.Listeners[i].Timeouts.RequestHead = 500*time.Millisecond, 500*time.Millisecond
		}
	})
	c := r.dial2("web")
	ping := append([]byte{0, 0, 8, 6, 0, 0, 0, 0, 0}, "12345678"...)
	c.Write(ping[:9])
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
				c.Write(append(append([]byte(nil), ping[9:]...), ping[:9]...))
			}
		}
	}()
	c.until("to be told to go", func() bool { return len(c.away) > 0 })
	close(stop)
	<-stopped
}
