package conn

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// SetDuplex(true) makes the connection fit for a tunnel, where one goroutine
// reads within Await or AwaitBusy while another writes:
//
//   - An end of the stream that came along with the last bytes is not found a
//     second late: Read inside Await asks until the kernel says that neither
//     is left, or the lot tells of it.
//   - An end of stream that hides a reset, because the writing side was told of
//     it first, is returned as a reset.
//   - Write waits until there is room or Cut is called: WriteTimeout and write
//     deadlines do not count. The caller has to bound that wait by Cut.
//
// The owner calls it before the second goroutine starts, and SetDuplex(false)
// after it ended. Outside Await, reads are as ever.
func (c *Conn) SetDuplex(on bool) {
	if !on {
		c.duplex, c.timed, c.receiver, c.sender = false, false, nil, nil
		return
	}
	c.share()
}

// Split makes the connection fit for exchanges that run at the same time: it is
// as with SetDuplex(true), but that WriteTimeout counts, anew whenever some of
// what is written was taken.
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

// FD is the descriptor of a duplex connection, for system calls that read from it inside Await.
func (c *Conn) FD() int { return c.fd }

// AwaitWrite calls step with the descriptor, at first at once and then whenever
// there may be room to write, until step returns true or the wait ends in an
// error: Cut, or the socket's own. It is for splice; the connection is duplex
// and has a descriptor.
func (c *Conn) AwaitWrite(step func(fd uintptr) bool) error {
	if step(uintptr(c.fd)) {
		return nil
	}
	c.join()
	return c.readError(c.raw.Write(step))
}

// readDuplex is readNow for a duplex connection.
func (c *Conn) readDuplex(p []byte) (int, error) {
	if c.drained {
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
		c.drained = !more // or a reset is left, which Linger finds
		return n, nil
	case err == syscall.EAGAIN:
		c.drained = true
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

// receive reads once. more says that another read may return something at once.
// A bare connection is about to be parked, which asks the kernel what is left,
// and of one that is watched the lot tells; for others a receiver has to ask.
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

// sender is what the writing side needs once it has to wait for room.
type sender struct {
	out  []byte // what the running Write has not yet written
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

// awaitRoom writes what is left while there is room.
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

// writeAll writes until all is written, or an error, EAGAIN too.
func writeAll(fd int, p []byte) (n int, err error) {
	for n < len(p) {
		m, err := writeFD(fd, p[n:])
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}
