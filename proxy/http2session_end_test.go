package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// A client may end its request with a separate frame, after a body of the declared length. If the response is
// complete by then, weir waits for that frame. It does not reset the stream, and it keeps the endpoint's
// connection.
func TestHTTP2EndBehindTheBody(t *testing.T) {
	r, e := newRig2(t, nil)
	var s *peer
	f := func(length, first, rest string) {
		t.Helper()
		c := r.dial2("tls")
		id := c.request(false, "/", ":method: POST", "content-length: "+length)
		if first != "" {
			c.data(id, false, first)
		}
		if s == nil {
			s = e.accept()
		}
		s.head()
		s.wantRead(first)
		s.write(ok("yes"))
		c.want2(id, 200, "yes")
		c.want2(c.request(true, "/a/../b"), 400, "*") // a reset would arrive first
		c.data(id, true, rest)
		r.kept()
		if a := c.on(id); a.reset != "" {
			t.Errorf("%s bytes: the stream is reset with %s", length, a.reset)
		}
		c.want2(c.request(true, "/a/../b"), 400, "*")
		if a := c.on(id); a.reset != "" {
			t.Errorf("%s bytes: the stream is reset with %s", length, a.reset)
		}
		c.Close()
	}
	f("5", "hello", "")
	f("0", "", "")
	s.Close()
}

// Weir also waits if it generates the response before the body has arrived, provided that the client
// can send the rest without waiting for a window.
func TestHTTP2EndBehindAnAnswerOfWeirs(t *testing.T) {
	r, e := newRig2(t, func(c *config.Config) { c.Routes[0].MaxBody = 9 })
	c := r.dial2("tls")
	f := func(first, rest string) {
		t.Helper()
		id := c.request(false, "/", ":method: POST", "content-length: 10")
		if first != "" {
			c.data(id, false, first)
		}
		c.want2(id, 413, "*")
		c.want2(c.request(true, "/a/../b"), 400, "*")
		c.data(id, true, rest)
		c.want2(c.request(true, "/a/../b"), 400, "*")
		if a := c.on(id); a.reset != "" {
			t.Errorf("%q, then %q: the stream is reset with %s", first, rest, a.reset)
		}
	}
	f("", "0123456789")
	f("01234", "56789")
	f("0123456789", "")
	id := c.request(false, "/", ":method: POST", "content-length: 10")
	c.want2(id, 413, "*")
	c.data(id, true, "01234567890")
	c.until("the reset", func() bool { return c.on(id).reset == "PROTOCOL_ERROR" })
	e.untouched()
	c.Close()
}

// weir waits at most two seconds, and at most for the bytes that the client can send without another window.
// It does not wait for a body that the client may never send.
func TestHTTP2EndThatDoesNotCome(t *testing.T) {
	r, e := newRig2(t, func(c *config.Config) { c.Routes[0].MaxBody = 9 })
	c := r.dial2("tls")
	f := func(from, to time.Duration, status int, fields ...string) {
		t.Helper()
		begun := time.Now()
		id := c.request(false, "/", append([]string{":method: POST"}, fields...)...)
		c.want2(id, status, "*")
		c.until("the reset", func() bool { return c.on(id).reset != "" })
		if took := time.Since(begun); c.on(id).reset != "NO_ERROR" || took < from || took > to {
			t.Errorf("%q: reset with %s after %v", fields, c.on(id).reset, took)
		}
	}
	f(timeout, 10*time.Second, 413, "content-length: 10")
	f(0, timeout, 413, "content-length: 70000")
	f(0, timeout, 400, ":path: /a/../b")
	f(0, timeout, 413, "content-length: 10", "expect: 100-continue")
	e.untouched()
	begun := time.Now()
	id := c.request(false, "/", ":method: POST", "content-length: 5")
	c.data(id, false, "hello")
	s := e.accept()
	s.head()
	s.wantRead("hello")
	s.write(ok("yes"))
	c.want2(id, 200, "yes")
	r.kept() // the endpoint's connection is free for other clients
	c.until("the reset", func() bool { return c.on(id).reset == "NO_ERROR" })
	reset := time.Since(begun)
	rec := r.record()
	for fmt.Sprint(rec["status"]) != "200" {
		rec = r.record()
	}
	if took := rec["duration_seconds"].(float64); took > (reset - timeout).Seconds() {
		t.Errorf("the exchange took %v s by the access log, and the stream was reset after %v: the wait does not belong to the exchange", took, reset)
	}
	s.Close()
	c.Close()
}

// A request to an HTTP/2 endpoint may end with trailers, which weir forwards. But after the response
// is complete, the next request does not wait for the end of the client's stream.
func TestHTTP2EndThatDoesNotComeHoldsNoEndpoint(t *testing.T) {
	a := newApplication(t, func(w http.ResponseWriter, r *http.Request) { io.ReadFull(r.Body, make([]byte, r.ContentLength)) }, "h2c")
	r := newRig(t, strings.Replace(h2cBackend, "protocol: h2c,", "protocol: h2c, max_connections: 1,", 1), nil, "@app", a.address)
	c := r.dial2("web")
	defer c.Close()
	var took time.Duration
	for range 3 { // a busy machine may also be slow
		id := c.request(false, "/", ":method: POST", "content-length: 5")
		c.data(id, false, "hello")
		c.want2(id, 200, "")
		begun := time.Now()
		c.want2(c.request(true, "/"), 200, "")
		if took = time.Since(begun); took < timeout {
			return
		}
	}
	t.Errorf("the next request took %v", took)
}

// Credentials that authenticate a connection work only over HTTP/1.1. If a stream has such credentials, weir
// resets it with HTTP_1_1_REQUIRED, so that the client repeats the request over HTTP/1.1. The endpoint does
// not receive the request, and other streams continue.
func TestCredentialsOfAConnectionOverHTTP2(t *testing.T) {
	r, e := newRig2(t, nil)
	for _, listener := range []string{"tls", "web"} {
		c := r.dial2(listener)
		other := c.request(true, "/other")
		s := e.accept()
		s.head()
		for _, credentials := range []string{"NTLM TlRMTVNTUAABAAAA", "Negotiate YII="} {
			c.wantReset(c.request(true, "/", "authorization: "+credentials), "HTTP_1_1_REQUIRED")
			r.record().want(t, "status", 421, "reason", "connection_auth_http2", "http_version", "2")
			c.wantReset(c.request(false, "/upload", ":method: POST", "authorization: "+credentials), "HTTP_1_1_REQUIRED")
			r.record().want(t, "status", 421, "reason", "connection_auth_http2")
		}
		s.write(ok("others continue"))
		c.want2(other, 200, "others continue")
		r.record().want(t, "status", 200)
		c.Close()
		s.Close()
	}
	r.wantNoLog()
}
