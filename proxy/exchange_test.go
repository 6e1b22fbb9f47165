package proxy

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
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
	r.wantNoLog()
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

// Messages in pieces of one byte, in both directions, have the same result as whole messages.
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
		e.conns <- serveOnce(e.accept(), dated(response))
		if got := c.head(); got != dated(want) {
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

// serveOnce answers one request on an endpoint's connection, and returns the connection.
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
		s := serveOnce(e.accept(), dated(response))
		if closed {
			s.Close()
		}
		c.wantRead(dated(want))
		if strings.Contains(want, "close") {
			c.wantEnd(false)
			return
		}
		c.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n") // the connection continues
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
	c.wantRead("HTTP/1.1 102 Processing\r\n\r\n") // the client did not request the 100
	c.wantResponse(200, "x")
	r.record().want(t, "status", 200)

	old := r.dial("web") // HTTP/1.0 has no informational responses
	old.write("GET / HTTP/1.0\r\n\r\n")
	serveOnce(s, "HTTP/1.1 103 Early Hints\r\n\r\n"+ok("x"))
	old.wantResponse(200, "x")
	r.record()

	c.write(get) // endless informational responses
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

// If an endpoint sends something other than a response, the client gets a 502, and weir does not
// use the connection again.
func TestGarbageResponses(t *testing.T) {
	for _, garbage := range []string{"\x00\x01\x02\x03\r\n\r\n", "SSH-2.0-x\r\n\r\n", "HTTP/2.0 200 OK\r\n\r\n", "HTTP/1.1 999999 OK\r\n\r\n",
		"HTTP/1.1 200 OK\nContent-Length: 0\n\n", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 200 OK\r\nX Y: 1\r\n\r\n",
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", // unrequested
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 100<<10) + "\r\n\r\n"} {
		r, e := newPlain(t, nil)
		c := r.dial("web")
		c.write(get)
		s := e.accept()
		s.head()
		io.WriteString(s.Conn, garbage)
		if resp := c.wantResponse(502, "the endpoint sent no valid response\n"); resp.Close {
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

// If an endpoint closes the connection in the middle of a response, the client must not receive a
// response that looks complete.
func TestEndpointGoneInResponse(t *testing.T) {
	f := func(version, response string, reset bool) {
		t.Helper()
		r, e := newPlain(t, nil)
		c := r.dial("web")
		c.write("GET / HTTP/%s\r\nHost: a\r\n\r\n", version)
		s := serveOnce(e.accept(), dated(response))
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
		f(version, "HTTP/1.1 200 OK\r\n\r\n12345", true) // a reset is not the end
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
		c.wantResponse(502, "the endpoint sent no valid response\n")
		r.record().want(t, "status", 502, "reason", "endpoint_closed", "retries", 0)
		c.write(get)
		serveOnce(e.accept(), ok(""))
		c.wantResponse(200, "")
	}
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
			time.Sleep(20 * time.Millisecond) // all buffers become full
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

// Weir forwards all received bytes before it waits for more.
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
	for _, piece := range []string{"3\r\none\r\n", "3\r\ntwo\r\n", "5\r\nthree\r\n"} { // both directions
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

	c = r.dial("web") // the same for a request without a body
	c.write(get)
	s.head()
	s.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r")
	c.head()
	c.wantRead("3\r\none\r\n")
	s.write("\n3\r\ntwo\r\n")
	c.wantRead("3\r\ntwo\r\n")
}
