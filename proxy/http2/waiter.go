package http2

import (
	"os"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/park"
)

// waiter is the place where the goroutines of one exchange wait for news of it. The lock
// of the connection guards it: the caller of each method but alarm and stop holds that
// lock.
type waiter struct {
	changed sync.Cond
	timer   *time.Timer
	armed   time.Time   // when the timer fires
	timed   bool        // the timer was set since the exchange began
	parked  park.Waiter // waits for bytes, without a goroutine; nil: none
}

// rouse wakes the parked waiter, and returns true. It returns false if there is none.
func (w *waiter) rouse() bool {
	r := w.parked
	if r == nil {
		return false
	}
	w.parked = nil
	r.Wake(park.Ready)
	return true
}

// unpark removes the parked waiter, and returns true. It returns false if there is none.
func (w *waiter) unpark() bool {
	yes := w.parked != nil
	w.parked = nil
	return yes
}

// wait waits until something changed, or until the deadline, if it is not zero. It
// releases the lock while it waits.
func (w *waiter) wait(until time.Time) error {
	if !until.IsZero() {
		now := time.Now()
		if !now.Before(until) {
			return os.ErrDeadlineExceeded
		}
		w.arm(now, until)
	}
	w.changed.Wait()
	return nil
}

// arm sets the timer so that it fires at until, or earlier.
func (w *waiter) arm(now, until time.Time) {
	if w.armed.After(now) && !w.armed.After(until) {
		return // it fires earlier, and then the waiting goroutine calls arm again
	}
	w.armed, w.timed = until, true
	if w.timer == nil {
		w.timer = time.AfterFunc(until.Sub(now), w.alarm)
	} else {
		w.timer.Reset(until.Sub(now))
	}
}

func (w *waiter) alarm() {
	w.changed.L.Lock()
	if !time.Now().Before(w.armed) { // otherwise arm was called again before alarm got the lock
		w.armed = time.Time{}
	}
	w.changed.Broadcast()
	w.changed.L.Unlock()
}

// stop stops the timer. Call it when no goroutine waits any more.
func (w *waiter) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}
