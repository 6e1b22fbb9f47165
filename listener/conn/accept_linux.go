package conn

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Acceptor takes bare connections from a listening TCP socket. A connection joins the
// poller only when it has to wait. weir makes no system call for addresses and options
// that the listening socket knows or passes on. This saves half of the system calls of a
// client that sends one request. Acceptor replaces the net.Listener from which it was
// made.
type Acceptor struct {
	owner io.Closer // of the socket; closes file
	file  *os.File
	raw   syscall.RawConn
	addr  net.Addr
	local netip.AddrPort // of every connection; not valid if the socket listens on all addresses
	step  func(fd uintptr) bool

	fd   int // the result of step
	err  error
	from unix.RawSockaddrAny
}

// fileOwner is a listening socket that gives its file to an Acceptor, and closes it. A
// sockets.Socket is one.
type fileOwner interface {
	net.Listener
	TakeFile() (*os.File, error)
}

// NewAcceptor takes over ln: from then on only the Acceptor accepts, and its Close closes
// the socket. If ln is not a TCP listener, the second result is false, and nothing has
// happened. After an error the caller closes ln.
func NewAcceptor(ln net.Listener) (*Acceptor, bool, error) {
	a := &Acceptor{addr: ln.Addr()}
	taken, err := a.take(ln)
	if !taken {
		return nil, false, nil
	}
	if err != nil {
		return nil, true, fmt.Errorf("cannot take over the socket of %s: %w", a.addr, err)
	}
	lot()
	if err := a.prepare(); err != nil {
		a.Close()
		return nil, true, fmt.Errorf("cannot prepare the socket of %s: %w", a.addr, err)
	}
	return a, true, nil
}

// take takes the socket from ln. It returns false if ln is not a TCP listener.
func (a *Acceptor) take(ln net.Listener) (taken bool, err error) {
	if _, tcp := a.addr.(*net.TCPAddr); !tcp {
		return false, nil
	}
	switch ln := ln.(type) {
	case fileOwner:
		a.file, err = ln.TakeFile()
		a.owner = ln
	case *net.TCPListener:
		if a.file, err = ln.File(); err == nil { // the same socket with another descriptor
			ln.Close()
		}
		a.owner = a.file
	default:
		return false, nil
	}
	return true, err
}

func (a *Acceptor) prepare() (err error) {
	a.step = a.acceptOne
	if ap := addrPort(a.addr); !ap.Addr().IsUnspecified() {
		a.local = ap
	}
	if a.raw, err = a.file.SyscallConn(); err != nil {
		return err
	}
	a.raw.Control(func(fd uintptr) {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	})
	return err
}

// AcceptConn waits for the next connection. Only one goroutine may call it at a time.
func (a *Acceptor) AcceptConn() (*Conn, error) {
	if err := a.raw.Read(a.step); err != nil {
		return nil, err
	}
	if a.err != nil {
		return nil, os.NewSyscallError("accept4", a.err)
	}
	peer := peerOf(&a.from)
	c := &Conn{fd: a.fd, tcp: true, Accepted: time.Now(), Origin: Origin{Header: &noHeader, Client: peer, Peer: peer, Local: a.local}}
	if !c.Local.IsValid() {
		c.Local = localOf(a.fd)
	}
	return c, nil
}

// acceptOne does not inform the scheduler, because the socket does not block.
func (a *Acceptor) acceptOne(fd uintptr) bool {
	for {
		size := uint32(unix.SizeofSockaddrAny)
		got, _, errno := syscall.RawSyscall6(unix.SYS_ACCEPT4, fd, uintptr(unsafe.Pointer(&a.from)),
			uintptr(unsafe.Pointer(&size)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
		switch errno {
		case 0:
			a.fd, a.err = int(got), nil
			return true
		case syscall.EAGAIN:
			return false
		case syscall.EINTR:
		default:
			a.err = errno
			return true
		}
	}
}

// Accept is AcceptConn for callers that need a net.Conn.
func (a *Acceptor) Accept() (net.Conn, error) {
	c, err := a.AcceptConn()
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(c.fd), "socket")
	defer f.Close() // FileConn uses a duplicate of the descriptor
	return net.FileConn(f)
}

// Addr is the address that the socket listens on.
func (a *Acceptor) Addr() net.Addr { return a.addr }

// Close closes the socket.
func (a *Acceptor) Close() error { return a.owner.Close() }

// SetDeadline sets the deadline for waits in AcceptConn.
func (a *Acceptor) SetDeadline(t time.Time) error { return a.file.SetDeadline(t) }

// SyscallConn gives access to the descriptor.
func (a *Acceptor) SyscallConn() (syscall.RawConn, error) { return a.raw, nil }

func peerOf(sa *unix.RawSockaddrAny) netip.AddrPort {
	switch sa.Addr.Family {
	case unix.AF_INET:
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(in.Addr), bigEndian(in.Port))
	case unix.AF_INET6:
		in := (*unix.RawSockaddrInet6)(unsafe.Pointer(sa))
		a := netip.AddrFrom16(in.Addr).Unmap()
		if in.Scope_id != 0 && a.Is6() {
			a = a.WithZone(strconv.Itoa(int(in.Scope_id)))
		}
		return netip.AddrPortFrom(a, bigEndian(in.Port))
	}
	return netip.AddrPort{}
}

func localOf(fd int) netip.AddrPort {
	var sa unix.RawSockaddrAny
	size := uint32(unix.SizeofSockaddrAny)
	if _, _, errno := syscall.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&sa)),
		uintptr(unsafe.Pointer(&size))); errno != 0 {
		return netip.AddrPort{}
	}
	return peerOf(&sa)
}

// bigEndian reads a port, whose bytes are in network order.
func bigEndian(port uint16) uint16 {
	b := (*[2]byte)(unsafe.Pointer(&port))
	return uint16(b[0])<<8 | uint16(b[1])
}
