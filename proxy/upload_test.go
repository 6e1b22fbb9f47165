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
)

// post returns the head of a request whose body follows later.
func post(length int) string {
	return fmt.Sprintf("POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", length)
}

const postChunked = "POST /up HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"

func TestUploads(t *testing.T) {
	body := strings.Repeat("0123456789abcdef", 200_000)
	for _, text := range []string{plain, secure} {
		r := newRig(t, text, nil, "@app", newHandler(t, echo))
		c := r.dial("web")
		if text == secure {
			c = r.dialTLS("web", "a", nil)
		}
		f := func(head, body, want string) {
			t.Helper()
			go c.write(head + body) // the response arrives while the client sends the request
			resp, got := c.response("POST")
			if resp.StatusCode != 200 || got != "/up "+want || resp.Close {
				t.Errorf("%d bytes of %q", len(got), head)
			}
			rec := r.record()
			rec.want(t, "status", 200, "reason", nil, "retries", 0)
			if n := rec["bytes_in"].(int64); n < int64(len(head+body)) {
				t.Errorf("%d bytes_in of %d", n, len(head+body))
			}
		}
		f(post(len(body)), body, body)
		f(post(5), "hello", "hello")
		f(post(0), "", "")
		f(postChunked, "5\r\nhello\r\n0\r\n\r\n", "hello")
		f(postChunked, "0\r\n\r\n", "")
		f(postChunked, "5;ext=1\r\nhello\r\n00000\r\nX-Trailer: 1\r\n\r\n", "hello")
		f(postChunked, fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body), body)
		f(postChunked, strings.Repeat("1\r\nx\r\n", 3000)+"0\r\n\r\n", strings.Repeat("x", 3000))
	}
}

// Both directions carry data at once, far more than the buffers hold.
func TestBothDirectionsAtOnce(t *testing.T) {
	const size = 32 << 20
	app := newHandler(t, func(w http.ResponseWriter, req *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Content-Length", req.Header.Get("Content-Length"))
		w.WriteHeader(200)
		io.Copy(w, req.Body)
	})
	for _, text := range []string{plain, secure} {
		r := newRig(t, text, nil, "@app", app)
		c := r.dial("web")
		if text == secure {
			c = r.dialTLS("web", "a", nil)
		}
		go func() {
			io.WriteString(c.Conn, post(size))
			for range size >> 16 {
				if _, err := c.Write(bytes.Repeat([]byte("12345678"), 1<<13)); err != nil {
					t.Error(err)
					return
				}
			}
		}()
		resp, err := http.ReadResponse(c.r, nil)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		if n != size || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
		r.record().want(t, "status", 200, "reason", nil)
	}
}

func TestExpectContinue(t *testing.T) {
	const request = "PUT /up HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
	t.Run("continued", func(t *testing.T) {
		r, e := newPlain(t, nil)
		c := r.dial("web")
		c.write(request)
		s := e.accept()
		if head := s.head(); !strings.Contains(head, "Expect: 100-continue\r\n") {
			t.Errorf("the endpoint got %q", head)
		}
		s.write("HTTP/1.1 100 Continue\r\n\r\n")
		c.wantRead("HTTP/1.1 100 Continue\r\n\r\n")
		c.write("hello")
		s.wantRead("hello")
		s.write(ok("thanks"))
		if resp := c.wantResponse(200, "thanks"); resp.Close {
			t.Error("the connection is closed")
		}
		c.write(get)
		serveOnce(s, ok(""))
		c.wantResponse(200, "")
	})
	t.Run("refused", func(t *testing.T) {
		r, e := newPlain(t, nil)
		c := r.dial("web")
		c.write(request)
		s := e.accept()
		s.head()
		s.write("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
		if resp := c.wantResponse(403, "no"); !resp.Close {
			t.Error("nobody knows whether the body comes, but the connection goes on")
		}
		c.wantEnd(false)
		s.wantEnd(false) // weir does not use the endpoint's connection again
		r.record().want(t, "status", 403, "reason", nil)
	})
	t.Run("ignored", func(t *testing.T) {
		r, e := newPlain(t, nil)
		c := r.dial("web")
		c.write(request)
		s := e.accept()
		s.head()
		c.write("hello") // the client does not wait for the 100
		s.wantRead("hello")
		s.write(ok("thanks"))
		if resp := c.wantResponse(200, "thanks"); resp.Close {
			t.Error("the connection is closed")
		}
	})
	t.Run("sent-along", func(t *testing.T) {
		r, e := newPlain(t, nil)
		c := r.dial("web")
		c.write(request + "hello")
		s := e.accept()
		s.head()
		s.wantRead("hello")
		s.write("HTTP/1.1 100 Continue\r\n\r\n" + ok("thanks"))
		c.wantRead("HTTP/1.1 100 Continue\r\n\r\n")
		c.wantResponse(200, "thanks")
	})
	t.Run("too-large", func(t *testing.T) {
		e := newEndpoint(t)
		r := newRig(t, strings.Replace(plain, "backend: app", "backend: app, max_body: 4B", 1), nil, "@app", e.address)
		c := r.dial("web")
		c.write(request)
		c.wantResponse(413, tooLarge+"\n")
		c.wantEnd(false)
		e.untouched()
	})
}

// An endpoint answers before it has read the request's body, and closes. The client gets the response,
// though it is still sending.
func TestEarlyResponse(t *testing.T) {
	for _, text := range []string{plain, secure} {
		e := newEndpoint(t)
		r := newRig(t, text, nil, "@app", e.address)
		c := r.dial("web")
		if text == secure {
			c = r.dialTLS("web", "a", nil)
		}
		c.write(post(100 << 20))
		s := e.accept()
		s.head()
		s.write("HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbig")
		go func() {
			for {
				if _, err := c.Write(make([]byte, 32<<10)); err != nil {
					return
				}
			}
		}()
		if resp := c.wantResponse(413, "big"); !resp.Close {
			t.Error("the connection goes on")
		}
		s.Close()
		r.record().want(t, "status", 413, "reason", nil)
		c.Close()
	}
}

// The endpoint closes the connection without a response while weir sends the request.
func TestEndpointGoneInUpload(t *testing.T) {
	r, e := newPlain(t, nil)
	for _, reset := range []bool{false, true} {
		c := r.dial("web")
		c.write(post(10))
		s := e.accept()
		s.head()
		c.write("12345")
		s.wantRead("12345")
		if reset {
			s.reset()
		} else {
			s.Close()
		}
		if resp := c.wantResponse(502, "*"); !resp.Close {
			t.Error("the connection goes on")
		}
		r.record().want(t, "status", 502, "reason", "endpoint_closed", "retries", 0)
		c.wantEnd(false)
	}
}

// If a client breaks off, or sends an invalid body, weir ends the endpoint's connection. The endpoint must
// not treat the body as complete, and must not get another request.
func TestBadUploads(t *testing.T) {
	long(t)
	idle := func(c *config.Config) { c.Listeners[0].Timeouts.BodyIdle = 2 * time.Second }
	f := func(head, body, sent string, tune func(*config.Config), leave func(*peer), status int, reason string) {
		t.Helper()
		r, e := newPlain(t, tune)
		c := r.dial("web")
		c.write(head)
		s := e.accept()
		s.head()
		c.write(body)
		s.wantRead(sent)
		if leave != nil {
			leave(c)
		}
		if rest, err := io.ReadAll(s.r); len(rest) > 0 {
			t.Errorf("the endpoint got %q, %v", rest, err)
		}
		if status != 499 {
			resp := c.wantResponse(status, "*")
			if !resp.Close {
				t.Error("the connection goes on")
			}
			c.wantEnd(false)
		}
		rec := r.record()
		rec.want(t, "status", status, "reason", reason, "retries", 0)
		if reason == "slow_body" {
			rec.wantError(t, "listeners.web.timeouts.body_idle", "body_min_rate")
		}
		if n := r.counter("weir_http_requests_total", "code", fmt.Sprint(status)); n != 1 {
			t.Errorf("%v requests of %d", n, status)
		}
		r.wantNoLog()
	}
	f(post(10), "12345", "12345", idle, nil, 408, "slow_body")
	f(post(10), "", "", idle, nil, 408, "slow_body")
	f(postChunked, "5\r\n12345\r\n", "5\r\n12345\r\n", idle, nil, 408, "slow_body")
	f(postChunked, "5\r\n12345\r\nzz\r\n"+get, "", nil, nil, 400, "bad_chunk")
	f(postChunked, "5\r\n12345678\r\n0\r\n\r\n"+get, "", nil, nil, 400, "bad_chunk")
	f(postChunked, "zz\r\n", "", nil, nil, 400, "bad_chunk")
	f(postChunked, "-5\r\n12345\r\n0\r\n\r\n", "", nil, nil, 400, "bad_chunk")
	f(postChunked, "0\r\nno trailer\r\n\r\n", "", nil, nil, 400, "bad_field_name")
	gone := func(c *peer) { c.Close() }
	f(post(10), "12345", "12345", nil, gone, 499, "client_gone")
	f(postChunked, "5\r\n12345\r\n", "5\r\n12345\r\n", nil, gone, 499, "client_gone")
	f(postChunked, "5\r\n12345\r\n0\r\n", "", nil, gone, 499, "client_gone")
	f(post(10), "12345", "12345", nil, (*peer).reset, 499, "client_gone")
	f(post(10), "12345", "12345", nil, (*peer).closeWrite, 499, "client_gone")
}

func TestMaxBody(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, strings.Replace(plain, "backend: app", "backend: app, max_body: 10B", 1), nil, "@app", e.address)
	c := r.dial("web")
	c.write(post(10) + "1234567890") // exactly the limit
	s := e.accept()
	s.head()
	s.wantRead("1234567890")
	s.write(ok(""))
	c.wantResponse(200, "")
	r.record()
	c.write(post(11) + "12345678901") // the body has arrived: the connection can continue
	if resp := c.wantResponse(413, tooLarge+"\n"); resp.Close {
		t.Error("the connection is closed")
	}
	r.record().want(t, "status", 413, "reason", "body_too_large", "route", "web/*")
	c.write(post(11)) // weir does not know whether the body will come
	if resp := c.wantResponse(413, tooLarge+"\n"); !resp.Close {
		t.Error("the connection goes on")
	}
	c.wantEnd(false)
	r.record()
	c = r.dial("web")
	c.write(postChunked + "a\r\n1234567890\r\n0\r\n\r\n")
	s.head()
	s.wantRead("a\r\n1234567890\r\n0\r\n\r\n")
	s.write(ok(""))
	c.wantResponse(200, "")
	r.record().want(t, "status", 200)
	c.write(postChunked + "a\r\n1234567890\r\n")
	s.head()
	s.wantRead("a\r\n1234567890\r\n")
	c.write("1\r\n1\r\n0\r\n\r\n" + get)
	if resp := c.wantResponse(413, "*"); !resp.Close {
		t.Error("the connection goes on")
	}
	c.wantEnd(false)
	s.wantEnd(false)
	r.record().want(t, "status", 413, "reason", "body_too_large")
	e.untouched()
}

// The whole response arrives before weir has sent the whole request. weir must not use the endpoint's
// connection for another client, because the endpoint would read the rest of the body as a request.
func TestUnsentBodyPoisonsNobody(t *testing.T) {
	r, e := newPlain(t, nil)
	for range 20 {
		c := r.dial("web")
		c.write(post(len(get)))
		s := e.accept()
		s.head()
		s.write(ok("early"))
		if resp := c.wantResponse(200, "early"); !resp.Close {
			t.Error("the connection goes on")
		}
		c.write(get) // these bytes are the body: an endpoint that expects no body would read them as a request
		c.Close()
		r.record()
		d := r.dial("web")
		d.write("GET /mine HTTP/1.1\r\nHost: a\r\n\r\n")
		// Weir may have sent the whole body before it noticed the response.
		if _, err := io.ReadFull(s.r, make([]byte, len(get))); err != nil {
			s = e.accept()
		} else if _, err := s.r.Peek(1); err != nil {
			s = e.accept()
		}
		if head := s.head(); !strings.HasPrefix(head, "GET /mine ") {
			t.Fatalf("the endpoint got %q", head)
		}
		s.write("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nmine")
		d.wantResponse(200, "mine")
		r.record()
	}
}

// An endpoint answers when the last piece of the body arrives: the connections stay open.
func TestAnswerWithTheLastPiece(t *testing.T) {
	r, e := newPlain(t, nil)
	c := r.dial("web")
	s := (*peer)(nil)
	for range 100 {
		c.write(post(10))
		if s == nil {
			s = e.accept()
		}
		s.head()
		c.write("12345")
		s.wantRead("12345")
		c.write("67890")
		s.wantRead("67890")
		s.write(ok("done"))
		if resp := c.wantResponse(200, "done"); resp.Close {
			t.Fatal("the client's connection is closed")
		}
	}
	e.untouched()
}

// An upload may take longer than response_head and body_idle, as long as bytes arrive.
func TestLongUpload(t *testing.T) {
	r, e := newPlain(t, func(c *config.Config) {
		c.Listeners[0].Timeouts.BodyIdle = 4 * time.Second
		c.Backends[0].Timeouts.ResponseHead = time.Second
		c.Backends[0].Timeouts.BodyIdle = 4 * time.Second
	})
	c := r.dial("web")
	c.write(post(6))
	s := e.accept()
	s.head()
	for _, b := range "123456" {
		time.Sleep(250 * time.Millisecond)
		c.write(string(b))
		s.wantRead(string(b))
	}
	s.write(ok(""))
	if resp := c.wantResponse(200, ""); resp.Close {
		t.Error("the connection is closed")
	}
}

// weir ends an exchange whose endpoint does not read, after body_idle of the backend.
func TestEndpointThatDoesNotRead(t *testing.T) {
	r, e := newPlain(t, func(c *config.Config) {
		c.Backends[0].Timeouts.BodyIdle = 100 * time.Millisecond
		c.Backends[0].Timeouts.ResponseHead = 100 * time.Millisecond
	})
	c := r.dial("web")
	c.write(post(256 << 20))
	s := e.accept()
	s.head()
	go func() {
		for {
			if _, err := c.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	}()
	c.wantResponse(504, "*")
	r.record().want(t, "status", 504, "reason", "response_timeout")
	c.Close()
}

// A pipelined request follows an upload.
func TestPipelinedBehindUpload(t *testing.T) {
	r := newRig(t, plain, nil, "@app", newHandler(t, echo))
	c := r.dial("web")
	c.write(post(10) + "12345")
	time.Sleep(20 * time.Millisecond)
	c.write("67890" + get + postChunked + "1\r\nx\r\n0\r\n\r\n" + get)
	c.wantResponse(200, "/up 1234567890")
	c.wantResponse(200, "/ ")
	c.wantResponse(200, "/up x")
	c.wantResponse(200, "/ ")
}

func TestUploadOverTLSIsInterrupted(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, secure, nil, "@app", e.address)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		c := r.dialTLS("web", "a", func(c *tls.Config) { c.MaxVersion = version })
		c.write(post(100))
		s := e.accept()
		s.head()
		s.write("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
		if resp := c.wantResponse(403, "no"); !resp.Close {
			t.Error("the connection goes on")
		}
		c.wantEnd(false) // with a close_notify: the interrupted read did no harm
	}
}

// weir ends a body that arrives too slowly, even if each pause is short. It ends at most about body_idle
// after the body became too slow.
func TestDrippingUploads(t *testing.T) {
	const idle = 700 * time.Millisecond
	tune := func(c *config.Config) {
		for i := range c.Listeners {
			c.Listeners[i].Timeouts.BodyIdle = idle
		}
	}
	// drip sends a byte from time to time until it fails or stop is closed.
	drip := func(send func() error, stop <-chan struct{}) {
		for {
			select {
			case <-stop:
				return
			case <-time.After(idle / 10):
			}
			if send() != nil {
				return
			}
		}
	}
	f := func(what, head, piece string) {
		t.Helper()
		r, e := newPlain(t, tune)
		c := r.dial("web")
		c.write(head)
		e.accept().head()
		stop := make(chan struct{})
		var dripping sync.WaitGroup
		dripping.Go(func() {
			drip(func() error { _, err := io.WriteString(c.Conn, piece); return err }, stop)
		})
		if resp := c.wantResponse(408, "*"); !resp.Close {
			t.Errorf("%s: the connection goes on", what)
		}
		close(stop)
		dripping.Wait()
		rec := r.record()
		rec.want(t, "status", 408, "reason", "slow_body")
		rec.wantError(t, "listeners.web.timeouts.body_idle", "body_min_rate")
		if n := r.counter("weir_http_slow_clients_total", "reason", "slow_body"); n != 1 {
			t.Errorf("%s: %v slow clients were counted", what, n)
		}
	}
	f("a length", post(1000), "x")
	f("chunks", postChunked, "1\r\nx\r\n")
	f("the head of a chunk", postChunked, "0")

	t.Run("HTTP/2", func(t *testing.T) {
		r, e := newRig2(t, tune)
		c := r.dial2("tls")
		id := c.request(false, "/", ":method: POST")
		e.accept().head()
		stop := make(chan struct{})
		var dripping sync.WaitGroup
		dripping.Go(func() {
			drip(func() error {
				return c.beside(func() error { return c.framer.WriteData(id, false, []byte("x")) })
			}, stop)
		})
		c.want2(id, 408, "*")
		close(stop)
		dripping.Wait()
		rec := r.record()
		rec.want(t, "status", 408, "reason", "slow_body")
		rec.wantError(t, "listeners.tls.timeouts.body_idle", "body_min_rate")
		c.alive()
	})
}

// Weir serves a slow body to its end if it is fast enough, or if slow bodies are allowed.
func TestSlowUploads(t *testing.T) {
	long(t)
	const idle = 2 * time.Second // twelve pieces take longer
	f := func(what, head string, rate int64, piece string, pieces int) {
		t.Helper()
		r, e := newPlain(t, func(c *config.Config) {
			c.Listeners[0].Timeouts.BodyIdle, c.Listeners[0].Timeouts.BodyMinRate = idle, rate
		})
		c := r.dial("web")
		c.write(fmt.Sprintf(head, len(piece)*pieces))
		s := e.accept()
		s.head()
		for range pieces {
			time.Sleep(idle / 10)
			c.write(piece)
			s.wantRead(piece)
		}
		s.write(ok("thanks"))
		c.wantResponse(200, "thanks")
		r.record().want(t, "status", 200, "reason", nil)
	}
	head := "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
	f("no least rate", head, 0, "x", 12)
	f("gRPC", strings.Replace(head, "\r\n\r\n", "\r\nContent-Type: application/grpc\r\n\r\n", 1), 240, "x", 12)
	f("slow", head, 10, strings.Repeat("x", 50), 12)
}

const tooLarge = "the request's body is too large"
