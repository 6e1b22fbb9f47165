package proxy

import (
	"context"
	"errors"
	"fmt"
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

// forward sends the request to an endpoint of the route's backend, and the response to the
// client. If the attempt fails and the request may be repeated, it tries another endpoint.
func (x *exchange) forward(r *Route) {
	if r.closed != nil {
		x.err = r.closed.why
		x.reply(&r.closed.refusal)
		return
	}
	b := r.backend
	if x.visits() >= x.proxy.mostVisits() {
		x.endLoop()
		return
	}
	x.rewrite(b.Settings().Host)
	if !x.authenticates() {
		return
	}
	var tried []*backend.Endpoint
	for fresh := false; ; {
		e, own, err := x.acquire(b, tried)
		if err != nil {
			x.unavailable(err)
			return
		}
		x.endpoint, x.held = e, e
		x.attempts++
		if b.Settings().MaxConnections == 0 || !x.goneInQueue() {
			x.attempt(e, own, fresh)
		} else if own != nil {
			own.Close()
		}
		if x.upgraded {
			return // the endpoint is released when its tunnel ends
		}
		x.held = nil
		e.Release()
		if x.trouble == none {
			return
		}
		tried = append(tried, e)
		if !x.mayRetry(b, tried) {
			x.giveUp()
			return
		}
		fresh = fresh || x.trouble == unanswered || x.trouble == dropped // another idle connection may have ended as well
	}
}

// attempt tries one endpoint, over the client's private connection to it, or over an idle
// or shared connection that is alive, or else over a new one. An attempt does not count if
// the connection ended before anything was sent, or if the endpoint requires HTTP/1.1.
func (x *exchange) attempt(e *backend.Endpoint, own *backend.Session, fresh bool) {
	pooled := !fresh && e.Backend().Settings().SendProxy == 0 // a PROXY header names one client for the whole connection
	for link := own; ; link = nil {
		if link == nil && pooled {
			link = e.Idle(x.need())
		}
		if link == nil {
			var err error
			if link, err = x.dial(e); err != nil {
				x.lostDial(e, err)
				return
			}
		}
		if x.private {
			link.MakePrivate()
		}
		x.talk(link)
		switch {
		case x.trouble == stale:
		case x.trouble == needsHTTP1 && x.upload.repeatable():
			x.http1Only = true
		default:
			return
		}
	}
}

// need returns the requirements of the exchange for a connection to an endpoint.
func (x *exchange) need() backend.Need {
	return backend.Need{Upgrade: x.req.Upgrade.Len() > 0, Private: x.private || x.http1Only, Limits: *x.proxy.limits.Load(), Memory: x.proxy.Memory}
}

// dial makes a connection to e. It returns errClientCut as soon as the client's connection is
// cut or the client resets its stream. If descriptors are short, weir cuts connections whose
// dials wait for a descriptor, because weir needs the descriptors of these connections at once.
func (x *exchange) dial(e *backend.Endpoint) (*backend.Session, error) {
	begun := time.Now()
	c := newCancelable()
	x.wire.Link(c)
	link, err := e.Connect(c.ctx, outgoing(x.origin, x.client, &x.security), x.need())
	x.wire.Link(nil)
	x.connect = time.Since(begun)
	return link, c.end(err)
}

// connectFailed is the reason for an exchange that has no connection to an endpoint.
const connectFailed = "connect"

// lostDial notes that there is no connection to e.
func (x *exchange) lostDial(e *backend.Endpoint, err error) {
	switch {
	case !errors.Is(err, errClientCut):
		e.Failed(err)
		x.fail(unsent, dialStatus(err), connectFailed, err)
	case x.cuts.WasCut():
		x.fail(clientGone, http.StatusServiceUnavailable, x.cutBy(), err)
	default:
		x.fail(clientGone, 0, "client_gone", err) // the client reset the stream
	}
}

// talk runs the exchange over one connection to the endpoint. Afterwards it keeps the
// connection if another exchange may use it.
func (x *exchange) talk(link *backend.Session) {
	x.link, x.trouble, x.phase = link, none, sending
	x.status, x.reason, x.err = 0, "", nil // of the previous attempt
	settings := x.route.backend.Settings()
	link.HTTP.ChargeTo(x.account)
	link.SetWriteTimeout(settings.Timeouts.BodyIdle)
	begun := x.started
	if x.attempts > 1 || !link.Reused || settings.MaxConnections > 0 { // it was tried, dialled or queued
		begun = time.Now()
	}
	x.waitFor(begun, settings.Timeouts.ResponseHead)
	x.wire.Link(link)
	if x.whole {
		x.talkAwaiting(link)
	} else {
		x.talkUploading(link, settings.Timeouts.ResponseHead)
	}
	if x.upgraded {
		return
	}
	x.wire.Link(nil)
	x.link = nil
	if x.mayKeep(link) {
		link.HTTP.Release()
		link.HTTP.ChargeTo(nil)
		x.keep(link)
		return
	}
	link.HTTP.Close()
	link.Close()
}

// talkAwaiting is talk for a request whose body has arrived completely.
func (x *exchange) talkAwaiting(link *backend.Session) {
	err := link.Await(x.relay)
	for err != nil && x.patient(err) {
		err = link.Await(x.relay)
	}
	if err != nil && x.trouble == none {
		x.lostEndpoint(err)
	}
}

// mayKeep returns true if another request may use the connection. The request may come from
// another client, unless the connection is private. This exchange must be complete on both
// sides: if the request was not sent completely, the endpoint would read the next request as
// the rest of it.
func (x *exchange) mayKeep(link *backend.Session) bool {
	return x.trouble == none && link.HTTP.Reusable() && x.upload.delivered() && !link.WasCut() &&
		(link.Private() || x.endpoint.Backend().Settings().SendProxy == 0) // a PROXY header names one client for the whole connection
}

// relayReady is called within the Await of the endpoint's connection when bytes may have
// arrived. It is also called outside Await, where reads block. It returns true when the
// attempt is over.
func (x *exchange) relayReady() bool {
	if x.phase == sending {
		if x.link.Reused && !x.link.HTTP.Quiet(conn.ErrWouldBlock) {
			x.trouble = stale
			return true
		}
		before := x.link.Sent()
		if err := x.send(); err != nil {
			x.lostEndpoint(err)
			x.noteUnsent(before)
			return true
		}
		x.phase = awaitingHead
	}
	for x.phase == awaitingHead {
		if err := x.link.HTTP.ReadHead(&x.req, &x.res); err != nil {
			if err == conn.ErrWouldBlock {
				x.link.HTTP.Release() // while weir waits for a slow response, the connection holds no buffer
				return false
			}
			if x.patient(err) {
				continue
			}
			if x.trouble == none {
				x.lostEndpoint(err)
			}
			return true
		}
		if x.gotHead() {
			return true
		}
	}
	return x.relayBody()
}

// send writes a request whose body has arrived completely.
func (x *exchange) send() error {
	h := x.link.HTTP
	h.WriteHead(&x.req)
	if body, _ := x.wire.BufferedBody(); len(body) > 0 {
		if err := h.WriteBody(body); err != nil {
			return err
		}
	}
	h.WriteEnd(&x.req)
	return h.Flush()
}

// noteUnsent changes the trouble if no byte of the request was sent. Then weir may send any
// request over another connection. before is the number of bytes that the connection had
// sent before the request.
func (x *exchange) noteUnsent(before int64) {
	if x.link.Conn == nil || x.link.Sent() != before || !x.upload.repeatable() {
		return
	}
	switch x.trouble {
	case unanswered:
		x.trouble = stale
	case dropped:
		x.trouble = unsent
	}
}

// gotHead forwards the head of a response. It returns true if nothing of this response
// follows: the client is gone, or the connection is now a tunnel.
func (x *exchange) gotHead() bool {
	if x.res.Informational() {
		if x.req.Minor == 0 || x.res.Status == 100 && !x.req.ExpectContinue {
			return false
		}
		x.wire.WriteHead(&x.req, &x.res, false)
		return x.flush() != nil
	}
	if x.res.AsksForConnection() {
		x.link.MakePrivate()
	}
	accepted := x.wire.Accepts(&x.req, &x.res)
	if !accepted && x.res.Status == 101 {
		x.lostEndpoint(errNotAccepted)
		return true
	}
	x.endpoint.Succeeded()
	if !accepted {
		x.fail(failed, errNoUpgrade.Status, errNoUpgrade.Reason, errNoUpgrade)
		return true
	}
	x.phase, x.moved = relayingBody, true
	x.answered = true
	x.status = x.res.Status
	if x.proxy.log.Load() != nil || x.res.Status == 101 { // only the log and tunnels use the time
		x.waited = time.Since(x.started)
	}
	x.writeHead(&x.res)
	if x.res.Status == 101 {
		x.upgraded = x.flush() == nil
		return true
	}
	return false
}

var (
	errNotAccepted = &message.Refusal{Status: http.StatusBadGateway, Reason: "bad_upgrade",
		Detail: "the endpoint's 101 response has a wrong Sec-WebSocket-Accept"}
	errNoUpgrade = &message.Refusal{Status: http.StatusNotImplemented, Reason: "upgrade",
		Detail: "the endpoint answered the upgrade request without switching protocols"}
)

// relayBody forwards the part of the body that has arrived. It flushes all of that part
// before it waits for more.
func (x *exchange) relayBody() bool {
	h := x.link.HTTP
	for !h.BodyEnded() {
		if !h.Started() {
			if x.flush() != nil {
				return true
			}
			if x.res.Close {
				x.link.LookAgain() // the end may have arrived together with the last bytes
			}
		}
		if !x.whole {
			x.waitForBody()
		}
		p, err := h.ReadBody(&x.res)
		switch {
		case err == conn.ErrWouldBlock: // perhaps in the middle of the framing of a chunk
			x.waitForBody()
			h.Release()
			return x.flush() != nil
		case err == io.EOF:
		case err != nil && x.patient(err):
			continue
		case err != nil:
			if x.trouble == none {
				x.lostEndpoint(err)
			}
			return true
		default:
			x.moved = true
		}
		if err := x.wire.WriteBody(p); err != nil {
			x.lostClient(err)
			return true
		}
	}
	x.wire.WriteEnd(&x.res)
	h.Release()
	x.flush()
	return true
}

// flush sends the buffered output to the client.
func (x *exchange) flush() error {
	err := x.wire.Flush()
	if err != nil {
		x.lostClient(err)
	}
	return err
}

// lostClient notes that weir cannot send anything more to the client.
func (x *exchange) lostClient(err error) {
	reason := "client_gone"
	switch {
	case x.cuts.WasCut():
		reason = x.cutBy()
	case errors.Is(err, os.ErrDeadlineExceeded):
		reason, err = "slow_read", slowRead(x.edge, err)
	}
	x.fail(clientGone, x.status, reason, err)
}

// cutBy returns the reason of an exchange whose connection weir cut.
func (x *exchange) cutBy() string {
	if x.account.Ended() {
		return message.ErrMemory.Reason
	}
	return "cut"
}

func (x *exchange) fail(t trouble, status int, reason string, err error) {
	x.trouble, x.status, x.reason, x.err = t, status, reason, err
}

// lostEndpoint notes that the connection to the endpoint failed: it ended, or it carried
// something other than a valid response.
func (x *exchange) lostEndpoint(err error) {
	x.tellPanic(err)
	var refusal *message.Refusal
	var unfit *http2.RequestError
	switch {
	case errors.Is(err, conn.ErrCut) && !x.cuts.WasCut():
		x.fail(clientGone, x.status, "client_gone", errClientGone) // the client's reset cut the connection
		return
	case errors.Is(err, message.ErrMemory):
		status := http.StatusServiceUnavailable
		if x.answered {
			status = x.status
		}
		x.fail(outOfMemory, status, message.ErrMemory.Reason, err) // not the endpoint's fault
		return
	case errors.As(err, &unfit):
		x.fail(failed, unfit.Status, unfit.Reason, err)
		return
	case x.wantsHTTP1(err):
		x.fail(needsHTTP1, http.StatusBadGateway, "endpoint_closed", err)
		return
	case x.phase != relayingBody && http2.Unprocessed(err):
		x.fail(refused, http.StatusServiceUnavailable, "endpoint_refused", err)
		return
	case errors.Is(err, conn.ErrCut):
		if !x.answered {
			x.status = http.StatusServiceUnavailable
		}
		x.fail(clientGone, x.status, x.cutBy(), err)
		return
	case x.phase == relayingBody:
		err = http1.Explain(err, x.route.backend.Name())
		x.fail(cutShort, x.status, "response_cut_short", x.tooSlow(err))
	case errors.As(err, &refusal):
		err = http1.Explain(err, x.route.backend.Name())
		x.fail(failed, http.StatusBadGateway, "bad_response_"+refusal.Reason, err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		x.fail(failed, http.StatusGatewayTimeout, "response_timeout", x.tooSlow(err))
	case x.idleEnded(err):
		x.fail(unanswered, http.StatusBadGateway, "endpoint_closed", err)
		return // an idle connection may end at any time: that is not the endpoint's fault
	case !x.link.HTTP.Answered():
		x.fail(dropped, http.StatusBadGateway, "endpoint_closed", err)
	default:
		x.fail(failed, http.StatusBadGateway, "endpoint_closed", err)
	}
	x.endpoint.Failed(err)
}

// idleEnded reports whether a connection ended that had been used before, without any byte of
// a response to this request. An idle connection may end in this way at any time. For a
// connection that other exchanges share, idleEnded returns true only once in an exchange: the
// next connection may be shared as well, and this request may be the cause of the end. The
// reset of a stream is the endpoint's answer to the request, so it returns false.
func (x *exchange) idleEnded(err error) bool {
	if !x.link.Reused || x.link.HTTP.Answered() {
		return false
	}
	if x.link.Stream == nil {
		return true
	}
	var lost *http2.LostError
	first := errors.As(err, &lost) && !x.lostShared
	x.lostShared = true
	return first
}

// tellPanic reports a panic that ended the connection to the endpoint, once.
func (x *exchange) tellPanic(err error) {
	var p *http2.PanicError
	if errors.As(err, &p) && p.First() && x.proxy.Panicked != nil {
		x.proxy.Panicked(x.edge.name, p.Value, p.Stack)
	}
}

// mayRetry reports whether weir may send the request again. The request must be unsent or
// repeatable, and the retries must be within their limits. If an idle connection had ended,
// that is no sign of overload, and it happens only once in an exchange, because the next
// attempt uses a new connection. So that retry does not count for the share of retries. If a
// new connection ended, the request may be the cause, so weir tries only another endpoint.
func (x *exchange) mayRetry(b *backend.Backend, tried []*backend.Endpoint) bool {
	reason, spends := backend.RetryClosed, true
	switch x.trouble {
	case unsent:
		if b.AllowConnect(tried, &x.excused, x.err, x.connect) {
			b.Retried(backend.RetryConnect)
			return true
		}
		return false
	case dropped:
		if !x.req.Idempotent || x.upload != nil || !b.Another(tried) {
			return false
		}
	case unanswered:
		spends = false
		if !x.req.Idempotent || x.upload != nil {
			return false
		}
	case refused:
		reason, spends = backend.RetryRefused, !http2.Leaving(x.err) // GOAWAY is no sign of overload
		if !x.upload.repeatable() {
			return false
		}
	default:
		return false
	}
	if x.attempts-x.excused >= b.Settings().Retries.Attempts || spends && !b.AllowRetry() {
		return false
	}
	b.Retried(reason)
	return true
}

// unavailable answers the request if there is no endpoint for it.
func (x *exchange) unavailable(err error) {
	x.err = err
	if why := x.route.backend.LookupError(); why != nil && errors.Is(err, backend.ErrNoReady) {
		x.err = fmt.Errorf("%w: %w", err, why) // for the log only: clients must not learn the names of endpoints
	}
	if errors.Is(err, backend.ErrQueueTimeout) {
		err = backend.ErrQueueTimeout // clients must not learn the names of backends either
	}
	x.reply(&message.Refusal{Status: http.StatusServiceUnavailable, Reason: whyNone(err), Detail: err.Error()})
}

// whyNone returns the reason for an error of Acquire.
func whyNone(err error) string {
	switch {
	case errors.Is(err, backend.ErrQueueFull):
		return "queue_full"
	case errors.Is(err, backend.ErrQueueTimeout):
		return "queue_timeout"
	}
	return "no_endpoint_ready"
}

// giveUp ends an exchange whose last attempt failed. If the client has no response yet, weir
// answers it. Otherwise weir breaks the response off, so that the client cannot take the
// received part for the whole.
func (x *exchange) giveUp() {
	if x.trouble == clientGone || x.answered {
		x.ended = true
		x.broken = x.answered
		return
	}
	err := x.err
	x.reply(&message.Refusal{Status: x.status, Reason: x.reason, Detail: troubleText(x.status, x.reason, err)})
	x.err = err
}

func troubleText(status int, reason string, err error) string {
	var refusal *message.Refusal
	switch {
	case reason == connectFailed && status == http.StatusGatewayTimeout:
		return "no connection to an endpoint in time"
	case reason == connectFailed:
		return "no connection to an endpoint"
	case status == http.StatusGatewayTimeout:
		return "the endpoint did not answer in time"
	case status == http.StatusRequestTimeout:
		return "the request's body did not arrive in time (timeouts.body_idle and body_min_rate of the listener)"
	case (status < http.StatusInternalServerError || status == http.StatusNotImplemented) && errors.As(err, &refusal):
		return refusal.Detail // the request's own fault
	case reason == message.ErrMemory.Reason:
		return message.ErrMemory.Detail
	case status == http.StatusServiceUnavailable:
		return "the endpoint refused the request"
	}
	return "the endpoint sent no valid response"
}

func dialStatus(err error) int {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway
}
