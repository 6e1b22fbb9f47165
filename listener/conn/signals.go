package conn

import "time"

// signal is a message of another goroutine to the reading side of a connection. The goroutine sets the signal
// first, and then ends the wait of the reading side, so that the reading side sees the signal. Signals are
// bits of one word, which a wait reads as a whole before it begins (see arm).
//
//	signal           set by      what the wait does            cleared by
//	signalCut        Cut         ends with ErrCut              never
//	signalInterrupt  Interrupt   ends with ErrInterrupted      Resume
//	signalStir       Stir        asks mayPark again            the wait, before it asks
//	signalEnd        ending.Wake runs the step, which reads    the wait, before the step;
//	                             the end of the stream         share
type signal uint32

const (
	signalCut       signal = 1 << iota // weir aborts the connection
	signalInterrupt                    // another goroutine takes over the reading side
	signalStir                         // the answer of mayPark may have changed
	signalEnd                          // the lot has reported the end of the stream
)

// has reports whether s is set.
func (c *Conn) has(s signal) bool { return signal(c.signals.Load())&s != 0 }

// lower clears s, and reports whether it was set.
func (c *Conn) lower(s signal) bool {
	return c.has(s) && signal(c.signals.And(uint32(^s)))&s != 0
}

// raise sets s, and ends a wait of the reading side in the poller. The caller holds mu,
// because otherwise a Unpoll could take the socket away.
func (c *Conn) raise(s signal) {
	c.signals.Or(uint32(s))
	if c.Polled() {
		c.sock.SetReadDeadline(longAgo)
	}
}

var longAgo = time.Unix(1, 0)

// Interrupt ends the Read or Await of another goroutine with ErrInterrupted. Later calls
// return ErrInterrupted too, until Resume. The caller uses it to take over the reading
// side. If the connection is parked, Interrupt wakes its Waiter.
func (c *Conn) Interrupt() {
	c.mu.Lock()
	c.raise(signalInterrupt)
	c.mu.Unlock()
	c.unpark()
}

// Resume undoes Interrupt. After it the reading side has one owner again.
func (c *Conn) Resume() {
	c.lower(signalInterrupt)
	c.arm(c.in.want)
}

// Stir makes a running AwaitOrPark call mayPark again if mayPark has returned false. Any
// goroutine may call it.
func (c *Conn) Stir() {
	if !c.parkDenied.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parkDenied.Swap(false) {
		c.raise(signalStir)
	}
}

// ParkDenied reports whether mayPark has returned false to a running AwaitOrPark, which now
// waits for bytes or Stir.
func (c *Conn) ParkDenied() bool { return c.parkDenied.Load() }

// Cut ends every wait of the connection with ErrCut. It also cuts the object of CutAlso. Any
// goroutine may call it. The owner notices the cut and closes the connection.
func (c *Conn) Cut() {
	c.signals.Or(uint32(signalCut))
	c.mu.Lock()
	defer c.mu.Unlock() // held for Cut of cutAlso: after CutAlso(nil) the other may have a new owner
	if c.Polled() {
		c.sock.SetDeadline(longAgo) // the wait of the writing side ends as well
	}
	c.unpark()
	if c.cutAlso != nil && !c.cutAlso.WasCut() {
		c.cutAlso.Cut()
	}
}

// WasCut reports whether Cut was called.
func (c *Conn) WasCut() bool { return c.has(signalCut) }

// Cuttable is an object that Cut of a connection also ends: another connection, or a part
// of one.
type Cuttable interface {
	Cut()
	WasCut() bool
}

// CutAlso makes Cut also end the waits of other; nil undoes it. The owner of both
// connections calls it.
func (c *Conn) CutAlso(other Cuttable) {
	c.mu.Lock()
	c.cutAlso = other
	c.mu.Unlock()
	if other != nil && c.WasCut() {
		other.Cut()
	}
}
