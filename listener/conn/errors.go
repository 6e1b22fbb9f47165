package conn

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// ErrCut is what a wait ends in after Cut.
var ErrCut = errors.New("the connection was cut")

// ErrWouldBlock is what Read returns inside Await when nothing is there. It is
// a bare net.Error whose Temporary is true: crypto/tls goes on after such an
// error and makes every other one final.
var ErrWouldBlock error = wouldBlock{}

// ErrInterrupted is what Read returns after Interrupt. crypto/tls survives it.
var ErrInterrupted error = interrupted{}

type interrupted struct{ wouldBlock }

func (interrupted) Error() string { return "the read was interrupted" }

type wouldBlock struct{}

func (wouldBlock) Error() string   { return "no bytes are there yet" }
func (wouldBlock) Timeout() bool   { return false }
func (wouldBlock) Temporary() bool { return true }

// Routine says whether err is an ordinary ending of a connection: the other
// side closed or reset it, went away, or was silent until a deadline. Such an
// ending is counted, never logged as an error.
func Routine(err error) bool {
	return err == nil ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.ETIMEDOUT) ||
		errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENOTCONN) ||
		errors.Is(err, context.Canceled) || errors.Is(err, ErrCut)
}

// Exhausted says whether err means that the process or machine is out of
// descriptors or memory for sockets.
func Exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
		errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM)
}
