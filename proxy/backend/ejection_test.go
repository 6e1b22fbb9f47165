package backend

import (
	"fmt"
	"io"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/config"
)

// sharing returns a backend of n endpoints with ejection by share alone.
func sharing(n int) config.Backend {
	var addresses []string
	for i := range n {
		addresses = append(addresses, fmt.Sprintf("10.0.0.%d:80", i+1))
	}
	b := settings("app", addresses...)
	b.Ejection = config.Ejection{For: 30 * time.Second, Share: 0.5, Minimum: 20, Within: 10 * time.Second}
	return b
}

// used has attempts at an endpoint succeed, and then fail.
func used(e *Endpoint, succeeded, failed int) {
	for range succeeded {
		e.Succeeded()
	}
	for range failed {
		e.Failed(io.EOF)
	}
}

func isOut(b *Backend, e *Endpoint) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !e.usable()
}

func TestEjectionByShare(t *testing.T) {
	f := func(what string, want bool, use func(e *Endpoint)) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, Options{})
			w.update(sharing(2))
			b := w.set.Backend("app")
			e := endpointOf(t, b, "10.0.0.1:80")
			use(e)
			if got := isOut(b, e); got != want {
				t.Errorf("%s: ejected %t, want %t", what, got, want)
			}
		})
	}
	f("exactly the share of the minimum", true, func(e *Endpoint) { used(e, 10, 10) })
	f("one request less than the minimum", false, func(e *Endpoint) { used(e, 9, 10) })
	f("less than the share", false, func(e *Endpoint) { used(e, 11, 10) })
	f("a success resets no share", true, func(e *Endpoint) {
		for range 10 {
			e.Succeeded()
			e.Failed(io.EOF)
		}
	})
	f("failures that are not the endpoint's fault", false, func(e *Endpoint) {
		used(e, 10, 9)
		e.Failed(fmt.Errorf("connecting: %w", syscall.EMFILE))
	})
	f("responses that broke off", true, func(e *Endpoint) {
		used(e, 20, 0)
		for range 10 {
			e.BrokeOff(io.EOF)
		}
	})
	f("too few responses that broke off", false, func(e *Endpoint) {
		used(e, 20, 0)
		for range 9 {
			e.BrokeOff(io.EOF)
		}
	})
	f("successes that are too old", true, func(e *Endpoint) {
		used(e, 100, 0)
		time.Sleep(10 * time.Second)
		used(e, 10, 10)
	})
	f("successes that still count", false, func(e *Endpoint) {
		used(e, 100, 0)
		time.Sleep(9 * time.Second)
		used(e, 10, 10)
	})
	f("failures that are too old", false, func(e *Endpoint) {
		used(e, 9, 10)
		time.Sleep(10 * time.Second)
		used(e, 0, 1)
	})
	f("after a long time without requests", false, func(e *Endpoint) {
		used(e, 9, 10)
		time.Sleep(time.Hour)
		used(e, 0, 19)
	})
}

// A returned endpoint begins with no results, and its ejection has a line with the counts.
func TestEjectionByShareEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		cfg := sharing(2)
		cfg.Ejection.Within = 10 * time.Minute // the old results would still count
		w.update(cfg)
		b := w.set.Backend("app")
		e := endpointOf(t, b, "10.0.0.1:80")
		used(e, 8, 12)
		w.mu.Lock()
		reason := w.events[0].Reason
		w.mu.Unlock()
		if want := "for 30s because 12 of its 20 requests within 10m0s failed (ejection.share is 0.5)"; reason != want {
			t.Errorf("the reason is %q, want %q", reason, want)
		}
		used(e, 0, 30) // requests that had begun before
		time.Sleep(30*time.Second - 1)
		wantReady(t, b, "10.0.0.2:80")
		time.Sleep(1 * time.Nanosecond)
		synctest.Wait()
		w.wantEvents("endpoint ejected 10.0.0.1:80", "endpoint returned 10.0.0.1:80")
		used(e, 0, 19)
		wantReady(t, b, "10.0.0.1:80", "10.0.0.2:80")
		used(e, 0, 1)
		wantReady(t, b, "10.0.0.2:80")
		if consec, share := b.ejections[consecutive].Load(), b.ejections[byShare].Load(); consec != 0 || share != 2 {
			t.Errorf("%d ejections after consecutive failures and %d by share, want 0 and 2", consec, share)
		}
	})
}

// Ejection by share leaves half of the endpoints, and counts those that are out for other reasons.
func TestHalfOfTheEndpointsStay(t *testing.T) {
	for n, want := range []int{1: 0, 2: 1, 3: 1, 4: 2, 5: 2} {
		w := newWorld(t, Options{})
		w.update(sharing(max(1, n)))
		b := w.set.Backend("app")
		for _, e := range b.endpoints {
			used(e, 0, 50)
		}
		if out, _ := b.countOut(false); out != want {
			t.Errorf("of %d endpoints %d are out, want %d", n, out, want)
		}
	}

	w := newWorld(t, Options{})
	cfg := checked(sharing(4))
	w.update(cfg)
	b := w.set.Backend("app")
	for i := range 4 {
		w.check(fmt.Sprintf("10.0.0.%d:80", i+1)).SetReady(i > 0, "down")
	}
	used(b.endpoints[1], 0, 20)
	wantReady(t, b, "10.0.0.3:80", "10.0.0.4:80")
	used(b.endpoints[2], 0, 20) // one is down by its check, one is out by its share
	wantReady(t, b, "10.0.0.3:80", "10.0.0.4:80")
	w.check("10.0.0.4:80").SetReady(false, "down") // three would be out
	wantReady(t, b, "10.0.0.2:80", "10.0.0.3:80")
}

// Consecutive failures eject more than half of the endpoints, as without a share. Endpoints that
// are out by their share then return.
func TestConsecutiveFailuresBesideAShare(t *testing.T) {
	w := newWorld(t, Options{})
	cfg := sharing(4)
	cfg.Ejection.Failures = 3
	w.update(cfg)
	b := w.set.Backend("app")
	for range 10 {
		used(b.endpoints[0], 1, 1)
	}
	wantReady(t, b, "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80")
	used(b.endpoints[1], 0, 3)
	wantReady(t, b, "10.0.0.3:80", "10.0.0.4:80")
	used(b.endpoints[2], 0, 3)
	wantReady(t, b, "10.0.0.1:80", "10.0.0.4:80")
	used(b.endpoints[0], 0, 3)
	wantReady(t, b, "10.0.0.4:80")
	if consec, share := b.ejections[consecutive].Load(), b.ejections[byShare].Load(); consec != 3 || share != 1 {
		t.Errorf("%d ejections after consecutive failures and %d by share, want 3 and 1", consec, share)
	}
}

// An ejection by share and its counts survive a reload; a reload that removes healthy endpoints
// brings ejected ones back.
func TestReloadKeepsResults(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(sharing(4))
	b := w.set.Backend("app")
	used(b.endpoints[0], 0, 20)
	used(b.endpoints[1], 10, 9)
	next := sharing(4)
	next.Ejection.Minimum = 15
	next.Ejection.For = time.Minute
	w.update(next)
	wantReady(t, b, "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80")
	used(b.endpoints[1], 0, 1)
	wantReady(t, b, "10.0.0.3:80", "10.0.0.4:80")
	fewer := sharing(4)
	fewer.Endpoints = fewer.Endpoints[:3]
	w.update(fewer) // two of three would be out
	wantReady(t, b, "10.0.0.1:80", "10.0.0.3:80")

	fewer.Ejection.Share = 0
	w.update(fewer) // the endpoints stay
	for _, e := range b.endpoints {
		if e.results.Load() != nil {
			t.Errorf("%s still counts results", e.address)
		}
		used(e, 0, 50)
	}
	wantReady(t, b, "10.0.0.1:80", "10.0.0.3:80")
	fewer.Ejection.Share = 1
	w.update(fewer)
	for _, e := range b.endpoints {
		if e.results.Load() == nil {
			t.Errorf("%s counts no results", e.address)
		}
	}
}

// Endpoints that fail at the same moment do not take out more than half.
func TestHalfStaysUnderConcurrentFailures(t *testing.T) {
	for range 50 {
		w := newWorld(t, Options{})
		w.update(sharing(4))
		b := w.set.Backend("app")
		endpoints := b.endpoints
		begin := make(chan struct{})
		var all sync.WaitGroup
		for _, e := range endpoints {
			used(e, 0, 19)
			for range 2 {
				all.Go(func() {
					<-begin
					used(e, 1, 5)
				})
			}
		}
		close(begin)
		all.Wait()
		if out, _ := b.countOut(false); out != 2 {
			t.Fatalf("%d of 4 endpoints are out, want 2", out)
		}
	}
}

// Concurrent results lose no count, and weigh old slots as unused.
func TestResultsAreExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResults(time.Minute)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 1000 {
					r.add(1, 0)
					r.add(1, 1)
				}
			})
		}
		all.Wait()
		if attempts, failed := r.sum(); attempts != 8000 || failed != 4000 {
			t.Errorf("%d of %d failed, want 4000 of 8000", failed, attempts)
		}
		time.Sleep(54 * time.Second)
		r.add(1, 1)
		if attempts, failed := r.sum(); attempts != 8001 || failed != 4001 {
			t.Errorf("%d of %d failed, want 4001 of 8001", failed, attempts)
		}
		time.Sleep(6 * time.Second)
		if attempts, failed := r.sum(); attempts != 1 || failed != 1 {
			t.Errorf("%d of %d failed, want 1 of 1", failed, attempts)
		}
		r.slots[r.slot()%resultSlots].Store(r.slot()<<(2*countBits) | 5<<countBits | mostCounted)
		r.add(1, 1)
		if attempts, failed := r.sum(); attempts != mostCounted+1 || failed != 6 {
			t.Errorf("a full slot: %d of %d failed", failed, attempts)
		}
	})
}

func TestResultsAllocateNothing(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(sharing(2))
	e := w.set.Backend("app").endpoints[0]
	if n := testing.AllocsPerRun(100, e.Succeeded); n != 0 {
		t.Errorf("a success allocates %v times", n)
	}
}

// answering returns a backend of n endpoints that are ejected after three failures, some statuses
// included.
func answering(n int) config.Backend {
	cfg := sharing(n)
	cfg.Ejection.Share = 0
	cfg.Ejection.Failures = 3
	cfg.Ejection.Statuses = []config.StatusRange{{Min: 502, Max: 504}}
	return cfg
}

func TestEjectionByStatus(t *testing.T) {
	f := func(what string, want bool, settings config.Backend, statuses ...int) {
		t.Helper()
		w := newWorld(t, Options{})
		w.update(settings)
		b := w.set.Backend("app")
		e := endpointOf(t, b, "10.0.0.1:80")
		for _, status := range statuses {
			if status == 0 {
				e.Failed(io.EOF)
			} else {
				e.Answered(status)
			}
		}
		if got := isOut(b, e); got != want {
			t.Errorf("%s: ejected %t, want %t", what, got, want)
		}
		if up := e.failing.Load(); up {
			t.Errorf("%s: the endpoint counts as unreachable", what)
		}
	}
	f("statuses in a row", true, answering(2), 503, 502, 504)
	f("statuses and a failed connection", true, answering(2), 503, 0, 503)
	f("too few", false, answering(2), 503, 503)
	f("a good response between them", false, answering(2), 503, 503, 404, 503)
	f("statuses that are not listed", false, answering(2), 500, 500, 500, 501)
	f("the last endpoint", false, answering(1), 503, 503, 503, 503)
	f("without ejection.statuses", false, sharing(2), 503, 503, 503, 503)
	shared := sharing(2)
	shared.Ejection.Minimum, shared.Ejection.Statuses = 4, []config.StatusRange{{Min: 500, Max: 500}}
	f("half of the requests", true, shared, 200, 500, 200, 500)
	f("less than the share", false, shared, 200, 500, 200, 200, 500)
}

// Statuses eject at most half of the endpoints, whatever else is out.
func TestStatusesLeaveHalfOfTheEndpoints(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(answering(4))
	b := w.set.Backend("app")
	for _, e := range b.endpoints {
		for range 5 {
			e.Answered(503)
		}
	}
	wantReady(t, b, "10.0.0.3:80", "10.0.0.4:80")
	if got := b.ejections[byStatus].Load(); got != 2 {
		t.Errorf("%d ejections by status, want 2", got)
	}
	used(b.endpoints[2], 0, 3) // the endpoint that was ejected first returns
	wantReady(t, b, "10.0.0.1:80", "10.0.0.4:80")
}

// An address that lost to the other family of its name is neither out nor in: another address of the name serves.
func TestOtherFamiliesDoNotCountAsOut(t *testing.T) {
	for _, by := range []string{"status", "share"} {
		w := newWorld(t, Options{})
		cfg := answering(4)
		if by == "share" {
			cfg = sharing(4)
		}
		w.update(cfg)
		b := w.set.Backend("app")
		b.mu.Lock()
		for _, e := range b.endpoints[:2] {
			e.eject(otherFamily, time.Hour, "because of a test")
		}
		if out, all := b.countOut(false); out != 0 || all != 2 {
			t.Errorf("%d of %d are out", out, all)
		}
		b.unlock()
		for _, e := range b.endpoints[2:] {
			if by == "share" {
				used(e, 10, 20)
			}
			for range 3 {
				e.Answered(503)
			}
		}
		wantReady(t, b, "10.0.0.4:80")
	}
}

// The status that follows the end of an ejection is the first one in a row.
func TestStatusesFromBeforeAnEjection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.update(answering(2))
		b := w.set.Backend("app")
		e := endpointOf(t, b, "10.0.0.1:80")
		for range 2 {
			for n := range 3 {
				if isOut(b, e) {
					t.Fatalf("ejected after %d statuses", n)
				}
				e.Answered(503)
			}
			if !isOut(b, e) {
				t.Fatal("not ejected")
			}
			time.Sleep(b.cfg.Ejection.For)
			synctest.Wait()
		}
	})
}
