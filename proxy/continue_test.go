package proxy

import (
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"
)

const expecting = "PUT /up HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"

// The endpoint never says 100 Continue, and the client does not send the body without it.
func TestClientAndEndpointWaitForEachOther(t *testing.T) {
	// continued waits for weir's 100, which must not come at once: the endpoint may refuse the body.
	continued := func(t *testing.T, since time.Time) {
		t.Helper()
		if d := time.Since(since); d < time.Second {
			t.Errorf("weir said 100 after %v", d)
		}
	}
	t.Run("http1", func(t *testing.T) {
		r, e := newPlain(t, nil)
		c := r.dial("web")
		var s *peer
		for range 2 { // the second request uses the endpoint's connection again
			begun := time.Now()
			c.write(expecting)
			if s == nil {
				s = e.accept()
			}
			if head := s.head(); !strings.Contains(head, "Expect: 100-continue\r\n") {
				t.Errorf("the endpoint got %q", head)
			}
			c.wantRead("HTTP/1.1 100 Continue\r\n\r\n")
			continued(t, begun)
			c.write("hello")
			s.wantRead("hello")
			s.write("HTTP/1.1 100 Continue\r\n\r\n" + ok("thanks")) // too late: the client has it
			if head := c.head(); !strings.HasPrefix(head, "HTTP/1.1 200 ") {
				t.Errorf("the client got %q", head)
			}
			c.wantRead("thanks")
			r.record().want(t, "status", 200, "reason", nil)
		}
	})
	t.Run("http2-client", func(t *testing.T) {
		r, e := newRig2(t, nil)
		c := r.dial2("tls")
		begun := time.Now()
		id := c.request(false, "/", ":method: POST", "expect: 100-continue", "content-length: 4")
		s := e.accept()
		s.head()
		c.until("100", func() bool { return len(c.on(id).heads) == 1 })
		continued(t, begun)
		c.data(id, true, "body")
		s.wantRead("body")
		s.write("HTTP/1.1 100 Continue\r\n\r\n" + ok("x"))
		if a := c.want2(id, 200, "x"); len(a.heads) != 2 {
			t.Errorf("%q", a.heads)
		}
	})
	t.Run("http2-endpoint", func(t *testing.T) {
		e := newEndpoint(t)
		r := newRig(t, h2cBackend, nil, "@app", e.address)
		c := r.dial("web")
		begun := time.Now()
		c.write(expecting)
		_, f := e.acceptH2()
		h := nextFrame[*xhttp2.HeadersFrame](t, f)
		c.wantRead("HTTP/1.1 100 Continue\r\n\r\n")
		continued(t, begun)
		c.write("hello")
		if d := nextFrame[*xhttp2.DataFrame](t, f); string(d.Data()) != "hello" {
			t.Errorf("%q", d.Data())
		}
		answer200(f, h.StreamID)
		c.wantResponse(200, "")
	})
	t.Run("refused", func(t *testing.T) { // a response in time takes the place of 100
		r, e := newPlain(t, nil)
		c := r.dial("web")
		c.write(expecting)
		s := e.accept()
		s.head()
		s.write("HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n")
		if head := c.head(); !strings.HasPrefix(head, "HTTP/1.1 417 ") {
			t.Errorf("the client got %q", head)
		}
		c.wantEnd(false)
	})
	t.Run("never-ending-body", func(t *testing.T) { // a client that sends without a 100 gets none
		r, e := newPlain(t, nil)
		c := r.dial("web")
		c.write(expecting + "hel")
		s := e.accept()
		s.head()
		s.wantRead("hel")
		r.waitForClientChecks(2)
		c.write("lo")
		s.wantRead("lo")
		s.write(ok(""))
		if head := c.head(); !strings.HasPrefix(head, "HTTP/1.1 200 ") {
			t.Errorf("the client got %q", head)
		}
	})
}

// After weir said 100, another endpoint gets the request with the body, and without Expect.
func TestContinuedRequestIsRepeated(t *testing.T) {
	one, two := newEndpoint(t), newEndpoint(t)
	r := newRig(t, strings.NewReplacer("['@app']", "['@app', '@two']", "backend: app}", "backend: app, retries: {attempts: 2, when: [reset]}}").Replace(plain), nil,
		"@app", one.address, "@two", two.address)
	c := r.dial("web")
	c.write(expecting)
	s, other := (*peer)(nil), two
	select {
	case s = <-one.conns:
	case s = <-two.conns:
		other = one
	case <-time.After(patience):
		t.Fatal("no endpoint was asked")
	}
	s.head()
	c.wantRead("HTTP/1.1 100 Continue\r\n\r\n")
	c.write("he")
	s.wantRead("he")
	s.Close()
	s = other.accept()
	if head := s.head(); strings.Contains(head, "Expect") {
		t.Errorf("the second endpoint got %q", head)
	}
	s.wantRead("he")
	c.write("llo")
	s.wantRead("llo")
	s.write(ok("thanks"))
	if head := c.head(); !strings.HasPrefix(head, "HTTP/1.1 200 ") {
		t.Errorf("the client got %q", head)
	}
	r.record().want(t, "status", 200, "retries", 1)
}

// The queue of a backend is no endpoint: the time starts when the request's head is sent.
func TestContinueWaitsForTheEndpoint(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, strings.Replace(plain, "endpoints:", "max_connections: 1, endpoints:", 1), nil, "@app", e.address)
	first, c := r.dial("web"), r.dial("web")
	first.write(get)
	s := e.accept()
	s.head()
	c.write(expecting)
	<-time.After(1500 * time.Millisecond) // the request is in the queue
	begun := time.Now()
	s.write(ok(""))
	first.wantResponse(200, "")
	s.head()
	c.wantRead("HTTP/1.1 100 Continue\r\n\r\n")
	if d := time.Since(begun); d < time.Second {
		t.Errorf("weir said 100 %v after the endpoint got the request", d)
	}
	c.write("hello")
	s.wantRead("hello")
	s.write(ok(""))
	c.wantResponse(200, "")
}
