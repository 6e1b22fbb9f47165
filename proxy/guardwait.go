package proxy

import (
	"sync/atomic"
	"time"
)

// Wait waits for an event, such as the turn of a guard's check. It ends early if the client has gone,
// or if weir cuts its connection.
func (x *exchange) Wait(event <-chan struct{}, patience time.Duration) (happened bool, gone error) {
	cut := &waitCut{made: make(chan struct{})}
	x.wire.CutAlso(cut)
	defer x.relink()
	enough, look := time.NewTimer(patience), time.NewTicker(clientCheck)
	defer enough.Stop()
	defer look.Stop()
	for {
		select {
		case <-event:
			return true, nil
		case <-enough.C:
			return false, nil
		case <-cut.made:
			return false, errClientGone
		case <-look.C:
			if x.gone() {
				return false, errClientGone
			}
		}
	}
}

// waitCut makes a cut of the client's connection or stream end a Wait.
type waitCut struct {
	made chan struct{} // closed by the first Cut
	was  atomic.Bool
}

// Cut ends the wait.
func (c *waitCut) Cut() {
	if c.was.CompareAndSwap(false, true) {
		close(c.made)
	}
}

// WasCut reports whether Cut was called.
func (c *waitCut) WasCut() bool { return c.was.Load() }
