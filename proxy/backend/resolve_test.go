package backend

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// nameServer answers what the test says.
type nameServer struct {
	mu      sync.Mutex
	answer  []netip.Addr
	err     error
	delay   time.Duration
	asked   []time.Time
	subject []string
}

func (s *nameServer) set(err error, addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer, s.err = nil, err
	for _, a := range addrs {
		s.answer = append(s.answer, netip.MustParseAddr(a))
	}
}

func (s *nameServer) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	s.mu.Lock()
	s.asked = append(s.asked, time.Now())
	s.subject = append(s.subject, host)
	answer, err, delay := s.answer, s.err, s.delay
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(delay):
		return answer, err
	}
}

func TestNamesAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dns nameServer
		dns.set(nil, "10.0.0.2", "10.0.0.1", "10.0.0.2", "2001:db8::1")
		w := newWorld(t, Options{Lookup: dns.lookup})
		w.update(settings("app", "app.internal:80", "10.9.9.9:80", "10.0.0.1:80"))
		b := w.set.Backend("app")
		// There at once, each address once, the literals never looked up.
		wantReady(t, b, "10.0.0.1:80", "10.0.0.2:80", "[2001:db8::1]:80", "10.9.9.9:80")
		two := endpointOf(t, b, "10.0.0.2:80")

		dns.set(nil, "10.0.0.3", "10.0.0.2")
		time.Sleep(34 * time.Second)
		synctest.Wait()
		wantReady(t, b, "10.0.0.2:80", "10.0.0.3:80", "10.9.9.9:80", "10.0.0.1:80")
		if endpointOf(t, b, "10.0.0.2:80") != two {
			t.Error("an endpoint is new although its address stayed")
		}
		if gap := dns.asked[1].Sub(dns.asked[0]); gap < 27*time.Second || gap > 33*time.Second || len(dns.asked) != 2 {
			t.Errorf("asked at %v", dns.asked)
		}
		for _, host := range dns.subject {
			if host != "app.internal" {
				t.Errorf("%s was looked up", host)
			}
		}
	})
}

func TestFailingLookupKeepsTheAddresses(t *testing.T) {
	f := func(err error) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			var dns nameServer
			dns.set(nil, "10.0.0.1")
			w := newWorld(t, Options{Lookup: dns.lookup})
			w.update(settings("app", "app.internal:80"))
			dns.set(err)
			time.Sleep(5 * time.Minute)
			wantReady(t, w.set.Backend("app"), "10.0.0.1:80")
			w.mu.Lock()
			if len(w.events) == 0 || !strings.Contains(w.events[0].Err.Error(), "app.internal") {
				t.Errorf("events %v", w.events)
			}
			w.mu.Unlock()
			w.wantEvents("lookup failed app.internal") // once
			dns.set(nil, "10.0.0.2")
			time.Sleep(time.Minute)
			wantReady(t, w.set.Backend("app"), "10.0.0.2:80")
			w.wantEvents("lookup recovered app.internal")
		})
	}
	f(errors.New("no such host"))
	f(nil) // an empty answer
}

func TestSlowNameServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dns := nameServer{delay: 3 * time.Second}
		dns.set(nil, "10.0.0.1")
		w := newWorld(t, Options{Lookup: dns.lookup})
		start := time.Now()
		w.update(settings("app", "app.internal:80", "10.9.9.9:80"), settings("api", "api.internal:80", "more.internal:80"))
		if waited := time.Since(start); waited != firstLookupWait {
			t.Errorf("Update waited %v", waited)
		}
		wantReady(t, w.set.Backend("app"), "10.9.9.9:80")
		time.Sleep(2 * time.Second)
		wantReady(t, w.set.Backend("app"), "10.0.0.1:80", "10.9.9.9:80")
		wantReady(t, w.set.Backend("api"), "10.0.0.1:80")

		// A reload to another name goes on with the old addresses until there is an answer.
		w.update(settings("api", "new.internal:8080"))
		b := w.set.Backend("api")
		wantReady(t, b, "10.0.0.1:80")
		time.Sleep(2 * time.Second)
		wantReady(t, b, "10.0.0.1:8080")

		// But no longer: a name without an answer is no endpoint.
		dns.set(errors.New("no such host"))
		w.update(settings("api", "typo.internal:80"))
		time.Sleep(2 * time.Second)
		wantReady(t, b)
	})
}

func TestLookupsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dns := nameServer{delay: time.Hour} // looked up with a deadline all the same
		w := newWorld(t, Options{Lookup: dns.lookup})
		w.update(settings("app", "app.internal:80"))
		w.update(settings("app", "other.internal:80"))
		w.update()
		asked := len(dns.asked)
		time.Sleep(time.Hour)
		if len(dns.asked) != asked {
			t.Error("names of removed backends are still looked up")
		}
		w.set.Close() // the bubble would not end with a goroutine left
		if _, err := w.set.Update(nil, NodeInfo{}); err == nil {
			t.Error("a closed set was updated")
		}
	})
}
