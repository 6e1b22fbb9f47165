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
		c.sharing, c.in.receiver, c.out.sender = alone, nil, nil
		return
	}
	c.share(duplex)
}

// Split prepares the connection for exchanges that run at the same time. It works like
// SetDuplex(true), but WriteTimeout applies: it starts again whenever the other end takes
// bytes.
func (c *Conn) Split() {
	c.poll()
	c.share(split)
}

// share begins the time in which a second goroutine writes.
func (c *Conn) share(how sharing) {
	c.sharing = how
	c.out.shut.Store(false)
	c.lower(signalEnd)
	c.in.knowsEnd = false
	if c.bare() {
		return // fd is known
	}
	if c.raw != nil {
		c.raw.Control(func(fd uintptr) { c.fd = int(fd) })
	}
	c.sock.SetWriteDeadline(time.Time{})
	if c.WasCut() {
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
	if c.in.unread != leftUnknown {
		return 0, ErrWouldBlock
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, more, err := c.receive(p)
	switch {
	case n > 0:
		c.in.reads++
		c.BytesRead += int64(n)
		if !more { // if only a reset is left, the wait finds it after Linger
			c.in.unread = leftNoBytes
		}
		return n, nil
	case err == syscall.EAGAIN:
		c.in.unread = leftNothing
		return 0, ErrWouldBlock
	case err == nil && resetUnseen(c.fd) && !c.out.shut.Load():
		err = syscall.ECONNRESET
	}
	if err != nil {
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", err)}
	}
	c.in.sawEnd = true
	return 0, io.EOF
}

// receive reads once. more means that another read may return something at once. Not every
// connection needs another read to find the rest:
//   - A bare connection is parked next, and Park asks the kernel for unread bytes.
//   - The lot reports the end of a watched connection.
//   - The receiver of any other connection asks the kernel itself.
func (c *Conn) receive(p []byte) (n int, more bool, err error) {
	switch {
	case c.system != nil:
		n, err = c.system.read(c.fd, p)
	case c.in.watched || c.bare():
		n, err = readFD(c.fd, p)
	default:
		if c.in.receiver == nil {
			c.in.receiver = new(receiver)
		}
		return c.in.receiver.receive(c.fd, p)
	}
	return n, n == len(p) || c.in.knowsEnd || c.has(signalEnd), err
}

// sender is the state of the writing side when it has to wait for room.
type sender struct {
	out  []byte // the bytes that the running Write has not yet written
	err  error
	step func(fd uintptr) bool // the method value, made only once
}

func (c *Conn) writeDuplex(p []byte) (int, error) {
	if c.Polled() && c.raw == nil {
		if c.sharing == split {
			c.armWrite()
		}
		n, err := c.sock.Write(p)
		c.BytesWritten += int64(n)
		return n, c.readError(err)
	}
	n, err := c.writeAll(c.fd, p)
	if err == syscall.EAGAIN {
		c.BytesWritten += int64(n)
		more, err := c.writeWaiting(p[n:])
		return n + more, err
	}
	c.BytesWritten += int64(n)
	return n, c.writeError(err)
}

// writeWaiting writes when there is room.
func (c *Conn) writeWaiting(p []byte) (int, error) {
	c.join()
	s := c.out.sender
	if s == nil {
		s = new(sender)
		s.step = func(fd uintptr) bool { return c.writeRoom(s, int(fd)) }
		c.out.sender = s
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
	if c.sharing != split {
		return c.raw.Write(s.step)
	}
	for {
		left := len(s.out)
		c.armWrite()
		err := c.raw.Write(s.step)
		if !errors.Is(err, os.ErrDeadlineExceeded) || len(s.out) == left || c.WasCut() {
			return err
		}
	}
}

// writeRoom writes as much of the remaining bytes as there is room for. It returns true when
// the write is over.
func (c *Conn) writeRoom(s *sender, fd int) bool {
	n, err := c.writeAll(fd, s.out)
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
func (c *Conn) writeAll(fd int, p []byte) (n int, err error) {
	for n < len(p) {
		var m int
		if c.system == nil {
			m, err = writeFD(fd, p[n:])
		} else {
			m, err = c.system.write(fd, p[n:])
		}
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}
