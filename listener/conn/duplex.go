package conn

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// duplex is what a connection keeps while two goroutines share it: one reads,
// in Await, and one writes.
type duplex struct {
	receiver
	timed bool   // WriteTimeout counts
	fd    int    // the owner does not close while it lasts
	out   []byte // what the running Write has not yet written
	err   error
	write func(fd uintptr) bool
	shut  atomic.Bool // our end of stream was sent
}

// SetDuplex(true) makes the connection fit for a tunnel, where one goroutine
// reads within Await while another writes:
//
//   - Read inside Await asks again until the kernel says that neither bytes nor
//     the end of the stream are left, so that an end which came along with the
//     last bytes is not found a second late.
//   - An end of stream that hides a reset, because the writing side was told of
//     it first, is returned as a reset.
//   - Write waits until there is room or Cut is called: WriteTimeout and write
//     deadlines do not count. The caller has to bound that wait by Cut.
//
// The owner calls it before the second goroutine starts, and SetDuplex(false)
// after it ended. Outside Await, reads are as ever.
func (c *Conn) SetDuplex(on bool) {
	if !on {
		c.duplex = nil
		return
	}
	c.split(new(duplex))
}

// Split makes the connection fit for exchanges that run at the same time: it is
// as with SetDuplex(true), but that WriteTimeout counts, anew whenever some of
// what is written was taken.
func (c *Conn) Split() { c.split(&duplex{timed: true}) }

func (c *Conn) split(d *duplex) {
	c.poll()
	d.write = d.writeSome
	if c.raw != nil {
		c.raw.Control(func(fd uintptr) { d.fd = int(fd) })
	}
	c.duplex = d
	c.sock.SetWriteDeadline(time.Time{})
	if c.cut.Load() {
		c.sock.SetWriteDeadline(longAgo)
	}
}

// FD is the descriptor, for system calls that read from it inside Await.
// Outside Await it means nothing.
func (c *Conn) FD() int { return c.fd }

// AwaitWrite calls step with the descriptor, at first at once and then whenever
// there may be room to write, until step returns true or the wait ends in an
// error: Cut, the write deadline, or the socket's own. It is for splice; the
// socket must have a descriptor.
func (c *Conn) AwaitWrite(step func(fd uintptr) bool) error {
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
	n, more, err := c.duplex.receive(c.fd, p)
	switch {
	case n > 0:
		c.reads++
		c.BytesRead += int64(n)
		c.drained = !more // or a reset is left, which linger finds
		return n, nil
	case err == syscall.EAGAIN:
		c.drained = true
		return 0, ErrWouldBlock
	case err == nil && resetUnseen(c.fd) && !c.duplex.shut.Load():
		err = syscall.ECONNRESET
	}
	if err != nil {
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", err)}
	}
	return 0, io.EOF
}

func (c *Conn) writeDuplex(p []byte) (int, error) {
	if c.raw == nil {
		if c.duplex.timed {
			c.armWrite()
		}
		n, err := c.sock.Write(p)
		c.BytesWritten += int64(n)
		return n, c.readError(err)
	}
	d := c.duplex
	d.out, d.err = p, nil
	var err error
	if !d.writeSome(uintptr(d.fd)) {
		err = c.awaitRoom(d)
	}
	n := len(p) - len(d.out)
	d.out = nil
	c.BytesWritten += int64(n)
	if err == nil && d.err != nil {
		err = &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", d.err)}
	}
	return n, c.readError(err)
}

// awaitRoom writes what is left while there is room.
func (c *Conn) awaitRoom(d *duplex) error {
	if !d.timed {
		return c.raw.Write(d.write)
	}
	for {
		left := len(d.out)
		c.armWrite()
		err := c.raw.Write(d.write)
		if !errors.Is(err, os.ErrDeadlineExceeded) || len(d.out) == left || c.cut.Load() {
			return err
		}
	}
}

// writeSome writes until all is written or there is no room.
func (d *duplex) writeSome(fd uintptr) bool {
	for len(d.out) > 0 {
		n, err := writeFD(int(fd), d.out)
		d.out = d.out[n:]
		if err != nil {
			d.err = err
			return err != syscall.EAGAIN
		}
	}
	d.err = nil
	return true
}
