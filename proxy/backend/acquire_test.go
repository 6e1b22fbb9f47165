package backend

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var noDeadline time.Time

// hashGolden is the recorded result of a run. It must never change.
const hashGolden = "acdbdacacdbaaaac"

func TestNoReadyEndpointIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		cfg := checked(settings("app", "10.0.0.1:80"))
		cfg.MaxConnections = 1
		w.update(cfg)
		start := time.Now()
		_, err := w.set.Backend("app").Acquire(netip.Addr{}, nil, noDeadline, alone{})
		if !errors.Is(err, ErrNoReady) || time.Since(start) != 0 {
			t.Errorf("error %v after %v", err, time.Since(start))
		}
	})
}

func limited(w *world, limit int) *Backend {
	cfg := settings("app", "10.0.0.1:80", "10.0.0.2:80")
	cfg.MaxConnections = limit
	w.update(cfg)
	return w.set.Backend("app")
}

func TestQueueIsBoundedTimedAndFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		b := limited(w, 1)
		first := acquire(t, b)

		var mu sync.Mutex
		var order []int
		for i := range 2 {
			go func() {
				e, err := b.Acquire(netip.Addr{}, nil, noDeadline, alone{})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("waiter %d: %v", i, err)
					return
				}
				order = append(order, i)
				e.Release()
			}()
			synctest.Wait()
		}
		if _, err := b.Acquire(netip.Addr{}, nil, noDeadline, alone{}); !errors.Is(err, ErrQueueFull) {
			t.Errorf("the third waiter got %v", err)
		}
		time.Sleep(4 * time.Second)
		first.Release()
		synctest.Wait()
		if !slices.Equal(order, []int{0, 1}) || b.InFlight() != 0 {
			t.Errorf("served %v, %d in flight", order, b.InFlight())
		}
	})
}

func TestQueueTimesOut(t *testing.T) {
	f := func(deadline, want time.Duration) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, Options{})
			b := limited(w, 1)
			held := acquire(t, b)
			start := time.Now()
			at := noDeadline
			if deadline != 0 {
				at = start.Add(deadline)
			}
			_, err := b.Acquire(netip.Addr{}, nil, at, alone{})
			if !errors.Is(err, ErrQueueTimeout) || time.Since(start) != want {
				t.Errorf("error %v after %v, want %v", err, time.Since(start), want)
			}
			const told = `backend "app" had all of its max_connections (1) in use, and none became free within 5s (queue.timeout)`
			if deadline == 0 && err.Error() != told {
				t.Error(err)
			}
			held.Release()
			acquire(t, b).Release() // the place in the queue is free again
			if b.InFlight() != 0 || b.queue.waiting.Load() != 0 {
				t.Errorf("%d in flight, %d waiting", b.InFlight(), b.queue.waiting.Load())
			}
		})
	}
	f(0, 5*time.Second)
	f(time.Second, time.Second)
	f(time.Hour, 5*time.Second)
	f(-time.Second, 0)
}

func TestReloadRaisesTheLimitForThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		b := limited(w, 1)
		acquire(t, b)
		done := make(chan error, 1)
		go func() {
			_, err := b.Acquire(netip.Addr{}, nil, noDeadline, alone{})
			done <- err
		}()
		synctest.Wait()
		limited(w, 2)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if b.InFlight() != 2 {
			t.Errorf("%d in flight, want 2", b.InFlight())
		}
	})
}

// The only endpoint may stop being ready while an exchange waits in the queue.
func TestQueueLooksAgainAtWhatIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		cfg := checked(settings("app", "10.0.0.1:80"))
		cfg.MaxConnections = 1
		w.update(cfg)
		b := w.set.Backend("app")
		w.check("10.0.0.1:80").SetReady(true, "")
		held := acquire(t, b)
		done := make(chan error, 1)
		go func() {
			_, err := b.Acquire(netip.Addr{}, nil, noDeadline, alone{})
			done <- err
		}()
		synctest.Wait()
		w.check("10.0.0.1:80").SetReady(false, "gone")
		held.Release()
		if err := <-done; !errors.Is(err, ErrNoReady) {
			t.Errorf("error %v", err)
		}
		if b.InFlight() != 0 {
			t.Errorf("%d in flight", b.InFlight())
		}
	})
}

func TestQueueUnderContention(t *testing.T) {
	w := newWorld(t, Options{})
	cfg := settings("app", "10.0.0.1:80", "10.0.0.2:80")
	cfg.MaxConnections, cfg.Queue.Size, cfg.Queue.Timeout = 3, 100, time.Minute
	w.update(cfg)
	b := w.set.Backend("app")
	var running atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 2000 {
				e, err := b.Acquire(netip.Addr{}, nil, noDeadline, alone{})
				if err != nil {
					t.Error(err)
					return
				}
				if n := running.Add(1); n > 3 {
					t.Errorf("%d run at once", n)
				}
				running.Add(-1)
				e.Release()
			}
		})
	}
	wg.Wait()
	if b.InFlight() != 0 || b.queue.waiting.Load() != 0 {
		t.Errorf("%d in flight, %d waiting", b.InFlight(), b.queue.waiting.Load())
	}
}

func TestRetryBudget(t *testing.T) {
	allowed := func(t *testing.T, b *Backend) (n int) {
		for b.AllowRetry() {
			n++
			acquire(t, b).Release()
		}
		return n
	}
	exchanges := func(t *testing.T, b *Backend, n int) {
		for range n {
			acquire(t, b).Release()
		}
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.update(settings("app", "10.0.0.1:80"))
		b := w.set.Backend("app")
		want := func(what string, got, want int) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %d retries allowed, want %d", what, got, want)
			}
		}
		want("without traffic", allowed(t, b), 10)
		exchanges(t, b, 1000)
		want("a fifth of 1000 exchanges", allowed(t, b), 200)
		time.Sleep(5 * time.Second)
		want("within the window", allowed(t, b), 0)
		time.Sleep(6 * time.Second)
		want("after the window", allowed(t, b), 10)
	})
}

// leaving waits in a queue until it leaves.
type leaving struct{ left chan struct{} }

var errLeft = errors.New("left")

func (l leaving) Wait(<-chan struct{}, time.Duration) (came bool, gone error) {
	<-l.left
	return false, errLeft
}

// A waiter that leaves gives up its place, and its slot if it got one at the last moment.
func TestWaiterLeavesTheQueue(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := limited(newWorld(t, Options{}), 1)
			held := acquire(t, b)
			l := leaving{make(chan struct{})}
			done := make(chan error, 1)
			go func() {
				_, err := b.Acquire(netip.Addr{}, nil, noDeadline, l)
				done <- err
			}()
			synctest.Wait()
			if late {
				held.Release()
			}
			close(l.left)
			if err := <-done; err != errLeft {
				t.Errorf("the error is %v", err)
			}
			if !late {
				held.Release()
			}
			if b.InFlight() != 0 || b.queue.taken.Load() != 0 || b.queue.waiting.Load() != 0 {
				t.Errorf("%d in flight, %d taken, %d waiting", b.InFlight(), b.queue.taken.Load(), b.queue.waiting.Load())
			}
		})
	}
}
