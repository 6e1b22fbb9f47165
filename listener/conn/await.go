package conn

import (
	"errors"
	"os"
	"time"

	"github.com/weirproxy/weir/listener/park"
)

// linger is how long a wait trusts that a short read emptied the socket. An end
// of stream that arrived together with the last bytes raises no event of its
// own (epoll reports both at once), so after linger a wait looks for itself.
const linger = time.Second

// Await calls step when bytes may be there, at first at once, until step
// returns true or the wait ends in an error: the read deadline
// (os.ErrDeadlineExceeded), Interrupt (ErrInterrupted), Cut, or the socket's own. Between calls it waits
// in the poller. Inside step, Read returns ErrWouldBlock instead of waiting.
//
// It stays within one RawConn.Read: an event between a read and the wait is
// then kept by the runtime, so no read has to run into EAGAIN to arm it.
func (c *Conn) Await(step func() bool) error {
	if c.bare {
		if done, err := c.awaitBare(step); done || err != nil {
			return c.readError(err)
		}
		c.poll()
	}
	if c.raw == nil {
		for !step() {
		}
		return nil
	}
	c.drained, c.step = false, step
	if c.onReady == nil {
		c.onReady = c.ready // once: a method value is an allocation
	}
	c.rearm(time.Time{})
	err := c.wait()
	c.step = nil // it belongs to whoever had the connection
	return c.readError(err)
}

// wait is Await in the poller.
func (c *Conn) wait() error {
	for {
		err := c.raw.Read(c.onReady)
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if c.interrupted.Load() && !c.cut.Load() {
			return ErrInterrupted
		}
		now := time.Now()
		if c.cut.Load() || !c.readWant.IsZero() && !now.Before(c.readWant) {
			return err
		}
		c.rearm(now)
	}
}

// ready runs a step of Await, within RawConn.Read.
func (c *Conn) ready(fd uintptr) bool {
	c.fd, c.inside = int(fd), true
	done := c.step()
	c.inside, c.drained = false, false // a next call means the poller has news
	if !done && !c.soon && c.reads != c.readsAtArm {
		c.rearm(time.Now()) // the wait goes on, and the end may be there already
	}
	return done
}

// awaitBare is Await for a connection that the poller does not know. It waits
// once, in the lot: a client that came for one request needs no more.
func (c *Conn) awaitBare(step func() bool) (done bool, err error) {
	for waits := 0; ; waits++ {
		c.inside, c.drained = true, false
		done := step()
		c.inside = false
		if done || waits > 0 || c.lot == nil {
			return done, nil
		}
		if err := c.park(); err != nil {
			return false, err
		}
	}
}

// park waits until something is there to read, in the lot.
func (c *Conn) park() error {
	t, err := c.lot.Begin(c.fd, c.readWant)
	if err != nil {
		return nil // the poller can do it, too
	}
	c.parked.Store(uint64(t))
	if c.cut.Load() {
		c.lot.End(t)
	}
	why := c.lot.Wait(t)
	c.parked.Store(0)
	switch {
	case c.cut.Load():
		return ErrCut
	case why == park.Late, !c.readWant.IsZero() && !time.Now().Before(c.readWant):
		return os.ErrDeadlineExceeded // also for bytes that came before the lot noticed: late is late
	}
	return nil
}

// rearm moves the poller's deadline to the one that is wanted, or, while bytes
// keep coming, no further than linger from now. A zero now reads the clock only if needed.
func (c *Conn) rearm(now time.Time) {
	if now.IsZero() {
		early := !c.readArmed.IsZero() && (c.readWant.IsZero() || !c.readWant.Before(c.readArmed))
		if early && (c.soon || c.reads == c.readsAtArm) {
			return
		}
		now = time.Now()
		c.readsAtArm = c.reads - 1
	}
	at := c.readWant
	if busy := c.reads != c.readsAtArm; busy {
		if soon := now.Add(linger); at.IsZero() || soon.Before(at) {
			at = soon
		}
	}
	c.readsAtArm = c.reads
	c.arm(at)
	c.soon = !at.IsZero() && at.Sub(now) <= linger
}

func (c *Conn) arm(at time.Time) {
	if c.bare {
		return
	}
	c.readArmed, c.soon = at, false
	c.sock.SetReadDeadline(at)
	if c.cut.Load() || c.interrupted.Load() {
		c.sock.SetReadDeadline(longAgo)
	}
}

// poll makes an accepted descriptor known to the runtime's poller, before it
// has to wait for the first time.
func (c *Conn) poll() {
	if !c.bare {
		return
	}
	if c.lot != nil {
		c.lot.Forget(c.fd)
	}
	f := os.NewFile(uintptr(c.fd), "socket")
	c.sock, c.bare = f, false
	c.raw, _ = f.SyscallConn()
	c.polled.Store(true)
	if !c.readWant.IsZero() {
		c.arm(c.readWant)
	}
	switch { // who asked before there was a sock relies on us
	case c.cut.Load():
		f.SetDeadline(longAgo)
	case c.interrupted.Load():
		f.SetReadDeadline(longAgo)
	}
}
