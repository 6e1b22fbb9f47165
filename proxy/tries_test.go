package proxy

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/backend"
)

const tries = `
listeners: {web: {address: '@0', protocol: http}}
routes: [{name: t, listeners: [web], backend: app, timeouts: {request: 30s, try: 20s}, retries: {attempts: 3, when: [connect, timeout, 503, 520-529]}}]
backends: {app: {endpoints: ['@app'], ejection: {failures: 0}, retries: {attempts: 1}}}
`

func newTries(t *testing.T, request, try time.Duration) (*rig, *endpoint) {
	e := newEndpoint(t)
	r := newRig(t, tries, func(cfg *config.Config) { cfg.Routes[0].Timeouts = &config.RouteTimeouts{Request: request, Try: try} }, "@app", e.address)
	backend.NewMetrics(r.registry, r.set)
	return r, e
}

func answer(status string) string {
	return "HTTP/1.1 " + status + " X\r\nContent-Length: 4\r\nConnection: close\r\n\r\nwait"
}

// weir repeats a request after a status of the list. It passes on the response of the last
// attempt, whatever its status.
func TestRetriesByStatus(t *testing.T) {
	r, e := newTries(t, 0, 0)
	f := func(request, body string, want int, statuses ...string) {
		t.Helper()
		c := r.dial("web")
		defer c.Close()
		c.write("%s", request)
		for _, status := range statuses {
			s := e.accept()
			s.head()
			if body != "" {
				s.wantRead(body)
			}
			s.write("%s", answer(status))
			if rest, _ := io.ReadAll(s.r); len(rest) > 0 { // an end or a reset: weir does not keep the connection
				t.Errorf("weir sent %q after its request", rest)
			}
			s.Close()
		}
		c.wantResponse(want, "wait")
		r.record().want(t, "status", want, "retries", len(statuses)-1, "reason", nil)
	}
	f(get, "", 200, "200")
	f(get, "", 200, "503", "525", "200")
	f(get, "", 503, "503", "503", "503")
	f(get, "", 500, "503", "500")
	f("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", "hi", 200, "503", "200")
	f("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", "hi", 503, "503")
	if n := r.counter("weir_backend_retries_total", "backend", "app", "reason", "status"); n != 6 {
		t.Errorf("%v retries are counted", n)
	}
}

// weir keeps a body of 64 KiB that arrives in pieces, and repeats it. It repeats no larger one.
func TestRetriesKeepBodies(t *testing.T) {
	r, e := newTries(t, 0, 0)
	f := func(size int, repeats bool) {
		t.Helper()
		body := strings.Repeat("0123456789abcdef", size/16)
		c := r.dial("web")
		defer c.Close()
		c.write("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", size)
		s := e.accept()
		s.head()
		go c.write("%s", body) // it is too large to be written at once
		s.wantRead(body)
		r.waitDelivered(s)
		s.write("%s", answer("503"))
		want := 503
		if repeats {
			s = e.accept()
			s.head()
			s.wantRead(body)
			s.write("%s", answer("200"))
			want = 200
		}
		c.wantResponse(want, "wait")
		r.record().want(t, "status", want)
	}
	f(96, true)
	f(64<<10, true)
	f(64<<10+16, false)
}

// waitDelivered returns when weir waits for the response on s: it has sent the whole request.
func (r *rig) waitDelivered(*peer) { r.waitForClientChecks(1) }

// A try that takes too long is repeated, and the total ends with 504.
func TestRouteTimeouts(t *testing.T) {
	f := func(request, try time.Duration, attempts int, reason string) {
		t.Helper()
		r, e := newTries(t, request, try)
		c := r.dial("web")
		c.write(get)
		for range attempts {
			e.accept().head()
		}
		if resp, _ := c.response("GET"); resp.StatusCode != 504 {
			t.Errorf("the client got %s", resp.Status)
		}
		r.record().want(t, "status", 504, "reason", reason, "retries", attempts-1)
		r.wantNoLog()
	}
	f(0, 50*time.Millisecond, 3, "try_timeout")
	f(50*time.Millisecond, 0, 1, "request_timeout")
	f(500*time.Millisecond, 300*time.Millisecond, 2, "request_timeout")
}

// The route's timeouts end with the head of the response, and tunnels have none.
func TestRouteTimeoutsEndWithTheHead(t *testing.T) {
	r, e := newTries(t, 100*time.Millisecond, 100*time.Millisecond)
	c := r.dial("web")
	c.write(get)
	s := e.accept()
	s.head()
	s.write("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf")
	r.waitForClientChecks(1) // a second
	s.write("half")
	c.wantResponse(200, "halfhalf")
	r.record().want(t, "status", 200, "retries", 0)
}

// An attempt after a timeout of the route gets no response of the one before.
func TestRetriesOnlyIdempotentMethods(t *testing.T) {
	r, e := newTries(t, 0, 50*time.Millisecond)
	c := r.dial("web")
	c.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi")
	e.accept().head()
	if resp, _ := c.response("POST"); resp.StatusCode != 504 {
		t.Errorf("the client got %s", resp.Status)
	}
	r.record().want(t, "reason", "try_timeout", "retries", 0)
}

// attempts counts all attempts, also those to addresses that refuse the connection.
func TestRouteAttemptsCountConnects(t *testing.T) {
	refusing := newEndpoint(t)
	r := newRig(t, strings.Replace(tries, "['@app']", "['127.0.0.1:1', '127.0.0.2:1', '127.0.0.3:1', '127.0.0.4:1', '127.0.0.5:1']", 1), nil, "@app", refusing.address)
	c := r.dial("web")
	c.write(get)
	if resp, _ := c.response("GET"); resp.StatusCode != 502 {
		t.Errorf("the client got %s", resp.Status)
	}
	r.record().want(t, "reason", "connect", "retries", 2)
}

// The request timeout includes the wait in the queue. It does not end an upgraded connection, which
// here has the only one of max_connections.
func TestRouteTimeoutInTheQueue(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, strings.Replace(tries, "['@app']", "['@app'], max_connections: 1, queue: {timeout: 1m}", 1), func(cfg *config.Config) {
		cfg.Routes[0].Timeouts = &config.RouteTimeouts{Request: 300 * time.Millisecond, Try: 300 * time.Millisecond}
	}, "@app", e.address)
	upgraded := r.dial("web")
	upgraded.write("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	s := e.accept()
	s.head()
	s.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	upgraded.head()
	c := r.dial("web")
	c.write(get)
	if resp, _ := c.response("GET"); resp.StatusCode != 504 {
		t.Errorf("the client got %s", resp.Status)
	}
	r.record().want(t, "status", 504, "reason", "request_timeout")
	s.write("late")
	upgraded.wantRead("late")
	upgraded.Close()
	s.Close()
	r.record().want(t, "status", 101)
}

// With reset, weir repeats a request at the same endpoint. Without it, only another endpoint gets it.
func TestRetriesByReset(t *testing.T) {
	f := func(when config.RetryCause, want, retries int) {
		t.Helper()
		e := newEndpoint(t)
		r := newRig(t, tries, func(cfg *config.Config) { cfg.Routes[0].Retries.When = []config.RetryCause{when} }, "@app", e.address)
		c := r.dial("web")
		c.write(get)
		for range retries {
			s := e.accept()
			s.head()
			s.Close()
		}
		s := e.accept()
		s.head()
		if want == 200 {
			s.write("%s", answer("200"))
		}
		s.Close()
		if resp, _ := c.response("GET"); resp.StatusCode != want {
			t.Errorf("the client got %s", resp.Status)
		}
		r.record().want(t, "status", want, "retries", retries)
	}
	f(config.RetryReset, 200, 2)
	f(config.RetryReset, 502, 2)
	f(config.RetryTimeout, 502, 0)
}

// The route's waits replace those of the backend, and the log names them.
func TestWaitsOfARoute(t *testing.T) {
	f := func(waits config.RouteTimeouts, part, reason, text string) {
		t.Helper()
		e := newEndpoint(t)
		r := newRig(t, tries, func(cfg *config.Config) { cfg.Routes[0].Timeouts, cfg.Routes[0].Retries = &waits, nil }, "@app", e.address)
		c := r.dial("web")
		c.write(get)
		s := e.accept()
		s.head()
		s.write("%s", part)
		io.ReadAll(c.r)
		r.record().want(t, "reason", reason, "error", text)
	}
	const head = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf"
	f(config.RouteTimeouts{ResponseHead: 60 * time.Millisecond}, "", "response_timeout", "the endpoint sent no response within 60ms (timeouts.response_head of the route)")
	f(config.RouteTimeouts{BodyIdle: 60 * time.Millisecond}, head, "response_cut_short", "the endpoint sent no more of its response within 60ms (timeouts.body_idle of the route)")
}

// A response that takes too long is repeated if the route lists timeouts, until within ends.
func TestRetriesAfterTheHeadIsLate(t *testing.T) {
	f := func(method string, retries config.RouteRetries, attempts int) {
		t.Helper()
		e := newEndpoint(t)
		r := newRig(t, tries, func(cfg *config.Config) {
			cfg.Routes[0].Timeouts, cfg.Routes[0].Retries = &config.RouteTimeouts{ResponseHead: 300 * time.Millisecond}, &retries
		}, "@app", e.address)
		c := r.dial("web")
		c.write("%s / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", method)
		for range attempts {
			s := e.accept()
			s.head()
			s.wantRead("hi")
		}
		if resp, _ := c.response(method); resp.StatusCode != 504 {
			t.Errorf("the client got %s", resp.Status)
		}
		r.record().want(t, "reason", "response_timeout", "retries", attempts-1)
	}
	again := []config.RetryCause{config.RetryTimeout}
	f("PUT", config.RouteRetries{Attempts: 3, When: again}, 3)
	f("PUT", config.RouteRetries{Attempts: 3}, 1)
	f("POST", config.RouteRetries{Attempts: 3, When: again}, 1)
	f("POST", config.RouteRetries{Attempts: 3, When: again, NonIdempotent: true}, 3)
	f("PUT", config.RouteRetries{Attempts: 9, When: again, Within: 250 * time.Millisecond}, 1)
}

// A route repeats statuses below 500 only if its object lists them.
func TestRetriesByStatusOfAnObject(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, tries, func(cfg *config.Config) {
		cfg.Routes[0].Timeouts, cfg.Routes[0].Retries.When = nil, []config.RetryCause{"404", "429"}
	}, "@app", e.address)
	c := r.dial("web")
	c.write(get)
	for _, status := range []string{"404", "429", "403"} {
		s := e.accept()
		s.head()
		s.write("%s", answer(status))
		s.Close()
	}
	c.wantResponse(403, "wait")
}
