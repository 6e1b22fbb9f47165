package backend

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
)

// told returns the outages reported since the last call: "down ERROR" or "up REASON".
func (w *world) told() (list []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.outages {
		if e.Kind == BackendDown {
			list = append(list, strings.Join(strings.Fields("down "+e.Reason+" "+e.Err.Error()), " "))
		} else {
			list = append(list, "up "+e.Reason)
		}
	}
	w.outages = nil
	return list
}

func (w *world) wantTold(want ...string) {
	w.t.Helper()
	synctest.Wait()
	if got := w.told(); !slices.Equal(got, want) {
		w.t.Errorf("outages %q, want %q", got, want)
	}
	for b := range w.set.all() {
		wantCounted(w.t, b)
	}
}

func failTimes(e *Endpoint, n int, err error) {
	for range n {
		e.Failed(err)
	}
}

var errBroken = errors.New("broken")

// A backend whose last endpoint fails is down, although the endpoint is never ejected.
func TestOutageByFailures(t *testing.T) {
	for _, ejection := range []int{3, 0} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, Options{})
			cfg := settings("app", "10.0.0.1:80", "10.0.0.2:80")
			cfg.Ejection.Failures = ejection
			w.update(cfg)
			b, limit := w.set.Backend("app"), ejection
			if limit == 0 {
				limit = config.DefaultEjectionFailures
			}
			one, two := endpointOf(t, b, "10.0.0.1:80"), endpointOf(t, b, "10.0.0.2:80")
			failTimes(one, limit, io.EOF)
			failTimes(two, limit-1, io.EOF)
			w.wantTold()
			if b.Working() != 1 {
				t.Errorf("%d endpoints work, want 1", b.Working())
			}
			failTimes(two, 100, errBroken)
			w.wantTold("down broken")
			if b.Working() != 0 {
				t.Errorf("%d endpoints work, want none", b.Working())
			}
			time.Sleep(12 * time.Second) // the end of an ejection does not end the outage
			failTimes(one, 1, io.EOF)
			w.wantTold()
			two.Succeeded()
			w.wantTold("up after 12s")
			two.Succeeded()
			one.Succeeded()
			w.wantTold()
			if b.Working() != 2 && ejection == 0 {
				t.Errorf("%d endpoints work, want 2", b.Working())
			}
		})
	}
}

// Active checks: the first check decides whether there is an outage at the start.
func TestOutageByChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.update(checked(settings("app", "10.0.0.1:80", "10.0.0.2:80")))
		w.check("10.0.0.1:80").SetReady(false, "refused")
		w.wantTold()
		w.check("10.0.0.2:80").SetReady(false, "timed out")
		w.wantTold("down timed out")
		w.check("10.0.0.1:80").SetReady(true, "")
		w.wantTold("up after 0s")

		// A failed check followed by a successful one clears the failures of requests.
		e := endpointOf(t, w.set.Backend("app"), "10.0.0.1:80")
		time.Sleep(2 * time.Minute)
		failTimes(e, 5, errBroken)
		w.wantTold("down broken")
		w.check("10.0.0.1:80").SetReady(false, "refused")
		w.check("10.0.0.1:80").SetReady(true, "")
		w.wantTold("up after 0s")
	})
}

// A backend without any endpoint: a name that does not resolve, or a Service without Pods.
func TestOutageWithoutEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var found atomic.Bool
		w := newWorld(t, Options{Lookup: func(context.Context, string) ([]netip.Addr, error) {
			if !found.Load() {
				return nil, errors.New("no such host")
			}
			return []netip.Addr{netip.MustParseAddr("10.0.0.9")}, nil
		}})
		pods := settings("shop/app:80", "10.0.0.1:80")
		pods.Namespace = "shop"
		closed := settings("shop/refused")
		closed.Closed = true
		named := settings("named", "app.internal:80")
		w.update(named, pods, closed)
		w.wantTold("down looking up app.internal: no such host")
		reg := prometheus.NewRegistry()
		NewMetrics(reg, w.set)
		ready := func() (lines []string) {
			for _, l := range gather(t, reg) {
				if strings.HasPrefix(l, "weir_backend_endpoints_ready") {
					lines = append(lines, strings.TrimPrefix(l, "weir_backend_endpoints_ready"))
				}
			}
			return lines
		}
		if got := ready(); !slices.Equal(got, []string{"{named} 0", "{shop/app:80} 1"}) {
			t.Errorf("ready: %q", got)
		}
		if err := w.set.UpdateEndpoints("shop/app:80", nil); err != nil {
			t.Fatal(err)
		}
		w.wantTold("down the Service has no ready endpoint; check that its Pods run and are ready")
		if got := ready(); !slices.Equal(got, []string{"{named} 0", "{shop/app:80} 0"}) {
			t.Errorf("ready: %q", got)
		}
		time.Sleep(5 * time.Second)
		if err := w.set.UpdateEndpoints("shop/app:80", pods.Endpoints); err != nil {
			t.Fatal(err)
		}
		w.wantTold("up after 5s")
		found.Store(true)
		time.Sleep(time.Minute)
		if got := w.told(); len(got) != 1 || !strings.HasPrefix(got[0], "up after ") {
			t.Errorf("after the name resolved: %q", got)
		}
	})
}

// The backend of routes without a usable Service has no Pods that an operator could start.
func TestOutageOfMissingBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		missing := settings("shop/missing")
		missing.Namespace, missing.Missing = "shop", true
		w.update(missing)
		w.wantTold("down routes of the namespace have no backend that weir can use; the status of these routes, or of a BackendTLSPolicy, has the reason")
	})
}

// A backend that often goes up and down causes few lines, and the last line is about its
// final state.
func TestOutagesDoNotFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.update(settings("app", "10.0.0.1:80"))
		e := endpointOf(t, w.set.Backend("app"), "10.0.0.1:80")
		flap := func() {
			failTimes(e, 3, errBroken)
			time.Sleep(50 * time.Millisecond)
			e.Succeeded()
			time.Sleep(50 * time.Millisecond)
		}
		for range 3300 { // five and a half minutes
			flap()
		}
		got := w.told()
		if len(got) < 8 || len(got) > 18 {
			t.Errorf("%d lines: %q", len(got), got)
		}
		// Two events happen at the same moment; which line has the number depends on their
		// order.
		if all := strings.Join(got, "\n"); !strings.Contains(all, "more outages ended since the last one that was logged broken") &&
			!strings.Contains(all, "more outages since the last one that was logged") {
			t.Errorf("nothing tells how many more there were: %q", got)
		}
		time.Sleep(2 * time.Minute) // from here on the backend works
		if got := w.told(); len(got) != 1 || !strings.HasPrefix(got[0], "up after ") {
			t.Errorf("in the end: %q", got)
		}
		flap()
		w.wantTold("down broken", "up after 50ms")
		failTimes(e, 3, errBroken) // the second outage within a minute, which lasts
		w.wantTold()
		time.Sleep(2 * time.Minute)
		w.wantTold("down broken")
		e.Succeeded()
		if got := w.told(); len(got) != 1 || !strings.HasPrefix(got[0], "up after 2m0") {
			t.Errorf("after a long outage: %q", got)
		}
	})
}

// Counting attempts does not allocate, and a success takes no lock.
func TestCountingAttempts(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(settings("app", "10.0.0.1:80"))
	b := w.set.Backend("app")
	e := endpointOf(t, b, "10.0.0.1:80")
	b.mu.Lock()
	if n := testing.AllocsPerRun(100, func() {
		acquire(t, b)
		e.Succeeded()
		e.Release()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	b.mu.Unlock()
	e.Failed(io.EOF)
	e.Failed(&sameFailure{io.EOF}) // another attempt has reported this error already
	e.Failed(context.Canceled)     // the endpoint has not failed
	if requests, failed := e.requests.Load(), e.failed.Load(); requests != 101 || failed != 2 {
		t.Errorf("%d attempts, %d failed; want 101 and 2", requests, failed)
	}
}
