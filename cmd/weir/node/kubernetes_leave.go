package node

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// leavePatience limits how long weir waits for a cluster that it no longer serves. After
	// a drain, it limits the time without a successful write.
	leavePatience = 5 * time.Second
	// lastWrites is the time for the last writes after a drain that took all of its time. A
	// control then has a second more for its report.
	lastWrites = leavePatience - time.Second
)

// These errors explain why addresses are left in the status of Ingresses.
var (
	errSecondSignal = errors.New("a second signal ended weir at once")
	errDrainOver    = errors.New("the time of the drain is over: raise drain.timeout, and terminationGracePeriodSeconds with it")
	errNotServed    = fmt.Errorf("weir waits only %v for a cluster that it no longer serves", leavePatience)
	errNoWrites     = fmt.Errorf("no write to the cluster succeeded in the last %v", lastWrites)
)

// close ends everything of a cluster that weir no longer serves.
func (c *cluster) close() { c.closeBy(time.Now(), errNotServed) }

// closeBy is close with more time for the last writes to the cluster: at least lastWrites,
// and until ends if some write succeeds in each leavePatience. why is the reason if the
// writes do not end in that time.
func (c *cluster) closeBy(ends time.Time, why error) {
	c.end()
	c.giveUp()
	if c.s.current() == nil { // weir serves no other cluster
		c.s.node.SetLeaving(nil)
		c.s.backends.SetZone("")
	}
	c.stopLeaving(c.awaitGone(ends, why))
	<-c.gone
}

// awaitGone waits until the work in the cluster is done, or the time for it is over. It
// returns the reason why the work must end: why, or errNoWrites.
func (c *cluster) awaitGone(ends time.Time, why error) error {
	if earliest := time.Now().Add(lastWrites); ends.Before(earliest) {
		ends = earliest
	}
	timer := time.NewTimer(min(leavePatience, time.Until(ends)))
	defer timer.Stop()
	for last := (time.Time{}); ; {
		select {
		case <-c.gone:
			return nil
		case <-c.wrote:
			last = time.Now()
			timer.Reset(min(leavePatience, time.Until(ends)))
		case <-timer.C:
			if time.Since(last) < leavePatience {
				return why
			}
			return errNoWrites
		}
	}
}

// noteWrite tells awaitGone of a write.
func (c *cluster) noteWrite() {
	select {
	case c.wrote <- struct{}{}:
	default:
	}
}

// giveUp starts to end the work of this replica in the cluster, and to give up its
// Leases. weir still serves the objects. c.gone is closed when that is done.
func (c *cluster) giveUp() { c.leave(control.Leave) }

// handOver is giveUp for a process that takes over. It leaves all addresses in the cluster.
func (c *cluster) handOver() {
	c.leave(func(control control, ctx context.Context, _ func()) { control.Release(ctx) })
}

func (c *cluster) leave(by func(control control, ctx context.Context, wrote func())) {
	c.once.Do(func() {
		c.s.change.Lock()
		control := c.control
		c.control = nil
		c.s.change.Unlock()
		ctx, cancel := context.WithCancelCause(context.Background())
		c.stopLeaving = cancel
		go func() {
			defer close(c.gone)
			defer cancel(nil)
			if control != nil {
				by(control, ctx, c.noteWrite)
			}
		}()
	})
}
