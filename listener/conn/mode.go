package conn

import "os"

// mode says which part of the process waits for a connection.
//
//	accept                                New
//	   |                                   |
//	   v        join (JoinPoller)          v
//	+------+ -------------------------> +--------+
//	| bare |                            | polled |
//	+------+ <------------------------- +--------+
//	   |  ^            Unpoll              |  ^
//	   |  |                                |  |
//	   |  | Wake, Unpark                   |  | Wake, Unpark
//	   v  | Park                           v  | Park
//	bare, parked                       polled, parked
//
// Parked is no mode: a connection of either mode can be parked, and keeps its mode. One that
// is parked for long is bare, because Unpoll frees the memory of a polled one. In a tunnel, one
// direction may be parked while the other waits in the poller to write. The lot decides
// whether a connection is parked, because it may wake the connection at any time.
//
// A connection without a descriptor (net.Pipe in tests) is always polled, and never parked.
//
// Close ends a connection of either mode. Unpoll requires that no goroutine reads, writes or
// waits. Both goroutines of a duplex connection may call join, even at the same time, and
// while the reading side is parked. Cut, Interrupt and Stir may come at any time. So mode is
// atomic, and join and Unpoll change it together with sock while they hold mu.
type mode uint32

const (
	// modeBare: the connection consists of fd alone; sock and raw are nil. It has not had to
	// wait in the runtime's poller since accept, or since Unpoll. It waits in the lot.
	modeBare mode = iota
	// modePolled: sock and raw are the socket in the runtime's poller. fd is valid in a step
	// of Await, and while a second goroutine writes.
	modePolled
)

// enter makes m the mode. Only New, join and Unpoll call it.
func (c *Conn) enter(m mode) { c.mode.Store(uint32(m)) }

func (c *Conn) bare() bool { return mode(c.mode.Load()) == modeBare }

// Polled reports whether the runtime's poller knows the connection. Otherwise it is bare.
func (c *Conn) Polled() bool { return mode(c.mode.Load()) == modePolled }

// JoinPoller registers the connection with the runtime's poller. The owner calls it
// before a second goroutine begins to write or read, because either goroutine might be
// the first that has to wait.
func (c *Conn) JoinPoller() { c.poll() }

// poll registers a bare connection with the runtime's poller, before its owner has to
// wait there for the first time.
func (c *Conn) poll() {
	if c.Polled() {
		return
	}
	c.quitLot()
	c.join()
	if !c.in.want.IsZero() {
		c.arm(c.in.want)
	}
}

// join makes a bare connection polled. Either side of a duplex connection may call it.
func (c *Conn) join() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Polled() {
		return
	}
	if c.system != nil {
		c.sock, c.raw = c.system.join(c.fd)
	} else {
		f := os.NewFile(uintptr(c.fd), "socket")
		c.sock = f
		c.raw, _ = f.SyscallConn()
	}
	c.enter(modePolled)
	switch { // Cut and Interrupt could not set a deadline before sock existed
	case c.WasCut():
		c.sock.SetDeadline(longAgo)
	case c.has(signalInterrupt):
		c.sock.SetReadDeadline(longAgo)
	}
}

// Unpoll makes a polled connection bare. It frees the state that the runtime keeps for the
// connection, which needs as much memory as all the rest of a parked connection. The
// descriptor gets another number. Only the owner may call Unpoll, while no goroutine reads,
// writes or waits. If Unpoll cannot get a descriptor, it changes nothing.
func (c *Conn) Unpoll() {
	c.forbidInStep("Unpoll")
	if c.bare() || c.raw == nil {
		return
	}
	fd := -1
	c.raw.Control(func(old uintptr) {
		if fd = c.duplicate(int(old)); fd >= 0 && c.inLot {
			c.lot().Forget(int(old)) // closing old does not end its entry in the lot, because the socket stays open
		}
	})
	if fd < 0 {
		return
	}
	c.mu.Lock()
	sock := c.sock
	c.sock, c.raw, c.fd = nil, nil, fd
	c.enter(modeBare)
	c.mu.Unlock()
	sock.Close()
	c.inLot = false
	c.disarmed()
	c.in.onReady, c.in.receiver, c.out.sender = nil, nil, nil
}

// sharing says how many goroutines use a connection, and what limits a Write that waits.
//
//	alone  -> duplex  SetDuplex(true)
//	alone  -> split   Split
//	either -> alone   SetDuplex(false)
type sharing uint8

const (
	alone  sharing = iota // one goroutine reads and writes; WriteTimeout limits a Write
	duplex                // a second goroutine writes; only Cut limits a Write
	split                 // a second goroutine writes; WriteTimeout limits a Write
)
