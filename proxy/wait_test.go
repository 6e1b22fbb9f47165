package proxy

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

func TestResponseTimeout(t *testing.T) {
	r, e := newPlain(t, func(c *config.Config) { c.Backends[0].Timeouts.ResponseHead = 50 * time.Millisecond })
	c := r.dial("web")
	for _, part := range []string{"", "HTTP/1.1 200 OK\r\n"} {
		c.write(get)
		s := e.accept()
		s.head()
		io.WriteString(s, part)
		if resp := c.wantResponse(504, "the endpoint did not answer in time\n"); resp.Close {
			t.Error("the client's connection is closed for it")
		}
		r.record().want(t, "status", 504, "reason", "response_timeout",
			"error", "the endpoint sent no response within 50ms (backends.app.timeouts.response_head)")
		if rest, err := io.ReadAll(s.r); len(rest) > 0 || part == "" && err != nil || os.IsTimeout(err) { // weir resets the connection if a part of a response arrives too late
			t.Errorf("instead of the end of the endpoint's connection came %q and %v", rest, err)
		}
	}
	// The time for the response counts from the end of an upload.
	c.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n")
	s := e.accept()
	s.head()
	r.waitForClientChecks(2) // longer than response_head
	c.write("abc")
	s.wantRead("abc")
	c.wantResponse(504, "*")
	rec := r.record()
	rec.want(t, "status", 504, "reason", "response_timeout")
	rec.wantError(t, "backends.app.timeouts.response_head")
}

// An endpoint that sends 102 Processing is at work: the time for the response starts anew.
func TestInformationalResponsesGainTime(t *testing.T) {
	for _, body := range []string{"", "0\r\n\r\n"} {
		request := get
		if body != "" {
			request = postChunked + body
		}
		r, e := newPlain(t, func(c *config.Config) { c.Backends[0].Timeouts.ResponseHead = 2 * clientCheck })
		c := r.dial("web")
		c.write(request)
		s := e.accept()
		s.head()
		s.wantRead(body)
		for range 3 {
			r.waitForClientChecks(1)
			s.write("HTTP/1.1 102 Processing\r\n\r\n")
			c.wantRead("HTTP/1.1 102 Processing\r\n\r\n")
		}
		s.write(ok("done"))
		c.wantResponse(200, "done")
		c.write(get)
		s.head()
		s.write("HTTP/1.1 102 Processing\r\n\r\n")
		c.wantRead("HTTP/1.1 102 Processing\r\n\r\n")
		c.wantResponse(504, "*")
	}
}

// If an endpoint completes no TLS handshake in time, weir has no connection to it.
func TestConnectTimeout(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, strings.Replace(plain, "endpoints:", "protocol: https, retries: {attempts: 1}, timeouts: {connect: 50ms}, endpoints:", 1), nil, "@app", e.address)
	c := r.dial("web")
	c.write(get)
	if resp := c.wantResponse(504, "no connection to an endpoint in time\n"); resp.Close {
		t.Error("the client's connection is closed for it")
	}
	rec := r.record()
	rec.want(t, "status", 504, "reason", "connect")
	rec.wantError(t, "timeouts.connect")
	e.accept() // accept here; otherwise the endpoint might accept the connection while the rig looks for leaks
}

func TestResponseBodyTimeout(t *testing.T) {
	f := func(name, request string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, e := newPlain(t, func(c *config.Config) {
				c.Backends[0].Timeouts.ResponseHead = clientCheck / 2
				c.Backends[0].Timeouts.BodyIdle = 3 * time.Second
			})
			c := r.dial("web")
			c.write(request)
			s := e.accept()
			s.head()
			s.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
			for i, b := range "12345" { // longer than response_head allows, but never idle
				s.write(string(b))
				c.wantPiece(string(b))
				if i == 0 {
					r.waitForClientChecks(1)
				}
			}
			c.wantEnd(true)
			r.record().want(t, "status", 200, "reason", "response_cut_short",
				"error", "the endpoint sent no more of its response within 3s (backends.app.timeouts.body_idle)")
			s.Conn.SetDeadline(time.Now().Add(patience))
			if _, err := s.r.ReadByte(); err == nil && !strings.HasPrefix(request, "POST") {
				t.Error("the endpoint's connection stays open")
			}
		})
	}
	f("GET", get)
	f("POST", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
}

// wantPiece reads a response head, if there is one, and then expects want.
func (p *peer) wantPiece(want string) {
	p.t.Helper()
	if b, err := p.r.Peek(1); err == nil && b[0] == 'H' {
		p.head()
	}
	p.wantRead(want)
}

// weir ends an exchange whose client does not read, after body_idle of the listener.
func TestClientThatDoesNotRead(t *testing.T) {
	app := newHandler(t, func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 64<<20)) })
	r := newRig(t, plain, func(c *config.Config) { c.Listeners[0].Timeouts.BodyIdle = 100 * time.Millisecond }, "@app", app)
	c := r.dial("web")
	c.write(get)
	rec := r.record()
	rec.want(t, "status", 200, "reason", "slow_read")
	rec.wantError(t, "within 100ms (listeners.web.timeouts.body_idle)")
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
			break // weir has closed the endpoint's connection because of it
		}
	}
	r.record().want(t, "status", 200, "reason", "client_gone")
}

// If a client leaves while weir waits for the endpoint, weir notices that and ends the request.
func TestClientGoneWhileWaiting(t *testing.T) {
	long(t)
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
		waitUntilArrived(t, c)
		r.waitForClientChecks(2) // two checks of the first client, so that one whole clientCheck passes between them
		s.write(ok(""))
		first.wantResponse(200, "")
		served, left := r.record(), r.record()
		if served["status"] != int64(200) { // weir releases the place before it writes the log line, so the order may differ
			served, left = left, served
		}
		served.want(t, "status", 200)
		gone.check(t, left)
		first.write(get)
		s.head() // weir did not send the request of the client that went away
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

// weir serves a client that waits long and does not leave.
func TestClientThatWaits(t *testing.T) {
	long(t)
	r, e := newPlain(t, nil)
	c := r.dial("web")
	for range 2 {
		c.write(get)
		s := e.accept()
		s.head()
		r.waitForClientChecks(1)
		s.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
		c.head()
		r.waitForClientChecks(1)
		s.write("k")
		c.wantRead("ok")
		r.record().want(t, "status", 200, "reason", nil)
		e.conns <- s
	}
}

func TestSlowHead(t *testing.T) {
	tune := func(c *config.Config) {
		c.Listeners[0].Timeouts.RequestHead = time.Second
		c.Listeners[0].Timeouts.KeepAlive = 2 * time.Second
	}
	r, e := newPlain(t, tune)
	c := r.dial("web")
	c.write("GET / HTTP/1.1\r\nHo")
	resp := c.wantResponse(408, "the client did not send the whole request head in time\n")
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

	c = r.dial("web") // a client that sends nothing: the connection ends without a response
	c.wantEnd(false)
	c = r.dial("web") // an idle connection, too
	c.write(get)
	serveOnce(s, ok(""))
	c.wantResponse(200, "")
	r.record()
	c.wantEnd(false)
	r.wantNoLog()
}
