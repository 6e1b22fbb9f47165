package conn

import (
	"errors"
	"os"
	"time"
)

// Linger is how long a wait trusts that a short read emptied the socket. If the end of
// the stream arrives together with the last bytes, epoll reports both at once and sends
// no event for the end. Therefore a wait reads again after Linger.
const Linger = time.Second

// Await calls step at once, and then whenever bytes may have arrived, until step returns
// true or the wait ends with an error. The errors are the read deadline
// (os.ErrDeadlineExceeded), Interrupt (ErrInterrupted), Cut (ErrCut), and errors of the
// socket. Between calls Await waits in the poller or in the lot. Inside step, Read
// returns ErrWouldBlock instead of waiting.
//
// All steps run within one RawConn.Read. The runtime then keeps an event that arrives
// between a read and the wait, so no read has to run into EAGAIN first.
//
// A step must not call a method of the same connection that ends its wait or waits itself:
// Await, AwaitOrPark, AwaitBusy, Peek, Close, CloseAfterReply, Park and Unpoll panic. Close, for
// example, would wait for the RawConn.Read that the step is in. A step may use the Await of
// another connection, and Write.
func (c *Conn) Await(step func() bool) error {
	c.forbidInStep("Await")
	if c.bare() {
		if done, err := c.awaitBare(step); done || err != nil {
			return c.readError(err)
		}
		c.poll()
	}
	c.quitLot()
	if c.raw == nil {
		c.awaitBlocking(step)
		return nil
	}
	return c.readError(c.awaitPolled(step))
}

// The reading side is outside Await, in a step, or in a wait between two steps:
//
//	          Await, AwaitOrPark, AwaitBusy
//	+---------+ ------------------------> +---------+
//	| outside |                           |  step   | Read returns ErrWouldBlock
//	+---------+ <------------------------ +---------+
//	     ^          it returns true         |     ^
//	     |                  it returns false|     | event, signalEnd, Linger, signalStir
//	     |                                  v     |
//	     |                                +---------+ bare: in the lot (sleep)
//	     +------------------------------- |  wait   | polled: in the poller (wait)
//	       deadline, signalCut,           +---------+
//	       signalInterrupt, ErrQuiet
//
// A connection without a descriptor has no wait: its steps wait in Read.

// stepKind says whether a step of Await runs, and of which kind it is.
type stepKind uint8

const (
	noStep          stepKind = iota // no step runs: Read waits
	stepNonBlocking                 // Read returns ErrWouldBlock instead of waiting
	stepBlocking                    // the connection has no descriptor: Read waits
)

// stepEnded is deferred for each step. After a panic in a step the owner can still close the
// connection.
func (c *Conn) stepEnded() { c.in.running = noStep }

// forbidInStep panics if a step of Await runs.
func (c *Conn) forbidInStep(method string) {
	if c.in.running != noStep {
		misused(method)
	}
}

// misused is a function of its own because its frame is large, and that of Await is small.
//
//go:noinline
func misused(method string) {
	panic("conn: a step of Await called " + method + " of the same connection")
}

// goal says which silence ends a wait.
type goal uint8

const (
	goalStep  goal = iota // Await: none
	goalQuiet             // AwaitBusy: Linger without bytes
	goalPark              // AwaitOrPark: Linger without bytes, if mayPark then returns true
)

// AwaitOrPark is Await, but it ends with ErrQuiet if no bytes came for Linger and mayPark
// then returns true: the connection may be parked. If mayPark returns false, AwaitOrPark
// asks again after the next bytes, or after Stir.
func (c *Conn) AwaitOrPark(step, mayPark func() bool) error {
	if !c.CanPark() {
		return c.Await(step)
	}
	c.in.goal, c.in.mayPark = goalPark, mayPark
	err := c.Await(step)
	c.in.goal, c.in.mayPark = goalStep, nil
	c.endStirring()
	return err
}

// endStirring ends the time in which Stir has an effect.
func (c *Conn) endStirring() {
	if !c.parkDenied.Load() && !c.has(signalStir) {
		return
	}
	c.mu.Lock() // a Stir that has begun may still change the signal and the poller's deadline
	defer c.mu.Unlock()
	c.parkDenied.Store(false)
	if c.lower(signalStir) {
		c.disarmed()
	}
}

// mayEnd reports whether a wait ends because no bytes came for Linger.
func (c *Conn) mayEnd() bool {
	switch {
	case c.in.reads != c.in.readsAtArm: // bytes came
		return false
	case c.in.goal == goalPark:
		c.parkDenied.Store(true) // before mayPark: a caller that changes the answer later then stirs this wait
		return c.in.mayPark()
	}
	return c.in.goal == goalQuiet
}

// awaitPolled is Await in the poller.
func (c *Conn) awaitPolled(step func() bool) error {
	c.in.unread, c.in.step = leftUnknown, step
	if c.in.onReady == nil {
		c.in.onReady = c.ready // once: a method value is an allocation
	}
	c.rearm(time.Time{})
	err := c.wait()
	c.in.step = nil // step holds memory of this owner: release it
	return err
}

func (c *Conn) wait() error {
	for {
		err := c.raw.Read(c.in.onReady)
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if c.has(signalInterrupt) && !c.WasCut() {
			return ErrInterrupted
		}
		now := time.Now()
		if c.WasCut() || !c.in.want.IsZero() && !now.Before(c.in.want) {
			return err
		}
		if c.lower(signalEnd) {
			c.in.knowsEnd = true // the next read returns the end
			c.rearm(now)
			continue
		}
		c.lower(signalStir)
		if c.mayEnd() {
			c.disarmed()
			return ErrQuiet
		}
		c.rearm(now)
	}
}

// ready runs a step of Await, within RawConn.Read.
func (c *Conn) ready(fd uintptr) bool {
	if c.sharing == alone { // else: fd is known, and another goroutine writes to it
		c.fd = int(fd)
	}
	c.in.running = stepNonBlocking
	defer c.stepEnded()
	done := c.in.step()
	c.in.unread = leftUnknown // the next call means that the poller has news
	if c.in.reads != c.in.readsAtArm && c.parkDenied.Load() {
		c.parkDenied.Store(false)
	}
	if !done && !c.in.soon && c.in.reads != c.in.readsAtArm {
		c.rearm(time.Now()) // the wait continues, and the end may already be there
	}
	return done
}

// awaitBare is Await for a bare connection. It waits once, in the lot: that is enough for
// a client that sends one request.
func (c *Conn) awaitBare(step func() bool) (done bool, err error) {
	defer c.stepEnded() // here, because stepBare is inlined without it: that saves stack
	for waits := 0; ; waits++ {
		done := c.stepBare(step)
		if done || waits > 0 || c.lot() == nil {
			return done, nil
		}
		if err := c.sleep(); err != nil {
			return false, err
		}
	}
}

func (c *Conn) stepBare(step func() bool) (done bool) {
	c.in.running, c.in.unread = stepNonBlocking, leftUnknown
	done = step()
	c.in.running = noStep
	return done
}

// awaitBlocking is Await for a connection without a descriptor. Its reads wait.
func (c *Conn) awaitBlocking(step func() bool) {
	c.in.running = stepBlocking
	defer c.stepEnded()
	for !step() {
	}
}

// rearm sets the poller's deadline to the read deadline. While bytes arrive, it sets a
// deadline at most Linger from now. If now is zero, rearm reads the clock only when it
// needs the time.
func (c *Conn) rearm(now time.Time) {
	if now.IsZero() {
		early := !c.in.armed.IsZero() && (c.in.want.IsZero() || !c.in.want.Before(c.in.armed))
		if early && (c.in.soon || c.in.goal != goalPark && c.in.reads == c.in.readsAtArm) {
			return
		}
		now = time.Now()
		c.in.readsAtArm = c.in.reads - 1
	}
	at := c.in.want
	if busy := c.in.reads != c.in.readsAtArm; busy {
		if soon := now.Add(Linger); at.IsZero() || soon.Before(at) {
			at = soon
		}
	}
	c.in.readsAtArm = c.in.reads
	c.arm(at)
	c.in.soon = !at.IsZero() && at.Sub(now) <= Linger
}

func (c *Conn) arm(at time.Time) {
	if c.bare() {
		return
	}
	c.in.armed, c.in.soon = at, false
	c.sock.SetReadDeadline(at)
	if c.signals.Load() != 0 {
		c.sock.SetReadDeadline(longAgo)
	}
}

// disarmed notes that the deadline of the poller has passed, so that the next wait sets it.
func (c *Conn) disarmed() { c.in.armed, c.in.soon = time.Time{}, false }
