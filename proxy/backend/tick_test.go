package backend

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// awakeOf returns the backends with regular work.
func awakeOf(s *Set) []*Backend {
	s.opts.awake.mu.Lock()
	defer s.opts.awake.mu.Unlock()
	return slices.Clone(s.opts.awake.list)
}

// Backends without regular work cost nothing each second, and each kind of work wakes them.
func TestIdleBackendsRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		app := settings("app", "10.0.0.1:80")
		app.RampUp = 30 * time.Second
		w.update(app, settings("other", "10.0.0.3:80"))
		b := w.set.Backend("app")
		awakes := func() bool {
			all := awakeOf(w.set)
			if len(all) > 1 {
				t.Errorf("%d backends are awake, want at most 1", len(all))
			}
			return slices.Contains(all, b)
		}
		expect := func(what string, restsAfter time.Duration) {
			t.Helper()
			if !awakes() {
				t.Errorf("%s: the backend rests at once", what)
			}
			time.Sleep(restsAfter - 2*time.Second) // half a second after a tick, as all looks
			if !awakes() {
				t.Errorf("%s: the backend rests before %v", what, restsAfter)
			}
			time.Sleep(4 * time.Second)
			if awakes() || b.awake.Load() {
				t.Errorf("%s: the backend is awake after %v", what, restsAfter)
			}
		}
		time.Sleep(time.Second / 2)
		if awakes() {
			t.Error("a new backend is awake")
		}
		acquire(t, b).Release()
		expect("a request", 10*time.Second)
		for range 3 { // again, after the window of the budget has gone
			acquire(t, b).Release()
			expect("a request after a rest", 10*time.Second)
		}
		if !b.AllowRetry() {
			t.Fatal("no retry")
		}
		expect("a retry", 10*time.Second)
		if err := b.AcquireAt(b.view.Load().tiers[0].members[0].e, alone{}); err != nil {
			t.Fatal(err)
		}
		expect("a mirror or a private connection", 10*time.Second)

		two := settings("app", "10.0.0.1:80", "10.0.0.2:80")
		two.RampUp = 30 * time.Second
		w.update(two, settings("other", "10.0.0.3:80"))
		expect("a slow start", 31*time.Second)

		// The second outage within a minute is reported by a tick.
		fail := func(down bool) {
			b.mu.Lock()
			for _, e := range b.endpoints {
				e.failing.Store(down)
			}
			b.judge()
			b.unlock()
		}
		fail(true)
		fail(false)
		if awakes() {
			t.Error("an outage that was reported wakes the backend")
		}
		fail(true)
		expect("an outage that waits for its report", 60*time.Second)
		w.mu.Lock()
		if n := len(w.outages); n != 3 {
			t.Errorf("%d reports, want 3: %v", n, w.outages)
		}
		w.mu.Unlock()
		more := settings("other", "10.0.0.3:80", "10.0.0.4:80")
		more.RampUp = time.Hour
		w.update(two, more)
		acquire(t, w.set.Backend("other")).Release()
		w.update(two) // removed while awake, in its slow start
		time.Sleep(12 * time.Second)
		if n := len(awakeOf(w.set)); n != 0 {
			t.Errorf("%d removed backends are awake", n)
		}
	})
}

// The budget of retries counts the same after a rest.
func TestRetryBudgetAfterRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.update(settings("app", "10.0.0.1:80"))
		b := w.set.Backend("app")
		for round := range 3 {
			for range 1000 {
				acquire(t, b).Release()
			}
			n, want := 0, budgetFloor+int(1000*b.Settings().Retries.Share)
			for b.AllowRetry() {
				n++
				acquire(t, b).Release()
			}
			if n < want-1 || n > want+1 {
				t.Errorf("round %d: %d retries, want %d", round, n, want)
			}
			time.Sleep(time.Minute)
		}
	})
}

// Work that comes while a backend is about to rest keeps it awake: it stays on the list, or comes back to it.
func TestWorkComesBeforeRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that no second passes, and no tick happens
		w := newWorld(t, Options{})
		w.update(settings("app", "10.0.0.1:80"))
		b := w.set.Backend("app")
		for range 20_000 {
			b.stocked.Store(0)
			b.awake.Store(true)
			var work sync.WaitGroup
			work.Go(func() {
				b.stocked.Store(1)
				b.wake()
			})
			rests := b.rests()
			work.Wait()
			b.opts.awake.mu.Lock()
			listed := len(b.opts.awake.list)
			b.opts.awake.list = nil
			b.opts.awake.mu.Unlock()
			if stays := !rests; listed > 1 || stays == (listed == 1) {
				t.Fatalf("the backend stays on the list: %t, and was added %d times", stays, listed)
			}
		}
		b.stocked.Store(0)
	})
}
