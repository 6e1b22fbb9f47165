package http2

import (
	"io"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/park"
	"github.com/weirproxy/weir/proxy/message"
)

// Exchange is one request of a Connection and its response, with the methods
// of http1.Server. One goroutine may read the body while another writes the
// response; all else is for one goroutine at a time.
type Exchange struct {
	conn   *Connection
	stream *Stream
	run    func() // x.serve, bound once

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
	atRest      bool        // it counts among the connection's tunnels at rest
	link        conn.Linked // is cut where the exchange is over
	waiter

	expects  bool // the request waits for 100 Continue
	unwanted bool // what still comes of the body is thrown away: see AwaitEnd

	bare   bool  // no body came, or will: known since ReadHead
	read   bool  // the body was read to its end
	left   int64 // of the response's body; message.Unknown
	trails bool  // trailers may follow, so that its last byte is not the end
	stuck  error // the error of waiting for room for the response's head

	readBy   time.Time
	patience time.Duration // of writes; 0: no end
}

// OverError is the end of an exchange by its client.
type OverError struct{ Ending }

func (e *OverError) Error() string { return "http2: " + e.Detail }

// Unwrap makes an end that is the client's own doing, or Cut's, an ordinary one.
func (e *OverError) Unwrap() error {
	switch {
	case e.Reason == "cut":
		return conn.ErrCut
	case e.ByPeer:
		return io.ErrUnexpectedEOF
	}
	return nil
}

// Ended is why the exchange was over before its time; nil: it was not.
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

func newExchange(c *Connection, s *Stream) *Exchange {
	x := exchanges.Get().(*Exchange)
	x.conn, x.stream = c, s
	x.changed.L = &c.mu
	x.req.Reset()
	x.body.account = c.core.config.Account
	return x
}

// release gives x and its stream back. The lock is held.
func (x *Exchange) release() {
	c := x.conn
	if held := x.body.size; held > 0 {
		c.core.Consumed(x.stream, held)
	}
	x.body.discard()
	x.unrest()
	x.rests(false)
	c.core.Release(x.stream)
	if x.timed && !x.timer.Stop() {
		return // the timer may be about to look at x: leave it to the collector
	}
	req, chunks, timer := x.req, x.body.chunks, x.timer
	req.Reset()
	*x = Exchange{req: req, run: x.run}
	x.body.chunks, x.timer = chunks, timer
	exchanges.Put(x)
}

// Close ends the exchange, and the stream if it has not ended: what is left of
// the request is not wanted. A response that was not sent to its end is broken off.
func (x *Exchange) Close() {
	c := x.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	x.release()
	c.startFlusher()
	c.drained.Broadcast()
	c.look()
	if c.core.Working() == 0 {
		c.tellOver()
	}
}

// AwaitEnd waits for the end of a request that was answered before it ended, for d at
// most. It waits only where all that is missing of the declared body (Content-Length)
// fits into the stream's window, so that the client can send it without further ado, and
// throws that away. Some clients (httpx) take a stream that Close resets while they still
// send for a failure, though the response is complete. Close follows.
func (x *Exchange) AwaitEnd(d time.Duration) {
	if x.bare || x.read {
		return
	}
	c := x.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	s := x.stream
	if x.ended || x.over || !s.sendEnd || s.tunnel || s.left == message.Unknown || s.left > max(0, s.recvWindow) || x.expects && s.left > 0 {
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

// ReadHead hands the request over, in exchange for the memory of req. A
// *message.Refusal tells what to answer; req holds what was understood then.
func (x *Exchange) ReadHead(req *message.Request) error {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	*req, x.req = x.req, *req
	x.req.Reset()
	x.expects = req.ExpectContinue
	req.Trailers, x.req.Trailers = x.req.Trailers, req.Trailers // they may have come already, for ReadBody
	if x.ended && x.body.size == 0 && len(x.req.Trailers.Fields) == 0 {
		x.bare, x.read = true, true
	}
	if x.refusal != nil {
		return x.refusal
	}
	return nil
}

// HeadStarted reports whether bytes of the body are there, unread.
func (x *Exchange) HeadStarted() bool {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	return x.body.size > x.body.given
}

// BufferedBody returns the whole body, or what ReadBody left of it, if it is
// there already and not too large. It may be taken again until SkipBody.
func (x *Exchange) BufferedBody() ([]byte, bool) {
	if x.bare {
		return nil, true
	}
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
		c.startFlusher() // nothing is held back while it waits
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

// MustClose is false: no exchange of HTTP/2 needs the connection's end.
func (x *Exchange) MustClose() bool { return false }

// Gone reports whether the client has left and does not wait for the response.
func (x *Exchange) Gone() bool {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	return x.over
}

// awaitRoom waits until there is room for a head or trailers. Without it, a client that
// reads nothing could make weir hold one for each of its streams. The caller holds the lock.
func (x *Exchange) awaitRoom() error {
	c := x.conn
	for c.core.Crowded() && !x.over && c.failed == nil {
		var until time.Time // starts again when the client has read something
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

// Lighten gives back what the exchange took of the memory account in addition to its body.
// It is for an exchange that became a tunnel, which may last long.
func (x *Exchange) Lighten() {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	x.stream.lighten()
}

// WriteHead prepares a response's head for Flush, when there is room for it. HTTP/2 ignores
// last.
func (x *Exchange) WriteHead(req *message.Request, res *message.Response, last bool) {
	c := x.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	x.left = res.Length
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
	c.core.Respond(x.stream, res, none && !tunnel) // a stream that is over, the next call notices
}

// A wait for room begins anew once the client has taken this much. Less does for
// one whose connection is what is slow, as it may be shared by many streams, than
// for one whose stream's window is: how much it opens that is for it to choose.
const (
	takenShared = 1 << 10
	takenOwn    = conn.BufferSize
)

// WriteBody gathers a piece of the response's body. Where there is no room for
// it, it waits until there is. Errors: *OverError, os.ErrDeadlineExceeded.
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
		last := !x.trails && x.left != message.Unknown && int64(len(p)) >= x.left // its length is known: the end goes along
		n, err := c.core.Write(x.stream, p, last)
		if err != nil {
			return err
		}
		if x.left != message.Unknown {
			x.left -= int64(n)
		}
		taken += n
		if taken >= takenOwn || taken >= takenShared && !x.stream.starved {
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

// waitWritable waits until Write can go on, or until, which it sets if it is not. The lock is held.
func (x *Exchange) waitWritable(until *time.Time) error {
	x.conn.startFlusher()
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

// WriteEnd gathers the end of the response, with its trailers.
func (x *Exchange) WriteEnd(res *message.Response) {
	c := x.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !x.stream.Sent() && x.left <= 0 { // a body that is too short, Close breaks off
		if hasTrailers(&res.Trailers) && x.awaitRoom() != nil {
			return // Close aborts the response
		}
		c.core.Finish(x.stream, &res.Trailers)
	}
}

// Flush sends what was gathered, and says whether it can still arrive. It waits for nobody.
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

// Accepts reports whether the client can take a response. One to an extended
// CONNECT opens a tunnel by any 2xx, so that nothing but a 101 may look like it;
// and that it cannot verify itself, as it has no key (RFC 8441, section 5.1).
func (x *Exchange) Accepts(req *message.Request, res *message.Response) bool {
	if req.Upgrade.Len() == 0 {
		return true
	}
	if res.Status != 101 {
		return res.Status >= 300
	}
	key := req.GetName(webSocketKey)
	return key == nil || !message.EqualFold(req.Bytes(req.Upgrade), "websocket") || string(res.GetName(webSocketAccept)) == acceptKey(key)
}

// RequireHTTP1 ends the stream so that the client repeats the request over HTTP/1.1 (RFC
// 9113, section 7), and returns true. The response must not have begun.
func (x *Exchange) RequireHTTP1() bool {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	x.conn.core.Reset(x.stream, HTTP11Required)
	x.conn.startFlusher()
	return true
}

// Share is called before a second goroutine reads or writes, which is fine at any time.
func (x *Exchange) Share() {}

// Version is that of HTTP.
func (x *Exchange) Version() string { return "2" }

// Transferred is how many bytes of frames came and went for the exchange.
func (x *Exchange) Transferred() (in, out int64) {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	return x.stream.received, x.stream.written
}

// Link makes the end of the exchange by its client, or with its connection, cut
// other as well; nil undoes it. It is cut with the connection's lock held.
func (x *Exchange) Link(other conn.Linked) {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	if x.link = other; other != nil && x.over {
		other.Cut()
	}
}

// Cut breaks the exchange off, as if its client had. Anyone may call it until Close.
func (x *Exchange) Cut() {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	x.cut()
}

// cut is Cut with the lock held.
func (x *Exchange) cut() {
	if !x.over {
		x.end(Ending{Code: Cancel, Reason: "cut", Detail: "weir aborted the request"})
	}
}

// WasCut reports whether the exchange is over, by Cut or otherwise.
func (x *Exchange) WasCut() bool { return x.Gone() }

// end notes that the exchange is over. The lock is held.
func (x *Exchange) end(why Ending) {
	x.over, x.ending = true, why
	if x.link != nil {
		x.link.Cut()
	}
	x.wake()
}

// wake tells who reads, or rests, that there is something. The lock is held.
func (x *Exchange) wake() {
	x.changed.Broadcast()
	if x.rouse() {
		x.rests(false)
		x.conn.look()
	}
}

// rests counts a tunnel as one at rest, or no more. The lock is held.
func (x *Exchange) rests(yes bool) {
	switch {
	case yes == x.atRest:
	case yes:
		x.conn.resting++
	default:
		x.conn.resting--
	}
	x.atRest = yes
}

// Receive returns the next piece of a tunnel, valid until the next call, or
// io.EOF. conn.ErrQuiet: nothing came for conn.Linger.
func (x *Exchange) Receive() ([]byte, error) {
	var req message.Request // a tunnel has no trailers
	x.readBy = time.Now().Add(conn.Linger)
	p, err := x.ReadBody(&req)
	if err == io.EOF { // nobody reads any more, while the other direction may go on
		x.conn.mu.Lock()
		x.rests(true)
		x.conn.look()
		x.conn.mu.Unlock()
	}
	return p, quietened(err)
}

// Rest has w woken once, when there is something to Receive, which nobody calls
// until then. False: there is already.
func (x *Exchange) Rest(w park.Waiter) bool {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	if x.body.size > 0 || x.ended || x.over {
		return false
	}
	x.resting = w
	x.rests(true)
	x.conn.look()
	return true
}

// Unrest takes back what Rest did, and returns true. False: w was woken.
func (x *Exchange) Unrest() bool {
	x.conn.mu.Lock()
	defer x.conn.mu.Unlock()
	if !x.unrest() {
		return false
	}
	x.rests(false)
	x.conn.look()
	return true
}

// SendEnd ends a tunnel's direction to the client.
func (x *Exchange) SendEnd() error {
	var res message.Response // a tunnel has no trailers
	x.WriteEnd(&res)
	return x.Flush()
}

// SetReadDeadline bounds ReadBody; for the goroutine that calls them.
func (x *Exchange) SetReadDeadline(t time.Time) { x.readBy = t }

// SetWriteTimeout bounds how long WriteBody waits for room, counted anew when
// the client took a good piece; for the goroutine that calls it. 0: it waits for good.
func (x *Exchange) SetWriteTimeout(d time.Duration) { x.patience = d }

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
