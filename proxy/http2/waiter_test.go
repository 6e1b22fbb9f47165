package http2

import (
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/proxy/http2/core"
	"github.com/weirproxy/weir/proxy/http2/http2test"
)

// A timer's function may run late, when the timer has already been set again. The waiter must still know that
// the timer runs, and must not be reused before that.
func TestLateAlarm(t *testing.T) {
	var mu sync.Mutex
	var w waiter
	w.changed.L = &mu
	defer w.stop()
	now := time.Now()
	w.arm(now, now.Add(time.Hour))
	w.alarm()
	if w.armed.IsZero() {
		t.Error("the timer runs, and the waiter does not know")
	}
	w.armed = now
	w.alarm()
	if !w.armed.IsZero() {
		t.Error("the timer has fired, and the waiter does not know")
	}
}

// weir does not reuse an exchange whose timer has fired. The timer's function may still use the exchange, and
// would find no lock.
func TestAlarmBehindTheEnd(t *testing.T) {
	f := func(fired bool) (kept bool) {
		t.Helper()
		var c Connection
		c.Init(nil, core.Config{}, nil)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err := c.core.Receive(time.Now(), http2test.Greeted().Get(1).Bytes()); err != nil {
			t.Fatal(err)
		}
		x := c.ready[0]
		now := time.Now()
		x.arm(now, now.Add(time.Hour))
		if fired {
			x.timer.Stop() // like a timer that has fired
			x.armed = time.Time{}
		}
		x.release()
		return x.conn != nil
	}
	if f(false) || !f(true) {
		t.Error("the exchange of a timer that fired is used again, or that of one that did not is not")
	}
}
