// Package conn is one socket as the data path sees it. A Conn holds the owner and the
// addresses of the client, and the bytes that weir read ahead. A deadline costs nothing
// until it passes. A read needs no system call to learn that the socket is empty.
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

// Origin describes where a connection comes from. It does not change after weir has read
// the PROXY header.
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

// Conn is a connection with one owner at a time. The owner is the goroutine that serves
// the connection, or the Waiter while the connection is parked. Other goroutines may use
// the Origin after weir has read the PROXY header, and the methods whose comments allow
// it. The owner closes the connection, but not in a step of Await.
//
// One goroutine may write while another reads, as in a tunnel. Only the reading goroutine
// calls Await and Read.
type Conn struct {
	Origin
	// Accepted is the time when weir accepted or dialled the socket.
	Accepted time.Time
	// WriteTimeout limits how long a Write waits until the other end takes bytes. Each
	// Write that has to wait starts a new timeout. Zero: one minute.
	WriteTimeout time.Duration
	// OnClose, if set, is called once by Close.
	OnClose func()
	// OnEstablished, if set, is called once by Established.
	OnEstablished func()

	// BytesRead and BytesWritten count payload and TLS, without the PROXY header.
	// BytesRead belongs to the reading goroutine, BytesWritten to the writing one.
	BytesRead, BytesWritten int64

	mode     atomic.Uint32 // see mode, and enter
	signals  atomic.Uint32 // see signal
	state    atomic.Uint32 // see State
	prefixes atomic.Uint32 // see Identify; 0 before it is called

	system  system          // nil: the real one
	sock    socket          // nil: bare
	raw     syscall.RawConn // nil: bare, or no descriptor (net.Pipe in tests)
	fd      int             // the descriptor; valid in a step of Await, and while bare or shared
	sharing sharing
	inLot   bool // the lot's epoll set contains fd
	tcp     bool

	closed, established bool

	prelude prelude

	quietSince quietMark     // see since.go
	parkDenied atomic.Bool   // mayPark returned false, and no bytes have arrived since
	parked     atomic.Uint64 // the park.Token of the last wait in the lot, or 0
	watch      atomic.Uint64 // the park.Token of the watch for the end, or 0

	mu      sync.Mutex
	cutAlso Cuttable // guarded by mu, like a change of mode, because of Cut

	in  readSide
	out writeSide
}

// readSide is the state of the reading side. Only the reading goroutine uses it.
type readSide struct {
	peeked []byte // Read returns these bytes first

	step     func() bool           // of the running Await
	onReady  func(fd uintptr) bool // c.ready, bound once
	mayPark  func() bool           // of the running AwaitOrPark
	receiver *receiver             // while shared; nil: not needed yet

	want, armed       time.Time // the read deadline; the deadline of the poller
	reads, readsAtArm uint32    // how often bytes were read: now, and when the poller was armed
	soon              bool      // armed was at most Linger ahead when it was set

	running  stepKind // the kind of the step that runs now
	goal     goal     // of the running wait
	unread   leftover // what the socket still holds, as far as it is known inside Await
	sawEnd   bool     // Read has returned io.EOF
	watched  bool     // the lot reports the end of the stream, see watchEnd
	knowsEnd bool     // a wait has taken signalEnd

	waits uint8         // how often the bare connection had to wait since calm
	calm  time.Duration // when the count in waits began, as time since Accepted
}

// writeSide is the state of the writing side.
type writeSide struct {
	sender *sender     // nil: no Write has had to wait yet while shared
	shut   atomic.Bool // weir has sent its end of stream; reset when sharing begins
}

// noHeader is the Header of connections without a PROXY header.
var noHeader header.Header

// State is the current activity of a connection, for metrics and for the drain.
type State uint32

// The states. A connection begins as pending.
const (
	Pending   State = iota // PROXY header or handshake is not complete
	Active                 // an exchange is running
	Idle                   // between exchanges
	Tunnel                 // bytes are copied to and from an endpoint; HTTP/2: only quiet tunnels are open
	NumStates = iota
)

func (s State) String() string {
	return [...]string{"pending", "active", "idle", "tunnel"}[s]
}

// State returns the state. Any goroutine may call it.
func (c *Conn) State() State { return State(c.state.Load()) }

// SetState sets the state. Only the owner calls it.
func (c *Conn) SetState(s State) { c.state.Store(uint32(s)) }

const defaultWriteTimeout = time.Minute

// socket is the part that waits and has deadlines: a net.Conn, or the os.File that poll
// makes of an accepted descriptor when the connection first has to wait.
type socket interface {
	io.ReadWriteCloser
	SetDeadline(time.Time) error
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// New wraps nc and owns it from now on. Peer, Client and Local are the addresses of the
// socket.
func New(nc net.Conn) *Conn {
	c := &Conn{sock: nc, Accepted: time.Now(), Origin: Origin{Header: &noHeader}}
	c.enter(modePolled)
	if sc, ok := nc.(syscall.Conn); ok {
		c.raw, _ = sc.SyscallConn()
	}
	_, c.tcp = nc.(*net.TCPConn)
	c.Peer = addrPort(nc.RemoteAddr())
	c.Client = c.Peer
	c.Local = addrPort(nc.LocalAddr())
	return c
}

// Closed returns a closed connection. It replaces a connection that now has another
// owner.
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

// LocalAddr is the address that the client wanted. It never does I/O.
func (c *Conn) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.Local) }

// IsTCP reports whether the socket is a TCP socket.
func (c *Conn) IsTCP() bool { return c.tcp }

// Control calls f with the descriptor, for socket options. If the connection has no
// descriptor, it returns errors.ErrUnsupported.
func (c *Conn) Control(f func(fd uintptr)) error {
	switch {
	case c.bare():
		f(uintptr(c.fd))
		return nil
	case c.raw == nil:
		return errors.ErrUnsupported
	}
	return c.raw.Control(f)
}

// Read returns peeked bytes first. Inside Await it returns ErrWouldBlock instead of
// waiting. Outside Await it waits until the read deadline.
func (c *Conn) Read(p []byte) (int, error) {
	if len(c.in.peeked) > 0 {
		n := copy(p, c.in.peeked)
		if c.in.peeked = c.in.peeked[n:]; len(c.in.peeked) == 0 {
			c.in.peeked = nil
		}
		return n, nil
	}
	if c.in.running == stepNonBlocking {
		if c.sharing != alone {
			return c.readDuplex(p)
		}
		return c.readNow(p)
	}
	if c.bare() {
		c.in.unread = leftUnknown
		n, err := c.readNow(p)
		if err != ErrWouldBlock {
			return n, err
		}
		c.poll()
	}
	for {
		n, err := c.sock.Read(p)
		if n > 0 {
			c.in.reads++
			c.BytesRead += int64(n)
			return n, nil
		}
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || c.WasCut() {
			c.in.sawEnd = err == io.EOF
			return n, c.readError(err)
		}
		if c.has(signalInterrupt) {
			return n, ErrInterrupted
		}
		if c.in.armed.Equal(c.in.want) || !c.in.want.IsZero() && !time.Now().Before(c.in.want) {
			return n, os.ErrDeadlineExceeded // unwrapped, like ErrWouldBlock: crypto/tls can continue after it
		}
		c.arm(c.in.want)
	}
}

// readNow is Read inside Await.
func (c *Conn) readNow(p []byte) (int, error) {
	if c.in.unread != leftUnknown {
		return 0, ErrWouldBlock
	}
	if len(p) == 0 {
		return 0, nil
	}
	var n int
	var err error
	if c.system == nil {
		n, err = readFD(c.fd, p)
	} else {
		n, err = c.system.read(c.fd, p)
	}
	switch {
	case n > 0:
		if n < len(p) {
			c.in.unread = leftNoBytes
		}
		c.in.reads++
		c.BytesRead += int64(n)
		return n, nil
	case err == syscall.EAGAIN:
		c.in.unread = leftNothing
		return 0, ErrWouldBlock
	case err != nil:
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", err)}
	}
	c.in.sawEnd = true
	return 0, io.EOF
}

// SawEnd reports whether Read has reached the end of the stream. Only the owner calls it.
func (c *Conn) SawEnd() bool { return c.in.sawEnd }

// leftover is what a socket still holds after a read inside Await. An event resets it.
type leftover uint8

const (
	leftUnknown leftover = iota // maybe bytes: only another read can tell
	leftNoBytes                 // a short read took all bytes; the end of the stream may be there
	leftNothing                 // the kernel returned EAGAIN
)

// LookAgain makes the next Read inside Await ask the kernel, even if a short read took all
// bytes: the end of the stream may have come with them. It returns false, and changes
// nothing, if the kernel has already returned that nothing is left.
func (c *Conn) LookAgain() bool {
	if c.in.unread == leftNothing {
		return false
	}
	c.in.unread = leftUnknown
	return true
}

// Write writes all of p. It waits at most WriteTimeout without progress.
func (c *Conn) Write(p []byte) (int, error) {
	if c.sharing != alone {
		return c.writeDuplex(p)
	}
	done := 0
	if c.in.running == stepNonBlocking || c.bare() {
		var n int
		var err error
		if c.system == nil {
			n, err = writeFD(c.fd, p)
		} else {
			n, err = c.system.write(c.fd, p)
		}
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
	if c.WasCut() {
		c.sock.SetWriteDeadline(longAgo)
	}
}

// SetReadDeadline sets the deadline of Await and Read. Moving the deadline into the
// future is cheap: the poller keeps its old timer, and a wait that this timer ends too
// early continues. The zero time means no deadline.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.in.want = t
	if !t.IsZero() && (c.in.armed.IsZero() || t.Before(c.in.armed)) {
		c.arm(t)
	}
	return nil
}

// ReadDeadline returns the last deadline that SetReadDeadline set.
func (c *Conn) ReadDeadline() time.Time { return c.in.want }

// Peek returns at least n bytes that the next Read will return again. It waits for them
// until the read deadline. With an error it returns the bytes that it has. It panics in a
// step of Await.
func (c *Conn) Peek(n int) ([]byte, error) {
	c.forbidInStep("Peek")
	for len(c.in.peeked) < n {
		buf := make([]byte, max(n, 512)+len(c.in.peeked))
		have := copy(buf, c.in.peeked)
		c.in.peeked = nil
		m, err := c.Read(buf[have:])
		c.in.peeked = buf[:have+m]
		if err != nil {
			return c.in.peeked, err
		}
	}
	return c.in.peeked, nil
}

// Unread puts b before the bytes that the next Read returns. The Conn owns b from now on.
func (c *Conn) Unread(b []byte) {
	if len(b) == 0 {
		return
	}
	if len(c.in.peeked) > 0 {
		b = append(b[:len(b):len(b)], c.in.peeked...)
	}
	c.in.peeked = b
}

// HasPeeked reports whether there are bytes that were read ahead.
func (c *Conn) HasPeeked() bool { return len(c.in.peeked) > 0 }

// TakePeeked returns the bytes that were read ahead, and forgets them.
func (c *Conn) TakePeeked() []byte {
	b := c.in.peeked
	c.in.peeked = nil
	return b
}

// Established records that the PROXY header and the handshake are complete. The caller
// may call it more than once.
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
	if err != nil && c.WasCut() {
		return ErrCut
	}
	return err
}
