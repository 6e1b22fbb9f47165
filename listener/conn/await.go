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
// Await, AwaitOrRest, AwaitBusy, Peek, Close, CloseAfterReply, Park and Shed panic. Close, for
// example, would wait for the RawConn.Read that the step is in. A step may use the Await of
// another connection, and Write.
func (c *Conn) Await(step func() bool) error {
	c.forbidInStep("Await")
	if !c.polled.Load() {
		if done, err := c.awaitBare(step); done || err != nil {
			return c.readError(err)
		}
		c.poll()
	}
	c.leaveLot()
	if c.raw == nil {
		c.awaitBlocking(step)
		return nil
	}
	return c.readError(c.awaitPolled(step))
}

// stepKind says whether a step of Await runs, and of which kind it is.
type stepKind uint8

const (
	noStep          stepKind = iota // Read waits
	stepNonBlocking                 // Read returns ErrWouldBlock instead of waiting
	stepBlocking                    // the connection has no descriptor: Read waits
)

// stepEnded is deferred for each step. After a panic in a step the owner can still close the
// connection.
func (c *Conn) stepEnded() { c.running = noStep }

// forbidInStep panics if a step of Await runs.
func (c *Conn) forbidInStep(method string) {
	if c.running != noStep {
		misused(method)
	}
}

// misused is a function of its own because its frame is large, and that of Await is small.
//
//go:noinline
func misused(method string) {
	panic("conn: a step of Await called " + method + " of the same connection")
}

// AwaitOrRest is Await, but it ends with ErrQuiet if no bytes came for Linger and mayRest
// then returns true: the connection may be parked. If mayRest returns false, AwaitOrRest
// asks again after the next bytes, or after Stir.
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

// Lingers returns how often a wait in the poller has looked again although the poller had
// no news: after Linger, and after Stir. Only the owner calls it.
func (c *Conn) Lingers() int { return int(c.lingers) }

// settle resets the flags that a wait and Stir share.
func (c *Conn) settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settled.Store(false)
	if c.stirred.Swap(false) {
		c.readArmed, c.soon = time.Time{}, false // Stir has changed the deadline of the poller
	}
}

// Stir makes a running AwaitOrRest call mayRest again if mayRest has returned false. Any
// goroutine may call it.
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

// Settled reports whether mayRest has returned false to a running AwaitOrRest, which now
// waits for bytes or Stir.
func (c *Conn) Settled() bool { return c.settled.Load() }

// rests reports whether a wait ends because the connection is quiet and may rest.
func (c *Conn) rests() bool {
	if c.reads != c.readsAtArm {
		return false // bytes came
	}
	if c.mayRest == nil {
		return c.quiet
	}
	c.settled.Store(true) // before mayRest: a caller that changes the answer later then stirs this wait
	return c.mayRest()
}

// awaitPolled is Await in the poller.
func (c *Conn) awaitPolled(step func() bool) error {
	c.unread, c.step = leftUnknown, step
	if c.onReady == nil {
		c.onReady = c.ready // once: a method value is an allocation
	}
	c.rearm(time.Time{})
	err := c.wait()
	c.step = nil // step holds memory of this owner: release it
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
			c.endSeen = true // the next read returns the end
			c.rearm(now)
			continue
		}
		c.lingers++
		c.stirred.Store(false)
		if c.rests() {
			c.readArmed, c.soon = time.Time{}, false // it has passed; the next wait must arm a new one
			return ErrQuiet
		}
		c.rearm(now)
	}
}

// ready runs a step of Await, within RawConn.Read.
func (c *Conn) ready(fd uintptr) bool {
	if !c.duplex { // duplex: fd is known, and another goroutine writes to it
		c.fd = int(fd)
	}
	c.running = stepNonBlocking
	defer c.stepEnded()
	done := c.step()
	c.unread = leftUnknown // the next call means that the poller has news
	if c.reads != c.readsAtArm && c.settled.Load() {
		c.settled.Store(false)
	}
	if !done && !c.soon && c.reads != c.readsAtArm {
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
		if done || waits > 0 || lot() == nil {
			return done, nil
		}
		if err := c.sleep(); err != nil {
			return false, err
		}
	}
}

func (c *Conn) stepBare(step func() bool) (done bool) {
	c.running, c.unread = stepNonBlocking, leftUnknown
	done = step()
	c.running = noStep
	return done
}

// awaitBlocking is Await for a connection without a descriptor. Its reads wait.
func (c *Conn) awaitBlocking(step func() bool) {
	c.running = stepBlocking
	defer c.stepEnded()
	for !step() {
	}
}

// rearm sets the poller's deadline to the read deadline. While bytes arrive, it sets a
// deadline at most Linger from now. If now is zero, rearm reads the clock only when it
// needs the time.
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
