// Package conn is one socket as the data path sees it: whose it is, where its
// client is, bytes that were read ahead, deadlines that cost nothing while they
// are not reached, and reads that need no system call to learn that nothing is
// there.
package conn

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirproxy/weir/listener/header"
)

// Origin describes where a connection comes from. It does not change after the PROXY
// header was read.
type Origin struct {
	// Client is the client's address: the source in the PROXY header, or else Peer.
	Client netip.AddrPort
	// Peer is the other end of the socket; the zero value for Unix sockets.
	Peer netip.AddrPort
	// Local is the address that the client connected to: the destination in the PROXY
	// header, or else the socket's own address.
	Local netip.AddrPort
	// Header is the PROXY header. Its Version is 0 if the connection had none. The content
	// of Header never changes.
	Header *header.Header
}

// Conn is a connection with one owner at a time: the goroutine that serves it, or
// while it is parked the Waiter. Others may use the Origin, once the PROXY
// header was read, and the methods that say so. The owner closes it, and never
// from inside Await (the poller would wait for the read that Await is in).
//
// One goroutine may write while another reads, as in a tunnel; Await and Read
// belong to the reading one.
type Conn struct {
	Origin
	// Accepted is when the socket was accepted or dialled.
	Accepted time.Time
	// WriteTimeout bounds the wait for the other end to take bytes, counted
	// anew for each Write that has to wait. Zero: one minute.
	WriteTimeout time.Duration
	// OnClose, if set, is called once by Close.
	OnClose func()
	// OnEstablished, if set, is called once by Established.
	OnEstablished func()

	// BytesRead and BytesWritten count payload and TLS alike, the header not.
	// They belong to the reading and the writing goroutine.
	BytesRead, BytesWritten int64

	// While polled is false the connection is bare: it is fd alone, and what
	// follows is not there, as nothing had to wait for the runtime's poller so far.
	polled   atomic.Bool
	prefixes atomic.Uint32 // see Identify; 0 before it is called
	sock     socket
	raw      syscall.RawConn // nil: no descriptor (net.Pipe in tests)

	tcp    bool
	inside bool // within Await: Read never waits
	duplex bool // a second goroutine writes, see SetDuplex
	timed  bool // while duplex: WriteTimeout counts
	inLot  bool // the lot's epoll set knows fd
	fd     int  // the descriptor, valid while inside, bare or duplex
	peeked []byte

	// The reading side's state inside Await.
	step    func() bool           // of the running Await
	onReady func(fd uintptr) bool // c.ready, bound once
	sawEnd  bool                  // Read has returned io.EOF
	drained bool                  // the last read took all there was, and nothing was reported since
	quiet   bool                  // the running Await ends when nothing comes
	mayRest func() bool           // of the running AwaitOrRest
	watched bool                  // the lot tells of the end of the stream, see watchEnd
	endSeen bool                  // it has told, and the reader knows
	waits   uint8                 // how often it had to wait, bare, since calm
	calm    time.Duration         // since Accepted

	readWant, readArmed time.Time
	soon                bool // readArmed was at most Linger away when it was armed
	readsAtArm, reads   uint32
	closed, established bool

	state       atomic.Uint32
	cut         atomic.Bool
	interrupted atomic.Bool
	shut        atomic.Bool   // our end of stream was sent, while duplex
	settled     atomic.Bool   // mayRest said no, and nothing came since
	stirred     atomic.Bool   // it is to be asked again
	ended       atomic.Bool   // the lot has told, while watched
	quietSince  quietMark     // see since.go
	parked      atomic.Uint64 // the park.Token of its last wait in the lot, or 0
	watch       atomic.Uint64 // the same of the watch for its end

	mu   sync.Mutex
	link Linked // guarded by mu; and so is a change of sock, against Cut

	receiver *receiver // of the reading side while duplex; nil: not needed so far
	sender   *sender   // of the writing side
}

// noHeader is the Header of connections without.
var noHeader header.Header

// State is what a connection is doing, for metrics and for the drain.
type State uint32

// The states. A connection begins as pending.
const (
	Pending   State = iota // header or handshake is not through
	Active                 // an exchange is running
	Idle                   // between exchanges
	Tunnel                 // copied to and from an endpoint; over HTTP/2: nothing runs but quiet tunnels
	NumStates = iota
)

func (s State) String() string {
	return [...]string{"pending", "active", "idle", "tunnel"}[s]
}

// State may be called by anyone.
func (c *Conn) State() State { return State(c.state.Load()) }

// SetState is called by the owner.
func (c *Conn) SetState(s State) { c.state.Store(uint32(s)) }

const defaultWriteTimeout = time.Minute

// socket is what waits and has deadlines: a net.Conn, or the os.File that
// an accepted descriptor is wrapped in once it has to wait.
type socket interface {
	io.ReadWriteCloser
	SetDeadline(time.Time) error
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// New wraps nc, which it owns from now on. Peer, Client and Local are the socket's.
func New(nc net.Conn) *Conn {
	c := &Conn{sock: nc, Accepted: time.Now(), Origin: Origin{Header: &noHeader}}
	c.polled.Store(true)
	if sc, ok := nc.(syscall.Conn); ok {
		c.raw, _ = sc.SyscallConn()
	}
	_, c.tcp = nc.(*net.TCPConn)
	c.Peer = addrPort(nc.RemoteAddr())
	c.Client = c.Peer
	c.Local = addrPort(nc.LocalAddr())
	return c
}

// Closed returns a connection that was closed, to stand where one was that is
// somebody else's now.
func Closed() *Conn { return &Conn{closed: true, fd: -1, Origin: Origin{Header: &noHeader}} }

func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}

// RemoteAddr is the client address. It never does I/O.
func (c *Conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.Client) }

// LocalAddr is the address the client wanted. It never does I/O.
func (c *Conn) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.Local) }

// IsTCP reports whether the socket is a TCP socket.
func (c *Conn) IsTCP() bool { return c.tcp }

// Control calls f with the descriptor, for socket options. Where there is none
// it returns errors.ErrUnsupported.
func (c *Conn) Control(f func(fd uintptr)) error {
	switch {
	case !c.polled.Load():
		f(uintptr(c.fd))
		return nil
	case c.raw == nil:
		return errors.ErrUnsupported
	}
	return c.raw.Control(f)
}

// Interrupt makes the Read or Await that another goroutine is in, and those to
// come, return ErrInterrupted, until Resume. It is for taking the reading side over.
// What is parked is woken.
func (c *Conn) Interrupt() {
	c.interrupted.Store(true)
	c.interruptWait()
	c.unpark()
}

// interruptWait ends a wait in the poller, whose reader then looks at why.
func (c *Conn) interruptWait() {
	c.mu.Lock() // else a Shed could take the socket away
	defer c.mu.Unlock()
	if c.polled.Load() {
		c.sock.SetReadDeadline(longAgo)
	}
}

// Resume undoes Interrupt. The reading side has one owner again.
func (c *Conn) Resume() {
	c.interrupted.Store(false)
	c.arm(c.readWant)
}

var longAgo = time.Unix(1, 0)

// Read reads peeked bytes first. Inside Await it returns ErrWouldBlock where it
// would have to wait; outside it waits until the read deadline.
func (c *Conn) Read(p []byte) (int, error) {
	if len(c.peeked) > 0 {
		n := copy(p, c.peeked)
		if c.peeked = c.peeked[n:]; len(c.peeked) == 0 {
			c.peeked = nil
		}
		return n, nil
	}
	if c.inside {
		if c.duplex {
			return c.readDuplex(p)
		}
		return c.readNow(p)
	}
	if !c.polled.Load() {
		c.drained = false
		n, err := c.readNow(p)
		if err != ErrWouldBlock {
			return n, err
		}
		c.poll()
	}
	for {
		n, err := c.sock.Read(p)
		if n > 0 {
			c.reads++
			c.BytesRead += int64(n)
			return n, nil
		}
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || c.cut.Load() {
			c.sawEnd = err == io.EOF
			return n, c.readError(err)
		}
		if c.interrupted.Load() {
			return n, ErrInterrupted
		}
		if c.readArmed.Equal(c.readWant) || !c.readWant.IsZero() && !time.Now().Before(c.readWant) {
			return n, err
		}
		c.arm(c.readWant)
	}
}

// readNow is Read inside Await.
func (c *Conn) readNow(p []byte) (int, error) {
	if c.drained {
		return 0, ErrWouldBlock
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := readFD(c.fd, p)
	switch {
	case n > 0:
		c.drained = n < len(p)
		c.reads++
		c.BytesRead += int64(n)
		return n, nil
	case err == syscall.EAGAIN:
		c.drained = true
		return 0, ErrWouldBlock
	case err != nil:
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", err)}
	}
	c.sawEnd = true
	return 0, io.EOF
}

// SawEnd reports whether Read has come to the end of the stream. Only the owner asks.
func (c *Conn) SawEnd() bool { return c.sawEnd }

// LookAgain makes the next Read inside Await ask the kernel, whatever the last
// one learned. It is how a connection that was idle is found to be alive.
func (c *Conn) LookAgain() { c.drained = false }

// Write writes all of p, waiting for at most WriteTimeout without progress at the end.
func (c *Conn) Write(p []byte) (int, error) {
	if c.duplex {
		return c.writeDuplex(p)
	}
	done := 0
	if c.inside || !c.polled.Load() {
		n, err := writeFD(c.fd, p)
		if n > 0 {
			c.BytesWritten += int64(n)
			done = n
		}
		if done == len(p) {
			return done, nil
		}
		if err != nil && err != syscall.EAGAIN {
			return done, &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", err)}
		}
	}
	c.poll()
	c.armWrite()
	n, err := c.sock.Write(p[done:])
	c.BytesWritten += int64(n)
	return done + n, c.readError(err)
}

func (c *Conn) armWrite() {
	d := c.WriteTimeout
	if d == 0 {
		d = defaultWriteTimeout
	}
	c.sock.SetWriteDeadline(time.Now().Add(d))
	if c.cut.Load() {
		c.sock.SetWriteDeadline(longAgo)
	}
}

// SetReadDeadline bounds Await and Read. It is cheap to move into the future:
// the poller keeps its old timer, and a wait that it ends early goes on.
// The zero time means no deadline.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.readWant = t
	if !t.IsZero() && (c.readArmed.IsZero() || t.Before(c.readArmed)) {
		c.arm(t)
	}
	return nil
}

// ReadDeadline is what was set last by SetReadDeadline.
func (c *Conn) ReadDeadline() time.Time { return c.readWant }

// SetWriteDeadline is there for net.Conn; WriteTimeout bounds writes.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if c.duplex || !c.polled.Load() {
		return nil
	}
	return c.sock.SetWriteDeadline(t)
}

// SetDeadline is there for net.Conn; it bounds reads alone.
func (c *Conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// JoinPoller makes the runtime's poller know the connection. The owner calls it
// before a second goroutine begins to write or read, as either might have to
// wait first.
func (c *Conn) JoinPoller() { c.poll() }

// Peek returns at least n bytes that the next Read will return too, waiting for
// them until the read deadline. With an error it returns what there is.
// Not to be used inside Await.
func (c *Conn) Peek(n int) ([]byte, error) {
	for len(c.peeked) < n {
		buf := make([]byte, max(n, 512)+len(c.peeked))
		have := copy(buf, c.peeked)
		c.peeked = nil
		m, err := c.Read(buf[have:])
		c.peeked = buf[:have+m]
		if err != nil {
			return c.peeked, err
		}
	}
	return c.peeked, nil
}

// Unread puts b in front of what the next Read returns. The Conn owns b from now on.
func (c *Conn) Unread(b []byte) {
	if len(b) == 0 {
		return
	}
	if len(c.peeked) > 0 {
		b = append(b[:len(b):len(b)], c.peeked...)
	}
	c.peeked = b
}

// HasPeeked reports whether there are bytes that were read ahead.
func (c *Conn) HasPeeked() bool { return len(c.peeked) > 0 }

// TakePeeked returns the bytes that were read ahead and forgets them.
func (c *Conn) TakePeeked() []byte {
	b := c.peeked
	c.peeked = nil
	return b
}

// Established says that header and handshake are through. It may be called more than once.
func (c *Conn) Established() {
	if !c.established {
		c.established = true
		if c.OnEstablished != nil {
			c.OnEstablished()
			c.OnEstablished = nil
		}
	}
}

func (c *Conn) readError(err error) error {
	if err != nil && c.cut.Load() {
		return ErrCut
	}
	return err
}
