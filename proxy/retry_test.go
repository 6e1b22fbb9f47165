package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/weirproxy/weir/config"
)

// idleConnection runs one exchange and returns the client and the endpoint's connection.
func idleConnection(r *rig, e *endpoint) (*peer, *peer) {
	r.Helper()
	c := r.dial("web")
	c.write(get)
	s := serveOnce(e.accept(), ok(""))
	c.wantResponse(200, "")
	r.record()
	return c, s
}

// weir never uses an idle connection that the endpoint has closed, or on which the endpoint has sent bytes.
// So no request fails, whatever its method, and unrequested bytes never become a response.
func TestIdleConnectionThatEnded(t *testing.T) {
	for name, end := range map[string]func(*peer){
		"closed": func(s *peer) { s.Close() },
		"reset":  (*peer).reset,
		"408":    func(s *peer) { s.write("HTTP/1.1 408 Request Timeout\r\nContent-Length: 6\r\n\r\npoison"); s.Close() },
		"spoke":  func(s *peer) { s.write(ok("poison")) },
		"byte":   func(s *peer) { s.write("x") },
	} {
		t.Run(name, func(t *testing.T) {
			for _, request := range []string{get, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", post(1)} {
				r, e := newPlain(t, nil)
				c, s := idleConnection(r, e)
				if arrived(t, s) {
					t.Error("something arrived before the endpoint sent it")
				}
				end(s)
				waitUntilArrived(t, s)
				c.write(request)
				s = e.accept()
				if s.head(); strings.HasPrefix(request, "POST /up") {
					c.write("x")
				}
				s.write(ok("mine"))
				c.wantResponse(200, "mine")
				r.record().want(t, "status", 200, "retries", 0, "reason", nil)
			}
		})
	}
}

// If unrequested bytes follow the response, weir does not use the connection again.
func TestEndpointThatSaysTooMuch(t *testing.T) {
	r, e := newPlain(t, nil)
	c := r.dial("web")
	for range 3 {
		c.write(get)
		serveOnce(e.accept(), ok("mine")+ok("poison"))
		c.wantResponse(200, "mine")
	}
	c.write(post(1))
	s := e.accept()
	s.head()
	c.write("x")
	s.write(ok("mine") + ok("poison"))
	c.wantResponse(200, "mine")
	d := r.dial("web")
	d.write(get)
	serveOnce(e.accept(), ok("mine"))
	d.wantResponse(200, "mine")
}

// A connection ends after weir sent a request, before any byte of the response. Weir sends the request
// once more, if that is allowed.
func TestRetryOfReusedConnections(t *testing.T) {
	f := func(request, body, before string, retried bool) {
		t.Helper()
		r, e := newPlain(t, nil)
		c, s := idleConnection(r, e)
		c.write(request)
		s.head()
		if c.write(body); before != "" {
			s.write(before)
			if strings.HasPrefix(before, "HTTP/1.1 103") {
				c.head()
			}
		}
		s.Close()
		if !retried {
			c.wantResponse(502, "*")
			r.record().want(t, "status", 502, "reason", "endpoint_closed", "retries", 0)
			e.untouched()
			return
		}
		s = e.accept()
		s.head()
		s.write(ok("again"))
		c.wantResponse(200, "again")
		r.record().want(t, "status", 200, "retries", 1, "reason", nil, "error", nil)
		c.write(request) // weir does not repeat the request a second time
		s.head()
		s.Close()
		s = e.accept()
		s.head()
		s.Close()
		c.wantResponse(502, "*")
		r.record().want(t, "status", 502, "retries", 1)
		e.untouched()
	}
	f(get, "", "", true)
	f("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "", "", true)
	f("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", "", "", true) // weir still has the body
	f("DELETE / HTTP/1.1\r\nHost: a\r\n\r\n", "", "", true)
	f("POST / HTTP/1.1\r\nHost: a\r\n\r\n", "", "", false)
	f("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", "", "", false)
	f("PATCH / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", "", "", false)
	f(get, "", "H", false)                                // the response has begun
	f(get, "", "HTTP/1.1 103 Early Hints\r\n\r\n", false) // the same with an informational response
	f(post(1), "x", "", false)
}

// A connection that was idle ends while weir sends a request with a body. weir still has a body of
// this size, and sends it once more, if the request is idempotent.
func TestBodyIsSentAgainAfterAnIdleEnd(t *testing.T) {
	f := func(size int, repeated bool) {
		t.Helper()
		body := strings.Repeat("0123456789abcdef", size/16)
		r, e := newPlain(t, nil)
		c, s := idleConnection(r, e)
		c.write("PUT /up HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", size+1)
		s.head()
		go c.write("%s", body)
		s.wantRead(body)
		if s.Close(); !repeated {
			c.wantResponse(502, "*")
			r.record().want(t, "status", 502, "retries", 0)
			return
		}
		s = e.accept()
		s.head()
		s.wantRead(body)
		c.write("!")
		s.wantRead("!")
		s.write(ok("again"))
		c.wantResponse(200, "again")
		r.record().want(t, "status", 200, "retries", 1)
	}
	f(16, true)
	f(mostUntaken, true)
	f(mostUntaken+16, false)
}

const two = `
listeners: {web: {address: '@0', protocol: http}}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ['@first', '@second'], balance: round_robin}}
`

func TestConnectFailureGoesElsewhere(t *testing.T) {
	asked := make(chan struct{}, 10)
	app := newHandler(t, func(w http.ResponseWriter, req *http.Request) { asked <- struct{}{}; echo(w, req) })
	r := newRig(t, two, nil, "@first", refusedAddress(t), "@second", app)
	c := r.dial("web")
	retries := 0
	for range 3 {
		for _, request := range []string{get, post(1) + "x"} { // weir has sent nothing yet, so it may repeat any request
			c.write(request)
			c.wantResponse(200, "*")
			<-asked
			rec := r.record()
			rec.want(t, "status", 200, "endpoint", app, "reason", nil)
			retries += int(rec["retries"].(int64))
		}
	}
	c.write(post(1)) // weir has not read anything of the body either
	next(t, asked, "request without its body")
	c.write("x")
	c.wantResponse(200, "/up x")
	r.record().want(t, "status", 200)
	if n := r.counter("weir_http_requests_total", "code", "200"); retries == 0 || n != 7 {
		t.Errorf("%d retries, %v requests", retries, n)
	}
}

// If a backend has one endpoint, weir repeats a failed connect to it, within attempts.
func TestConnectFailureOfAll(t *testing.T) {
	r := newRig(t, plain, nil, "@app", refusedAddress(t))
	c := r.dial("web")
	for _, request := range []string{get, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", get} {
		c.write(request)
		if resp := c.wantResponse(502, "no connection to an endpoint\n"); resp.Close {
			t.Error("the client's connection is closed for it")
		}
		r.record().want(t, "status", 502, "reason", "connect", "retries", 2)
	}
	c.write(post(1)) // the body has not arrived, so weir cannot skip it to the next request
	if resp := c.wantResponse(502, "*"); !resp.Close {
		t.Error("the connection goes on")
	}
	c.wantEnd(false)
}

// Retries cannot multiply the load of a backend that is down.
func TestRetryBudget(t *testing.T) {
	r := newRig(t, plain, func(c *config.Config) { c.Backends[0].Retries = config.Retries{Attempts: 10, Share: 0.1} }, "@app", refusedAddress(t))
	c := r.dial("web")
	const requests = 100
	retries := 0
	for range requests {
		c.write(get)
		c.wantResponse(502, "*")
		retries += int(r.record()["retries"].(int64))
	}
	if most := 10 + requests/10 + 1; retries > most || retries < 10 {
		t.Errorf("%d retries of %d requests, more than %d or less than 10", retries, requests, most)
	}
}

func TestNoEndpointReady(t *testing.T) {
	r := newRig(t, strings.Replace(plain, "endpoints:", "health_check: {tcp: {}}, endpoints:", 1), nil, "@app", refusedAddress(t))
	c := r.dial("web")
	c.write(get)
	if resp := c.wantResponse(503, "*"); resp.Close {
		t.Error("the client's connection is closed for it")
	}
	r.record().want(t, "status", 503, "reason", "no_endpoint_ready", "endpoint", nil, "backend", "app")
	c.write(post(5) + "12345" + get)
	c.wantResponse(503, "*")
	c.wantResponse(503, "*")
}

// newQueue serves a backend that takes one connection. Another request waits in its queue.
func newQueue(t *testing.T, queue, responseHead time.Duration) (*rig, *endpoint) {
	return newPlain(t, func(c *config.Config) {
		c.Backends[0].MaxConnections, c.Backends[0].Queue = 1, config.Queue{Size: 1, Timeout: queue}
		c.Backends[0].Timeouts.ResponseHead = responseHead
	})
}

// waitInQueue returns when a request waits in the queue of the backend.
func (r *rig) waitInQueue() {
	r.Helper()
	eventually(r, "a request waits in the queue", func() error {
		if n := r.set.Status()[0].Waiting; n != 1 {
			return fmt.Errorf("%d wait", n)
		}
		return nil
	})
}

func TestQueueFull(t *testing.T) {
	r, e := newQueue(t, patience, patience)
	first, second, third := r.dial("web"), r.dial("web"), r.dial("web")
	first.write("GET /first HTTP/1.1\r\nHost: a\r\n\r\n")
	s := e.accept()
	s.head()
	second.write("GET /second HTTP/1.1\r\nHost: a\r\n\r\n")
	r.waitInQueue()
	third.write("GET /third HTTP/1.1\r\nHost: a\r\n\r\n")
	third.wantResponse(503, "*")
	r.record().want(t, "status", 503, "reason", "queue_full", "target", "/third")
	s.write(ok("1"))
	first.wantResponse(200, "1")
	r.record().want(t, "status", 200, "target", "/first")
	s.head()
	s.write(ok("2"))
	second.wantResponse(200, "2")
	r.record().want(t, "status", 200, "target", "/second")
}

func TestQueueTimeout(t *testing.T) {
	r, e := newQueue(t, 100*time.Millisecond, patience)
	first, second := r.dial("web"), r.dial("web")
	first.write("GET /first HTTP/1.1\r\nHost: a\r\n\r\n")
	s := e.accept()
	s.head()
	s.write("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n")
	first.head() // the response has begun, and still uses the connection
	second.write("GET /second HTTP/1.1\r\nHost: a\r\n\r\n")
	second.wantResponse(503, "too many requests at the moment; try again\n")
	r.record().want(t, "status", 503, "reason", "queue_timeout", "target", "/second",
		"error", `backend "app" had all of its max_connections (1) in use, and none became free within 100ms (queue.timeout)`)
	s.write("1")
	first.wantRead("1")
	r.record().want(t, "status", 200, "target", "/first")
}

// A client that goes while its request waits leaves the queue.
func TestClientGoesInQueue(t *testing.T) {
	leave := map[string]func(r *rig) (left func()){
		"HTTP/1.1, closed": func(r *rig) func() {
			c := r.dial("web")
			c.write(get)
			return func() { c.Close() }
		},
		"HTTP/2, reset": func(r *rig) func() {
			c := r.dial2("web")
			id := c.request(true, "/")
			return func() { c.framer.WriteRSTStream(id, xhttp2.ErrCodeCancel) }
		},
	}
	for what, ask := range leave {
		t.Run(what, func(t *testing.T) {
			r, e := newRig2(t, func(cfg *config.Config) {
				cfg.Backends[0].MaxConnections, cfg.Backends[0].Queue = 1, config.Queue{Size: 1, Timeout: time.Hour}
			})
			first := r.dial("web")
			first.write("GET /first HTTP/1.1\r\nHost: a\r\n\r\n")
			s := e.accept()
			s.head()
			left := ask(r)
			r.waitInQueue()
			left()
			r.record().want(t, "status", 499, "reason", "client_gone", "endpoint", nil, "target", "/")
			if n := r.set.Status()[0].Waiting; n != 0 {
				t.Errorf("%d requests wait", n)
			}
			s.write(ok("1"))
			first.wantResponse(200, "1")
		})
	}
}

// The time for the response does not begin while a request waits in the queue.
func TestQueueTakesNothingFromResponseHead(t *testing.T) {
	const limit = clientCheck / 2
	r, e := newQueue(t, patience, limit)
	first, second := r.dial("web"), r.dial("web")
	first.write("GET /first HTTP/1.1\r\nHost: a\r\n\r\n")
	s := e.accept()
	s.head()
	s.write("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n")
	first.head()
	second.write("GET /second HTTP/1.1\r\nHost: a\r\n\r\n")
	r.waitInQueue()
	r.waitForClientChecks(1) // longer than response_head
	begun := time.Now()
	s.write("1")
	first.wantRead("1")
	s.head() // the second request, over the same connection
	second.wantResponse(504, "*")
	if d := time.Since(begun); d < limit {
		t.Errorf("the endpoint had %v to answer, want %v", d, limit)
	}
}

// A backend with PROXY headers gets a connection for each client.
func TestSendProxyConnectionsAreNotShared(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, strings.Replace(plain, "endpoints:", "send_proxy: v1, endpoints:", 1), nil, "@app", e.address)
	c := r.dial("web")
	for range 3 {
		c.write(get)
		s := e.accept()
		line, _ := s.r.ReadString('\n')
		if !strings.HasPrefix(line, "PROXY TCP4 127.0.0.1 127.0.0.1 "+c.LocalAddr().String()[len("127.0.0.1:"):]) {
			t.Errorf("the header is %q", line)
		}
		serveOnce(s, ok("x"))
		c.wantResponse(200, "x")
		s.wantEnd(false)
	}
}

// A pooled connection serves many clients, one after the other.
func TestPoolIsShared(t *testing.T) {
	r, e := newPlain(t, nil)
	_, s := idleConnection(r, e)
	for i := range 50 {
		c := r.dial("web")
		c.write("GET /%d HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", i)
		if head := s.head(); !strings.HasPrefix(head, fmt.Sprintf("GET /%d ", i)) {
			t.Errorf("the endpoint got %q", head)
		}
		s.write(ok(fmt.Sprint(i)))
		c.wantResponse(200, fmt.Sprint(i))
		c.wantEnd(false)
	}
	e.untouched()
}

// Endpoints restart under load: a GET never fails because of that.
func TestEndpointsThatClose(t *testing.T) {
	e := newEndpoint(t)
	// On a slow machine nearly every exchange may find its connection just closed.
	everyOne := func(c *config.Config) { c.Backends[0].Retries.Share = 1 }
	r := newRig(t, plain, everyOne, "@app", e.address)
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go func() {
		for {
			select {
			case s := <-e.conns: // announces keep-alive, and closes
				if _, err := http.ReadRequest(s.r); err == nil {
					io.WriteString(s.Conn, ok("x"))
				}
				s.Close()
			case <-stop:
				return
			}
		}
	}()
	c := r.dial("web")
	for range 300 {
		c.write(get)
		c.wantResponse(200, "x")
	}
}
