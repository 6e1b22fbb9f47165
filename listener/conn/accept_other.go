//go:build !linux

package conn

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// Acceptor exists only on Linux.
type Acceptor struct{ net.Listener }

// NewAcceptor does nothing with ln.
func NewAcceptor(net.Listener) (*Acceptor, bool, error) { return nil, false, nil }

// AcceptConn is never called.
func (a *Acceptor) AcceptConn() (*Conn, error) { return nil, errors.ErrUnsupported }

// SetDeadline is never called.
func (a *Acceptor) SetDeadline(time.Time) error { return errors.ErrUnsupported }

// SyscallConn is never called.
func (a *Acceptor) SyscallConn() (syscall.RawConn, error) { return nil, errors.ErrUnsupported }
