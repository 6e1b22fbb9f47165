package proxy

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/message"
)

// upload sends a request's body while it arrives. It runs beside the goroutine of the attempt,
// which reads the response, because an endpoint may answer at any time. The upload reads from
// the client and writes to the endpoint; the attempt does the reverse.
type upload struct {
	attempts *attempts
	link     *backend.Link
	pace     pace
	wait     time.Duration // limit for the wait for the response's head, after the body is sent
	begun    time.Time

	awaited  atomic.Int64 // when the head was sent, in nanoseconds after begun, while nothing of the body has come; 0: something has, or the head was not sent
	life     atomic.Int64 // when a part of either body last came, in nanoseconds after begun
	answered atomic.Bool  // the head of the response has arrived
	read     atomic.Bool  // the client's body was read, to its end or to its declared length
	endless  atomic.Bool  // the body was read to its declared length, before its end had arrived
	sent     atomic.Int64 // when the whole body was sent, in nanoseconds after begun; 0: not yet
	done     chan struct{}
	err      error // the error of the client, valid once done is closed
	bytes    int64
	kept     *kept // the received part; nil: weir cannot send it again

	panicked any // the value of the goroutine's panic, valid once done is closed
}

// talkUploading is talk for a request whose body has not arrived completely. It runs outside
// Await, so the reads of both connections block.
func (a *attempt) talkUploading(wait time.Duration) *outcome {
	all, link := a.all, a.link
	if link.Reused && !alive(link) {
		return linkWasStale
	}
	if !all.account.Charge(memory.Upload) {
		return &outcome{failure: outOfMemory, status: http.StatusServiceUnavailable, reason: message.ErrMemory.Reason, err: message.ErrMemory}
	}
	defer all.account.Release(memory.Upload)
	u := &upload{attempts: all, link: link, wait: wait, pace: all.requester.bodyPace(), begun: time.Now(), done: make(chan struct{})}
	switch {
	case all.upload != nil: // the earlier upload failed
		u.kept, u.bytes = all.upload.kept, all.upload.bytes
		if !all.req.ExpectContinue { // the client was told to send the body
			all.req.Drop(message.Expect)
		}
	case link.CanRefuse(), link.Reused && all.req.Idempotent && !all.limits.keepsBodies():
		u.kept = &kept{most: mostUntaken, account: all.account}
	case all.limits.keepsBodies():
		u.kept = &kept{most: mostKeptBody, account: all.account}
	}
	all.upload = u
	a.phase = awaitingHead
	before := link.Sent()
	link.HTTP.WriteHead(all.req)
	if s, ok := all.body.(sharer); ok {
		s.Share()
	}
	go u.run()
	for !a.relayReady() {
	}
	u.stop()
	if u.panicked != nil {
		panic(u.panicked) // this goroutine's panic ends this connection only
	}
	if o := a.noteUnsent(a.end, link.SentNothing(before)); u.err == nil || o == nil || o == tunnelOpened {
		return o
	}
	return all.requester.bodyFailed(u.err)
}

// alive reports whether an idle connection can carry another request.
func alive(link *backend.Link) bool {
	usable := false
	err := link.Await(func() bool {
		usable = link.Usable()
		return true
	})
	return err == nil && usable
}

// run forwards the body. After an error of the client, it cuts the endpoint's connection, so
// that the attempt notices the error. The attempt notices an error of the endpoint itself,
// after it has read the rest of the endpoint's response.
func (u *upload) run() {
	defer u.end()
	a, h := u.attempts, u.link.HTTP
	for again := range u.kept.pieces() {
		if h.WriteBody(again) != nil {
			return
		}
	}
	u.noteArrived()
	for !u.complete() {
		if !a.body.HeadStarted() && h.Flush() != nil { // weir flushes everything before it waits for more
			return
		}
		p, err := u.next()
		if err == io.EOF {
			break
		}
		if u.bytes += int64(len(p)); err == nil {
			err = a.requester.guardBody(u.bytes)
		}
		if err != nil {
			u.err = err
			u.link.Cut()
			return
		}
		u.keep(p)
		u.noteArrived()
		if h.WriteBody(p) != nil {
			return
		}
	}
	a.requester.bodyEnded()
	h.WriteEnd(a.req)
	u.read.Store(true)
	if h.Flush() == nil {
		u.sent.Store(int64(max(1, time.Since(u.begun))))
	}
}

// keep keeps a piece that has arrived, as long as weir may have to send it again.
func (u *upload) keep(p []byte) {
	if k := u.kept; k != nil && k.n+len(p) > k.most && u.refusedSoon() {
		k.most += len(p) // the next attempt sends all that came
	}
	if u.kept != nil && !u.attempts.limits.keepsBodies() && u.taken() {
		u.kept.free()
		u.kept = nil
	}
	if !u.kept.add(p) {
		u.kept = nil
	}
}

// taken reports whether the endpoint has shown that it processes the request. Over HTTP/1.1
// only a response shows that.
func (u *upload) taken() bool { return u.link.Shared() && !u.link.CanRefuse() }

// refusalTime is how long weir waits for an endpoint that allows more of a body than weir keeps. If the endpoint has
// refused the request, its GOAWAY is on the way. If not, it opens the window soon.
var refusalTime = 10 * time.Millisecond

// refusedSoon waits until an endpoint that can refuse the request does so, and returns true; or until it
// has shown that it does not, or refusalTime has passed.
func (u *upload) refusedSoon() bool {
	for over := time.Now().Add(refusalTime); u.link.CanRefuse(); time.Sleep(time.Millisecond) {
		switch {
		case u.link.HTTP.Flush() != nil:
			return true
		case time.Now().After(over):
			return false
		}
	}
	return false
}

// next returns the next piece of the client's body. It waits as long as the pace allows, and longer
// while the client owes nothing.
func (u *upload) next() ([]byte, error) {
	a, asked := u.attempts, time.Now()
	u.noteLife(asked)
	if u.bytes == 0 {
		u.awaited.Store(int64(max(1, asked.Sub(u.begun))))
		defer u.awaited.Store(0)
	}
	free := false // the client owed nothing for a part of the wait
	for until := asked.Add(u.pace.left); ; {
		a.body.SetReadDeadline(until)
		p, err := a.body.ReadBody(a.req)
		if !errors.Is(err, os.ErrDeadlineExceeded) || u.due() || a.body.Owes() {
			waited := time.Since(asked)
			if free {
				u.pace.left, waited = u.pace.most, 0
			}
			u.pace.came(len(p), waited)
			return p, err
		}
		free = true
		if until = a.alive(asked, u.link).Add(u.pace.silence); !time.Now().Before(until) {
			return nil, errSilentStream
		}
	}
}

// due reports whether the client must send more of the body soon. It need not if the length of the
// body is unknown and the response has begun: then the two may talk. The client of a gRPC call may
// be silent from the beginning.
func (u *upload) due() bool {
	return u.pace.silence == 0 || u.attempts.req.Length != message.Unknown || !u.pace.call && !u.answered.Load()
}

func (u *upload) noteLife(now time.Time) { u.life.Store(int64(now.Sub(u.begun))) }
func (u *upload) lastLife() time.Time    { return u.begun.Add(time.Duration(u.life.Load())) }

var errSilentStream = &message.Refusal{Status: http.StatusRequestTimeout, Reason: reasonSilent,
	Detail: "neither side sent anything for a long time"}

// noteArrived records whether the whole body has arrived. run calls it before it sends the last
// piece: after that piece the endpoint may answer, and the client may keep its connection. Over
// HTTP/2 the end of a body of known length may follow in a frame of its own.
func (u *upload) noteArrived() {
	switch {
	case u.attempts.body.BodyEnded():
		u.read.Store(true)
	case u.bytes == u.attempts.req.Length:
		u.read.Store(true)
		u.endless.Store(true)
	}
}

// complete returns true if the endpoint needs no more of the request, though the end of
// the client's stream has not arrived: over HTTP/1.1 nothing can follow a body of known
// length. (*http2.Exchange).AwaitEnd then waits for the end, without the endpoint.
func (u *upload) complete() bool { return u.link.EndsByLength() && u.endless.Load() }

// end reports to the attempt that the goroutine has finished. It recovers a panic and the
// attempt repeats it, because here the panic would end the process.
func (u *upload) end() {
	if value := recover(); value != nil {
		u.panicked = fmt.Sprintf("%v, in an upload:\n%s", value, debug.Stack())
		u.link.Cut()
	}
	close(u.done)
}

// running reports whether the client's body has not been read to its end yet.
func (u *upload) running() bool { return u != nil && !u.read.Load() }

// delivered reports whether weir has sent the whole request to the endpoint.
func (u *upload) delivered() bool { return u == nil || u.sent.Load() != 0 }

// wentOut is delivered for a response that arrived right behind the last byte of the request: the
// upload may not have noted yet that it sent that byte.
func (u *upload) wentOut() bool {
	if u == nil || u.running() {
		return u == nil
	}
	u.awaitDone()
	return u.delivered()
}

// awaitDone waits a moment for the end of an upload that has read everything.
func (u *upload) awaitDone() (done bool) {
	grace := time.NewTimer(timeout)
	defer grace.Stop()
	select {
	case <-u.done:
		return true
	case <-grace.C:
		return false
	}
}

// repeatable reports whether weir can send the received part of the client's body again.
func (u *upload) repeatable() bool {
	return u == nil || u.err == nil && (u.bytes == 0 || u.kept != nil)
}

// mostUntaken limits the body that weir keeps until the endpoint takes the request, in bytes:
// the window that endpoints allow at first (RFC 9113, section 6.9.2), and the piece that waits
// for more.
const mostUntaken = 64<<10 + conn.BufferSize

// kept is the beginning of a body, in up to most bytes. Weir keeps it for an HTTP/2 endpoint that may
// report that it did not process the request, for an idempotent request over a connection that may have
// ended while it was idle, and for the retries of a route.
type kept struct {
	buffers []*conn.Buffer
	n, most int
	account *memory.Account // charged for all buffers but the first, which memory.Upload contains
}

// add keeps p as well. It returns true if the whole received part is still kept.
func (k *kept) add(p []byte) bool {
	if k == nil {
		return false
	}
	if k.n+len(p) > k.most {
		k.free()
		return false
	}
	for len(p) > 0 {
		if k.n == len(k.buffers)*conn.BufferSize && !k.grow() {
			k.free()
			return false
		}
		n := copy(k.buffers[len(k.buffers)-1][k.n%conn.BufferSize:], p)
		k.n, p = k.n+n, p[n:]
	}
	return true
}

// grow adds a buffer. It returns false if there is no memory for it.
func (k *kept) grow() bool {
	if len(k.buffers) > 0 && !k.account.Charge(conn.BufferSize) {
		return false
	}
	k.buffers = append(k.buffers, conn.GetBuffer())
	return true
}

// pieces are the kept bytes.
func (k *kept) pieces() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if k == nil {
			return
		}
		for i, b := range k.buffers {
			if !yield(b[:min(conn.BufferSize, k.n-i*conn.BufferSize)]) {
				return
			}
		}
	}
}

func (k *kept) free() {
	if k == nil {
		return
	}
	for i, b := range k.buffers {
		conn.PutBuffer(b)
		if i > 0 {
			k.account.Release(conn.BufferSize)
		}
	}
	k.buffers, k.n = nil, 0
}

// headBy returns the time when the wait for the response's head ends, as far as it is known
// now: the time for the response counts from the end of the request.
func (u *upload) headBy(now, until time.Time) time.Time {
	if sent := u.sent.Load(); sent != 0 {
		return u.begun.Add(time.Duration(sent) + u.wait)
	}
	select {
	case <-u.done:
		return until // the request will never be sent completely
	default:
		return now.Add(u.wait)
	}
}

// stop ends the upload when the response is over. If the client is still sending, the endpoint
// did not want the rest. stop does not wait for a client that only has to end its stream,
// because other exchanges may wait for the endpoint's connection.
func (u *upload) stop() {
	if u.link == nil {
		return // the upload was stopped before
	}
	defer func() { u.link = nil }() // another exchange soon uses the connection
	if u.read.Load() && (u.complete() || !u.endless.Load()) && u.awaitDone() {
		return
	}
	u.link.Cut()
	u.attempts.body.Interrupt()
	<-u.done
	u.attempts.body.Resume()
	if u.err == conn.ErrInterrupted {
		u.err = nil
	}
}

// bodyFailed returns the outcome of an attempt for which the client's error ended the upload.
func (x *exchange) bodyFailed(err error) *outcome {
	var refusal *message.Refusal
	switch {
	case errors.Is(err, errSilentStream):
		return &outcome{failure: failed, status: errSilentStream.Status, reason: reasonSilent, err: silentBody(x, err)}
	case errors.As(err, &refusal):
		return &outcome{failure: failed, status: refusal.Status, reason: refusal.Reason, err: err}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &outcome{failure: failed, status: http.StatusRequestTimeout, reason: "slow_body", err: slowBody(x, err)}
	case errors.Is(err, conn.ErrCut), x.conn.WasCut():
		return &outcome{failure: clientGone, status: http.StatusServiceUnavailable, reason: x.cutBy(), err: err}
	}
	return &outcome{failure: clientGone, reason: "client_gone", err: err}
}
