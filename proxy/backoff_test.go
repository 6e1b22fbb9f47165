package proxy

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

// pausedClient is a requester whose attempts wait for a retry.
type pausedClient struct {
	requester
	left   atomic.Bool
	reason string // why weir cut it

	mu   sync.Mutex
	link conn.Cuttable
}

func (c *pausedClient) gone() bool     { return c.left.Load() }
func (c *pausedClient) cutFor() string { return c.reason }

func (c *pausedClient) CutAlso(other conn.Cuttable) {
	c.mu.Lock()
	c.link = other
	c.mu.Unlock()
}

func (c *pausedClient) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link.Cut()
}

// A pause takes the backoff, and at most half as long again. It takes no more than the time that
// is left, and ends when the client goes or weir cuts its connection.
func TestPause(t *testing.T) {
	f := func(name string, limits tryLimits, during func(c *pausedClient), want outcome, least, most time.Duration) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limits.backoff = 2 * time.Second
				began, c := time.Now(), &pausedClient{reason: want.reason}
				if want.reason == "client_gone" {
					c.reason = ""
				}
				a := &attempts{retries: retries{limits: &limits, begun: began, first: began}, requester: c}
				go func() {
					time.Sleep(1500 * time.Millisecond)
					during(c)
				}()
				o := a.pause()
				took := time.Since(began)
				switch {
				case o == nil && want.failure != 0, o != nil && (o.failure != want.failure || o.status != want.status || o.reason != want.reason || !errors.Is(o.err, errClientGone)):
					t.Errorf("the outcome is %+v", o)
				case took < least || took > most || c.link != nil:
					t.Errorf("it took %v, and the client is linked to %v", took, c.link)
				}
			})
		})
	}
	nothing := func(*pausedClient) {}
	f("nothing", tryLimits{}, nothing, outcome{}, 2*time.Second, 3*time.Second)
	f("request timeout", tryLimits{request: 2200 * time.Millisecond}, nothing, outcome{}, 2*time.Second, 2100*time.Millisecond)
	f("within", tryLimits{within: 2002 * time.Millisecond, request: time.Hour}, nothing, outcome{}, 2*time.Second, 2001*time.Millisecond)
	f("the client goes", tryLimits{}, func(c *pausedClient) { c.left.Store(true) }, outcome{failure: clientGone, reason: "client_gone"}, 2*time.Second, 2*time.Second)
	f("the client resets its stream", tryLimits{}, (*pausedClient).cut, outcome{failure: clientGone, reason: "client_gone"}, 1500*time.Millisecond, 1500*time.Millisecond)
	f("weir cuts the connection", tryLimits{}, (*pausedClient).cut, outcome{failure: clientGone, status: 503, reason: "cut"}, 1500*time.Millisecond, 1500*time.Millisecond)
}

func newBackoff(t *testing.T, text string, retries config.RouteRetries, timeouts *config.RouteTimeouts) (*rig, *endpoint) {
	e := newEndpoint(t)
	return newRig(t, text, func(cfg *config.Config) { cfg.Routes[0].Retries, cfg.Routes[0].Timeouts = &retries, timeouts }, "@app", e.address), e
}

// weir waits before it repeats a request, whatever the failure, and uses no endpoint meanwhile.
func TestBackoff(t *testing.T) {
	const backoff = 50 * time.Millisecond
	f := func(end func(s *peer)) {
		t.Helper()
		r, e := newBackoff(t, tries, config.RouteRetries{Attempts: 3, Backoff: backoff, When: []config.RetryCause{config.RetryReset, config.RetryTimeout, "503"}},
			&config.RouteTimeouts{Request: patience, Try: patience})
		c := r.dial("web")
		c.write(get)
		for range 2 {
			s := e.accept()
			s.head()
			failed := time.Now()
			end(s)
			next := e.accept()
			if d := time.Since(failed); d < backoff {
				t.Errorf("weir repeated the request after %v", d)
			}
			e.conns <- next
		}
		s := e.accept()
		s.head()
		s.write(ok("x"))
		c.wantResponse(200, "x")
		r.record().want(t, "retries", 2)
	}
	f(func(s *peer) { s.write("%s", answer("503")); s.Close() })
	f(func(s *peer) { s.Close() })
}

// weir does not wait if an idle connection of the endpoint had ended.
func TestNoBackoffAfterAnIdleConnection(t *testing.T) {
	r, e := newBackoff(t, tries, config.RouteRetries{Attempts: 2, Backoff: time.Hour}, nil)
	c, s := idleConnection(r, e)
	c.write(get)
	s.head()
	s.Close()
	serveOnce(e.accept(), ok("again"))
	c.wantResponse(200, "again")
	r.record().want(t, "retries", 1)
}

// A wait that does not fit into the time for attempts is not begun: the client gets the failure at once.
func TestBackoffThatDoesNotFit(t *testing.T) {
	when := []config.RetryCause{config.RetryReset, "503"}
	f := func(retries config.RouteRetries, timeouts *config.RouteTimeouts, end func(s *peer), status int, reason any) {
		t.Helper()
		r, e := newBackoff(t, tries, retries, timeouts)
		c := r.dial("web")
		c.write(get)
		s := e.accept()
		s.head()
		end(s)
		c.wantResponse(status, "*")
		r.record().want(t, "status", status, "retries", 0, "reason", reason)
	}
	busy := func(s *peer) { s.write("%s", answer("503")) }
	f(config.RouteRetries{Attempts: 2, Backoff: time.Hour, Within: time.Hour, When: when}, nil, busy, 503, nil)
	f(config.RouteRetries{Attempts: 2, Backoff: time.Hour, When: when}, &config.RouteTimeouts{Request: time.Hour}, busy, 503, nil)
	f(config.RouteRetries{Attempts: 2, Backoff: time.Hour, When: when}, &config.RouteTimeouts{Request: time.Hour}, func(s *peer) { s.Close() }, 502, "endpoint_closed")
	r := newRig(t, tries, func(cfg *config.Config) {
		cfg.Routes[0].Retries, cfg.Routes[0].Timeouts = &config.RouteRetries{Attempts: 2, Backoff: time.Hour}, &config.RouteTimeouts{Request: time.Hour}
	}, "@app", refusedAddress(t))
	c := r.dial("web")
	c.write(get)
	c.wantResponse(502, "*")
	r.record().want(t, "reason", "connect", "retries", 0)
}

// A request that waits for a retry ends when weir cuts its connection. It holds no endpoint.
func TestCutInBackoff(t *testing.T) {
	r, e := newBackoff(t, strings.Replace(tries, "['@app']", "['@app'], max_connections: 1", 1),
		config.RouteRetries{Attempts: 2, Backoff: time.Hour, When: []config.RetryCause{"503"}}, nil)
	c := r.dial("web")
	c.write(get)
	s := e.accept()
	s.head()
	s.write("%s", answer("503"))
	eventually(t, "weir waits for the retry", func() error {
		if r.counter("weir_retries_total") != 1 || r.set.Status()[0].InFlight != 0 {
			return errors.New("not yet")
		}
		return nil
	})
	r.only().Cut()
	r.record().want(t, "status", 503, "reason", "cut", "retries", 0)
}
