package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/proxy/http2"
	"github.com/weirproxy/weir/proxy/message"
)

// attempt is one try of one endpoint.
type attempt struct {
	all       *attempts
	endpoint  *backend.Endpoint
	link      *backend.Link // the connection to the endpoint, while there is one
	phase     phase
	until     time.Time     // when the wait for the endpoint ends
	headUntil time.Time     // when the route's timeouts end; zero: never
	informed  time.Time     // when the last informational response came; zero: none did
	checkAt   time.Time     // when weir next checks whether the requester is still there
	moved     bool          // some of the response's body arrived since until was set
	came      time.Time     // when until was last set for more of the response's body
	owed      bool          // the endpoint has begun a part of the body whose length is known
	silence   time.Duration // the limit of the running wait, if nobody owes anything; 0: body_idle is the limit
	silent    bool          // the requester knows that nobody sends anything
	end       *outcome      // valid after relayReady has returned true
}

// phase is the step that an attempt has reached with its endpoint.
type phase uint8

const (
	sending phase = iota
	awaitingHead
	relayingBody
)

// dial makes a connection to the endpoint. It returns errClientCut as soon as the requester is
// cut. If descriptors are short, weir cuts connections whose dials wait for a descriptor,
// because weir needs the descriptors of these connections at once.
func (a *attempt) dial() (*backend.Link, error) {
	begun := time.Now()
	c := newCancelable(a.headUntil)
	a.all.requester.CutAlso(c)
	link, err := a.endpoint.Connect(c.ctx, a.all.requester.outgoing(), a.all.need(), a.all.limits.connect())
	a.all.requester.CutAlso(nil)
	a.all.connect = time.Since(begun)
	if err == nil && a.all.metrics != nil {
		a.all.metrics.get().times.connected(a.all.connect)
	}
	return link, c.end(err)
}

// connectFailed is the reason for an outcome without a connection to an endpoint.
const connectFailed = "connect"

// lostDial returns the outcome of an attempt that has no connection to its endpoint.
func (a *attempt) lostDial(err error) *outcome {
	if !errors.Is(err, errClientCut) {
		if o := a.timedOut(err); o != nil {
			if o.failure == late {
				o.failure = unsent
			}
			return o
		}
		a.endpoint.Failed(err)
		return &outcome{failure: unsent, status: dialStatus(err), reason: connectFailed, err: err}
	}
	return a.all.abandoned(err)
}

func dialStatus(err error) int {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway
}

// talk sends the request over one connection to the endpoint, and passes the response on.
// Afterwards it keeps the connection if another request may use it.
func (a *attempt) talk(link *backend.Link) (o *outcome) {
	a.link, a.phase = link, sending
	settings := a.all.backend.Settings()
	link.HTTP.ChargeTo(a.all.account)
	link.SetWriteTimeout(a.all.limits.send(&settings.Timeouts))
	begun := a.all.begun
	if a.all.made > 1 || !link.Reused || settings.MaxConnections > 0 { // it was tried, dialled or queued
		begun = time.Now()
	}
	a.waitFor(begun, a.all.limits.head(&settings.Timeouts))
	a.all.requester.CutAlso(link)
	if a.all.whole {
		o = a.talkAwaiting()
	} else {
		o = a.talkUploading(a.all.limits.head(&settings.Timeouts))
	}
	if o == tunnelOpened {
		return o
	}
	a.all.requester.CutAlso(nil)
	a.link = nil
	if a.mayKeep(link, o) {
		link.Release()
		link.HTTP.ChargeTo(nil)
		a.all.requester.keep(link)
		return o
	}
	link.Close()
	return o
}

// talkAwaiting is talk for a request whose body has arrived completely.
func (a *attempt) talkAwaiting() *outcome {
	for {
		err := a.link.Await(a.all.relay)
		if err == nil {
			return a.end
		}
		if o := a.waitEnded(err); o != nil {
			return o
		}
	}
}

// mayKeep returns true if another request may use the connection. The request may come from
// another client, unless the connection is private. This request must be complete on both
// sides: if it was not sent completely, the endpoint would read the next request as the rest
// of it.
func (a *attempt) mayKeep(link *backend.Link, o *outcome) bool {
	return o == nil && link.HTTP.Reusable() && a.all.upload.delivered() && !link.WasCut() &&
		(link.Private() || a.all.backend.Settings().SendProxy == 0) // a PROXY header names one client for the whole connection
}

// relayReady is called within the Await of the endpoint's connection when bytes may have
// arrived. It is also called outside Await, where reads block. It returns true when the
// attempt is over.
func (a *attempt) relayReady() bool {
	if a.phase == sending {
		if a.link.Reused && !a.link.Usable() {
			return a.over(linkWasStale)
		}
		before := a.link.Sent()
		if err := a.send(); err != nil {
			return a.over(a.noteUnsent(a.lostEndpoint(err), a.link.SentNothing(before)))
		}
		a.phase = awaitingHead
	}
	for a.phase == awaitingHead {
		switch err := a.link.HTTP.ReadHead(a.all.req, a.all.res); err {
		case nil:
			if o := a.gotHead(); o != nil {
				return a.over(o)
			}
		case conn.ErrWouldBlock:
			if a.link.HTTP.Answered() && a.link.LookAgain() {
				continue // the end may have arrived together with the last bytes
			}
			a.link.Release() // while weir waits for a slow response, the connection holds no buffer
			return false
		default:
			if o := a.waitEnded(err); o != nil {
				return a.over(o)
			}
		}
	}
	return a.relayBody()
}

// over notes the outcome of the attempt, and returns true.
func (a *attempt) over(o *outcome) bool {
	a.endSilence()
	a.end = o
	return true
}

// send writes a request whose body has arrived completely.
func (a *attempt) send() error {
	h := a.link.HTTP
	h.WriteHead(a.all.req)
	if body, _ := a.all.body.BufferedBody(); len(body) > 0 {
		if err := h.WriteBody(body); err != nil {
			return err
		}
	}
	h.WriteEnd(a.all.req)
	return h.Flush()
}

// noteUnsent returns the outcome o with another failure if no byte of the request was sent.
// Then weir may send any request over another connection.
func (a *attempt) noteUnsent(o *outcome, sentNothing bool) *outcome {
	if o == nil || !sentNothing || !a.all.upload.repeatable() {
		return o
	}
	switch o.failure {
	case unanswered:
		o.failure = stale
	case dropped:
		o.failure = unsent
	}
	return o
}

// gotHead passes on the head of a response. It returns nil if more of a response follows.
func (a *attempt) gotHead() *outcome {
	to, res := a.all.to, a.all.res
	if res.Informational() {
		if err := to.inform(); err != nil {
			return to.writeFailed(err)
		}
		a.informed = time.Now() // the endpoint is at work, as 102 Processing says
		a.waitFor(a.informed, a.all.limits.head(&a.all.backend.Settings().Timeouts))
		return nil
	}
	if res.AsksForConnection() {
		a.link.MakePrivate()
	}
	accepted := to.accepts()
	if res.Status == http.StatusSwitchingProtocols {
		switch {
		case !accepted:
			return a.lostEndpoint(errNotAccepted)
		case !a.all.upload.wentOut():
			return a.lostEndpoint(errEarlySwitch)
		}
	}
	a.endpoint.Answered(res.Status)
	if a.all.trace != nil {
		a.all.trace.Answered(res.Status)
	}
	if o := a.all.discards(res.Status); o != nil {
		return o
	}
	if !accepted {
		return &outcome{failure: failed, status: errNoUpgrade.Status, reason: errNoUpgrade.Reason, err: errNoUpgrade}
	}
	a.phase, a.moved = relayingBody, true
	if u := a.all.upload; u != nil {
		u.answered.Store(true)
	}
	if err := to.respond(); err != nil {
		if res.Status == http.StatusSwitchingProtocols {
			a.link.Abort() // as below
		}
		return to.writeFailed(err)
	}
	if res.Status != http.StatusSwitchingProtocols {
		return nil
	}
	if err := to.flush(); err != nil {
		a.link.Abort() // the endpoint has switched protocols, and would take a regular end for the client's
		return to.writeFailed(err)
	}
	return tunnelOpened
}

var (
	errNotAccepted = &message.Refusal{Status: http.StatusBadGateway, Reason: "bad_upgrade",
		Detail: "the endpoint's 101 response has a wrong Sec-WebSocket-Accept"}
	errEarlySwitch = &message.Refusal{Status: http.StatusBadGateway, Reason: "bad_upgrade",
		Detail: "the endpoint switched protocols before it had the whole body of the request"}
	errNoUpgrade = &message.Refusal{Status: http.StatusNotImplemented, Reason: "upgrade",
		Detail: "the endpoint answered the upgrade request without switching protocols"}
)

// relayBody passes on the part of the body that has arrived. It flushes all of that part
// before it waits for more. It returns true when the attempt is over.
func (a *attempt) relayBody() bool {
	h, to, res := a.link.HTTP, a.all.to, a.all.res
	for !h.BodyEnded() {
		if !h.Started() {
			if err := to.flush(); err != nil {
				return a.over(to.writeFailed(err))
			}
			if res.Close {
				a.link.LookAgain() // the end may have arrived together with the last bytes
			}
		}
		if !a.all.whole {
			a.waitForBody()
		}
		p, err := h.ReadBody(res)
		switch {
		case err == conn.ErrWouldBlock: // perhaps in the middle of the framing of a chunk
			a.waitForBody()
			a.link.Release()
			if err := to.flush(); err != nil {
				return a.over(to.writeFailed(err))
			}
			return false
		case err == io.EOF:
		case err != nil:
			if o := a.waitEnded(err); o != nil {
				return a.over(o)
			}
			continue
		default:
			a.moved = true
			a.endSilence()
		}
		if err := to.write(p); err != nil {
			return a.over(to.writeFailed(err))
		}
	}
	to.end()
	a.link.Release()
	if err := to.flush(); err != nil {
		return a.over(to.writeFailed(err))
	}
	return a.over(nil)
}

// lostEndpoint returns the outcome of an attempt whose connection to the endpoint failed: it
// ended, or it carried something other than a valid response.
func (a *attempt) lostEndpoint(err error) *outcome {
	var panicked *http2.PanicError
	if errors.As(err, &panicked) && panicked.First() {
		a.all.requester.panicked(panicked)
	}
	var refusal *message.Refusal
	var unfit *http2.RequestError
	o := &outcome{failure: failed, status: http.StatusBadGateway, reason: "endpoint_closed", err: err}
	cutFor := ""
	if errors.Is(err, conn.ErrCut) {
		if cutFor = a.all.requester.cutFor(); cutFor == "" { // the client's reset cut the connection
			return &outcome{failure: clientGone, reason: "client_gone", err: errClientGone}
		}
	}
	switch {
	case errors.Is(err, message.ErrMemory): // not the endpoint's fault
		return &outcome{failure: outOfMemory, status: http.StatusServiceUnavailable, reason: message.ErrMemory.Reason, err: err}
	case errors.As(err, &unfit):
		return &outcome{failure: failed, status: unfit.Status, reason: unfit.Reason, err: err}
	case a.wantsHTTP1(err):
		o.failure = needsHTTP1
		return o
	case a.phase != relayingBody && http2.Unprocessed(err):
		return &outcome{failure: refused, status: http.StatusServiceUnavailable, reason: "endpoint_refused", err: err}
	case cutFor != "":
		return &outcome{failure: clientGone, status: http.StatusServiceUnavailable, reason: cutFor, err: err}
	case a.phase == relayingBody:
		err = http1.Explain(err, a.all.backend.Name())
		o.failure, o.reason, o.err = cutShort, "response_cut_short", a.tooSlow(err)
	case errors.As(err, &refusal):
		err = http1.Explain(err, a.all.backend.Name())
		o.reason, o.err = "bad_response_"+refusal.Reason, err
	case errors.Is(err, os.ErrDeadlineExceeded):
		if timed := a.timedOut(err); timed != nil {
			return timed
		}
		o.failure, o.status, o.reason, o.err = late, http.StatusGatewayTimeout, "response_timeout", a.tooSlow(err)
	case a.idleEnded(err):
		o.failure = unanswered
		return o // an idle connection may end at any time: that is not the endpoint's fault
	case !a.link.HTTP.Answered():
		o.failure = dropped
	}
	a.countFailure(err)
	return o
}

// countFailure records a failure of the endpoint. The head of the response counted as a success.
func (a *attempt) countFailure(err error) {
	if a.phase == relayingBody {
		a.endpoint.BrokeOff(err)
		return
	}
	a.endpoint.Failed(err)
}

// idleEnded reports whether a connection ended that had been used before, without any byte of
// a response to this request. An idle connection may end in this way at any time. For a
// connection that other exchanges share, idleEnded returns true only once for a request: the
// next connection may be shared as well, and this request may be the cause of the end. The
// reset of a stream is the endpoint's answer to the request, so it returns false.
func (a *attempt) idleEnded(err error) bool {
	if !a.link.Reused || a.link.HTTP.Answered() {
		return false
	}
	if !a.link.Shared() {
		return true
	}
	var lost *http2.LostError
	first := errors.As(err, &lost) && !a.all.lostShared
	a.all.lostShared = true
	return first
}

// wantsHTTP1 returns true if the endpoint reset the stream because it requires HTTP/1.1 for
// the request, as IIS does if a user must authenticate.
func (a *attempt) wantsHTTP1(err error) bool {
	return a.phase != relayingBody && !a.all.http1Only && http2.RequiresHTTP1(err) && a.endpoint.SpeaksHTTP1()
}

// tooSlow replaces the error if a timeout of the backend ended the wait for the endpoint. It
// returns other errors unchanged.
func (a *attempt) tooSlow(err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	b, l := a.all.backend, a.all.limits
	of := &b.Settings().Timeouts
	var own waits
	if l != nil {
		own = l.waits
	}
	setting, what, limit, routes := "response_head", "sent no response", l.head(of), own.head
	switch a.phase {
	case sending:
		setting, what, limit, routes = "body_idle", "did not read the request", l.send(of), own.body
		if own.send != 0 {
			setting, routes = "send", own.send
		}
	case relayingBody:
		setting, what, limit, routes = "body_idle", "sent no more of its response", l.body(of), own.body
	}
	hint := ""
	if a.phase == relayingBody && !a.owed {
		hint = hintSilence
	}
	if routes != 0 {
		return conn.Explain(err, "the endpoint %s within %v (timeouts.%s of the route)%s", what, limit, setting, hint)
	}
	return conn.Explain(err, "the endpoint %s within %v (backends.%s.timeouts.%s)%s", what, limit, b.Name(), setting, hint)
}
