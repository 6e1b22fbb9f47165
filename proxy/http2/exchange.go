package http2

import (
	"io"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/park"
	"github.com/weirproxy/weir/proxy/http2/core"
	"github.com/weirproxy/weir/proxy/message"
)

// Exchange is one request of a Connection and its response, with the methods of
// http1.Server. One goroutine may read the body while another writes the response. All
// other methods are for one goroutine at a time.
type Exchange struct {
	conn   *Connection
	stream *core.Stream
	run    func() // x.serve, bound once

	// Guarded by the connection's lock.
	req         message.Request // the request until ReadHead; after that, trailers are decoded into it
	refusal     *message.Refusal
	body        body
	started     bool // it has a worker
	ended       bool // the whole body has arrived
	over        bool // the stream was reset, or the connection lost
	ending      core.Ending
	writable    bool
	interrupted bool
	idleTunnel  bool          // it counts among the connection's idle tunnels, see SetSilent
	link        conn.Cuttable // cut when the exchange is over; nil: none
	waiter

	expects  bool // the request waits for 100 Continue
	unwanted bool // weir discards the rest of the body: see AwaitEnd

	bare   bool  // the request has no body; known from ReadHead on
	read   bool  // the body was read to its end
	left   int64 // bytes of the response's body that are still to be sent, or message.Unknown
	trails bool  // trailers may follow the body, so its last byte does not end the stream
	stuck  error // the error of waiting for room for the response's head

	readBy   time.Time
	patience time.Duration // limits the waits of writes; 0: no limit
}

// OverError is the error of an exchange that ended before its time: by the peer, by Cut,
// or with the connection.
type OverError struct{ core.Ending }

func (e *OverError) Error() string { return "http2: " + e.Detail }

// Unwrap returns an error that callers treat as an ordinary end: conn.ErrCut after Cut,
// io.ErrUnexpectedEOF if the peer ended the exchange.
func (e *OverError) Unwrap() error {
	switch {
	case e.Reason == "cut":
		return conn.ErrCut
	case e.ByPeer:
		return io.ErrUnexpectedEOF
	}
	return nil
}

// Ended returns why the exchange ended prematurely; nil: it did not.
func (x *Exchange) Ended() error {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	if !x.over {
		return nil
	}
	return &OverError{x.ending}
}

var exchanges = sync.Pool{New: func() any {
	x := new(Exchange)
	x.run = x.serve
	return x
}}

func (x *Exchange) serve() { x.conn.serve(x) }

func newExchange(c *Connection, s *core.Stream) *Exchange {
	x := exchanges.Get().(*Exchange)
	x.conn, x.stream = c, s
	x.changed.L = &c.mu
	x.req.Reset()
	x.body.account = s.Account()
	return x
}

// release gives back x and its stream. The caller holds the lock.
func (x *Exchange) release() {
	c := x.conn
	if held := x.body.size; held > 0 {
		c.core.Consumed(x.stream, held)
	}
	x.body.discard()
	x.unpark()
	x.setIdleTunnel(false)
	c.core.Release(x.stream)
	if x.timed && !x.timer.Stop() {
		return // the timer may still use x: leave x to the garbage collector
	}
	req, chunks, timer := x.req, x.body.chunks, x.timer
	req.Reset()
	*x = Exchange{req: req, run: x.run}
	x.body.chunks, x.timer = chunks, timer
	exchanges.Put(x)
}

// Close ends the exchange. If the stream has not ended, Close resets it, because weir does
// not want the rest of the request. Close breaks off an incomplete response.
func (x *Exchange) Close() {
	c := x.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	x.release()
	c.startFlusher()
	c.drained.Broadcast()
	c.notify()
	if c.core.Working() == 0 {
		c.tellOver()
	}
}

// AwaitEnd waits at most d for the end of a request that weir has answered before the
// request ended. It discards the rest of the body. It waits only if the rest of the
// declared body (Content-Length) fits into the stream's window, so that the client can
// send it without a WINDOW_UPDATE. Reason: some clients (httpx) report a failure if Close
// resets the stream while they still send, although the response is complete. Call Close
// after AwaitEnd.
func (x *Exchange) AwaitEnd(d time.Duration) {
	if x.bare || x.read {
		return
	}
	c := x.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	s := x.stream
	if x.ended || x.over || !s.Sent() || s.Tunnel() || s.Missing() == message.Unknown || s.Missing() > s.Window() || x.expects && s.Missing() > 0 {
		return
	}
	x.unwanted = true
	c.core.Consumed(s, x.body.size)
	x.body.discard()
	c.startFlusher()
	for until := time.Now().Add(d); !x.ended && !x.over; {
		if x.wait(until) != nil {
			return
		}
	}
}

// ReadHead moves the request into req, and takes the memory of req in exchange. An error
// is a *message.Refusal with the answer for the client; req then has the part that weir
// understood.
func (x *Exchange) ReadHead(req *message.Request) error {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	*req, x.req = x.req, *req
	x.req.Reset()
	x.expects = req.ExpectContinue
	req.Trailers, x.req.Trailers = x.req.Trailers, req.Trailers // they may have arrived already; ReadBody returns them
	if x.ended && x.body.size == 0 && len(x.req.Trailers.Fields) == 0 {
		x.bare, x.read = true, true
	}
	if x.refusal != nil {
		return x.refusal
	}
	return nil
}

// HeadStarted reports whether the body has bytes that were not read yet.
func (x *Exchange) HeadStarted() bool {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	return x.body.size > x.body.given
}

// BufferedBody returns the whole body, or the part that ReadBody left, if all of it has
// arrived and fits into one buffer. Until SkipBody, it returns the same bytes again.
func (x *Exchange) BufferedBody() ([]byte, bool) {
	if x.bare {
		return nil, true
	}
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	if x.read || x.stream.Tunnel() {
		return nil, true
	}
	if !x.ended || len(x.req.Trailers.Fields) > 0 {
		return nil, false // only ReadBody returns trailers
	}
	return x.body.whole()
}

// SkipBody consumes the bytes that BufferedBody returned.
func (x *Exchange) SkipBody() {
	x.conn.mu.Lock()
	x.conn.core.Consumed(x.stream, x.body.size)
	x.body.discard()
	x.read = true
	x.conn.mu.Unlock()
}

// ReadBody returns the next piece of the body, valid until the next call, or io.EOF at
// the end. With io.EOF, the trailers are in req. Other errors: *OverError,
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
		c.startFlusher() // send all output before the wait
		if err := x.wait(x.readBy); err != nil {
			return nil, err
		}
	}
}

// BodyEnded reports whether the request was read to its end.
func (x *Exchange) BodyEnded() bool {
	if x.bare {
		return true
	}
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	return x.read || x.ended && x.body.size == x.body.given && len(x.req.Trailers.Fields) == 0
}

// Gone reports whether the exchange is over: the client does not wait for the response
// any more.
func (x *Exchange) Gone() bool {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	return x.over
}

// awaitRoom waits until the output has room for a head or trailers. Otherwise a client
// that reads nothing could make weir hold a head for each of its streams. The caller
// holds the lock.
func (x *Exchange) awaitRoom() error {
	c := x.conn
	for c.core.Crowded() && !x.over && c.failed == nil {
		var until time.Time // the time limit begins again when the client has read something
		x.writable = false
		c.heads = append(c.heads, x)
		err := x.waitWritable(&until)
		c.heads = slices.DeleteFunc(c.heads, func(o *Exchange) bool { return o == x })
		if err != nil {
			return err
		}
	}
	return nil
}

// Lighten gives back the part of the memory account that the exchange took in addition to
// its body. Call it when the exchange became a tunnel, because a tunnel may last long.
func (x *Exchange) Lighten() {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	x.stream.Lighten()
}

// WriteHead puts a response's head into the output, for Flush. It waits until there is
// room.
func (x *Exchange) WriteHead(req *message.Request, res *message.Response) {
	c := x.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	x.left = res.Length
	x.expects = x.expects && res.Status != 100
	tunnel := res.Status == 101
	if tunnel {
		x.left = message.Unknown
	}
	none := req.IsHead || message.BodyForbidden(res.Status) || res.Length == 0
	if none && !tunnel && !res.Informational() {
		x.left = 0
	}
	x.trails = res.Trails
	if x.stuck = x.awaitRoom(); x.stuck != nil {
		return // the next call reports it
	}
	c.core.Respond(x.stream, res, none && !tunnel) // if the stream is over, the next call reports it
}

// The time limit of a wait for room begins again when the client has taken this many
// bytes. takenShared applies if the connection is slow, because many streams may share
// it. takenOwn applies if the stream's own window is the limit, because the client
// chooses how far to open it.
const (
	takenShared = 1 << 10
	takenOwn    = conn.BufferSize
)

// WriteBody puts a piece of the response's body into the output. It waits until there is
// room for the whole piece. Errors: *OverError, os.ErrDeadlineExceeded.
func (x *Exchange) WriteBody(p []byte) error {
	c := x.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	var until time.Time
	for taken := 0; len(p) > 0; {
		switch {
		case x.over:
			return &OverError{x.ending}
		case x.stuck != nil:
			return x.stuck
		}
		x.writable = false
		last := !x.trails && x.left != message.Unknown && int64(len(p)) >= x.left // the length is known: END_STREAM goes along
		n, err := c.core.Write(x.stream, p, last)
		if err != nil {
			return err
		}
		if x.left != message.Unknown {
			x.left -= int64(n)
		}
		taken += n
		if taken >= takenOwn || taken >= takenShared && !x.stream.Blocked() {
			until, taken = time.Time{}, 0
		}
		if p = p[n:]; len(p) > 0 {
			if err := x.waitWritable(&until); err != nil {
				return err
			}
		}
	}
	return nil
}

// waitWritable waits until Write can continue, but no longer than until. If until is
// zero, waitWritable sets it from the write timeout, if there is one. The caller holds
// the lock.
func (x *Exchange) waitWritable(until *time.Time) error {
	x.conn.startFlusher()
	if account := x.body.account; !x.writable && !x.over {
		account.Force(conn.BufferSize) // what cannot be written waits in a buffer of the caller
		defer account.Release(conn.BufferSize)
	}
	for !x.writable && !x.over {
		if until.IsZero() && x.patience > 0 {
			*until = time.Now().Add(x.patience)
		}
		if err := x.wait(*until); err != nil {
			return err
		}
	}
	return nil
}

// WriteEnd puts the end of the response into the output, with its trailers.
func (x *Exchange) WriteEnd(res *message.Response) {
	c := x.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !x.stream.Sent() && x.left <= 0 { // if the body is too short, Close breaks the response off
		if core.HasTrailers(&res.Trailers) && x.awaitRoom() != nil {
			return // Close aborts the response
		}
		c.core.Finish(x.stream, &res.Trailers)
	}
}

// Flush sends the output. It returns an error if the response cannot arrive any more. It
// does not wait.
func (x *Exchange) Flush() error {
	c := x.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	c.startFlusher()
	switch {
	case x.over && !x.stream.Sent():
		return &OverError{x.ending}
	case x.stuck != nil:
		return x.stuck
	}
	return c.failed
}

// Accepts reports whether weir may send this response to the client.
func (x *Exchange) Accepts(req *message.Request, res *message.Response) bool {
	return core.Accepts(req, res)
}

// RequireHTTP1 resets the stream so that the client repeats the request over HTTP/1.1
// (RFC 9113, section 7). The response must not have begun.
func (x *Exchange) RequireHTTP1() {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	x.conn.core.Reset(x.stream, core.HTTP11Required)
	x.conn.startFlusher()
}

// Version returns the HTTP version.
func (x *Exchange) Version() string { return "2" }

// Transferred returns how many bytes of frames the exchange has received and sent.
func (x *Exchange) Transferred() (in, out int64) {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	return x.stream.Transferred()
}

// Link makes the early end of the exchange cut other as well; nil removes the link.
// other.Cut runs with the connection's lock held.
func (x *Exchange) CutAlso(other conn.Cuttable) {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	if x.link = other; other != nil && x.over {
		other.Cut()
	}
}

// Cut breaks off the exchange, as if the client had. Any goroutine may call it until
// Close.
func (x *Exchange) Cut() {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	x.cut()
}

// cut is Cut for callers that hold the lock.
func (x *Exchange) cut() {
	if !x.over {
		x.end(core.Ending{Code: core.Cancel, Reason: "cut", Detail: "weir aborted the request"})
	}
}

// WasCut reports whether the exchange is over, by Cut or otherwise.
func (x *Exchange) WasCut() bool { return x.Gone() }

// end records that the exchange is over. The caller holds the lock.
func (x *Exchange) end(why core.Ending) {
	x.over, x.ending = true, why
	if x.link != nil {
		x.link.Cut()
	}
	x.wake()
}

// wake wakes the goroutines that wait, and the waiter of an idle tunnel. The caller
// holds the lock.
func (x *Exchange) wake() {
	x.changed.Broadcast()
	if x.rouse() || x.idleTunnel && !x.stream.Tunnel() {
		x.setIdleTunnel(false)
		x.conn.notify()
	}
}

// setIdleTunnel records whether the tunnel is idle, and counts it. The caller holds the lock.
func (x *Exchange) setIdleTunnel(yes bool) {
	switch {
	case yes == x.idleTunnel:
	case yes:
		x.conn.idleTunnels++
	default:
		x.conn.idleTunnels--
	}
	x.idleTunnel = yes
}

// SetSilent notes whether nobody sends anything on the stream, and nobody has to. Such a stream
// counts as an idle tunnel, until more of the request's body arrives.
func (x *Exchange) SetSilent(yes bool) {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	x.setIdleTunnel(yes && !x.over)
	x.conn.notify()
}

// PingedAt returns when the client last sent a PING of its own; zero: never.
func (x *Exchange) PingedAt() time.Time {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	return x.conn.core.PingedAt()
}

// Owes returns false: a stream has no end that the client must reach, apart from a Content-Length.
func (x *Exchange) Owes() bool { return false }

// Receive returns the next piece of a tunnel, valid until the next call, or io.EOF.
// conn.ErrQuiet: no bytes arrived for conn.Linger.
func (x *Exchange) Receive() ([]byte, error) {
	var req message.Request // a tunnel has no trailers
	x.readBy = time.Now().Add(conn.Linger)
	p, err := x.ReadBody(&req)
	if err == io.EOF { // the client has ended its direction; the other direction may continue
		x.conn.mu.Lock()
		x.setIdleTunnel(true)
		x.conn.notify()
		x.conn.mu.Unlock()
	}
	return p, idleError(err)
}

// Park makes the exchange wake w once, when Receive has something to return. No goroutine
// may call Receive until then. Park returns false if there is something already.
func (x *Exchange) Park(w park.Waiter) bool {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	if x.body.size > 0 || x.ended || x.over {
		return false
	}
	x.parked = w
	x.setIdleTunnel(true)
	x.conn.notify()
	return true
}

// Unpark undoes Park, and returns true. It returns false if w was woken.
func (x *Exchange) Unpark() bool {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	if !x.unpark() {
		return false
	}
	x.setIdleTunnel(false)
	x.conn.notify()
	return true
}

// SendEnd ends the direction of a tunnel to the client.
func (x *Exchange) SendEnd() error {
	var res message.Response // a tunnel has no trailers
	x.WriteEnd(&res)
	return x.Flush()
}

// SetReadDeadline limits the waits of ReadBody. Call it in the goroutine that calls
// ReadBody.
func (x *Exchange) SetReadDeadline(t time.Time) { x.readBy = t }

// SetWriteTimeout limits how long WriteBody waits for room; 0: no limit. The time begins
// again when the client has taken enough bytes (takenShared, takenOwn). Call it in the
// goroutine that calls WriteBody.
func (x *Exchange) SetWriteTimeout(d time.Duration) { x.patience = d }

// Interrupt makes ReadBody return conn.ErrInterrupted instead of waiting, in the current
// call and in later ones, until Resume.
func (x *Exchange) Interrupt() { x.setInterrupted(true) }

// Resume undoes Interrupt.
func (x *Exchange) Resume() { x.setInterrupted(false) }

func (x *Exchange) setInterrupted(yes bool) {
	x.conn.mu.Lock()
	x.interrupted = yes
	x.changed.Broadcast()
	x.conn.mu.Unlock()
}
