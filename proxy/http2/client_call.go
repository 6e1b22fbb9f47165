package http2

import (
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/listener/park"
	"github.com/weirproxy/weir/proxy/message"
)

// Call is one exchange with the endpoint of a Trunk, with the methods of
// http1.Client, and those of a connection that bound its waits. One goroutine
// may write the request while another reads the response; all else is for one
// goroutine at a time. Its owner ends it with End.
type Call struct {
	trunk *Trunk

	// Guarded by the trunk's lock.
	waiter
	res  message.Response // until ReadHead; then what trailers are decoded into
	body body
	callState

	account  *memory.Account // of the client that makes the call; nil: nothing is charged
	inside   bool            // Await is running: reads do not wait
	handed   bool            // the caller has the response's head
	read     bool            // the caller has read the response to its end
	left     int64           // bytes of the request's body that are still to come; message.Unknown
	readBy   time.Time
	patience time.Duration // of writes; 0: no end
}

// callState is what events change.
type callState struct {
	stream   *Stream // nil until WriteHead
	infos    []*message.Response
	headed   bool // the response's head is there
	answered bool // any head came
	ended    bool // the response has arrived to its end
	err      error
	cut      bool
	writable bool
	news     bool // something changed that Await has not taken note of
	link     conn.Linked
}

var (
	errNoUpgrade = &RequestError{&message.Refusal{Status: 501, Reason: "upgrade",
		Detail: "the endpoint does not support upgrades over HTTP/2 (RFC 8441)"}}
	errHeadForPeer = &RequestError{&message.Refusal{Status: 431, Reason: "head_too_large",
		Detail: "the request's headers are larger than the endpoint accepts (its SETTINGS_MAX_HEADER_LIST_SIZE)"}}
)

// RequestError is a request that the connection cannot carry, and what to
// answer. The endpoint has seen nothing of it.
type RequestError struct{ *message.Refusal }

// Unwrap makes the refusal known to errors.As.
func (e *RequestError) Unwrap() error { return e.Refusal }

// Call makes a call, whose stream begins with WriteHead. There may be more calls
// than Limit; those find out by Quiet, or by a failure that is Unprocessed.
func (t *Trunk) Call() *Call {
	t.mu.Lock()
	defer t.mu.Unlock()
	var x *Call
	if n := len(t.free); n > 0 {
		x, t.free = t.free[n-1], t.free[:n-1]
	} else {
		x = &Call{trunk: t}
		x.changed.L = &t.mu
	}
	return x
}

// End ends the call, and cancels its stream if it has not ended. Nobody uses x any more.
func (x *Call) End() {
	t := x.trunk
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.stream != nil {
		if held := x.body.size; held > 0 {
			t.core.Consumed(x.stream, held)
		}
		t.core.Release(x.stream)
		t.startFlusher()
	}
	x.body.discard()
	x.unrest()
	x.res.Reset()
	x.callState = callState{}
	x.account, x.body.account = nil, nil
	x.inside, x.handed, x.read, x.left, x.readBy, x.patience = false, false, false, 0, time.Time{}, 0
	if t.lost == nil && len(t.free) < mostFree {
		t.free = append(t.free, x) // with its timer, which may run: it wakes nobody, or too early
	} else {
		x.waiter.stop()
	}
}

// ChargeTo charges the memory of the response to the client that makes the call. Call it
// before WriteHead; End gives back what was charged.
func (x *Call) ChargeTo(a *memory.Account) { x.account, x.body.account = a, a }

// Lighten is for a call that became a tunnel. It gives back what the call took in addition
// to its body, and charges the body to a from now on. With nil no account is charged.
func (x *Call) Lighten(a *memory.Account) {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	if x.stream != nil {
		x.stream.lighten()
		x.stream.memory = a
	}
	held := conn.BufferSize * len(x.body.chunks)
	x.body.account.Release(held)
	a.Force(held)
	x.account, x.body.account = a, a
}

// Quiet reports whether the connection takes the call. It is http1.Client's, which
// has to look at the connection.
func (x *Call) Quiet(error) bool { return x.trunk.Limit() > 0 }

// WriteHead gathers a request's head, to be sent by Flush. What keeps it from
// being sent, the next call tells.
func (x *Call) WriteHead(req *message.Request) {
	t := x.trunk
	t.mu.Lock()
	defer t.unlock()
	if t.lost != nil {
		x.err = t.lost
		if t.hungUp { // the endpoint went away, before this call could begin
			x.err = unsent(t.lost)
		}
		return
	}
	x.left = req.Length
	if req.Upgrade.Len() > 0 {
		x.left = message.Unknown
	}
	s, err := t.core.Open(req, x.left == 0)
	switch err {
	case nil:
		x.stream, s.User, s.memory = s, x, x.account
		if t.core.Pending() >= mostUnread {
			t.measure()
		}
	case ErrNoConnectProtocol:
		x.err = errNoUpgrade
	case ErrHeadForPeer:
		x.err = errHeadForPeer
	default:
		t.measure()
		x.err = unsent(err)
	}
}

// unsent is the end of a call that could not begin.
func unsent(err error) error {
	return &OverError{Ending{Code: RefusedStream, ByPeer: true, Unprocessed: true, Reason: "no_stream",
		Detail: strings.TrimPrefix(err.Error(), "http2: ")}}
}

// WriteBody gathers a piece of the request's body. Where there is no room for
// it, it waits until there is.
func (x *Call) WriteBody(p []byte) error {
	t := x.trunk
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(p) > 0 {
		if err := x.failure(); x.unwanted() {
			return nil
		} else if err != nil {
			return err
		}
		x.writable = false
		n, err := t.core.Write(x.stream, p, false)
		if err != nil {
			return err
		}
		if x.left != message.Unknown {
			x.left -= int64(n)
		}
		if p = p[n:]; len(p) > 0 {
			if err := x.waitWritable(); err != nil && !x.unwanted() {
				return err
			}
		}
	}
	return nil
}

// unwanted reports whether the endpoint has answered and does not want the rest of
// a request that was there as a whole. The lock is held.
func (x *Call) unwanted() bool {
	return x.inside && x.headed && !x.cut && (x.ended || x.err != nil)
}

// failure is why nothing more can be written. The lock is held.
func (x *Call) failure() error {
	switch {
	case x.cut:
		return conn.ErrCut
	case x.err != nil:
		return x.err
	case x.stream == nil:
		return ErrStreamOver
	}
	return nil
}

// waitWritable waits until Write can go on. The lock is held.
func (x *Call) waitWritable() error {
	x.trunk.startFlusher()
	var until time.Time
	for !x.writable && !x.unwanted() {
		if err := x.failure(); err != nil {
			return err
		}
		if until.IsZero() && x.patience > 0 {
			until = time.Now().Add(x.patience)
		}
		if err := x.wait(until); err != nil {
			return err
		}
	}
	return nil
}

// WriteEnd gathers the end of the request, with its trailers. A body that is
// too short does not end, and End cancels it; a tunnel only begins.
func (x *Call) WriteEnd(req *message.Request) {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	if x.failure() == nil && !x.stream.Sent() && !x.stream.Tunnel() && x.left <= 0 {
		x.trunk.core.Finish(x.stream, &req.Trailers)
	}
}

// Flush sends what was gathered. It waits for nobody.
func (x *Call) Flush() error {
	t := x.trunk
	t.mu.Lock()
	defer t.mu.Unlock()
	t.startFlusher()
	if x.headed { // whatever became of the request, there is something to read
		return nil
	}
	return x.failure()
}

// ReadHead reads the next response head, a 1xx too, within Await without
// waiting. The errors: conn.ErrWouldBlock (call again), a *message.Refusal where
// what came is no response, *RequestError, *OverError, *LostError, conn.ErrCut,
// os.ErrDeadlineExceeded.
func (x *Call) ReadHead(_ *message.Request, res *message.Response) error {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	for {
		switch {
		case len(x.infos) > 0:
			*res = *x.infos[0]
			x.infos = x.infos[1:]
			return nil
		case x.headed:
			*res, x.res = x.res, *res
			x.res.Reset()
			res.Trailers, x.res.Trailers = x.res.Trailers, res.Trailers // they may have come already, for ReadBody
			res.Trailers.Reset()
			x.handed = true
			return nil
		}
		if err := x.waitToRead(); err != nil {
			return err
		}
	}
}

// waitToRead waits for what the endpoint sends. The lock is held.
func (x *Call) waitToRead() error {
	switch {
	case x.cut:
		return conn.ErrCut
	case x.err != nil:
		return x.err
	case x.inside:
		return conn.ErrWouldBlock
	}
	return x.wait(x.readBy)
}

// Started reports whether reading on need not wait.
func (x *Call) Started() bool {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	return x.body.size > x.body.given || x.ended || len(x.infos) > 0 || x.headed && !x.handed
}

// Answered reports whether any head came, a 1xx's too.
func (x *Call) Answered() bool {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	return x.answered
}

// ReadBody returns the next piece of the response's body, valid until the next
// call, or io.EOF at its end; the trailers are then in res. Within Await it does
// not wait. The errors are those of ReadHead.
func (x *Call) ReadBody(res *message.Response) ([]byte, error) {
	t := x.trunk
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := x.body.done(); n > 0 {
		t.core.Consumed(x.stream, n)
		t.startFlusher()
	}
	for {
		if p := x.body.next(); len(p) > 0 {
			return p, nil
		}
		if x.ended {
			if !x.read {
				x.read = true
				res.Trailers, x.res.Trailers = x.res.Trailers, res.Trailers
			}
			return nil, io.EOF
		}
		if err := x.waitToRead(); err != nil {
			return nil, err
		}
	}
}

// BodyEnded reports whether the response was read to its end.
func (x *Call) BodyEnded() bool {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	return x.read || x.ended && x.body.size == x.body.given && len(x.res.Trailers.Fields) == 0
}

// Reusable reports whether the exchange ended on both sides.
func (x *Call) Reusable() bool {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	return x.stream != nil && x.stream.Closed() && x.ended
}

// TakeBuffered returns nothing: what came behind a 101 stays with the call.
func (x *Call) TakeBuffered() []byte { return nil }

// Release has nothing to give back before End.
func (x *Call) Release() {}

// Close is http1.Client's. It is End that ends the call.
func (x *Call) Close() {}

// Await calls step when there may be something to read, until it returns true
// or the wait ends in an error: os.ErrDeadlineExceeded, or conn.ErrCut. Reads
// within do not wait.
func (x *Call) Await(step func() bool) error {
	x.inside = true
	defer func() { x.inside = false }()
	for !step() {
		if err := x.await(); err != nil {
			return err
		}
	}
	return nil
}

// await waits for news, and takes note of it.
func (x *Call) await() error {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	for !x.news {
		if x.cut {
			return conn.ErrCut
		}
		if err := x.wait(x.readBy); err != nil {
			return err
		}
	}
	x.news = false
	return nil
}

// LookAgain means nothing to a call, which is told of everything.
func (x *Call) LookAgain() {}

// SetReadDeadline bounds Await and reads; for the goroutine that calls them.
func (x *Call) SetReadDeadline(t time.Time) { x.readBy = t }

// SetWriteTimeout bounds how long WriteBody waits for room, counted anew when
// there was some; for the goroutine that calls it. 0: it waits for good.
func (x *Call) SetWriteTimeout(d time.Duration) { x.patience = d }

// Cut ends every wait of the call with conn.ErrCut. Anyone may call it, until End.
func (x *Call) Cut() {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	x.cut = true
	x.wake()
}

// WasCut reports whether Cut was called.
func (x *Call) WasCut() bool {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	return x.cut
}

// wake tells who waits of news. The lock is held, here and below.
func (x *Call) wake() {
	x.news = true
	x.changed.Broadcast()
	x.rouse()
}

// gotHead takes a head that was decoded into x.res.
func (x *Call) gotHead() {
	x.answered = true
	if x.res.Informational() {
		info := new(message.Response)
		*info, x.res = x.res, *info
		x.infos = append(x.infos, info)
	} else {
		x.headed = true
	}
	x.wake()
}

// end takes the end of the stream before its time.
func (x *Call) end(e Ending) {
	switch lost := x.trunk.lost; {
	case lost != nil:
		x.err = lost
	case e.ByPeer:
		x.err = &OverError{e}
	case e.Reason == message.ErrMemory.Reason:
		x.err = message.ErrMemory
	default:
		x.err = &message.Refusal{Status: 502, Reason: e.Reason, Detail: e.Detail}
	}
	if x.link != nil {
		go x.link.Cut() // which may lock what waits for our lock
	}
	x.wake()
}

// Link makes the call's end before its time cut other as well; nil undoes it.
func (x *Call) Link(other conn.Linked) {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	if x.link = other; other != nil && x.err != nil {
		go other.Cut()
	}
}

// Receive returns the next piece of a tunnel, valid until the next call, or
// io.EOF. conn.ErrQuiet: nothing came for conn.Linger.
func (x *Call) Receive() ([]byte, error) {
	var res message.Response // a tunnel has no trailers
	x.readBy = time.Now().Add(conn.Linger)
	p, err := x.ReadBody(&res)
	return p, quietened(err)
}

// quietened is how a read of a tunnel ended that waited for conn.Linger.
func quietened(err error) error {
	if err == os.ErrDeadlineExceeded {
		return conn.ErrQuiet
	}
	return err
}

// Rest has w woken once, when there is something to Receive, which nobody calls
// until then. False: there is already.
func (x *Call) Rest(w park.Waiter) bool {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	if x.body.size > 0 || x.ended || x.err != nil || x.cut {
		return false
	}
	x.resting = w
	return true
}

// Unrest takes back what Rest did, and returns true. False: w was woken.
func (x *Call) Unrest() bool {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	return x.unrest()
}

// Send sends p through a tunnel, and waits until there is room for it.
func (x *Call) Send(p []byte) error {
	if err := x.WriteBody(p); err != nil {
		return err
	}
	return x.Flush()
}

// SendEnd ends the tunnel's direction to the endpoint.
func (x *Call) SendEnd() error {
	t := x.trunk
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := x.failure(); err != nil {
		return err
	}
	_, err := t.core.Write(x.stream, nil, true)
	t.startFlusher()
	return err
}

// Err is how a tunnel's stream ended before its time: conn.ErrCut by Cut; nil: it did not.
func (x *Call) Err() error {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	if x.err == nil && x.cut {
		return conn.ErrCut
	}
	return x.err
}

// Unprocessed reports whether err means that the endpoint has not acted on a
// request, which may be repeated whatever its method.
func Unprocessed(err error) bool {
	var over *OverError
	return errors.As(err, &over) && over.Unprocessed
}

// RequiresHTTP1 returns true if err means that the endpoint requires HTTP/1.1 for the
// request (RFC 9113, section 7). The endpoint has not processed the request. Servers answer
// so if the client must authenticate its connection.
func RequiresHTTP1(err error) bool {
	var over *OverError
	return errors.As(err, &over) && over.ByPeer && over.Code == HTTP11Required
}

// Leaving says of such an error that the whole connection was about to end.
func Leaving(err error) bool {
	var over *OverError
	return errors.As(err, &over) && over.Unprocessed && over.Reason != "reset_by_peer"
}
