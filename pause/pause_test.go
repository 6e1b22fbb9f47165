package pause

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer serving.Store(serving.Load())
		paused := func() bool {
			began := time.Now()
			IfDue()
			return time.Since(began) > 0
		}
		serving.Store(false)
		if paused() {
			t.Error("IfDue pauses before the process serves traffic")
		}
		Serve()
		if !paused() {
			t.Error("the first IfDue does not pause")
		}
		if paused() {
			t.Error("IfDue pauses again without work between")
		}
		time.Sleep(stretch)
		if !paused() {
			t.Error("IfDue does not pause after enough work")
		}
		due.Store(time.Now().Add(time.Hour).UnixNano())
		if !paused() {
			t.Error("IfDue does not pause after the clock was set back")
		}
	})
}

func TestStepAllocatesNothing(t *testing.T) {
	defer serving.Store(serving.Load())
	Serve()
	if n := testing.AllocsPerRun(10, IfDue); n != 0 {
		t.Errorf("IfDue allocates %v times", n)
	}
}
