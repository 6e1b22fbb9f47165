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
	"github.com/weirproxy/weir/proxy/http2/core"
	"github.com/weirproxy/weir/proxy/message"
)

// Call is one exchange with the endpoint of a Trunk. It reads and writes messages as
// http1.Client does, and has the methods of a connection that limit its waits. One goroutine may write the
// request while another reads the response. All other methods are for one goroutine at a
// time. The owner ends the call with End.
type Call struct {
	trunk *Trunk

	// Guarded by the trunk's lock.
	waiter
	res  message.Response // the response until ReadHead; after that, trailers are decoded into it
	body body
	callState

	account  *memory.Account // of the client that makes the call; nil: nothing is charged
	inside   bool            // Await is running: reads do not wait
	handed   bool            // the caller has the response's head
	read     bool            // the caller has read the response to its end
	left     int64           // bytes of the request's body that are still to come; message.Unknown
	readBy   time.Time
	patience time.Duration // limits the waits of writes; 0: no limit
}

// callState is the part of a Call that the core's events change.
type callState struct {
	stream   *core.Stream // nil until WriteHead
	infos    []*message.Response
	headed   bool // the final head of the response has arrived
	answered bool // any head has arrived, a 1xx too
	ended    bool // the whole response has arrived
	err      error
	cut      bool
	writable bool
	news     bool // something changed since Await last looked
	link     conn.Cuttable
}

var (
	errNoUpgrade = &RequestError{&message.Refusal{Status: 501, Reason: "upgrade",
		Detail: "the endpoint does not support upgrades over HTTP/2 (RFC 8441)"}}
	errUpgradeBody = &RequestError{&message.Refusal{Status: 501, Reason: "upgrade",
		Detail: "an upgrade with a body is not possible over HTTP/2"}}
	errHeadForPeer = &RequestError{&message.Refusal{Status: 431, Reason: "head_too_large",
		Detail: "the request's headers are larger than the endpoint accepts (its SETTINGS_MAX_HEADER_LIST_SIZE)"}}
)

// RequestError is the error of a request that the connection cannot carry, with the
// answer for the client. The endpoint has seen nothing of the request.
type RequestError struct{ *message.Refusal }

// Unwrap returns the refusal, for errors.As.
func (e *RequestError) Unwrap() error { return e.Refusal }

// Call makes a call. Its stream begins with WriteHead. There may be more calls than
// Limit: the excess calls are not Usable, or fail with an error that is Unprocessed.
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

// mostFreeCalls limits the calls that a trunk keeps for reuse.
const mostFreeCalls = 128

// End ends the call, and cancels its stream if the stream has not ended. The caller must
// not use x any more.
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
	x.unpark()
	x.res.Reset()
	x.callState = callState{}
	x.account, x.body.account = nil, nil
	x.inside, x.handed, x.read, x.left, x.readBy, x.patience = false, false, false, 0, time.Time{}, 0
	if t.lost == nil && len(t.free) < mostFreeCalls {
		t.free = append(t.free, x) // with its timer, which may run: a wake-up that is too early does no harm
	} else {
		x.waiter.stop()
	}
}

// ChargeTo makes a the account that pays for the memory of the response; nil: nobody pays. The
// buffers of the body change their account at once. The stream keeps the account that the call
// has in WriteHead, and End gives its memory back.
func (x *Call) ChargeTo(a *memory.Account) {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	x.chargeTo(a)
}

// chargeTo is ChargeTo for callers that hold the lock.
func (x *Call) chargeTo(a *memory.Account) {
	held := conn.BufferSize * len(x.body.chunks)
	x.body.account.Release(held)
	a.Force(held)
	x.account, x.body.account = a, a
}

// Lighten is for a call that became a tunnel. It gives back the memory that the call took
// in addition to its body, and charges the body to a from now on. With nil no account is
// charged.
func (x *Call) Lighten(a *memory.Account) {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	if x.stream != nil {
		x.stream.ChargeTo(a)
	}
	x.chargeTo(a)
}

// Usable reports whether the connection accepts the call.
func (x *Call) Usable() bool { return x.trunk.Limit() > 0 }

// WriteHead puts a request's head into the output, for Flush. If that fails, the next
// call returns the error.
func (x *Call) WriteHead(req *message.Request) {
	t := x.trunk
	t.mu.Lock()
	defer t.unlock()
	if t.lost != nil {
		x.err = t.lost
		if t.hungUp { // the connection was closed in an orderly way before this call could begin
			x.err = unsent(t.lost)
		}
		return
	}
	x.left = req.Length
	if req.Upgrade.Len() > 0 {
		if req.Length > 0 {
			x.err = errUpgradeBody
			return
		}
		x.left = message.Unknown
	}
	s, err := t.core.Open(req, x.left == 0)
	switch err {
	case nil:
		x.stream = s
		t.opened++
		s.Attach(x)
		s.ChargeTo(x.account)
		if t.core.Pending() >= mostUnread {
			t.measure()
		}
	case core.ErrNoConnectProtocol:
		x.err = errNoUpgrade
	case core.ErrHeadForPeer:
		x.err = errHeadForPeer
	default:
		t.measure()
		x.err = unsent(err)
	}
}

// unsent returns the error of a call that could not begin.
func unsent(err error) error {
	return &OverError{core.Ending{Code: core.RefusedStream, ByPeer: true, Unprocessed: true, Reason: "no_stream",
		Detail: strings.TrimPrefix(err.Error(), "http2: ")}}
}

// WriteBody puts a piece of the request's body into the output. It waits until there is
// room for the whole piece.
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

// unwanted reports whether the endpoint has answered and does not want the rest of the
// request. It applies only within Await, where the whole request was there from the
// start. The caller holds the lock.
func (x *Call) unwanted() bool {
	return x.inside && x.headed && !x.cut && (x.ended || x.err != nil)
}

// failure returns why nothing more can be written, or nil. The caller holds the lock.
func (x *Call) failure() error {
	switch {
	case x.cut:
		return conn.ErrCut
	case x.err != nil:
		return x.err
	case x.stream == nil:
		return core.ErrStreamOver
	}
	return nil
}

// waitWritable waits until Write can continue. The caller holds the lock.
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

// WriteEnd puts the end of the request into the output, with its trailers. It does not
// end a body that is too short (End cancels the stream), nor a tunnel, which only begins.
func (x *Call) WriteEnd(req *message.Request) {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	if x.failure() == nil && !x.stream.Sent() && !x.stream.Tunnel() && x.left <= 0 {
		x.trunk.core.Finish(x.stream, &req.Trailers)
	}
}

// Flush sends the output. It does not wait.
func (x *Call) Flush() error {
	t := x.trunk
	t.mu.Lock()
	defer t.mu.Unlock()
	t.startFlusher()
	if x.headed { // there is a response to read, even if the request failed
		return nil
	}
	return x.failure()
}

// ReadHead reads the next response head, a 1xx too. Within Await it does not wait.
// Errors: conn.ErrWouldBlock (call again), a *message.Refusal if the endpoint did not
// send a valid response, *RequestError, *OverError, *LostError, conn.ErrCut,
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
			res.Trailers, x.res.Trailers = x.res.Trailers, res.Trailers // they may have arrived already; ReadBody returns them
			res.Trailers.Reset()
			x.handed = true
			return nil
		}
		if err := x.waitToRead(); err != nil {
			return err
		}
	}
}

// waitToRead waits for data from the endpoint. The caller holds the lock.
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

// Started reports whether the next read can return without waiting.
func (x *Call) Started() bool {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	return x.body.size > x.body.given || x.ended || len(x.infos) > 0 || x.headed && !x.handed
}

// Taken reports whether the endpoint has shown that it processes the request: then it cannot
// refuse it any more.
func (x *Call) Taken() bool {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	return x.stream != nil && x.stream.Taken()
}

// Answered reports whether any head has arrived, a 1xx too.
func (x *Call) Answered() bool {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	return x.answered
}

// ReadBody returns the next piece of the response's body, valid until the next call, or
// io.EOF at the end. With io.EOF, the trailers are in res. Within Await it does not wait.
// The errors are those of ReadHead.
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

// PingedAt returns when the endpoint last sent a PING of its own; zero: never.
func (x *Call) PingedAt() time.Time {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	return x.trunk.core.PingedAt()
}

// Owes returns false; see Exchange.Owes.
func (x *Call) Owes() bool { return false }

// Await calls step whenever there may be something to read. It returns nil when step
// returns true. Errors: os.ErrDeadlineExceeded, conn.ErrCut. Within Await, reads do not
// wait.
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

// await waits for news, and clears it.
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

// SetReadDeadline limits Await and reads. Call it in the goroutine that calls them.
func (x *Call) SetReadDeadline(t time.Time) { x.readBy = t }

// SetWriteTimeout limits how long WriteBody waits for room; 0: no limit. The time begins
// again when there was room. Call it in the goroutine that calls WriteBody.
func (x *Call) SetWriteTimeout(d time.Duration) { x.patience = d }

// Cut ends every wait of the call with conn.ErrCut. Any goroutine may call it until End.
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

// wake wakes the goroutines that wait for news. The callers of wake, gotHead and end hold
// the lock.
func (x *Call) wake() {
	x.news = true
	x.changed.Broadcast()
	x.rouse()
}

// gotHead takes the head that the core has decoded into x.res.
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

// end records that the stream ended before its time.
func (x *Call) end(e core.Ending) {
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
		go x.link.Cut() // in its own goroutine: Cut may take a lock whose owner waits for our lock
	}
	x.wake()
}

// Link makes the early end of the call cut other as well; nil removes the link.
func (x *Call) CutAlso(other conn.Cuttable) {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	if x.link = other; other != nil && x.err != nil {
		go other.Cut()
	}
}

// Receive returns the next piece of a tunnel, valid until the next call, or io.EOF.
// conn.ErrQuiet: no bytes arrived for conn.Linger.
func (x *Call) Receive() ([]byte, error) {
	var res message.Response // a tunnel has no trailers
	x.readBy = time.Now().Add(conn.Linger)
	p, err := x.ReadBody(&res)
	return p, idleError(err)
}

// idleError returns conn.ErrQuiet for a tunnel's read that ended after conn.Linger, and
// other errors as they are.
func idleError(err error) error {
	if err == os.ErrDeadlineExceeded {
		return conn.ErrQuiet
	}
	return err
}

// Park makes the call wake w once, when Receive has something to return. No goroutine may
// call Receive until then. Park returns false if there is something already.
func (x *Call) Park(w park.Waiter) bool {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	if x.body.size > 0 || x.ended || x.err != nil || x.cut {
		return false
	}
	x.parked = w
	return true
}

// Unpark undoes Park, and returns true. It returns false if w was woken.
func (x *Call) Unpark() bool {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	return x.unpark()
}

// Send sends p through a tunnel, and waits until there is room for it.
func (x *Call) Send(p []byte) error {
	if err := x.WriteBody(p); err != nil {
		return err
	}
	return x.Flush()
}

// SendEnd ends the direction of a tunnel to the endpoint.
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

// Err returns why a tunnel's stream ended prematurely; nil: it did not. After Cut it
// returns conn.ErrCut.
func (x *Call) Err() error {
	x.trunk.mu.Lock()
	defer x.trunk.mu.Unlock()
	if x.err == nil && x.cut {
		return conn.ErrCut
	}
	return x.err
}

// Unprocessed reports whether err means that the endpoint has not processed the request.
// Such a request may be repeated, whatever its method.
func Unprocessed(err error) bool {
	var over *OverError
	return errors.As(err, &over) && over.Unprocessed
}

// RequiresHTTP1 returns true if err means that the endpoint requires HTTP/1.1 for the
// request (RFC 9113, section 7). The endpoint has not processed the request. Servers answer
// so if the client must authenticate its connection.
func RequiresHTTP1(err error) bool {
	var over *OverError
	return errors.As(err, &over) && over.ByPeer && over.Code == core.HTTP11Required
}

// GoingAway reports whether err is Unprocessed because the whole connection was about to
// end.
func GoingAway(err error) bool {
	var over *OverError
	return errors.As(err, &over) && over.Unprocessed && over.Reason != "reset_by_peer"
}
