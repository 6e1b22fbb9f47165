package http2

import (
	"os"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/park"
)

// waiter is where one exchange's goroutines wait for news of it. It is guarded
// by the lock of its connection, which news and waits hold.
type waiter struct {
	changed sync.Cond
	timer   *time.Timer
	armed   time.Time   // when the timer fires
	timed   bool        // the timer was set since the exchange began
	resting park.Waiter // waits for something to read, without a goroutine; nil: nobody does
}

// rouse wakes who rests, and returns true. False: nobody does.
func (w *waiter) rouse() bool {
	r := w.resting
	if r == nil {
		return false
	}
	w.resting = nil
	r.Wake(park.Ready)
	return true
}

// unrest takes back who rests, and returns true. False: nobody does.
func (w *waiter) unrest() bool {
	yes := w.resting != nil
	w.resting = nil
	return yes
}

// wait waits until something changed, or until the deadline, if it is not zero.
// The lock is held, but while it waits.
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

// arm has the waiter woken no later than until, if it has to wait that long.
func (w *waiter) arm(now, until time.Time) {
	if w.armed.After(now) && !w.armed.After(until) {
		return // earlier: who waits looks again
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
	if !time.Now().Before(w.armed) { // else it was armed anew before it could look
		w.armed = time.Time{}
	}
	w.changed.Broadcast()
	w.changed.L.Unlock()
}

// stop is called once nobody waits any more.
func (w *waiter) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}
