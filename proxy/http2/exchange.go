package http2

import (
	"io"
	"os"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
)

// Exchange is one request of a Connection and its response, with the methods
// of http1.Server. One goroutine may read the body while another writes the
// response; all else is for one goroutine at a time.
type Exchange struct {
	conn   *Connection
	stream *Stream

	// Guarded by the connection's lock.
	req         message.Request // until ReadHead; then what trailers are decoded into
	refusal     *message.Refusal
	body        body
	started     bool // it has a worker
	ended       bool // the body has arrived to its end
	over        bool // the stream was reset, or the connection lost
	ending      Ending
	writable    bool
	interrupted bool
	changed     sync.Cond

	read  bool  // the body was read to its end
	left  int64 // of the response's body; message.Unknown
	timer *time.Timer
	armed time.Time // when the timer fires

	readBy, writeBy time.Time
}

// OverError is the end of an exchange by its client.
type OverError struct{ Ending }

func (e *OverError) Error() string { return "http2: " + e.Detail }

var exchanges = sync.Pool{New: func() any { return new(Exchange) }}

func newExchange(c *Connection, s *Stream) *Exchange {
	x := exchanges.Get().(*Exchange)
	x.conn, x.stream = c, s
	x.changed.L = &c.mu
	x.req.Reset()
	return x
}

// release gives x and its stream back. The lock is held.
func (x *Exchange) release() {
	c := x.conn
	if held := x.body.size; held > 0 {
		c.core.Consumed(x.stream, held)
	}
	x.body.discard()
	c.core.Release(x.stream)
	if x.timer != nil && !x.timer.Stop() && !x.armed.IsZero() {
		return // the timer may be about to look at x: leave it to the collector
	}
	req, chunks, timer := x.req, x.body.chunks, x.timer
	req.Reset()
	*x = Exchange{req: req, timer: timer}
	x.body.chunks = chunks
	exchanges.Put(x)
}

// Close ends the exchange, and the stream if it has not ended: what is left of
// the request is not wanted. A response that was not sent to its end is broken off.
func (x *Exchange) Close() {
	c := x.conn
	c.mu.Lock()
	x.release()
	c.startFlusher()
	if c.core.Working() == 0 {
		c.drained.Broadcast()
	}
	c.mu.Unlock()
}

// ReadHead hands the request over, in exchange for the memory of req. A
// *message.Refusal tells what to answer; req holds what was understood then.
func (x *Exchange) ReadHead(req *message.Request) error {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	*req, x.req = x.req, *req
	x.req.Reset()
	req.Trailers, x.req.Trailers = x.req.Trailers, req.Trailers // they may have come already, for ReadBody
	if x.refusal != nil {
		return x.refusal
	}
	return nil
}

// HeadStarted says whether bytes of the body are there, unread.
func (x *Exchange) HeadStarted() bool {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	return x.body.size > x.body.given
}

// BufferedBody returns the whole body, or what ReadBody left of it, if it is
// there already and not too large. It may be taken again until SkipBody.
func (x *Exchange) BufferedBody() ([]byte, bool) {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	if x.read || x.stream.tunnel {
		return nil, true
	}
	if !x.ended || len(x.req.Trailers.Fields) > 0 {
		return nil, false // ReadBody hands trailers over
	}
	return x.body.whole()
}

// SkipBody consumes what BufferedBody returned.
func (x *Exchange) SkipBody() {
	x.conn.mu.Lock()
	x.conn.core.Consumed(x.stream, x.body.size)
	x.body.discard()
	x.read = true
	x.conn.mu.Unlock()
}

// ReadBody returns the next piece of the body, valid until the next call, or
// io.EOF at its end; the trailers are then in req. Other errors: *OverError,
// conn.ErrInterrupted, os.ErrDeadlineExceeded.
func (x *Exchange) ReadBody(req *message.Request) ([]byte, error) {
	c := x.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := x.body.done(); n > 0 {
		c.core.Consumed(x.stream, n)
		c.startFlusher()
	}
	for {
		if p := x.body.next(); len(p) > 0 {
			return p, nil
		}
		switch {
		case x.ended:
			if !x.read {
				x.read = true
				req.Trailers, x.req.Trailers = x.req.Trailers, req.Trailers
			}
			return nil, io.EOF
		case x.over:
			return nil, &OverError{x.ending}
		case x.interrupted:
			return nil, conn.ErrInterrupted
		}
		if err := x.wait(x.readBy); err != nil {
			return nil, err
		}
	}
}

// BodyEnded says whether the request was read to its end.
func (x *Exchange) BodyEnded() bool {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	return x.read || x.ended && x.body.size == x.body.given && len(x.req.Trailers.Fields) == 0
}

// MustClose is false: no exchange of HTTP/2 needs the connection's end.
func (x *Exchange) MustClose() bool { return false }

// Gone says whether nobody waits for the response any more.
func (x *Exchange) Gone() bool {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	return x.over
}

// WriteHead sends a response's head. last means nothing to HTTP/2.
func (x *Exchange) WriteHead(req *message.Request, res *message.Response, last bool) {
	c := x.conn
	c.mu.Lock()
	x.left = res.Length
	tunnel := res.Status == 101
	if tunnel {
		x.left = message.Unknown
	}
	none := req.IsHead || message.BodyForbidden(res.Status) || res.Length == 0
	if none && !tunnel && !res.Informational() {
		x.left = 0
	}
	c.core.Respond(x.stream, res, none && !tunnel) // a stream that is over, the next call notices
	c.startFlusher()
	c.mu.Unlock()
}

// WriteBody sends a piece of the response's body, as soon as there is room for it.
func (x *Exchange) WriteBody(p []byte) error {
	c := x.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(p) > 0 {
		if x.over {
			return &OverError{x.ending}
		}
		x.writable = false
		last := x.left != message.Unknown && int64(len(p)) >= x.left // its length is known: the end goes along
		n, err := c.core.Write(x.stream, p, last)
		if err != nil {
			return err
		}
		if x.left != message.Unknown {
			x.left -= int64(n)
		}
		c.startFlusher()
		for p = p[n:]; len(p) > 0 && !x.writable && !x.over; {
			if err := x.wait(x.writeBy); err != nil {
				return err
			}
		}
	}
	return nil
}

// WriteEnd ends the response, with its trailers.
func (x *Exchange) WriteEnd(res *message.Response) {
	c := x.conn
	c.mu.Lock()
	if !x.stream.Sent() && x.left <= 0 { // a body that is too short, Close breaks off
		c.core.Finish(x.stream, &res.Trailers)
		c.startFlusher()
	}
	c.mu.Unlock()
}

// Flush says whether what was written can still arrive. It is on its way anyway.
func (x *Exchange) Flush() error {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	if x.over {
		return &OverError{x.ending}
	}
	return x.conn.failed
}

// SetReadDeadline bounds ReadBody and Read; for the goroutine that calls them.
func (x *Exchange) SetReadDeadline(t time.Time) { x.readBy = t }

// SetWriteDeadline bounds WriteBody and Write; for the goroutine that calls them.
func (x *Exchange) SetWriteDeadline(t time.Time) { x.writeBy = t }

// Interrupt makes a ReadBody that waits return conn.ErrInterrupted, and those that come, until Resume.
func (x *Exchange) Interrupt() { x.setInterrupted(true) }

// Resume takes Interrupt back.
func (x *Exchange) Resume() { x.setInterrupted(false) }

func (x *Exchange) setInterrupted(yes bool) {
	x.conn.mu.Lock()
	x.interrupted = yes
	x.changed.Broadcast()
	x.conn.mu.Unlock()
}

// wait waits until something changed, or until the deadline. The lock is held,
// but while it waits.
func (x *Exchange) wait(until time.Time) error {
	if !until.IsZero() {
		now := time.Now()
		if !now.Before(until) {
			return os.ErrDeadlineExceeded
		}
		x.arm(now, until)
	}
	x.changed.Wait()
	return nil
}

// arm has x woken no later than until, if it has to wait that long.
func (x *Exchange) arm(now, until time.Time) {
	if x.armed.After(now) && !x.armed.After(until) {
		return // earlier: who waits looks again
	}
	x.armed = until
	if x.timer == nil {
		x.timer = time.AfterFunc(until.Sub(now), x.alarm)
	} else {
		x.timer.Reset(until.Sub(now))
	}
}

func (x *Exchange) alarm() {
	x.conn.mu.Lock()
	x.armed = time.Time{}
	x.changed.Broadcast()
	x.conn.mu.Unlock()
}
