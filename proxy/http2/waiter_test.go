package http2

import (
	"sync"
	"testing"
	"time"
)

// An alarm that comes late, when the timer is set anew already, does not hide
// that it will fire again: the waiter must not be handed on before that.
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
