package proxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

// wires2 are the two ways to HTTP/2.
var wires2 = []string{"tls", "web"}

func TestHTTP2Exchanges(t *testing.T) {
	r, e := newRig2(t, nil)
	for _, listener := range wires2 {
		c := r.dial2(listener)
		id := c.request(true, "/x?y", "x-a: 1", "cookie: a=1", "cookie: b=2", "te: trailers")
		s := e.accept()
		head := s.head()
		for _, want := range []string{"GET /x?y HTTP/1.1\r\n", "\r\nhost: a\r\n", "\r\nx-a: 1\r\n", "\r\ncookie: a=1; b=2\r\n", "\r\nConnection: TE\r\nTE: trailers\r\n"} {
			if !strings.Contains(head, want) {
				t.Errorf("%q is not in %q", want, head)
			}
		}
		s.write("HTTP/1.1 200 Fine\r\nX-B: 2\r\nDate: x\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello")
		a := c.want2(id, 200, "hello")
		if got, want := a.heads[0], ":status: 200\nx-b: 2\ndate: x\ncontent-length: 5\n"; got != want {
			t.Errorf("the head is %q, not %q", got, want)
		}
		r.record().want(t, "kind", "http", "listener", listener, "http_version", "2", "status", 200, "target", "/x?y", "host", "a", "route", "*", "bytes_out", 9+len("\x88"+"\x00\x03x-b\x012"+"\x0f\x12\x01x"+"\x0f\x0d\x015")+9+5)

		body := strings.Repeat("0123456789abcdef", 100)
		for _, length := range []string{"content-length: 1600", "x-none: 1"} { // on the same connections
			id = c.request(false, "/up", ":method: POST", length)
			c.data(id, true, body)
			head = s.head()
			if length != "x-none: 1" {
				s.wantRead(body)
			} else if !strings.Contains(head, "Transfer-Encoding: chunked\r\n") || !strings.HasSuffix(readChunks(s), body) {
				t.Errorf("%q", head)
			}
			s.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n")
			a = c.want2(id, 200, "hello")
			if len(a.heads) != 2 || a.heads[1] != "x-t: 1\n" {
				t.Errorf("%q", a.heads)
			}
			r.record().want(t, "status", 200, "target", "/up")
		}
		s.Close()
	}
	r.wantNoLog()
	if n := r.counter("weir_http_requests_total", "code", "200"); n != 6 {
		t.Errorf("%v requests are counted", n)
	}
}

// readChunks reads a chunked body to its end. The lines of the trailers precede the result.
func readChunks(s *peer) string {
	var body strings.Builder
	for {
		line, _ := s.r.ReadString('\n')
		var n int
		if fmt.Sscanf(line, "%x", &n); n == 0 {
			break
		}
		body.WriteString(s.read(n))
		s.wantRead("\r\n")
	}
	trailers := ""
	for {
		line, err := s.r.ReadString('\n')
		if err != nil || line == "\r\n" {
			return trailers + body.String()
		}
		trailers += line
	}
}

func TestHTTP2RequestTrailers(t *testing.T) {
	r, e := newRig2(t, nil)
	c := r.dial2("tls")
	id := c.request(false, "/", ":method: POST")
	s := e.accept()
	s.head()
	c.data(id, false, "some")
	if got := s.read(9); got != "4\r\nsome\r\n" {
		t.Fatalf("%q", got)
	}
	s.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nyes\r\n") // in both directions at once
	c.until("a piece", func() bool { return c.on(id).body.String() == "yes" })
	c.data(id, false, "more")
	s.wantRead("4\r\nmore\r\n")
	c.head2(id, true, "x-t: 1")
	s.wantRead("0\r\nx-t: 1\r\n\r\n")
	s.write("0\r\n\r\n")
	c.want2(id, 200, "yes")
}

func TestHTTP2Bodiless(t *testing.T) {
	r, e := newRig2(t, nil)
	c := r.dial2("web")
	var s *peer
	f := func(method, response, want string) {
		t.Helper()
		id := c.request(true, "/", ":method: "+method)
		if s == nil {
			s = e.accept()
		}
		head := s.head()
		if strings.Contains(head, "Content-Length: 0\r\n") != (method == "POST") {
			t.Errorf("%q", head)
		}
		s.write(dated(response))
		if a := c.answer(id); strings.Join(a.heads, "|") != want || a.length != 0 || a.reset != "" {
			t.Errorf("%s %q: %v", method, response, a)
		}
		r.kept() // the client receives the response before that
	}
	f("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", ":status: 200\ndate: x\ncontent-length: 5\n")
	f("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", ":status: 200\ndate: x\n")
	f("GET", "HTTP/1.1 204 No Content\r\n\r\n", ":status: 204\ndate: x\n")
	f("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", ":status: 304\ndate: x\ncontent-length: 5\n")
	f("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ":status: 200\ndate: x\ncontent-length: 0\n")
	f("POST", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ":status: 200\ndate: x\ncontent-length: 0\n")
	f("GET", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", ":status: 103\nlink: x\n|:status: 404\ndate: x\ncontent-length: 0\n")
	s.Close()
}

func TestHTTP2Continue(t *testing.T) {
	r, e := newRig2(t, nil)
	c := r.dial2("tls")
	id := c.request(false, "/", ":method: POST", "expect: 100-continue", "content-length: 4")
	s := e.accept()
	if head := s.head(); !strings.Contains(head, "expect: 100-continue\r\n") {
		t.Errorf("%q", head)
	}
	s.write("HTTP/1.1 100 Continue\r\n\r\n")
	c.until("100", func() bool { return len(c.on(id).heads) == 1 })
	c.data(id, true, "body")
	s.wantRead("body")
	s.write(ok("x"))
	c.want2(id, 200, "x")
	r.kept() // the client receives the response before that
	id = c.request(false, "/", ":method: POST", "expect: 100-continue", "content-length: 4")
	s.head()
	s.write("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n") // the endpoint refuses the body
	if a := c.want2(id, 413, ""); len(a.heads) != 1 {
		t.Errorf("%v", a)
	}
	c.alive()
}

// HTTP/2 refuses the same requests as HTTP/1.1, with the same texts, and the connection continues.
func TestHTTP2Refusals(t *testing.T) {
	r, e := newRig2(t, nil)
	c := r.dial2("tls")
	f := func(status int, reason string, fields ...string) {
		t.Helper()
		c.want2(c.request(true, "/", fields...), status, "*")
		r.record().want(t, "status", status, "reason", reason, "http_version", "2")
	}
	f(400, "ambiguous_path", ":path: /a/../b")
	f(400, "bad_target", ":scheme: ftp")
	f(400, "two_hosts", "host: b")
	f(400, "bad_host", ":authority: a b")
	f(501, "method", ":method: TRACE")
	f(501, "method", ":method: CONNECT")
	f(417, "expectation", "expect: x, 100-continue")
	f(431, "too_many_fields", strings.Fields(strings.Repeat("x: ", 0)+strings.TrimSpace(strings.Repeat("x:1 ", 300)))...)
	f(414, "target_too_long", ":path: /"+strings.Repeat("a", 70<<10))
	c.alive()
	e.untouched()
	c.wantReset(c.request(true, "/", "Upper: x"), "PROTOCOL_ERROR")
	eventually(t, "the fault is counted", func() error {
		if n := r.counter("weir_http2_errors_total", "listener", "tls", "scope", "stream", "reason", "malformed"); n != 1 {
			return fmt.Errorf("%v are counted", n)
		}
		return nil
	})
	c.framer.WriteWindowUpdate(0, 1<<31-1)
	c.wantAway("FLOW_CONTROL_ERROR window_overflow")
	r.refusal().want(t, "kind", "refused", "reason", "window_overflow", "sni", "a")
	if n := r.counter("weir_http2_errors_total", "listener", "tls", "scope", "connection", "reason", "window_overflow"); n != 1 {
		t.Errorf("%v are counted", n)
	}
	r.wantNoLog()
}

// A stream beyond max_streams is refused, and the metrics say so.
func TestHTTP2RefusedStreamIsCounted(t *testing.T) {
	r, e := newRig2(t, func(cfg *config.Config) { cfg.Listeners[0].HTTP2.MaxStreams = 1 })
	c := r.dial2("tls")
	c.request(false, "/")
	e.accept().head()
	c.wantReset(c.request(true, "/"), "REFUSED_STREAM")
	eventually(t, "the refused stream is counted", func() error {
		if n := r.counter("weir_http2_errors_total", "listener", "tls", "scope", "stream", "reason", "too_many_streams"); n != 1 {
			return fmt.Errorf("%v are counted", n)
		}
		return nil
	})
}

// Exchanges of one connection run at the same time, and do not affect each other.
func TestHTTP2Beside(t *testing.T) {
	r, e := newRig2(t, nil)
	c := r.dial2("tls")
	slow := c.request(true, "/slow")
	s := e.accept()
	s.head()
	up := c.request(false, "/up", ":method: POST", "content-length: 4")
	u := e.accept()
	u.head()
	c.data(up, false, "12")
	u.wantRead("12")
	gone := c.request(true, "/gone")
	g := e.accept()
	g.head()
	cut := c.request(true, "/cut")
	b := e.accept()
	b.head()
	quick := c.request(true, "/quick")
	q := e.accept()
	serveOnce(q, ok("q"))
	c.want2(quick, 200, "q")
	r.record().want(t, "target", "/quick", "status", 200)

	c.framer.WriteRSTStream(gone, 8)
	g.wantEnd(false) // the endpoint's connection ends at once
	r.record().want(t, "target", "/gone", "status", 499, "reason", "client_gone")

	b.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345")
	c.until("a part", func() bool { return c.on(cut).body.Len() == 5 })
	b.Close()
	c.wantReset(cut, "INTERNAL_ERROR")
	r.record().want(t, "target", "/cut", "status", 200, "reason", "response_cut_short")

	c.data(up, true, "34")
	u.wantRead("34")
	u.write(ok("u"))
	c.want2(up, 200, "u")
	s.write(ok("s"))
	c.want2(slow, 200, "s")
	for range 2 {
		r.record().want(t, "status", 200)
	}
	if n := r.set.Backend("app").InFlight(); n != 0 {
		t.Errorf("%d are in flight", n)
	}
	r.wantNoLog()
}

// If a client does not read one stream, only that stream waits. Weir ends a client that reads
// nothing at all.
func TestHTTP2SlowReaders(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 1<<18)
	r, e := newRig2(t, nil)
	for _, listener := range wires2 {
		c := r.dial2(listener)
		first := c.request(true, "/large")
		s := e.accept()
		s.head()
		go s.Write([]byte(ok(large)))
		c.until("the stream's window is used up", func() bool { return c.on(first).length == 65535 })
		c.framer.WriteWindowUpdate(0, 1<<20)
		second := c.request(true, "/small")
		s2 := serveOnce(e.accept(), ok("small"))
		c.want2(second, 200, "small")
		if n := c.on(first).length; n != 65535 {
			t.Errorf("%d bytes came on a stream whose window is closed", n)
		}
		c.framer.WriteWindowUpdate(0, 1<<24)
		c.framer.WriteWindowUpdate(first, 1<<24)
		c.want2(first, 200, large)
		s.Close()
		s2.Close()
		for range 2 {
			r.record().want(t, "status", 200)
		}
	}
}

// kept waits until the only endpoint has an idle connection.
func (r *rig) kept() {
	r.Helper()
	eventually(r, "the connection is kept", func() error {
		if n := r.set.Status()[0].Endpoints[0].Idle; n != 1 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}
