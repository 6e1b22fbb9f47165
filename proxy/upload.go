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

// upload sends a request's body while it arrives. It runs beside the exchange's own goroutine,
// which reads the response, because an endpoint may answer at any time. The upload reads from
// the client and writes to the endpoint; the exchange does the reverse.
type upload struct {
	exchange *exchange
	link     *backend.Session
	limit    int64 // max_body; 0: none
	pace     pace
	wait     time.Duration // limit for the wait for the response's head, after the body is sent
	begun    time.Time

	read    atomic.Bool  // the client's body was read, to its end or to its declared length
	endless atomic.Bool  // the body was read to its declared length, before its end had arrived
	sent    atomic.Int64 // when the whole body was sent, in nanoseconds after begun; 0: not yet
	done    chan struct{}
	err     error // the error of the client, valid once done is closed
	bytes   int64
	kept    *kept // the received part; nil: weir cannot send it again

	panicked any // the value of the goroutine's panic, valid once done is closed
}

// talkUploading is talk for a request whose body has not arrived completely. It runs outside
// Await, so the reads of both connections block.
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
	case x.upload != nil: // the endpoint refused the earlier upload
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
		panic(u.panicked) // this goroutine's panic ends this connection only
	}
	x.noteUnsent(before)
	if u.err != nil && x.trouble != none {
		x.clientFailed(u.err)
	}
}

// alive reports whether an idle connection can carry another request.
func alive(link *backend.Session) bool {
	quiet := false
	err := link.Await(func() bool {
		quiet = link.HTTP.Quiet(conn.ErrWouldBlock)
		return true
	})
	return err == nil && quiet
}

// run forwards the body. After an error of the client, it cuts the endpoint's connection, so
// that the exchange notices the error. The exchange notices an error of the endpoint itself,
// after it has read the rest of the endpoint's response.
func (u *upload) run() {
	defer u.end()
	x, h := u.exchange, u.link.HTTP
	if again := u.kept.bytes(); len(again) > 0 && h.WriteBody(again) != nil {
		return
	}
	u.noteArrived()
	for !u.complete() {
		if !x.wire.HeadStarted() && h.Flush() != nil { // weir flushes everything before it waits for more
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

// noteArrived records whether the whole body has arrived. run calls it before it sends the last
// piece: after that piece the endpoint may answer, and the client may keep its connection. Over
// HTTP/2 the end of a body of known length may follow in a frame of its own.
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

// end reports to the exchange that the goroutine has finished. It recovers a panic and the
// exchange repeats it, because here the panic would end the process.
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

// repeatable reports whether weir can send the received part of the client's body again.
func (u *upload) repeatable() bool {
	return u == nil || u.err == nil && (u.bytes == 0 || u.kept != nil)
}

// kept is the beginning of a body. Weir keeps it for an HTTP/2 endpoint that may report that it
// did not process the request.
type kept struct {
	buf *conn.Buffer
	n   int
}

// add keeps p as well. It returns true if the whole received part is still kept.
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

// clientFailed replaces the trouble by its cause: the client's error, because of which the
// upload cut the endpoint's connection.
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
		status = x.res.Status // the status that the client received
	}
	x.fail(trouble, status, reason, err)
}
