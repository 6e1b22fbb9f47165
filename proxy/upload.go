package proxy

import (
	"errors"
	"fmt"
	"io"
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

// upload sends a request's body while it arrives, beside the exchange's own
// goroutine, which reads the response: an endpoint may answer at any time. It
// reads from the client and writes to the endpoint; the exchange does the reverse.
type upload struct {
	exchange *exchange
	link     *backend.Session
	limit    int64 // max_body; 0: none
	pace     pace
	wait     time.Duration // for the response's head, once the body is sent
	begun    time.Time

	read    atomic.Bool  // the client's body was read, to its end or to its declared length
	endless atomic.Bool  // it was read to its declared length, and its end had not arrived
	sent    atomic.Int64 // when it was sent to its end, nanoseconds after begun; 0: not yet
	done    chan struct{}
	err     error // the client's failure, valid once done
	bytes   int64
	kept    *kept // nil: the body cannot be sent again

	panicked any // what the goroutine panicked with, valid once done
}

// talkUploading is talk for a request whose body has yet to come. Outside
// Await, both connections' reads wait.
func (x *exchange) talkUploading(link *backend.Session, wait time.Duration) {
	if link.Reused && !alive(link) {
		x.trouble = stale
		return
	}
	if !x.account.Charge(memory.Upload) {
		x.fail(outOfMemory, http.StatusServiceUnavailable, message.ErrMemory.Reason, message.ErrMemory)
		return
	}
	defer x.account.Release(memory.Upload)
	u := &upload{exchange: x, link: link, wait: wait, limit: x.route.config.MaxBody,
		pace: newPace(x.edge.timeouts.BodyIdle, x.minRate()), begun: time.Now(), done: make(chan struct{})}
	switch {
	case x.upload != nil: // it was refused
		u.kept, u.bytes = x.upload.kept, x.upload.bytes
	case link.Stream != nil:
		u.kept = new(kept)
	}
	x.upload = u
	x.phase = awaitingHead
	before := link.Sent()
	link.HTTP.WriteHead(&x.req)
	x.wire.Share()
	go u.run()
	for !x.relayReady() {
	}
	u.stop()
	if u.panicked != nil {
		panic(u.panicked) // where it ends this connection alone
	}
	x.noteUnsent(before)
	if u.err != nil && x.trouble != none {
		x.clientFailed(u.err)
	}
}

// alive reports whether an idle connection is fit for another request.
func alive(link *backend.Session) bool {
	quiet := false
	err := link.Await(func() bool {
		quiet = link.HTTP.Quiet(conn.ErrWouldBlock)
		return true
	})
	return err == nil && quiet
}

// run passes the body on. A failure of the client's ends the endpoint's
// connection, so that the exchange notices; one of the endpoint's it will
// notice by itself, behind what the endpoint still had to say.
func (u *upload) run() {
	defer u.end()
	x, h := u.exchange, u.link.HTTP
	if again := u.kept.bytes(); len(again) > 0 && h.WriteBody(again) != nil {
		return
	}
	u.noteArrived()
	for !u.complete() {
		if !x.wire.HeadStarted() && h.Flush() != nil { // nothing is held back while it waits
			return
		}
		asked := time.Now()
		x.wire.SetReadDeadline(asked.Add(u.pace.left))
		p, err := x.wire.ReadBody(&x.req)
		if err == io.EOF {
			break
		}
		u.pace.came(len(p), time.Since(asked))
		if u.bytes += int64(len(p)); err == nil && u.limit > 0 && u.bytes > u.limit {
			err = refuseBody
		}
		if err != nil {
			u.err = err
			u.link.Cut()
			return
		}
		if !u.kept.add(p) {
			u.kept = nil
		}
		u.noteArrived()
		if h.WriteBody(p) != nil {
			return
		}
	}
	x.dropListed(&x.req.Trailers)
	h.WriteEnd(&x.req)
	u.read.Store(true)
	if h.Flush() == nil {
		u.sent.Store(int64(max(1, time.Since(u.begun))))
	}
}

// noteArrived looks whether the body has arrived, before its last piece leaves: with
// that the endpoint may answer, and the client may stay. Over HTTP/2 the end of a body
// of known length may follow in a frame of its own.
func (u *upload) noteArrived() {
	x := u.exchange
	switch {
	case x.wire.BodyEnded():
		u.read.Store(true)
	case u.bytes == x.req.Length:
		u.read.Store(true)
		u.endless.Store(true)
	}
}

// complete returns true if the endpoint needs no more of the request, though the end of
// the client's stream has not arrived: over HTTP/1.1 nothing can follow a body of known
// length. (*http2.Exchange).AwaitEnd then waits for the end, without the endpoint.
func (u *upload) complete() bool { return u.link.Stream == nil && u.endless.Load() }

// end tells the exchange that the goroutine is through. A panic goes on in the
// exchange's: here it would end the process.
func (u *upload) end() {
	if value := recover(); value != nil {
		u.panicked = fmt.Sprintf("%v, in an upload:\n%s", value, debug.Stack())
		u.link.Cut()
	}
	close(u.done)
}

// running reports whether the client's body was not read to its end yet.
func (u *upload) running() bool { return u != nil && !u.read.Load() }

// delivered reports whether the endpoint was sent the whole request.
func (u *upload) delivered() bool { return u == nil || u.sent.Load() != 0 }

// repeatable reports whether weir can send the received part of the client's body again.
func (u *upload) repeatable() bool {
	return u == nil || u.err == nil && (u.bytes == 0 || u.kept != nil)
}

// kept is the beginning of a body, for an endpoint of HTTP/2 that may not act on
// the request and say so.
type kept struct {
	buf *conn.Buffer
	n   int
}

// add keeps p as well. It says whether all of the body is still kept.
func (k *kept) add(p []byte) bool {
	switch {
	case k == nil:
		return false
	case k.n+len(p) > conn.BufferSize:
		k.free()
		return false
	case k.buf == nil:
		k.buf = conn.GetBuffer()
	}
	k.n += copy(k.buf[k.n:], p)
	return true
}

func (k *kept) bytes() []byte {
	if k == nil || k.buf == nil {
		return nil
	}
	return k.buf[:k.n]
}

func (k *kept) free() {
	if k != nil && k.buf != nil {
		conn.PutBuffer(k.buf)
		k.buf, k.n = nil, 0
	}
}

// headBy is when the wait for the response's head ends, by what is known now:
// its time only counts from the end of the request.
func (u *upload) headBy(now, until time.Time) time.Time {
	if sent := u.sent.Load(); sent != 0 {
		return u.begun.Add(time.Duration(sent) + u.wait)
	}
	select {
	case <-u.done:
		return until // it will never be sent
	default:
		return now.Add(u.wait)
	}
}

// stop ends the upload once the response is over. Where the client is still
// sending, the endpoint did not want the rest. It does not wait for a client that has only
// to end its stream: the endpoint's connection may have others waiting for it.
func (u *upload) stop() {
	if u.link == nil {
		return // it was
	}
	defer func() { u.link = nil }() // it is another exchange's soon
	if u.read.Load() && (u.complete() || !u.endless.Load()) {
		grace := time.NewTimer(timeout)
		defer grace.Stop()
		select {
		case <-u.done:
			return
		case <-grace.C:
		}
	}
	u.link.Cut()
	u.exchange.wire.Interrupt()
	<-u.done
	u.exchange.wire.Resume()
	if u.err == conn.ErrInterrupted {
		u.err = nil
	}
}

// clientFailed replaces the trouble that the end of the endpoint's connection
// looked like by its cause.
func (x *exchange) clientFailed(err error) {
	var refusal *message.Refusal
	trouble, status, reason := clientGone, 0, "client_gone"
	switch {
	case errors.As(err, &refusal):
		trouble, status, reason = failed, refusal.Status, refusal.Reason
	case errors.Is(err, os.ErrDeadlineExceeded):
		trouble, status, reason, err = failed, http.StatusRequestTimeout, "slow_body", slowBody(x.edge, err)
	case errors.Is(err, conn.ErrCut), x.cuts.WasCut():
		status, reason = http.StatusServiceUnavailable, x.cutBy()
	}
	if x.answered {
		status = x.res.Status // it is what the client saw
	}
	x.fail(trouble, status, reason, err)
}
