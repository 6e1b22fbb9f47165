package tunnel

import (
	"io"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/park"
)

// StreamEnd is an end that shares its connection with other streams.
type StreamEnd struct {
	Stream Stream
	// Client is the client's connection that carries the stream. The tunnel only reports to
	// it when it copies bytes. nil: the endpoint's connection carries the stream.
	Client *conn.Conn
}

// Stream is a stream of a shared connection, such as a stream of HTTP/2. One goroutine may
// receive while another sends. Cut ends the waits of both.
type Stream interface {
	conn.Cuttable
	// Receive returns the next bytes, valid until the next call, or io.EOF.
	// conn.ErrQuiet: no bytes came for conn.Linger.
	Receive() ([]byte, error)
	// Park registers w. The stream wakes it once, when Receive has something to return. The
	// caller must not call Receive before. False: Receive has something now; w is not
	// registered.
	Park(w park.Waiter) bool
	// Unpark undoes Park, and returns true. False: w was woken.
	Unpark() bool
	// Send waits until there is room for p.
	Send(p []byte) error
	// SendEnd sends the end of the stream.
	SendEnd() error
	// Link cuts other, too, if the stream ends prematurely; nil undoes it.
	CutAlso(other conn.Cuttable)
	// Err is the error with which the stream ended prematurely; conn.ErrCut after Cut; nil:
	// the stream did not end prematurely.
	Err() error
	// Close ends the stream, with a reset if one of its directions has not ended. The tunnel
	// does not call it.
	Close()
}

// Cuttable returns the stream.
func (e *StreamEnd) Cuttable() conn.Cuttable { return e.Stream }

// Close closes the stream. It needs no reason: a stream shows its peer whether it is complete.
func (e *StreamEnd) Close(string) { e.Stream.Close() }

// begin does nothing: the owner of the stream has prepared it.
func (e *StreamEnd) begin() {}

// end does nothing: only Close may follow.
func (e *StreamEnd) end() {}

func (e *StreamEnd) cutAlso(other conn.Cuttable) { e.Stream.CutAlso(other) }

// endsItself returns true: a reset ends the stream even while nothing waits for it.
func (e *StreamEnd) endsItself() bool { return true }

func (e *StreamEnd) err() error { return e.Stream.Err() }

// abort does nothing: a close of an incomplete stream is a reset anyway.
func (e *StreamEnd) abort() {}

func (e *StreamEnd) moved(now time.Time) {
	if e.Client != nil {
		e.Client.Quiet(now)
	}
}

// parks returns false: the shared connection wakes the stream, and not the lot.
func (e *StreamEnd) parks() bool { return false }

func (e *StreamEnd) dozes() bool { return false }

func (e *StreamEnd) park(d *direction) bool { return e.Stream.Park(d) }

func (e *StreamEnd) unpark() bool { return e.Stream.Unpark() }

// polled returns false: the tunnel cannot take the shared connection from the poller.
func (e *StreamEnd) polled() bool { return false }

func (e *StreamEnd) unpoll() {}

// takeRead returns nothing: Receive returns all bytes of the stream.
func (e *StreamEnd) takeRead() (early, peeked []byte) { return nil, nil }

func (e *StreamEnd) copyFrom(d *direction) bool {
	for {
		p, err := e.Stream.Receive()
		switch {
		case err == conn.ErrQuiet:
			if d.t.parkIdle(d) {
				return false
			}
		case err == io.EOF:
			d.finish()
			return true
		case err != nil:
			d.t.fail(d.src(), err)
			return true
		case d.deliver(p) != nil:
			return true
		}
	}
}

// write sends all of p, or reports that it sent nothing.
func (e *StreamEnd) write(p []byte) (int, error) {
	if err := e.Stream.Send(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// authenticated returns false, even if the shared connection has TLS: the end of one of its
// streams is a frame.
func (e *StreamEnd) authenticated() bool { return false }

func (e *StreamEnd) truncated() bool { return false }

func (e *StreamEnd) closeWrite(bool) error { return e.Stream.SendEnd() }

func (e *StreamEnd) plainTCP() *conn.Conn { return nil }
