package proxy

import (
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
)

// Wait waits for an event, such as the turn of a guard's check, or of the request in the queue of a
// backend. It ends early if the client has gone, or if weir cuts its connection.
func (x *exchange) Wait(event <-chan struct{}, patience time.Duration) (happened bool, gone error) {
	if !x.cover(0) {
		return false, message.ErrMemory
	}
	defer x.relink()
	return waitUnlessGone(x, event, patience)
}

// leaver is a requester, as a wait sees it.
type leaver interface {
	CutAlso(other conn.Cuttable)
	gone() bool
}

// waitUnlessGone waits for an event until patience ends, or until the requester has gone or is cut;
// then gone is not nil. Afterwards the caller links the requester again.
func waitUnlessGone(of leaver, event <-chan struct{}, patience time.Duration) (happened bool, gone error) {
	cut := &waitCut{made: make(chan struct{})}
	of.CutAlso(cut)
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
			if of.gone() {
				return false, errClientGone
			}
		}
	}
}

// waitCut makes a cut of the client's connection or stream end a wait.
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
