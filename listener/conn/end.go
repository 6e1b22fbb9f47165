package conn

import (
	"os"
	"syscall"
	"time"
)

// CloseWrite ends the sending direction and leaves the other open.
func (c *Conn) CloseWrite() error {
	c.shut.Store(true)
	if c.polled.Load() {
		if h, ok := c.sock.(interface{ CloseWrite() error }); ok {
			return h.CloseWrite()
		}
	}
	var err error
	c.Control(func(fd uintptr) { err = os.NewSyscallError("shutdown", syscall.Shutdown(int(fd), syscall.SHUT_WR)) })
	return err
}

// Close closes the socket. Only the owner calls it; calling it again does nothing.
func (c *Conn) Close() error {
	if c.closed {
		return nil
	}
	c.closed = true
	var err error
	if c.polled.Load() {
		err = c.sock.Close()
	} else {
		err = closeFD(c.fd)
		c.fd = -1
	}
	if c.OnClose != nil {
		c.OnClose()
	}
	return err
}

// CloseAfterReply closes a connection whose client may still be sending: it
// ends the sending direction and reads away what comes for at most d, or else
// the kernel would answer with a reset, which can destroy the reply before the
// client read it (RFC 9112, section 9.6). How much comes does not matter, but
// it is read no faster than discardRate: a client that never stops costs little.
func (c *Conn) CloseAfterReply(d time.Duration) error {
	if c.CloseWrite() == nil {
		c.discard(d)
	}
	return c.Close()
}

// discardRate is how many bytes a second of a client that got its answer are read away.
const discardRate = 64 << 20

// discard reads and forgets until the stream ends, c is cut, or d has passed. It
// has a buffer only while there is something to read: many may end at a time.
func (c *Conn) discard(d time.Duration) {
	begun := time.Now()
	c.SetReadDeadline(begun.Add(d))
	total, ahead := 0, time.Duration(0) // of the rate
	var err error
	step := func() bool {
		buf := GetBuffer()
		defer PutBuffer(buf)
		var n int
		for ahead = 0; err == nil && ahead < nap; {
			n, err = c.Read(buf[:])
			total += n
			took := time.Since(begun)
			if ahead = time.Duration(float64(total)/discardRate*float64(time.Second)) - took; took >= d { // a read that need not wait looks at no deadline
				return true
			}
		}
		if err == ErrWouldBlock {
			err = nil
			return false
		}
		return true
	}
	for err == nil && c.Await(step) == nil && time.Since(begun) < d {
		time.Sleep(max(0, min(ahead, d-time.Since(begun), 10*nap)))
	}
}

// nap is by how much a client has to be ahead of discardRate to be slowed down.
const nap = 10 * time.Millisecond

// Abort makes the coming Close send a reset, so that the other end cannot take
// a cut stream for a whole one.
func (c *Conn) Abort() {
	if c.tcp {
		c.Control(func(fd uintptr) {
			syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
		})
	}
}

// Cut ends every wait of the connection, and of the one linked to it, with
// ErrCut. Anyone may call it; the owner notices and closes.
func (c *Conn) Cut() {
	c.cut.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock() // after Link(nil) the other may be somebody else's
	if c.polled.Load() {
		c.sock.SetDeadline(longAgo)
	}
	c.unpark()
	if c.link != nil && !c.link.WasCut() {
		c.link.Cut()
	}
}

// WasCut reports whether Cut was called.
func (c *Conn) WasCut() bool { return c.cut.Load() }

// Linked is what a connection's Cut can end as well: another connection, or a
// part of one.
type Linked interface {
	Cut()
	WasCut() bool
}

// Link makes Cut end the waits of other as well; nil undoes it. The owner of both calls it.
func (c *Conn) Link(other Linked) {
	c.mu.Lock()
	c.link = other
	c.mu.Unlock()
	if other != nil && c.cut.Load() {
		other.Cut()
	}
}
