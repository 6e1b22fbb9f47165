package conn

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/weirproxy/weir/listener/park"
)

// Lot is where connections of the process wait that are bare or parked; nil
// where the system has no such place, and all wait in the runtime's poller.
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

// sleep waits in the lot until something is there to read. The goroutine stays,
// for as long as Linger at least.
func (c *Conn) sleep() error {
	s := sleepers.Get().(sleeper)
	defer sleepers.Put(s)
	until := c.readWant
	if c.mayRest != nil {
		if soon := time.Now().Add(Linger); until.IsZero() || soon.Before(until) {
			until = soon
		}
	}
	if !c.parkFD(s, until) {
		return nil // the poller can do it, too
	}
	why := <-s
	switch {
	case c.cut.Load():
		return ErrCut
	case why == park.Late && !until.Equal(c.readWant) && (c.readWant.IsZero() || time.Now().Before(c.readWant)):
		if c.mayRest() {
			return ErrQuiet
		}
		return nil // the poller is the better place for a longer wait
	case why == park.Late, !c.readWant.IsZero() && !time.Now().Before(c.readWant):
		return os.ErrDeadlineExceeded // also for bytes that came before the lot noticed: late is late
	}
	return nil
}

// Park lets go of the caller's goroutine: w.Wake is called, once, when something
// is there to read, an end or an error, at the deadline (zero: none), or when
// somebody calls Cut. From then on the connection is w's, until Park returned
// too: the caller touches it no more. Where Park returns false nothing has
// happened, and the connection has to be awaited.
//
// What the wait is for is asked of the kernel anew: nothing that came before is
// missed, not even an end of stream behind bytes that were read. What was
// peeked at, or lies in a tls.Conn, it does not know of.
func (c *Conn) Park(w park.Waiter, deadline time.Time) bool {
	if !c.CanPark() {
		return false
	}
	if c.polled.Load() && !c.duplex {
		if c.Control(func(fd uintptr) { c.fd = int(fd) }) != nil {
			return false
		}
	}
	return c.parkFD(w, deadline)
}

// Woken is how a wait ended that Wake was told of: nil where there may be
// something to read, or Interrupt was called, else as Await returns it. What came
// before the lot was told of it is no reason to end: a connection that is closed
// over unread bytes is reset, and they may be a request.
func (c *Conn) Woken(why park.Reason) error {
	switch {
	case c.cut.Load():
		return ErrCut
	case why == park.Late && !c.hasUnread():
		return os.ErrDeadlineExceeded
	}
	return nil
}

// hasUnread reports whether the socket has received bytes that were not read.
func (c *Conn) hasUnread() (yes bool) {
	c.Control(func(fd uintptr) {
		var b [1]byte
		n, _, _ := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		yes = n > 0
	})
	return yes
}

// CanPark reports whether Park can work for the connection: it has a descriptor, and the system a lot.
func (c *Conn) CanPark() bool {
	return lot() != nil && (!c.polled.Load() || c.raw != nil)
}

// parkFD is Park for a connection whose fd is known.
func (c *Conn) parkFD(w park.Waiter, deadline time.Time) bool {
	again := c.inLot
	c.inLot = true
	if err := lot().Park(c.fd, again, w, deadline, &c.parked); err != nil {
		c.inLot = again
		return false
	}
	if c.cut.Load() || c.interrupted.Load() { // and it came too early to see the token
		c.unpark()
	}
	return true
}

// unpark ends the wait in the lot. Anyone may call it.
func (c *Conn) unpark() {
	if t := c.parked.Load(); t != 0 {
		lot().End(park.Token(t))
	}
}

// Parked reports whether the connection is parked now: it waits, and no goroutine
// for it. Anyone may call it.
func (c *Conn) Parked() bool {
	t := c.parked.Load()
	if t == 0 {
		return false
	}
	w := lot().Waiter(park.Token(t))
	_, asleep := w.(sleeper)
	return w != nil && !asleep
}

// Unpark takes the connection back from its Waiter, and returns true. Where it
// returns false the wait has ended already, and it is the Waiter's.
func (c *Conn) Unpark() bool {
	t := c.parked.Load()
	return t != 0 && lot().Cancel(park.Token(t))
}

// poll makes a bare connection known to the runtime's poller, before its owner
// has to wait there for the first time.
func (c *Conn) poll() {
	if c.polled.Load() {
		return
	}
	c.leaveLot()
	c.join()
	if !c.readWant.IsZero() {
		c.arm(c.readWant)
	}
}

// leaveLot takes a connection out of the set that is going to wait in the
// poller: two that look after a socket cost more than one.
func (c *Conn) leaveLot() {
	if c.inLot {
		c.inLot = false
		lot().Forget(c.fd)
	}
}

// join is poll for either side of a duplex connection.
func (c *Conn) join() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.polled.Load() {
		return
	}
	f := os.NewFile(uintptr(c.fd), "socket")
	c.sock = f
	c.raw, _ = f.SyscallConn()
	c.polled.Store(true)
	switch { // who asked before there was a sock relies on us
	case c.cut.Load():
		f.SetDeadline(longAgo)
	case c.interrupted.Load():
		f.SetReadDeadline(longAgo)
	}
}

// Polled reports whether the runtime's poller knows the connection.
func (c *Conn) Polled() bool { return c.polled.Load() }

// Shed makes a connection bare again: what the runtime keeps for it is as much
// as a parked connection's whole state. Its descriptor gets another number. Only
// the owner may call it, while nobody reads, writes or waits. Where that cannot
// be done, as descriptors are short, all stays as it was.
func (c *Conn) Shed() {
	if !c.polled.Load() || c.raw == nil {
		return
	}
	fd := -1
	c.raw.Control(func(old uintptr) {
		if fd = duplicate(int(old)); fd >= 0 && c.inLot {
			lot().Forget(int(old)) // closing it would not: the socket lives on
		}
	})
	if fd < 0 {
		return
	}
	c.mu.Lock()
	sock := c.sock
	c.sock, c.raw, c.fd = nil, nil, fd
	c.polled.Store(false)
	c.mu.Unlock()
	sock.Close()
	c.inLot, c.readArmed, c.soon = false, time.Time{}, false
	c.onReady, c.receiver, c.sender = nil, nil, nil
}

// ErrQuiet is what AwaitOrRest and AwaitBusy return where nothing came for a while.
var ErrQuiet = errors.New("the connection is quiet")

// AwaitBusy is Await that ends with ErrQuiet as soon as the connection may as
// well be parked: if it is bare, as soon as nothing is there, unless it had to
// wait often of late; else after Linger without bytes. It is for duplex
// connections without a read deadline that Park works for.
func (c *Conn) AwaitBusy(step func() bool) error {
	if !c.polled.Load() {
		switch {
		case c.cut.Load():
			return ErrCut
		case c.stepBare(step):
			return nil
		case !c.restless():
			return ErrQuiet
		}
	}
	c.join()
	c.watchEnd()
	c.quiet = true
	err := c.awaitPolled(step)
	c.quiet = false
	c.unwatch()
	return c.readError(err)
}

// watchEnd makes the lot tell when the stream has come to its end, while the
// connection waits in the poller. The poller reports an end that comes along
// with the last bytes together with them, and so a read that took all bytes
// would have to ask again each time. This way it costs nothing until the end.
func (c *Conn) watchEnd() {
	again := c.inLot
	c.inLot, c.watched = true, true
	if lot().Watch(c.fd, again, (*ending)(c), &c.watch) != nil {
		c.inLot, c.watched = again, false // the receiver asks, then
	}
}

func (c *Conn) unwatch() {
	if c.watched {
		c.watched = false
		lot().Cancel(park.Token(c.watch.Load()))
	}
}

// ending is a Conn whose end is watched for.
type ending Conn

// Wake makes the wait of the reader look again.
func (e *ending) Wake(why park.Reason) {
	if why != park.Ready {
		return
	}
	c := (*Conn)(e)
	c.ended.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.polled.Load() {
		c.sock.SetReadDeadline(longAgo)
	}
}

// endNews says that the stream has come to its end and the reader was not told.
func (c *Conn) endNews() bool { return c.ended.Load() && !c.endSeen }

// calmWaits is how often within Linger a connection waits in the lot. One
// that goes on is better off in the poller: there a wait needs neither a system
// call nor a new goroutine, but joining it costs as much as several of those.
const calmWaits = 4

// restless counts a wait of a bare connection, and says whether they are too many.
func (c *Conn) restless() bool {
	now := time.Since(c.Accepted)
	if now-c.calm > Linger {
		c.calm, c.waits = now, 0
	}
	c.waits++
	return c.waits > calmWaits
}
