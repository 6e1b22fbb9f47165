package conn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// ErrCut is the error of a wait after Cut.
var ErrCut = errors.New("weir aborted the connection")

// ErrWouldBlock is the error of Read inside Await if no bytes are there. It is an
// unwrapped net.Error whose Temporary is true: crypto/tls can continue after such an
// error, and makes every other error permanent.
var ErrWouldBlock error = wouldBlock{}

// ErrInterrupted is the error of Read after Interrupt. crypto/tls can continue after it.
var ErrInterrupted error = interrupted{}

type interrupted struct{ wouldBlock }

func (interrupted) Error() string { return "the read was interrupted" }

type wouldBlock struct{}

func (wouldBlock) Error() string   { return "no bytes have arrived yet" }
func (wouldBlock) Timeout() bool   { return false }
func (wouldBlock) Temporary() bool { return true }

// Routine reports whether err is an ordinary end of a connection: the other side closed
// or reset it, disappeared, or sent nothing until a deadline. weir counts such an end,
// and never logs it as an error.
func Routine(err error) bool {
	return err == nil ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.ETIMEDOUT) ||
		errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENOTCONN) ||
		errors.Is(err, context.Canceled) || errors.Is(err, ErrCut)
}

// explained is an error whose text differs from the text of its cause.
type explained struct {
	text  string
	cause error
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.cause }

// Explain returns an error whose text says what happened and which setting to
// change. errors.Is and errors.As find the cause, but the text does not repeat
// it: "i/o timeout" adds nothing to a sentence that names the timeout.
func Explain(cause error, format string, args ...any) error {
	return &explained{fmt.Sprintf(format, args...), cause}
}

// TimedOut reports whether a deadline that weir set, on the connection or a context,
// ended the wait.
func TimedOut(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// Exhausted reports whether err means that the process or machine is out of
// descriptors or memory for sockets.
func Exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
		errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM)
}
