package proxy

import (
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// An empty line after a body begins no request. Weir neither waits for a head nor answers, and reads
// the next request as if the empty line were not there.
func TestEmptyLineBetweenRequests(t *testing.T) {
	const headTime = time.Second
	r, e := newPlain(t, func(c *config.Config) { c.Listeners[0].Timeouts.RequestHead = headTime })
	c := r.dial("web")
	c.write("\r\nPOST /one HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi\r\n")
	s := e.accept()
	if head := s.head(); !strings.HasPrefix(head, "POST /one HTTP/1.1\r\n") {
		t.Errorf("the endpoint got %q", head)
	}
	s.wantRead("hi")
	s.write(ok("one"))
	c.wantResponse(200, "one")
	r.record().want(t, "method", "POST", "target", "/one", "status", 200)

	slow := r.dial("web") // the time limit of this head must end after that of the first client
	slow.write("GET")
	slow.wantResponse(408, "*")
	r.record().want(t, "status", 408, "reason", "slow_head")

	c.write("GET /two HTTP/1.1\r\nHost: a\r\n\r\n")
	if head := s.head(); !strings.HasPrefix(head, "GET /two HTTP/1.1\r\n") {
		t.Errorf("the endpoint got %q", head)
	}
	s.write(ok("two"))
	c.wantResponse(200, "two")
	r.record().want(t, "target", "/two", "status", 200)

	c.write("\r\n\r\n\r\n\r\n\r\n") // the fifth empty line is enough
	c.wantResponse(400, "*")
	c.wantEnd(false)
	r.record().want(t, "status", 400, "reason", "empty_lines")
	r.wantNoLog()
}

// The first byte of an empty line looks like the first byte of a head. When the rest of the line
// arrives, the connection is idle again, with the same deadline as before.
func TestEmptyLineInPieces(t *testing.T) {
	const headTime = 1500 * time.Millisecond
	r, e := newPlain(t, func(c *config.Config) { c.Listeners[0].Timeouts.RequestHead = headTime })
	c := r.dial("web")
	c.write(get)
	s := e.accept()
	s.head()
	s.write(ok("one"))
	c.wantResponse(200, "one")
	c.write("\r")
	other := r.dial("web")
	other.write("GET /a/../b HTTP/1.1\r\nHost: a\r\n\r\n") // weir has read the byte when it responds
	other.wantResponse(400, "*")
	c.write("\n")
	slow := r.dial("web")
	slow.write("GET")
	slow.wantResponse(408, "*")
	c.write(get)
	s.head()
	s.write(ok("two"))
	c.wantResponse(200, "two")

	// Each empty line has its own time limit, with and without a head after it.
	c.write("\r")
	other.write("G")
	c.wantResponse(408, "*")
}

// After empty lines, weir recognises another protocol only if that protocol begins with empty lines.
func TestEmptyLinesBeforeOtherProtocols(t *testing.T) {
	r, e := newPlain(t, nil)
	f := func(reason string, pieces ...string) {
		t.Helper()
		c := r.dial("web")
		for _, p := range pieces {
			c.write(p)
		}
		c.wantResponse(400, "*")
		r.record().want(t, "status", 400, "reason", reason)
	}
	f("proxy_header", headerV2+"\x21\x11\x00\x0c")
	f("proxy_header", "\r\n\r\n", "\x00\r\nQUIT\n\x21\x11\x00\x0c")
	f("bare_line_feed", "\r\n", "\x00\r\nQUIT\n\x21\x11\x00\x0c")
	f("bad_request_line", "\r\nPROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n"+get)
	e.untouched()
}

// The error of a refused response names the setting of its backend, not a status.
func TestRefusedResponsesNameTheSetting(t *testing.T) {
	r, e := newPlain(t, nil)
	f := func(response string, want ...any) {
		t.Helper()
		c := r.dial("web")
		c.write(get)
		s := e.accept()
		s.head()
		s.write(response)
		r.record().want(t, want...)
	}
	f("HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", "status", 502, "reason", "bad_response_bare_line_feed",
		"error", "a line ends without a carriage return (backends.app.lenient: [bare_lf] accepts it)")
	f("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n", "status", 200, "reason", "response_cut_short",
		"error", "a line ends without a carriage return (backends.app.lenient: [bare_lf] accepts it)")
	f("HTTP/1.1 200 OK\r\nX Y: 1\r\n\r\n", "status", 502, "reason", "bad_response_bad_field_name",
		"error", "a header line does not begin with a header name and a colon")
}

// weir forwards a response with faults that are listed in lenient of its backend. It does not use the
// connection again. It treats responses without faults as with every other backend.
func TestLenientBackend(t *testing.T) {
	r, e := newPlain(t, func(c *config.Config) {
		c.Backends[0].Lenient = []config.Leniency{config.BareLF, config.LengthWithChunked}
	})
	c := r.dial("web")
	ask := func(s *peer, response string, status int, body string) {
		t.Helper()
		c.write(get)
		if s == nil {
			s = e.accept()
		}
		s.head()
		s.write(response)
		c.wantResponse(status, body)
		r.record().want(t, "status", status)
	}
	last := func(response string, status int, body string) {
		t.Helper()
		c.write(get)
		s := e.accept()
		s.head()
		s.write(response)
		c.wantResponse(status, body)
		s.wantEnd(false)
		r.record().want(t, "status", status)
	}
	last("HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", 200, "hello")
	last("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\n\n", 200, "hello")
	last("HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 200, "hello")
	last("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 502, "*")

	c.write(get)
	s := e.accept()
	s.head()
	s.write(ok("whole"))
	c.wantResponse(200, "whole")
	r.record()
	ask(s, ok("again"), 200, "again") // over the same connection
	e.untouched()
	r.wantNoLog()
}
