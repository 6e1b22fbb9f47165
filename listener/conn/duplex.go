package conn

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// SetDuplex(true) prepares the connection for a tunnel, where one goroutine reads within
// Await or AwaitBusy while another writes:
//
//   - Read finds an end of the stream that came with the last bytes without the delay of
//     one second: inside Await it asks the kernel until neither bytes nor the end are
//     left, or the lot reports the end.
//   - If the kernel reported a reset to the writing side first, the reading side sees
//     only an end of stream. Read returns it as a reset.
//   - Write waits until there is room or Cut is called. WriteTimeout and write deadlines
//     do not apply. The caller has to limit this wait by Cut.
//
// The owner calls SetDuplex(true) before the second goroutine starts, and
// SetDuplex(false) after it has ended. Reads outside Await work as before.
func (c *Conn) SetDuplex(on bool) {
	if !on {
		c.duplex, c.timed, c.receiver, c.sender = false, false, nil, nil
		return
	}
	c.share()
}

// Split prepares the connection for exchanges that run at the same time. It works like
// SetDuplex(true), but WriteTimeout applies: it starts again whenever the other end takes
// bytes.
func (c *Conn) Split() {
	c.timed = true
	c.poll()
	c.share()
}

func (c *Conn) share() {
	c.duplex = true
	c.shut.Store(false)
	c.ended.Store(false)
	c.endSeen = false
	if !c.polled.Load() {
		return // fd is known
	}
	if c.raw != nil {
		c.raw.Control(func(fd uintptr) { c.fd = int(fd) })
	}
	c.sock.SetWriteDeadline(time.Time{})
	if c.cut.Load() {
		c.sock.SetWriteDeadline(longAgo)
	}
}

// FD is the descriptor of a duplex connection, for system calls that read from it inside
// Await.
func (c *Conn) FD() int { return c.fd }

// AwaitWrite calls step with the descriptor, at once and then whenever there may be room
// to write, until step returns true or the wait ends with an error: ErrCut, or an error
// of the socket. It is for splice. The connection must be duplex and have a descriptor.
func (c *Conn) AwaitWrite(step func(fd uintptr) bool) error {
	if step(uintptr(c.fd)) {
		return nil
	}
	c.join()
	return c.readError(c.raw.Write(step))
}

// readDuplex is readNow for a duplex connection.
func (c *Conn) readDuplex(p []byte) (int, error) {
	if c.unread != leftUnknown {
		return 0, ErrWouldBlock
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, more, err := c.receive(p)
	switch {
	case n > 0:
		c.reads++
		c.BytesRead += int64(n)
		if !more { // if only a reset is left, the wait finds it after Linger
			c.unread = leftNoBytes
		}
		return n, nil
	case err == syscall.EAGAIN:
		c.unread = leftNothing
		return 0, ErrWouldBlock
	case err == nil && resetUnseen(c.fd) && !c.shut.Load():
		err = syscall.ECONNRESET
	}
	if err != nil {
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", err)}
	}
	c.sawEnd = true
	return 0, io.EOF
}

// receive reads once. more means that another read may return something at once. Not every
// connection needs another read to find the rest:
//   - A bare connection is parked next, and Park asks the kernel for unread bytes.
//   - The lot reports the end of a watched connection.
//   - The receiver of any other connection asks the kernel itself.
func (c *Conn) receive(p []byte) (n int, more bool, err error) {
	if c.watched || !c.polled.Load() {
		n, err = readFD(c.fd, p)
		return n, n == len(p) || c.ended.Load(), err
	}
	if c.receiver == nil {
		c.receiver = new(receiver)
	}
	return c.receiver.receive(c.fd, p)
}

// sender is the state of the writing side when it has to wait for room.
type sender struct {
	out  []byte // the bytes that the running Write has not yet written
	err  error
	step func(fd uintptr) bool // s.write, bound once
}

func (c *Conn) writeDuplex(p []byte) (int, error) {
	if c.polled.Load() && c.raw == nil {
		if c.timed {
			c.armWrite()
		}
		n, err := c.sock.Write(p)
		c.BytesWritten += int64(n)
		return n, c.readError(err)
	}
	n, err := writeAll(c.fd, p)
	if err == syscall.EAGAIN {
		c.BytesWritten += int64(n)
		rest, err := c.writeWaiting(p[n:])
		return n + rest, err
	}
	c.BytesWritten += int64(n)
	return n, c.writeError(err)
}

// writeWaiting writes when there is room.
func (c *Conn) writeWaiting(p []byte) (int, error) {
	c.join()
	s := c.sender
	if s == nil {
		s = new(sender)
		s.step = s.write
		c.sender = s
	}
	s.out, s.err = p, nil
	err := c.awaitRoom(s)
	n := len(p) - len(s.out)
	s.out = nil
	c.BytesWritten += int64(n)
	if err == nil {
		return n, c.writeError(s.err)
	}
	return n, c.readError(err)
}

// awaitRoom writes the remaining bytes when there is room.
func (c *Conn) awaitRoom(s *sender) error {
	if !c.timed {
		return c.raw.Write(s.step)
	}
	for {
		left := len(s.out)
		c.armWrite()
		err := c.raw.Write(s.step)
		if !errors.Is(err, os.ErrDeadlineExceeded) || len(s.out) == left || c.cut.Load() {
			return err
		}
	}
}

func (s *sender) write(fd uintptr) bool {
	n, err := writeAll(int(fd), s.out)
	s.out, s.err = s.out[n:], err
	return err != syscall.EAGAIN
}

func (c *Conn) writeError(err error) error {
	if err != nil {
		err = &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", err)}
	}
	return c.readError(err)
}

// writeAll writes all of p, or stops at an error, which may be EAGAIN.
func writeAll(fd int, p []byte) (n int, err error) {
	for n < len(p) {
		m, err := writeFD(fd, p[n:])
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}
