package proxy

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

const get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"

// ok is a whole response with that body.
func ok(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func TestKeepAlive(t *testing.T) {
	r, e := newPlain(t, nil)
	c := r.dial("web")
	c.write("GET /one HTTP/1.1\r\nHost: a\r\n\r\n")
	s := e.accept()
	s.head()
	s.write(ok("one"))
	c.wantResponse(200, "one")
	r.record().want(t, "kind", "http", "status", 200, "target", "/one", "reason", nil, "retries", 0)
	c.write("GET /two HTTP/1.1\r\nHost: a\r\n\r\n")
	s.head()
	s.write(ok("two"))
	c.wantResponse(200, "two")
	r.record().want(t, "status", 200, "connect_seconds", nil)
	c.closeWrite()
	c.wantEnd(false)
	r.quiet()
	e.untouched()
}

func TestPipelining(t *testing.T) {
	r := newRig(t, plain, nil, "@app", newHandler(t, echo))
	c := r.dial("web")
	var requests, want strings.Builder
	for i := range 100 {
		switch i % 3 {
		case 0:
			fmt.Fprintf(&requests, "GET /%d HTTP/1.1\r\nHost: a\r\n\r\n", i)
			fmt.Fprintf(&want, "/%d |", i)
		case 1:
			fmt.Fprintf(&requests, "POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody", i)
			fmt.Fprintf(&want, "/%d body|", i)
		case 2:
			fmt.Fprintf(&requests, "PUT /%d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n", i)
			fmt.Fprintf(&want, "/%d body|", i)
		}
	}
	go c.write(requests.String())
	var got strings.Builder
	for range 100 {
		resp, body := c.response("GET")
		if resp.StatusCode != 200 || resp.Close {
			t.Fatal(resp)
		}
		got.WriteString(body + "|")
	}
	if got.String() != want.String() {
		t.Errorf("the responses are %s", got.String())
	}
}

// One byte at a time, in both directions, is as good as all at once.
func TestTrickle(t *testing.T) {
	r, e := newPlain(t, nil)
	c := r.dial("web")
	trickle := func(p *peer, text string) {
		for i := range len(text) {
			if _, err := io.WriteString(p.Conn, text[i:i+1]); err != nil {
				t.Errorf("after %q: %v", text[:i], err)
				return
			}
		}
	}
	go trickle(c, "POST /t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nX-T: 1\r\n\r\n")
	s := e.accept()
	req, err := http.ReadRequest(s.r)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(req.Body); string(body) != "abcde" || err != nil || req.Trailer.Get("X-T") != "1" {
		t.Errorf("%q, %v, %v", body, err, req.Trailer)
	}
	go trickle(s, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nfgh\r\n2\r\nij\r\n0\r\nX-U: 2\r\n\r\n")
	resp, body := c.response("GET")
	if body != "fghij" || resp.Trailer.Get("X-U") != "2" {
		t.Errorf("%q, %v", body, resp.Trailer)
	}
}

func TestBodilessResponses(t *testing.T) {
	r, e := newPlain(t, nil)
	c := r.dial("web")
	f := func(method, response, want string) {
		t.Helper()
		c.write("%s / HTTP/1.1\r\nHost: a\r\n\r\n", method)
		e.conns <- serveOnce(e.accept(), response)
		if got := c.head(); got != want {
			t.Errorf("%s was answered with %q, not %q", method, got, want)
		}
	}
	f("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n")
	f("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n")
	f("GET", "HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n")
	f("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\nETag: x\r\n\r\n", "HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\nETag: x\r\n\r\n")
	f("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	f("GET", "HTTP/1.1 299 \r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 299 \r\nContent-Length: 0\r\n\r\n")
	c.closeWrite()
	c.wantEnd(false)
}

// serveOnce answers one request on an endpoint's connection and returns it.
func serveOnce(s *peer, response string) *peer {
	s.head()
	s.write(response)
	return s
}

func TestResponseFramings(t *testing.T) {
	f := func(version, response, want string, closed bool) {
		t.Helper()
		r, e := newPlain(t, nil)
		c := r.dial("web")
		c.write("GET / HTTP/%s\r\nHost: a\r\n\r\n", version)
		s := serveOnce(e.accept(), response)
		if closed {
			s.Close()
		}
		c.wantRead(want)
		if strings.Contains(want, "close") {
			c.wantEnd(false)
			return
		}
		c.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n") // the connection goes on
		if closed {
			s = e.accept()
		}
		serveOnce(s, ok(""))
		c.wantResponse(200, "")
	}
	const chunked = "Transfer-Encoding: chunked\r\n\r\n"
	f("1.1", "HTTP/1.1 200 OK\r\n"+chunked+"3\r\nabc\r\n0\r\n\r\n", "HTTP/1.1 200 OK\r\n"+chunked+"3\r\nabc\r\n0\r\n\r\n", false)
	f("1.1", "HTTP/1.1 200 OK\r\n\r\nabc", "HTTP/1.1 200 OK\r\n"+chunked+"3\r\nabc\r\n0\r\n\r\n", true) // until the end
	f("1.1", "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", true)
	f("1.0", "HTTP/1.1 200 OK\r\n"+chunked+"3\r\nabc\r\n0\r\n\r\n", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc", false)
	f("1.0", ok("abc"), "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc", false)
	f("1.0\r\nConnection: keep-alive", ok("abc"), "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\nabc", false)
	f("1.0\r\nConnection: keep-alive", "HTTP/1.1 200 OK\r\n\r\nabc", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc", true)
	f("1.1\r\nConnection: close", ok("abc"), "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc", false)
	f("1.1", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", true)
}

func TestInformationalResponses(t *testing.T) {
	r, e := newPlain(t, nil)
	c := r.dial("web")
	c.write(get)
	s := e.accept()
	s.head()
	s.write("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\nConnection: keep-alive\r\n\r\n")
	c.wantRead("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n") // at once
	s.write("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + ok("x"))
	c.wantRead("HTTP/1.1 102 Processing\r\n\r\n") // nobody asked for the 100
	c.wantResponse(200, "x")
	r.record().want(t, "status", 200)

	old := r.dial("web") // HTTP/1.0 knows none
	old.write("GET / HTTP/1.0\r\n\r\n")
	serveOnce(s, "HTTP/1.1 103 Early Hints\r\n\r\n"+ok("x"))
	old.wantResponse(200, "x")
	r.record()

	c.write(get) // without end
	s.head()
	for range 100 {
		if _, err := io.WriteString(s.Conn, "HTTP/1.1 103 Early Hints\r\n\r\n"); err != nil {
			break
		}
	}
	for {
		if head := c.head(); !strings.HasPrefix(head, "HTTP/1.1 103") {
			if !strings.HasPrefix(head, "HTTP/1.1 502") {
				t.Errorf("the response is %q", head)
			}
			break
		}
	}
}

// What an endpoint says that is no response is a 502, and its connection is not used again.
func TestGarbageResponses(t *testing.T) {
	for _, garbage := range []string{"\x00\x01\x02\x03\r\n\r\n", "SSH-2.0-x\r\n\r\n", "HTTP/2.0 200 OK\r\n\r\n", "HTTP/1.1 999999 OK\r\n\r\n",
		"HTTP/1.1 200 OK\nContent-Length: 0\n\n", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 200 OK\r\nX Y: 1\r\n\r\n",
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", // nobody asked
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 100<<10) + "\r\n\r\n"} {
		r, e := newPlain(t, nil)
		c := r.dial("web")
		c.write(get)
		s := e.accept()
		s.head()
		io.WriteString(s.Conn, garbage)
		if resp := c.wantResponse(502, "the endpoint gave no answer\n"); resp.Close {
			t.Error("the client's connection is closed for it")
		}
		rec := r.record()
		rec.want(t, "status", 502, "endpoint", e.address, "retries", 0)
		if reason := rec["reason"].(string); !strings.HasPrefix(reason, "bad_response_") {
			t.Errorf("the reason is %s", reason)
		}
		c.write(get)
		serveOnce(e.accept(), ok(""))
		c.wantResponse(200, "")
	}
}

// An endpoint that goes away in the middle of a response must not leave its
// client with something that looks whole.
func TestEndpointGoneInResponse(t *testing.T) {
	f := func(version, response string, reset bool) {
		t.Helper()
		r, e := newPlain(t, nil)
		c := r.dial("web")
		c.write("GET / HTTP/%s\r\nHost: a\r\n\r\n", version)
		s := serveOnce(e.accept(), response)
		if !strings.Contains(response, "zz") {
			c.head() // it has arrived
		}
		if reset {
			s.reset()
		} else {
			s.Close()
		}
		if _, err := io.ReadAll(c.r); err == nil {
			t.Errorf("%s: the client's connection ended in order after %q (reset: %t)", version, response, reset)
		}
		r.record().want(t, "status", 200, "reason", "response_cut_short")
	}
	for _, version := range []string{"1.0", "1.1"} {
		for _, reset := range []bool{false, true} {
			f(version, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345", reset)
			f(version, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n", reset)
			f(version, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n", reset)
		}
		f(version, "HTTP/1.1 200 OK\r\n\r\n12345", true) // until the end, which a reset is not
		f(version, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\nzz\r\n", false)
	}
}

// Before a response head, the end of a new connection is a 502.
func TestEndpointGoneBeforeResponse(t *testing.T) {
	for _, part := range []string{"", "HTTP/1.1 200 OK\r\nContent-"} {
		r, e := newPlain(t, nil)
		c := r.dial("web")
		c.write(get)
		s := serveOnce(e.accept(), part)
		s.Close()
		c.wantResponse(502, "the endpoint gave no answer\n")
		r.record().want(t, "status", 502, "reason", "endpoint_closed", "retries", 0)
		c.write(get)
		serveOnce(e.accept(), ok(""))
		c.wantResponse(200, "")
	}
}

func TestResponseTimeout(t *testing.T) {
	r, e := newPlain(t, func(c *config.Config) { c.Backends[0].Timeouts.ResponseHead = 50 * time.Millisecond })
	c := r.dial("web")
	for range 2 {
		c.write(get)
		s := e.accept()
		s.head()
		s.write("HTTP/1.1 200 OK\r\n")
		if resp := c.wantResponse(504, "the endpoint did not answer in time\n"); resp.Close {
			t.Error("the client's connection is closed for it")
		}
		r.record().want(t, "status", 504, "reason", "response_timeout")
		s.wantEnd(false)
	}
	// An upload's time only counts once it is sent.
	c.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n")
	s := e.accept()
	s.head()
	time.Sleep(150 * time.Millisecond)
	c.write("abc")
	s.wantRead("abc")
	c.wantResponse(504, "*")
	r.record().want(t, "status", 504, "reason", "response_timeout")
}

func TestResponseBodyTimeout(t *testing.T) {
	for _, request := range []string{get, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"} {
		r, e := newPlain(t, func(c *config.Config) {
			c.Backends[0].Timeouts.ResponseHead = 50 * time.Millisecond
			c.Backends[0].Timeouts.BodyIdle = 200 * time.Millisecond
		})
		c := r.dial("web")
		c.write(request)
		s := e.accept()
		s.head()
		s.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
		for _, b := range "12345" { // longer than response_head allows, but never idle
			s.write(string(b))
			c.wantPiece(string(b))
			time.Sleep(50 * time.Millisecond)
		}
		c.wantEnd(true)
		r.record().want(t, "status", 200, "reason", "response_cut_short")
		s.Conn.SetDeadline(time.Now().Add(patience))
		if _, err := s.r.ReadByte(); err == nil && !strings.HasPrefix(request, "POST") {
			t.Error("the endpoint's connection stays open")
		}
	}
}

// wantPiece reads a response head, if one is next, and then want.
func (p *peer) wantPiece(want string) {
	p.t.Helper()
	if b, err := p.r.Peek(1); err == nil && b[0] == 'H' {
		p.head()
	}
	p.wantRead(want)
}

// A large response goes through to a client that reads it slowly.
func TestLargeResponse(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	for _, chunked := range []bool{false, true} {
		app := newHandler(t, func(w http.ResponseWriter, _ *http.Request) {
			if !chunked {
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			}
			w.Write(body)
		})
		r := newRig(t, plain, nil, "@app", app)
		c := r.dial("web")
		for range 2 {
			c.write(get)
			resp, err := http.ReadResponse(c.r, nil)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond) // all buffers fill up
			got, err := io.ReadAll(resp.Body)
			if err != nil || !bytes.Equal(got, body) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			rec := r.record()
			rec.want(t, "status", 200, "reason", nil)
			if n := rec["bytes_out"].(int64); n < int64(len(body)) {
				t.Errorf("%d bytes_out", n)
			}
		}
	}
}

// A client that does not read is given up after body_idle of its listener.
func TestClientThatDoesNotRead(t *testing.T) {
	app := newHandler(t, func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 64<<20)) })
	r := newRig(t, plain, func(c *config.Config) { c.Listeners[0].Timeouts.BodyIdle = 100 * time.Millisecond }, "@app", app)
	c := r.dial("web")
	c.write(get)
	r.record().want(t, "status", 200, "reason", "client_gone")
	if _, err := io.Copy(io.Discard, c.r); err == nil {
		t.Error("the response ended in order")
	}
}

func TestClientGoneInResponse(t *testing.T) {
	r, e := newPlain(t, nil)
	c := r.dial("web")
	c.write(get)
	s := e.accept()
	s.head()
	s.write("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
	c.head()
	c.reset()
	for {
		if _, err := s.Write(make([]byte, 64<<10)); err != nil {
			break // the endpoint's connection is closed for it
		}
	}
	r.record().want(t, "status", 200, "reason", "client_gone")
}

// A client that goes away while it waits is noticed, and what it asked for is given up.
func TestClientGoneWhileWaiting(t *testing.T) {
	const upload = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
	wait := func(t *testing.T, r *rig, e *endpoint, c *peer, request, rest, response string, leave func(), want entry) {
		c.write(request)
		s := e.accept()
		s.head()
		c.write(rest)
		if response != "" {
			s.write(response)
			c.head()
		}
		leave()
		begun := time.Now()
		want.check(t, r.record())
		if d := time.Since(begun); d > 5*time.Second {
			t.Errorf("it took %v", d)
		}
		if _, err := io.Copy(io.Discard, s.r); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Error("the endpoint's connection stays open")
		}
	}
	gone := entry{"status": 499, "reason": "client_gone"}
	t.Run("closed", func(t *testing.T) {
		r, e := newPlain(t, nil)
		c := r.dial("web")
		wait(t, r, e, c, get, "", "", func() { c.Close() }, gone)
		if n := r.counter("weir_http_requests_total", "code", "499"); n != 1 {
			t.Errorf("%v requests of 499", n)
		}
	})
	t.Run("reset", func(t *testing.T) {
		r, e := newPlain(t, nil)
		c := r.dial("web")
		wait(t, r, e, c, get, "", "", c.reset, gone)
	})
	t.Run("tls", func(t *testing.T) { // the close_notify is unread
		e := newEndpoint(t)
		r := newRig(t, secure, nil, "@app", e.address)
		c := r.dialTLS("web", "a", nil)
		wait(t, r, e, c, get, "", "", func() { c.Close() }, gone)
	})
	t.Run("pipelined", func(t *testing.T) {
		r, e := newPlain(t, nil)
		c := r.dial("web")
		wait(t, r, e, c, get, get, "", func() { c.Close() }, gone)
	})
	t.Run("uploaded", func(t *testing.T) {
		r, e := newPlain(t, nil)
		c := r.dial("web")
		wait(t, r, e, c, upload, "1\r\nx\r\n0\r\n\r\n", "", func() { c.Close() }, gone)
	})
	t.Run("body", func(t *testing.T) {
		r, e := newPlain(t, nil)
		c := r.dial("web")
		wait(t, r, e, c, get, "", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", func() { c.Close() }, entry{"status": 200, "reason": "client_gone"})
	})
	t.Run("uploaded-body", func(t *testing.T) {
		r, e := newPlain(t, nil)
		c := r.dial("web")
		wait(t, r, e, c, upload, "0\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", func() { c.Close() }, entry{"status": 200, "reason": "client_gone"})
	})
	t.Run("queue", func(t *testing.T) {
		e := newEndpoint(t)
		r := newRig(t, strings.Replace(plain, "endpoints:", "max_connections: 1, endpoints:", 1), nil, "@app", e.address)
		first, c := r.dial("web"), r.dial("web")
		first.write(get)
		s := e.accept()
		s.head()
		c.write(get)
		eventually(t, "it waits", func() error {
			if r.count(conn.Active) != 2 {
				return fmt.Errorf("not yet")
			}
			return nil
		})
		c.Close()
		time.Sleep(look + 100*time.Millisecond)
		s.write(ok(""))
		first.wantResponse(200, "")
		r.record().want(t, "status", 200)
		gone.check(t, r.record())
		first.write(get)
		s.head() // the one that went away was not sent
		s.write(ok(""))
		first.wantResponse(200, "")
	})
}

// count counts connections in a state.
func (r *rig) count(state conn.State) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.open {
		if c.State() == state {
			n++
		}
	}
	return n
}

// check compares the fields that e has.
func (e entry) check(t testing.TB, got entry) {
	t.Helper()
	for k, v := range e {
		got.want(t, k, v)
	}
}

// A client that waits long and stays is served.
func TestClientThatWaits(t *testing.T) {
	r, e := newPlain(t, nil)
	c := r.dial("web")
	for range 2 {
		c.write(get)
		s := e.accept()
		s.head()
		time.Sleep(look + look/2)
		s.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
		c.head()
		time.Sleep(look + look/2)
		s.write("k")
		c.wantRead("ok")
		r.record().want(t, "status", 200, "reason", nil)
		e.conns <- s
	}
}

func TestSlowHead(t *testing.T) {
	tune := func(c *config.Config) {
		c.Listeners[0].Timeouts.RequestHead = 100 * time.Millisecond
		c.Listeners[0].Timeouts.KeepAlive = 300 * time.Millisecond
	}
	r, e := newPlain(t, tune)
	c := r.dial("web")
	c.write("GET / HTTP/1.1\r\nHo")
	resp := c.wantResponse(408, refuseSlowHead.Detail+"\n")
	if !resp.Close {
		t.Error("the connection goes on")
	}
	c.wantEnd(false)
	r.record().want(t, "status", 408, "reason", "slow_head")

	c = r.dial("web") // the same for a second request
	c.write(get)
	s := serveOnce(e.accept(), ok(""))
	c.wantResponse(200, "")
	r.record()
	c.write("G")
	c.wantResponse(408, "*")
	c.wantEnd(false)
	r.record().want(t, "status", 408)

	c = r.dial("web") // nothing at all ends in silence
	c.wantEnd(false)
	c = r.dial("web") // and so does an idle connection
	c.write(get)
	serveOnce(s, ok(""))
	c.wantResponse(200, "")
	r.record()
	c.wantEnd(false)
	r.quiet()
}

func TestRefusedHeads(t *testing.T) {
	r, e := newPlain(t, nil)
	f := func(request string, status int, reason string) {
		t.Helper()
		c := r.dial("web")
		c.write(request + get) // nothing after it is read
		resp := c.wantResponse(status, "*")
		if !resp.Close {
			t.Error("the connection goes on")
		}
		c.wantEnd(false)
		r.record().want(t, "status", status, "reason", reason, "route", nil)
	}
	f("GET / HTTP/1.1\r\n\r\n", 400, "no_host")
	f("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 501, "method")
	f("GET / HTTP/1.1\r\nHost: a\r\nX: "+strings.Repeat("y", 65<<10)+"\r\n\r\n", 431, "head_too_large")
	f("GET /a/../b HTTP/1.1\r\nHost: a\r\n\r\n", 400, "ambiguous_path")
	f("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "two_lengths")
	f("GET / HTTP/3.0\r\n\r\n", 505, "version")
	e.untouched()

	c := r.dial("web")
	c.write("GET / HT")
	c.closeWrite()
	c.wantEnd(false)
	r.refusal().want(t, "kind", "refused", "listener", "web", "reason", "request_head")

	c = r.dial("web")
	c.write(get)
	serveOnce(e.accept(), ok(""))
	c.wantResponse(200, "")
	r.record()
	c.reset() // while idle: nothing that anyone has to know
	r.shut()
	r.quiet()
}

func TestDraining(t *testing.T) {
	r, e := newPlain(t, nil)
	c, d := r.dial("web"), r.dial("web")
	c.write(get)
	s := serveOnce(e.accept(), ok(""))
	if resp := c.wantResponse(200, ""); resp.Close {
		t.Error("closed too early")
	}
	r.record() // the endpoint's connection is free again
	d.write(get)
	s.head()
	r.proxy.SetDraining(true)
	s.write(ok("late")) // one that runs is finished
	if resp := d.wantResponse(200, "late"); !resp.Close {
		t.Error("the connection goes on")
	}
	d.wantEnd(false)
	r.record()
	c.write(get) // an idle one has one more
	serveOnce(s, ok(""))
	if resp := c.wantResponse(200, ""); !resp.Close {
		t.Error("the connection goes on")
	}
	c.wantEnd(false)
	r.record()
	r.proxy.SetDraining(false)
	c = r.dial("web")
	c.write(get)
	serveOnce(s, ok(""))
	if resp := c.wantResponse(200, ""); resp.Close {
		t.Error("closed after the drain was ended")
	}
}

// Cut ends whatever a connection does.
func TestCut(t *testing.T) {
	f := func(request, response string, status int, reason string) {
		t.Helper()
		r, e := newPlain(t, nil)
		c := r.dial("web")
		c.write(request)
		s := e.accept()
		s.head()
		if response != "" {
			s.write(response)
			c.head()
		}
		r.only().Cut()
		if _, err := io.ReadAll(c.r); (err == nil) == (response != "") {
			t.Errorf("%q: the end is %v", request, err)
		}
		r.record().want(t, "status", status, "reason", reason)
	}
	f(get, "", 503, "cut")
	f("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12", "", 503, "cut")
	f(get, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12", 200, "response_cut_short")
	f("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12", 200, "cut")
	r, _ := newPlain(t, nil)
	c := r.dial("web")
	c.write("GET")
	eventually(t, "it is there", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.open) == 0 {
			return fmt.Errorf("no connection")
		}
		return nil
	})
	r.only().Cut()
	c.Conn.SetDeadline(time.Now().Add(patience))
	if rest, err := io.ReadAll(c.r); len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

// Every request is routed by the table that is current when it comes.
func TestReloadOfConnections(t *testing.T) {
	one, two := newEndpoint(t), newEndpoint(t)
	r := newRig(t, plain, nil, "@app", one.address)
	c := r.dial("web")
	c.write(get)
	s := serveOnce(one.accept(), ok("1"))
	c.wantResponse(200, "1")
	c.write(get)
	s.head()
	r.load(plain, nil, "@app", two.address)
	s.write(ok("2")) // one that runs ends where it began
	c.wantResponse(200, "2")
	s.wantEnd(false) // and its connection is not kept
	c.write(get)
	last := serveOnce(two.accept(), ok("3"))
	c.wantResponse(200, "3")

	r.load(strings.Replace(plain, "web", "new", 2), nil, "@app", two.address)
	c.write(get)
	serveOnce(last, ok("4"))
	if resp := c.wantResponse(200, "4"); !resp.Close {
		t.Error("a connection of a listener that is gone goes on")
	}
	c.wantEnd(false)
}

// What was trusted may not be after a reload.
func TestReloadOfTrust(t *testing.T) {
	e := newEndpoint(t)
	trusting := strings.Replace(plain, "protocol: http}", "protocol: http, trust_forwarded: [127.0.0.0/8]}", 1)
	r := newRig(t, trusting, nil, "@app", e.address)
	c := r.dial("web")
	var s *peer
	f := func(want string) {
		t.Helper()
		c.write("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n")
		if s == nil {
			s = e.accept()
		}
		if got := fields(s.head(), "X-Forwarded-For"); len(got) != 1 || got[0] != want {
			t.Errorf("X-Forwarded-For is %q, not %s", got, want)
		}
		s.write(ok(""))
		c.wantResponse(200, "")
	}
	f("6.6.6.6, 127.0.0.1")
	r.load(plain, nil, "@app", e.address)
	f("127.0.0.1")
	r.load(trusting, nil, "@app", e.address)
	f("6.6.6.6, 127.0.0.1")
}

// secure is plain behind TLS.
const secure = `
listeners: {web: {address: '@0', protocol: tls}}
certificates: [{self_signed: {hosts: [a]}}]
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ['@app']}}
`

func TestExchangesOverTLS(t *testing.T) {
	r := newRig(t, secure, nil, "@app", newHandler(t, echo))
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		c := r.dialTLS("web", "a", func(c *tls.Config) { c.MaxVersion = version })
		c.write("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
		c.wantResponse(200, "/1 ")
		c.wantResponse(200, "/2 ")
		body := strings.Repeat("x", 1<<20)
		go c.write("POST /3 HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		c.wantResponse(200, "/3 "+body)
		c.write("GET /4 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		c.wantResponse(200, "/4 ")
		c.wantEnd(false) // with a close_notify
		for range 4 {
			r.record().want(t, "status", 200, "sni", "a", "tls_policy", "default", "tls_version", tls.VersionName(version), "reason", nil)
		}
	}
	for _, version := range []string{"TLS 1.2", "TLS 1.3"} {
		if n := r.counter("weir_tls_handshakes_total", "listener", "web", "version", version, "result", "ok"); n != 1 {
			t.Errorf("%v handshakes of %s", n, version)
		}
	}
}

// Many clients, each with something of its own in everything it sends, in all
// the ways there are to send and to break off: nobody ever sees what is another's.
func TestNothingLeaksBetweenClients(t *testing.T) {
	app := newHandler(t, func(w http.ResponseWriter, req *http.Request) {
		mine := req.Header.Get("X-Mine")
		if req.Header.Get("X-Break") != "" {
			w.Header().Set("Content-Length", "100000")
			io.WriteString(w, mine)
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		if req.Header.Get("X-Early") == "" {
			body, err := io.ReadAll(req.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			if got := string(body); strings.ReplaceAll(got, mine, "") != "" {
				t.Errorf("the endpoint got the body %q with the head of %s", got, mine)
			}
		}
		w.Header().Set("X-Yours", mine)
		w.Header().Set("Trailer", "X-T")
		io.WriteString(w, strings.Repeat(mine, 1000))
		w.Header().Set("X-T", mine)
	})
	r := newRig(t, plain+"\naccess_log: {path: stdout}\n", nil, "@app", app)
	r.proxy.SetLog(func(rec *Record) {
		req := rec.Request
		if mine := req.GetName("x-mine"); rec.Status == 200 && !bytes.Contains(req.Bytes(req.Target), mine) {
			t.Errorf("the line of %s has the target %s", mine, req.Bytes(req.Target))
		}
	})
	var clients sync.WaitGroup
	for client := range 16 {
		clients.Go(func() {
			for i := range 40 {
				mine := fmt.Sprintf("<%d-%d>", client, i)
				c := r.dial("web")
				for range i % 4 {
					r.exchange(t, c, "", mine)
				}
				switch i % 8 {
				case 0:
					c.write("POST /%s HTTP/1.1\r\nHost: a\r\nX-Mine: %s\r\nContent-Length: 100\r\n\r\n%s", mine, mine, mine)
					c.reset()
				case 1:
					c.write("POST /%s HTTP/1.1\r\nHost: a\r\nX-Mine: %s\r\nX-Early: 1\r\nContent-Length: 10000000\r\n\r\n%s", mine, mine, mine)
					if resp, body, err := c.tryResponse("GET"); err == nil && (resp.Header.Get("X-Yours") != mine || strings.ReplaceAll(body, mine, "") != "") {
						t.Errorf("%s got %v", mine, resp)
					}
				case 2:
					c.write("GET /%s HTTP/1.1\r\nHost: a\r\nX-Mine: %s\r\n\r\n", mine, mine)
				case 3:
					r.exchange(t, c, "X-Break: 1\r\n", mine)
				case 4:
					c.write("POST /%s HTTP/1.1\r\nHost: a\r\nX-Mine: %s\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", mine, mine)
					c.tryResponse("GET")
				default:
					r.exchange(t, c, "", mine)
				}
				c.Close()
			}
		})
	}
	clients.Wait()
}

// exchange asks for what is mine and checks that it is what comes.
func (r *rig) exchange(t *testing.T, c *peer, field, mine string) {
	c.write("POST /%s HTTP/1.1\r\nHost: a\r\nX-Mine: %s\r\n%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", mine, mine, field, len(mine), mine)
	c.write("0\r\n\r\n")
	resp, body, err := c.tryResponse("POST")
	if field != "" {
		if err == nil {
			t.Errorf("%s: a response that broke off looks whole", mine)
		}
		return
	}
	if err != nil || resp.Header.Get("X-Yours") != mine || body != strings.Repeat(mine, 1000) || resp.Trailer.Get("X-T") != mine {
		t.Errorf("%s got %v, %v", mine, resp, err)
	}
}

// Whatever one side sends gets to the other before anybody waits for more.
func TestNothingIsHeldBack(t *testing.T) {
	r, e := newPlain(t, nil)
	c := r.dial("web")
	c.write("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
	s := e.accept()
	s.head()
	for _, piece := range []string{"3\r\none\r\n", "3\r\ntwo\r\n", "5\r\nthree\r\n"} {
		c.write(piece)
		s.wantRead(piece)
	}
	s.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
	c.head()
	for _, piece := range []string{"3\r\none\r\n", "3\r\ntwo\r\n", "5\r\nthree\r\n"} { // both ways at once
		c.write(piece)
		s.wantRead(piece)
		s.write(piece)
		c.wantRead(piece)
	}
	c.write("0\r\n\r\n")
	s.wantRead("0\r\n\r\n")
	s.write("3\r\nend\r\n")
	c.wantRead("3\r\nend\r\n")
	s.write("0\r\n\r\n")
	c.wantRead("0\r\n\r\n")
	r.record().want(t, "status", 200)

	c = r.dial("web") // and where the request has no body
	c.write(get)
	s.head()
	s.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r")
	c.head()
	c.wantRead("3\r\none\r\n")
	s.write("\n3\r\ntwo\r\n")
	c.wantRead("3\r\ntwo\r\n")
}
