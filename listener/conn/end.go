package conn

import (
	"os"
	"syscall"
	"time"
)

// CloseWrite ends the sending direction. The receiving direction stays open.
func (c *Conn) CloseWrite() error {
	c.out.shut.Store(true)
	if c.Polled() {
		if h, ok := c.sock.(interface{ CloseWrite() error }); ok {
			return h.CloseWrite()
		}
	}
	var err error
	c.Control(func(fd uintptr) { err = os.NewSyscallError("shutdown", syscall.Shutdown(int(fd), syscall.SHUT_WR)) })
	return err
}

// Close closes the socket. Only the owner calls it. A second call does nothing. It panics in
// a step of Await.
func (c *Conn) Close() error {
	if c.closed {
		return nil
	}
	c.forbidInStep("Close")
	c.closed = true
	var err error
	if c.Polled() {
		err = c.sock.Close()
	} else {
		err = c.closeFD()
		c.fd = -1
	}
	if c.OnClose != nil {
		c.OnClose()
	}
	return err
}

// CloseAfterReply closes a connection whose client may still be sending. It ends the
// sending direction, and reads and discards bytes for at most d. Otherwise the kernel
// would answer these bytes with a reset, which can destroy the reply before the client
// reads it (RFC 9112, section 9.6). The number of bytes has no limit, but weir reads no
// faster than discardRate, so a client that never stops costs little.
func (c *Conn) CloseAfterReply(d time.Duration) error {
	c.forbidInStep("CloseAfterReply")
	if c.CloseWrite() == nil {
		c.discard(d)
	}
	return c.Close()
}

// discardRate is the limit in bytes per second for discarded bytes of one client.
const discardRate = 64 << 20

// discard reads and discards bytes until the stream ends, c is cut, or d has passed. It
// holds a buffer only while there is something to read, because many connections may end
// at the same time.
func (c *Conn) discard(d time.Duration) {
	begun := time.Now()
	c.SetReadDeadline(begun.Add(d))
	total, ahead := 0, time.Duration(0) // ahead of the rate
	var err error
	step := func() bool {
		buf := GetBuffer()
		defer PutBuffer(buf)
		var n int
		for ahead = 0; err == nil && ahead < nap; {
			n, err = c.Read(buf[:])
			total += n
			took := time.Since(begun)
			// Compare with d here: a read that need not wait checks no deadline.
			if ahead = time.Duration(float64(total)/discardRate*float64(time.Second)) - took; took >= d {
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

// nap is how far a client must be ahead of discardRate before weir slows it down.
const nap = 10 * time.Millisecond

// Abort makes the next Close send a reset, so that the other end cannot take an
// incomplete stream for a complete one.
func (c *Conn) Abort() {
	if c.tcp {
		c.Control(func(fd uintptr) {
			syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
		})
	}
}
