package backend

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/weirproxy/weir/config"
)

// nameServer gives the answers that the test sets.
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

// times returns the times of the look-ups.
func (s *nameServer) times() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
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
		// The endpoints exist at once, each address once. Literals are not looked up.
		wantReady(t, b, "10.0.0.1:80", "10.0.0.2:80", "[2001:db8::1]:80", "10.9.9.9:80")
		two := endpointOf(t, b, "10.0.0.2:80")

		dns.set(nil, "10.0.0.3", "10.0.0.2")
		time.Sleep(34 * time.Second)
		synctest.Wait()
		wantReady(t, b, "10.0.0.2:80", "10.0.0.3:80", "10.9.9.9:80", "10.0.0.1:80")
		if endpointOf(t, b, "10.0.0.2:80") != two {
			t.Error("an endpoint is new although its address stayed")
		}
		asked := dns.times()
		if gap := asked[1].Sub(asked[0]); gap < 27*time.Second || gap > 33*time.Second || len(asked) != 2 {
			t.Errorf("asked at %v", asked)
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
		if waited := time.Since(start); waited != FilePatience {
			t.Errorf("Update waited %v", waited)
		}
		wantReady(t, w.set.Backend("app"), "10.9.9.9:80")
		time.Sleep(2 * time.Second)
		wantReady(t, w.set.Backend("app"), "10.0.0.1:80", "10.9.9.9:80")
		wantReady(t, w.set.Backend("api"), "10.0.0.1:80")

		// After a reload to another name the old addresses serve until there is an answer.
		w.update(settings("api", "new.internal:8080"))
		b := w.set.Backend("api")
		wantReady(t, b, "10.0.0.1:80")
		time.Sleep(2 * time.Second)
		wantReady(t, b, "10.0.0.1:8080")

		// After a failed look-up they do not: a name without addresses has no endpoints.
		dns.set(errors.New("no such host"))
		w.update(settings("api", "typo.internal:80"))
		time.Sleep(2 * time.Second)
		wantReady(t, b)
	})
}

func TestLookupsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dns := nameServer{delay: time.Hour} // the look-up has a deadline nevertheless
		w := newWorld(t, Options{Lookup: dns.lookup})
		w.update(settings("app", "app.internal:80"))
		w.update(settings("app", "other.internal:80"))
		w.update()
		asked := len(dns.times())
		time.Sleep(time.Hour)
		if len(dns.times()) != asked {
			t.Error("names of removed backends are still looked up")
		}
		w.set.Close() // the bubble does not end while a goroutine runs
		if _, err := w.set.Update(nil, NodeInfo{}); err == nil {
			t.Error("a closed set was updated")
		}
	})
}

// A name from the author of an object may only lead to other machines.
func TestForeignNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dns nameServer
		w := newWorld(t, Options{Lookup: dns.lookup})
		reg := prometheus.NewRegistry()
		NewMetrics(reg, w.set)
		foreign := func(addresses ...string) config.Backend {
			b := settings("team/external:80", addresses...)
			for i := range b.Endpoints {
				b.Endpoints[i].Foreign = true
			}
			return b
		}
		dns.set(nil, "127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fe80::1%eth0")
		w.update(foreign("evil.example:80", "127.0.0.2:80", "[fe80::2]:80", "0.0.0.0:80", "unix:/run/app.sock", "10.0.0.2:80"))
		b := w.set.Backend("team/external:80")
		wantReady(t, b, "10.0.0.1:80", "10.0.0.2:80")
		synctest.Wait()     // the update waits for the answer, but not for the events
		events := w.kinds() // events about literal addresses and about the name come in any order
		slices.Sort(events)
		if want := []string{"address refused 0.0.0.0:80", "address refused 127.0.0.2:80", "address refused [fe80::2]:80", "address refused evil.example"}; !slices.Equal(events, want) {
			t.Errorf("events %q, want %q", events, want)
		}
		time.Sleep(time.Minute)
		w.wantEvents() // reported only once

		// The name now leads to other addresses than before.
		dns.set(nil, "::ffff:127.0.0.1")
		time.Sleep(time.Minute)
		wantReady(t, b, "10.0.0.2:80")
		w.mu.Lock()
		if len(w.events) != 1 || !strings.Contains(w.events[0].Err.Error(), `weir refuses addresses of evil.example, a name of backend "team/external:80",`) || !strings.Contains(w.events[0].Err.Error(), `[127.0.0.1]`) {
			t.Errorf("events %v", w.events)
		}
		w.mu.Unlock()
		w.update(foreign("evil.example:80"))
		if _, err := b.Acquire(netip.Addr{}, nil, noDeadline, alone{}); !errors.Is(err, ErrNoReady) {
			t.Errorf("a name that leads home: %v", err)
		}
		dns.set(nil, "10.0.0.3")
		time.Sleep(time.Minute)
		wantReady(t, b, "10.0.0.3:80")
		all, err := reg.Gather()
		if err != nil || !slices.ContainsFunc(all, func(f *dto.MetricFamily) bool {
			return f.GetName() == "weir_backend_addresses_refused_total" && f.GetMetric()[0].GetCounter().GetValue() >= 9
		}) {
			t.Errorf("%v, %v", all, err)
		}

		// Names from the configuration file may lead anywhere. The flag belongs to one name.
		dns.set(nil, "127.0.0.1")
		w.update(settings("team/external:80", "evil.example:80"))
		wantReady(t, b, "127.0.0.1:80")
		w.update(foreign("evil.example:80"))
		wantReady(t, b)
	})
}

func TestIsForeign(t *testing.T) {
	f := func(address string, want bool) {
		t.Helper()
		if got := isForeign(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %t", address, got)
		}
	}
	for _, a := range []string{"10.0.0.1", "192.0.2.1", "8.8.8.8", "100.64.0.1", "100.100.100.201", "2001:db8::1", "fd00::1", "fdfe::254", "64:ff9b::808:808", "64:ff9b:2::1", "2002:808:808::1", "::ffff:0:808:808", "fd00:ec2::22", "169.253.255.255", "169.255.0.0"} {
		f(a, true)
	}
	for _, a := range []string{"127.0.0.1", "127.255.255.254", "0.0.0.0", "0.0.0.1", "169.254.0.0", "169.254.169.254", "169.254.255.255", "224.0.0.1", "239.1.1.1",
		"::", "::1", "fe80::1", "febf::1", "fe80::1%eth0", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:0.0.0.0", "::127.0.0.1",
		"64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "::ffff:168.63.129.16", "64:ff9b::c000:c0",
		"fd00:ec2::23", "64:ff9b:1::", "64:ff9b:1:7f00:0:100::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff", "::ffff:0:7f00:1", "::ffff:0:a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1"} {
		f(a, false)
	}
}
