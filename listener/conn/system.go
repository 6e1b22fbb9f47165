package conn

import (
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirproxy/weir/listener/park"
)

// system is what a connection needs of the kernel and of the runtime. A Conn without a system
// uses the real ones: its reads and writes are system calls, with no interface between. Tests
// play a system, so that testing/synctest runs the real state machine (played_test.go).
type system interface {
	// read and write are one call on a descriptor that does not block (see readFD).
	read(fd int, p []byte) (int, error)
	write(fd int, p []byte) (int, error)
	close(fd int) error
	duplicate(fd int) int
	hasUnread(fd int) bool
	// join registers fd with the poller, which owns it from then on.
	join(fd int) (socket, syscall.RawConn)
	// lot is the lot of these descriptors.
	lot() waits
}

// waits is the lot as a connection uses it. A *park.Set implements it.
type waits interface {
	Park(fd int, again bool, w park.Waiter, deadline time.Time, at *atomic.Uint64) error
	Watch(fd int, again bool, w park.Waiter, at *atomic.Uint64) error
	Waiter(t park.Token) park.Waiter
	End(t park.Token)
	Expire(t park.Token) bool
	Cancel(t park.Token) bool
	Forget(fd int)
}

// lot returns the lot in which c waits; nil: the system has none.
func (c *Conn) lot() waits {
	if c.system != nil {
		return c.system.lot()
	}
	if s := lot(); s != nil {
		return s
	}
	return nil
}

// closeFD and duplicate are one call on a descriptor, in the real system or in a played one.
// Reads and writes choose between the two where they are made, which saves a call.

func (c *Conn) closeFD() error {
	if c.system != nil {
		return c.system.close(c.fd)
	}
	return closeFD(c.fd)
}

func (c *Conn) duplicate(fd int) int {
	if c.system != nil {
		return c.system.duplicate(fd)
	}
	return duplicate(fd)
}
