package conn

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/weirproxy/weir/listener/park"
)

// Lot returns the set in which bare and parked connections of the process wait. It is nil
// if the system has no such set; all connections then wait in the runtime's poller.
func Lot() *park.Set { return lot() }

var lot = sync.OnceValue(func() *park.Set {
	s, err := park.New()
	if err != nil {
		return nil
	}
	return s
})

// sleeper is a goroutine that waits in the lot.
type sleeper chan park.Reason

func (s sleeper) Wake(why park.Reason) { s <- why }

var sleepers = sync.Pool{New: func() any { return make(sleeper, 1) }}

// takeSleeper takes a sleeper from the pool. The channels of a played system belong to one
// test, and do not come from there.
func (c *Conn) takeSleeper() sleeper {
	if c.system != nil {
		return make(sleeper, 1)
	}
	return sleepers.Get().(sleeper)
}

func (c *Conn) giveSleeper(s sleeper) {
	if c.system == nil {
		sleepers.Put(s)
	}
}

// sleep waits in the lot until there is something to read, or until the read deadline.
// The goroutine stays. With mayPark, sleep waits at most for Linger.
func (c *Conn) sleep() error {
	s := c.takeSleeper()
	defer c.giveSleeper(s)
	until := c.in.want
	if c.in.goal == goalPark {
		if soon := time.Now().Add(Linger); until.IsZero() || soon.Before(until) {
			until = soon
		}
	}
	if !c.parkFD(s, until) {
		return nil // the poller can wait, too
	}
	why := <-s
	switch {
	case c.WasCut():
		return ErrCut
	case why == park.Late && !until.Equal(c.in.want) && (c.in.want.IsZero() || time.Now().Before(c.in.want)):
		if c.in.mayPark() {
			return ErrQuiet
		}
		return nil // the poller is better for a longer wait
	case why == park.Late, !c.in.want.IsZero() && !time.Now().Before(c.in.want):
		return os.ErrDeadlineExceeded // even if bytes came before the lot noticed the deadline
	}
	return nil
}

// Park releases the caller's goroutine. The lot calls w.Wake once: when there is
// something to read, an end of stream or an error, at the deadline (zero: none), or when
// a goroutine calls Cut or Interrupt. After Park, the waiter owns the connection, even if
// Wake runs before Park returns: the caller must not touch the connection any more. If
// Park returns false, nothing has happened, and the caller has to use Await.
//
// Park asks the kernel again for the events of the wait. It misses no earlier event, not
// even an end of stream behind bytes that were read. It does not know of bytes that were
// peeked or that a tls.Conn holds.
func (c *Conn) Park(w park.Waiter, deadline time.Time) bool {
	c.forbidInStep("Park")
	if !c.CanPark() {
		return false
	}
	if c.Polled() && c.sharing == alone {
		if c.Control(func(fd uintptr) { c.fd = int(fd) }) != nil {
			return false
		}
	}
	return c.parkFD(w, deadline)
}

// Woken returns how the wait ended that Wake reported. It returns nil if there may be
// something to read, or after Interrupt, else the error that Await would return. If bytes
// came before the lot noticed the deadline, the wait has not failed: they may be a
// request, and the kernel resets a connection that weir closes while bytes are unread.
func (c *Conn) Woken(why park.Reason) error {
	switch {
	case c.WasCut():
		return ErrCut
	case why == park.Late && !c.hasUnread():
		return os.ErrDeadlineExceeded
	}
	return nil
}

// hasUnread reports whether the socket has received bytes that were not read.
func (c *Conn) hasUnread() (yes bool) {
	if c.system != nil {
		return c.system.hasUnread(c.fd)
	}
	c.Control(func(fd uintptr) {
		var b [1]byte
		n, _, _ := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		yes = n > 0
	})
	return yes
}

// CanPark reports whether Park can work: the connection has a descriptor, and the system
// has a lot.
func (c *Conn) CanPark() bool {
	return c.lot() != nil && (c.bare() || c.raw != nil)
}

// parkFD is Park for a connection whose fd is known.
func (c *Conn) parkFD(w park.Waiter, deadline time.Time) bool {
	again := c.inLot
	c.inLot = true
	if err := c.lot().Park(c.fd, again, w, deadline, &c.parked); err != nil {
		c.inLot = again
		return false
	}
	if c.WasCut() || c.has(signalInterrupt) { // Cut or Interrupt came before the token was stored
		c.unpark()
	}
	return true
}

// unpark ends the wait in the lot. Any goroutine may call it.
func (c *Conn) unpark() {
	if t := c.parked.Load(); t != 0 {
		c.lot().End(park.Token(t))
	}
}

// Parked reports whether the connection is parked now: it waits, and no goroutine waits
// for it. Any goroutine may call it.
func (c *Conn) Parked() bool {
	t := c.parked.Load()
	if t == 0 {
		return false
	}
	w := c.lot().Waiter(park.Token(t))
	_, asleep := w.(sleeper)
	return w != nil && !asleep
}

// Unpark takes the connection back from its Waiter, and returns true. If it returns
// false, the wait has already ended, and the Waiter owns the connection.
func (c *Conn) Unpark() bool {
	t := c.parked.Load()
	return t != 0 && c.lot().Cancel(park.Token(t))
}

// quitLot removes a connection from the lot before it waits in the poller: a socket in
// both sets costs more than in one.
func (c *Conn) quitLot() {
	if c.inLot {
		c.inLot = false
		c.lot().Forget(c.fd)
	}
}

// ErrQuiet is the error of AwaitOrPark and AwaitBusy if no bytes came for a while.
var ErrQuiet = errors.New("the connection is quiet")

// AwaitBusy is Await, but it ends with ErrQuiet as soon as the connection may be parked.
// A bare connection may be parked as soon as no bytes are there, unless it had to wait
// often in the last second (Linger). Other connections may be parked after Linger without
// bytes. AwaitBusy is for duplex connections without a read deadline, if CanPark is true.
func (c *Conn) AwaitBusy(step func() bool) error {
	c.forbidInStep("AwaitBusy")
	defer c.stepEnded()
	if c.bare() {
		switch {
		case c.WasCut():
			return ErrCut
		case c.stepBare(step):
			return nil
		case !c.busy():
			return ErrQuiet
		}
	}
	c.join()
	c.watchEnd()
	c.in.goal = goalQuiet
	err := c.awaitPolled(step)
	c.in.goal = goalStep
	c.unwatch()
	return c.readError(err)
}

// watchEnd makes the lot report the end of the stream while the connection waits in the
// poller. If the end arrives with the last bytes, the poller reports both as one event. A
// read that took all bytes would then have to ask the kernel again each time. The watch
// costs nothing until the end.
func (c *Conn) watchEnd() {
	again := c.inLot
	c.inLot, c.in.watched = true, true
	if c.lot().Watch(c.fd, again, (*ending)(c), &c.watch) != nil {
		c.inLot, c.in.watched = again, false // then the receiver asks the kernel
	}
}

func (c *Conn) unwatch() {
	if c.in.watched {
		c.in.watched = false
		c.lot().Cancel(park.Token(c.watch.Load()))
	}
}

// ending is a Conn whose end the lot watches for.
type ending Conn

// Wake makes the reader check its wait again.
func (e *ending) Wake(why park.Reason) {
	if why != park.Ready {
		return
	}
	c := (*Conn)(e)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raise(signalEnd)
}

// calmWaits is how often within Linger a connection waits in the lot. A busier connection
// costs less in the poller, where a wait needs no system call and no new goroutine. But
// joining the poller costs as much as several waits in the lot.
const calmWaits = 4

// busy counts a wait of a bare connection, and reports whether there are too many.
func (c *Conn) busy() bool {
	now := time.Since(c.Accepted)
	if now-c.in.calm > Linger {
		c.in.calm, c.in.waits = now, 0
	}
	c.in.waits++
	return c.in.waits > calmWaits
}
