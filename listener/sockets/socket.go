package sockets

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is a listening socket. Its owner calls either Accept, or TakeFile once and then
// accept4 by itself.
type Socket struct {
	ln  net.Listener
	at  address
	set *Set
	// shared means that another Socket has the same accept queue and socket file, and
	// decides about them.
	shared atomic.Bool
	// replaced means that a socket for all addresses gets the connections to this one's
	// address after Close.
	replaced atomic.Bool
	// outside means that another process decides about the accept queue and the socket file.
	outside atomic.Bool
	kept    bool   // a service manager keeps the socket: outside is always true
	name    string // of an inherited socket, as the other process named it
	id      FileID // of the socket file

	mu     sync.Mutex
	fd     descriptor // ln, or the file of TakeFile
	closed bool
}

// descriptor has the methods that a listener of package net and an os.File have in common.
type descriptor interface {
	io.Closer
	syscall.Conn
	SetDeadline(time.Time) error
}

func newSocket(ln net.Listener, at address, set *Set) *Socket {
	if u, ok := ln.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // Close does it, unless the socket is shared
	}
	s := &Socket{ln: ln, at: at, set: set, fd: ln.(descriptor)}
	if path := s.file(); path != "" {
		s.id, _ = fileAt(path)
	}
	return s
}

// Accept returns the next connection.
func (s *Socket) Accept() (net.Conn, error) { return s.ln.Accept() }

// Addr is the address that the socket is bound to.
func (s *Socket) Addr() net.Addr { return s.ln.Addr() }

// SetDeadline sets the deadline of all waits for a connection.
func (s *Socket) SetDeadline(t time.Time) error { return s.descriptor().SetDeadline(t) }

// SyscallConn gives access to the descriptor.
func (s *Socket) SyscallConn() (syscall.RawConn, error) { return s.descriptor().SyscallConn() }

func (s *Socket) descriptor() descriptor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fd
}

// TakeFile returns the TCP socket as a file, for an owner that accepts by the descriptor.
// Accept does not work any more. The file belongs to the Socket, and Close closes it.
func (s *Socket) TakeFile() (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.ln.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("a socket of network %s: %w", s.at.network, errors.ErrUnsupported)
	}
	f, err := t.File() // the same socket with another descriptor
	if err != nil {
		return nil, err
	}
	t.Close()
	s.fd = f
	return f, nil
}

// Shared returns true if another Socket, or another process, takes care of the accept queue
// and of the socket file: the owner closes this one without serving the queue.
func (s *Socket) Shared() bool { return s.shared.Load() || s.outside.Load() }

// emptyTime limits AwaitEmpty.
const emptyTime = 3 * time.Second

// AwaitEmpty waits until the owner has accepted the last connections, if another socket gets
// the later ones: Close would reset those in the queue. Owners that do not empty their queue
// call it before they stop to accept.
func (s *Socket) AwaitEmpty() {
	if !s.replaced.Load() || s.Shared() {
		return
	}
	within := s.RefuseNew()
	for until := time.Now().Add(emptyTime); within > 0 && s.Waits(within) && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
}

// Close closes the socket. Unless it is shared, Close first removes its socket file.
func (s *Socket) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return net.ErrClosed
	}
	s.closed = true
	if !s.Shared() {
		s.unlink()
	}
	err := s.fd.Close()
	s.mu.Unlock()
	s.set.forget(s)
	return err
}

// RefuseNew prevents new connections, as far as the kernel allows it. It returns how long
// handshakes that have begun may still take; 0: the kernel accepts new ones, or there are
// no handshakes. Without RefuseNew the kernel would reset a connection whose handshake ends
// between the last accept and Close. Do not call it for a shared socket.
func (s *Socket) RefuseNew() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.network == "unix" {
		s.unlink()
		return 0
	}
	return refuseNew(s.fd)
}

// lostFile returns true if the socket file is gone and a new socket can be bound at its path. It
// returns false if another process uses the path. A service manager makes its own files again.
func (s *Socket) lostFile() bool {
	path := s.file()
	if path == "" || s.kept || s.hasFile(path) {
		return false
	}
	err := stale(path)
	return err == nil || errors.Is(err, fs.ErrNotExist)
}

// hasFile returns true if the file at the path is the socket file of s.
func (s *Socket) hasFile(path string) bool {
	id, err := fileAt(path)
	return err == nil && id == s.id
}

// reachedBy returns true if clients that connect to the path reach s. The path may be a symbolic link.
func (s *Socket) reachedBy(path string) bool {
	id, err := fileBy(unix.Stat, path)
	return err == nil && id == s.id
}

// file returns the path of the socket file; empty: there is none.
func (s *Socket) file() string {
	u, ok := s.ln.Addr().(*net.UnixAddr)
	if !ok || u.Name == "" || u.Name[0] == '@' || u.Name[0] == 0 {
		return ""
	}
	return u.Name
}

// unlink removes the socket file: no client connects any more. It leaves the file of another
// process at the path alone.
func (s *Socket) unlink() {
	if path := s.file(); path != "" && s.hasFile(path) {
		os.Remove(path)
	}
}

// FileID tells a socket file from another file at the same path. The kernel gives the inode of a
// removed socket file to no other file while the socket is open.
type FileID struct{ Device, Inode uint64 }

// fileAt returns the FileID of the file at the path. It does not follow a symbolic link.
func fileAt(path string) (FileID, error) { return fileBy(unix.Lstat, path) }

func fileBy(stat func(string, *unix.Stat_t) error, path string) (id FileID, err error) {
	var found unix.Stat_t
	if err := stat(path, &found); err != nil {
		return FileID{}, err
	}
	return FileID{uint64(found.Dev), found.Ino}, nil
}

// Waits returns true if a connection is in the accept queue, or arrives there within the
// given time.
func (s *Socket) Waits(within time.Duration) bool {
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	until := time.Now().Add(within)
	waits := false
	raw.Control(func(fd uintptr) {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			n, err := unix.Poll(polled, max(0, int(time.Until(until).Milliseconds())))
			if err != unix.EINTR {
				waits = n > 0
				return
			}
		}
	})
	return waits
}

// duplicate returns a listener with another descriptor of the same socket.
func (s *Socket) duplicate() (net.Listener, error) {
	fd, err := s.dup()
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close() // FileListener duplicates
	return net.FileListener(f)
}

// dup returns another descriptor of the same socket.
func (s *Socket) dup() (fd int, err error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return -1, err
	}
	failed := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(failed, err); err != nil {
		return -1, err
	}
	return fd, nil
}
