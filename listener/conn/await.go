package conn

import (
	"errors"
	"os"
	"time"
)

// Linger is how long a wait trusts that a short read emptied the socket. An end
// of stream that arrived together with the last bytes raises no event of its
// own (epoll reports both at once), so after Linger a wait looks for itself.
const Linger = time.Second

// Await calls step when bytes may be there, at first at once, until step
// returns true or the wait ends in an error: the read deadline
// (os.ErrDeadlineExceeded), Interrupt (ErrInterrupted), Cut, or the socket's own.
// Between calls it waits in the poller, or the lot. Inside step, Read returns ErrWouldBlock instead of waiting.
//
// It stays within one RawConn.Read: an event between a read and the wait is
// then kept by the runtime, so no read has to run into EAGAIN to arm it.
func (c *Conn) Await(step func() bool) error {
	if !c.polled.Load() {
		if done, err := c.awaitBare(step); done || err != nil {
			return c.readError(err)
		}
		c.poll()
	}
	c.leaveLot()
	if c.raw == nil {
		for !step() {
		}
		return nil
	}
	return c.readError(c.awaitPolled(step))
}

// AwaitOrRest is Await that ends with ErrQuiet where nothing came for Linger and
// mayRest then says that the connection may as well be parked. Where it says no,
// it is asked again behind the next bytes, or Stir.
func (c *Conn) AwaitOrRest(step, mayRest func() bool) error {
	if !c.CanPark() {
		return c.Await(step)
	}
	c.mayRest = mayRest
	err := c.Await(step)
	c.mayRest = nil
	if c.settled.Load() || c.stirred.Load() {
		c.settle()
	}
	return err
}

// settle ends what a wait and Stir have between them.
func (c *Conn) settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settled.Store(false)
	if c.stirred.Swap(false) {
		c.readArmed, c.soon = time.Time{}, false // Stir has set another one
	}
}

// Stir makes a running AwaitOrRest ask again whether the connection may rest, if
// it was told no. Anyone may call it.
func (c *Conn) Stir() {
	if !c.settled.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settled.Swap(false) && c.polled.Load() {
		c.stirred.Store(true)
		c.sock.SetReadDeadline(longAgo)
	}
}

// Settled reports whether a running AwaitOrRest was told no and waits for bytes, or Stir.
func (c *Conn) Settled() bool { return c.settled.Load() }

// rests reports whether a wait ends because the connection is quiet and may be.
func (c *Conn) rests() bool {
	if c.reads != c.readsAtArm {
		return false // something came
	}
	if c.mayRest == nil {
		return c.quiet
	}
	c.settled.Store(true) // first, so that who makes the answer another one either is seen by mayRest or stirs
	return c.mayRest()
}

// awaitPolled is Await in the poller.
func (c *Conn) awaitPolled(step func() bool) error {
	c.drained, c.step = false, step
	if c.onReady == nil {
		c.onReady = c.ready // once: a method value is an allocation
	}
	c.rearm(time.Time{})
	err := c.wait()
	c.step = nil // it belongs to whoever had the connection
	return err
}

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
		if c.endNews() {
			c.endSeen = true // one more look finds it
			c.rearm(now)
			continue
		}
		c.stirred.Store(false)
		if c.rests() {
			c.readArmed, c.soon = time.Time{}, false // it has passed, and whoever waits next has to arm
			return ErrQuiet
		}
		c.rearm(now)
	}
}

// ready runs a step of Await, within RawConn.Read.
func (c *Conn) ready(fd uintptr) bool {
	if c.inside = true; !c.duplex { // else it is known, and somebody writes to it
		c.fd = int(fd)
	}
	done := c.step()
	c.inside, c.drained = false, false // a next call means the poller has news
	if c.reads != c.readsAtArm && c.settled.Load() {
		c.settled.Store(false)
	}
	if !done && !c.soon && c.reads != c.readsAtArm {
		c.rearm(time.Now()) // the wait goes on, and the end may be there already
	}
	return done
}

// awaitBare is Await for a connection that the poller does not know. It waits
// once, in the lot: a client that came for one request needs no more.
func (c *Conn) awaitBare(step func() bool) (done bool, err error) {
	for waits := 0; ; waits++ {
		done := c.stepBare(step)
		if done || waits > 0 || lot() == nil {
			return done, nil
		}
		if err := c.sleep(); err != nil {
			return false, err
		}
	}
}

func (c *Conn) stepBare(step func() bool) (done bool) {
	c.inside, c.drained = true, false
	done = step()
	c.inside = false
	return done
}

// rearm moves the poller's deadline to the one that is wanted, or, while bytes
// keep coming, no further than Linger from now. A zero now reads the clock only if needed.
func (c *Conn) rearm(now time.Time) {
	if now.IsZero() {
		early := !c.readArmed.IsZero() && (c.readWant.IsZero() || !c.readWant.Before(c.readArmed))
		if early && (c.soon || c.mayRest == nil && c.reads == c.readsAtArm) {
			return
		}
		now = time.Now()
		c.readsAtArm = c.reads - 1
	}
	at := c.readWant
	if busy := c.reads != c.readsAtArm; busy {
		if soon := now.Add(Linger); at.IsZero() || soon.Before(at) {
			at = soon
		}
	}
	c.readsAtArm = c.reads
	c.arm(at)
	c.soon = !at.IsZero() && at.Sub(now) <= Linger
}

func (c *Conn) arm(at time.Time) {
	if !c.polled.Load() {
		return
	}
	c.readArmed, c.soon = at, false
	c.sock.SetReadDeadline(at)
	if c.cut.Load() || c.interrupted.Load() || c.stirred.Load() || c.endNews() {
		c.sock.SetReadDeadline(longAgo)
	}
}
