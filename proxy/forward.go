package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/http2"
	"github.com/weirproxy/weir/proxy/message"
)

// forward sends the request to an endpoint of the route's backend, and the response to the
// client.
func (x *exchange) forward(r *Route) {
	if r.closed != nil {
		x.replyClosed(r.closed)
		return
	}
	if x.visits() >= x.proxy.mostVisits() {
		x.endLoop()
		return
	}
	if r.config.Rewrite != nil && x.entersGuarded(r) {
		x.reply(refuseGuardedRewrite)
		return
	}
	if r = x.orFallback(x.destination(r)); r.closed != nil {
		x.route = r
		x.replyClosed(r.closed)
		return
	}
	x.route, x.cookie, x.key = r, x.stickyCookie(r.backend), x.chooseBy(r) // before filters change the request
	x.rewrite(r.backend.Settings().Host)
	if !x.authenticates() {
		return
	}
	x.prepare(r)
	if x.held != nil {
		x.editTrailers() // they have arrived
	}
	if !x.cover(0) {
		x.reply(message.ErrMemory)
		return
	}
	if r.mirrors != nil {
		x.mirror()
	}
	switch o := x.attempts.run(&x.attempts); {
	case o == nil || x.paged:
	case o == tunnelOpened:
		x.upgraded = true
	case o.failure == noEndpoint && !x.attempts.inTime():
		x.giveUp(x.attempts.ranOut(o.err))
	case o.failure == noEndpoint:
		x.unavailable(o.err)
	default:
		x.giveUp(o)
	}
}

// replyClosed answers a request of a closed route.
func (x *exchange) replyClosed(c *closed) {
	x.err = c.why
	x.reply(&c.refusal)
}

// rewrite changes the client's request into the request for the endpoint.
func (x *exchange) rewrite(hostOverride string) {
	req := &x.req
	x.edge.forwarding.EditRequest(x)
	x.identify()
	if x.security.cert != nil {
		x.security.cert.fields.EditRequest(x)
	}
	if hostOverride != "" {
		req.SetHost([]byte(hostOverride))
	} else if req.Find(message.Host) < 0 {
		req.SetHost(req.Bytes(req.Host)) // HTTP/1.0, or the host of the target
	}
	if x.trace != nil {
		x.trace.Inject(&req.Head)
	}
	x.route.filters.EditRequest(x) // a host of the route replaces that of the backend
	if e := x.route.report; e != nil {
		x.RequestID()
		e.write(&req.Head, http.StatusServiceUnavailable)
	}
	addVisit(req)
	x.visited = true
}

// prepare sets up the attempts for the client of x.
func (x *exchange) prepare(r *Route) {
	a := &x.attempts
	a.backend, a.limits, a.metrics, a.trace = r.backend, r.limits, r.metrics, x.trace
	a.requester, a.to, a.body = x, x, x.body()
	a.proxy, a.account = x.proxy, x.account
	a.req, a.res = &x.req, &x.res
	a.begun, a.whole, a.relay = x.started, x.whole || x.held != nil, x.relay
}

// As the requester of its attempts, an exchange is the client.

func (x *exchange) outgoing() *backend.Outgoing { return outgoing(x.origin, x.client, &x.security) }

// CutAlso makes a cut of the client's connection or stream end the waits of other.
func (x *exchange) CutAlso(other conn.Cuttable) { x.wire.CutAlso(other) }

func (x *exchange) gone() bool { return x.wire.Gone() }

// silent makes the connection, or the stream, count as an idle tunnel, which ends if memory or
// descriptors are short.
func (x *exchange) silent(since time.Time) {
	switch h, two := x.wire.(*http2.Exchange); {
	case two:
		h.SetSilent(!since.IsZero())
	case since.IsZero():
		x.conn.SetState(conn.Active)
	default:
		x.conn.SetState(conn.Tunnel)
		x.conn.Quiet(since)
	}
}

func (x *exchange) pinged() time.Time {
	if h, two := x.wire.(*http2.Exchange); two {
		return h.PingedAt()
	}
	return time.Time{}
}

func (x *exchange) cutFor() string {
	if h, two := x.wire.(*http2.Exchange); x.conn.WasCut() || two && errors.Is(h.Ended(), conn.ErrCut) {
		return x.cutBy()
	}
	return ""
}

// cutBy returns the reason of an exchange whose connection weir cut.
func (x *exchange) cutBy() string {
	if x.account.Ended() {
		return message.ErrMemory.Reason
	}
	return "cut"
}

func (x *exchange) panicked(p *http2.PanicError) {
	if x.proxy.Panicked != nil {
		x.proxy.Panicked(x.edge.name, p.Value, p.Stack)
	}
}

func (x *exchange) bodyPace() pace {
	p := newPace(x.edge.timeouts.BodyIdle, x.minRate())
	p.call, p.silence = isCall(&x.req), x.edge.timeouts.StreamIdle
	if l := x.attempts.limits; l != nil && l.waits.stream != 0 {
		p.silence = l.waits.stream
	}
	return p
}

func (x *exchange) guardBody(n int64) error {
	if r := x.route.filters.GuardBody(n); r != nil {
		x.route.configured().metrics.get().guard("max_body", r.Reason).Inc()
		return r
	}
	return nil
}

func (x *exchange) bodyEnded() {
	x.editTrailers()
	if x.copies != nil {
		x.copies.send()
	}
}

// editTrailers changes the client's trailers into those for the endpoint.
func (x *exchange) editTrailers() {
	x.edge.forwarding.DropListed(&x.req.Trailers)
	x.edge.forwarding.DropAsserted(&x.req.Trailers)
	x.route.filters.EditTrailers(&x.req.Trailers)
}

// As the destination of its attempts, an exchange passes the response to the client.

func (x *exchange) inform() error {
	if x.req.Minor == 0 || x.res.Status == http.StatusContinue && !x.req.ExpectContinue {
		return nil // the client knows no such response, or does not wait for it any more
	}
	if x.res.Status == http.StatusContinue {
		x.req.ExpectContinue = false
	}
	x.wire.WriteHead(&x.req, &x.res)
	return x.wire.Flush()
}

func (x *exchange) accepts() bool { return x.wire.Accepts(&x.req, &x.res) }

func (x *exchange) respond() error {
	x.status = x.res.Status
	x.waited = time.Since(x.started)
	x.route.metrics.get().times.responseHead(x.waited)
	if x.paged = x.replaced(&x.res); x.paged {
		return nil
	}
	x.stick()
	x.completeHead(&x.res)
	if !x.cover(0) {
		return message.ErrMemory
	}
	x.answered = true
	if x.route.config.Compress {
		x.pack()
	}
	x.wire.WriteHead(&x.req, &x.res)
	return nil
}

func (x *exchange) write(p []byte) error {
	if x.paged {
		return x.discarded(p)
	}
	if e := x.packing.encoder; e != nil {
		_, err := e.Write(p)
		return err
	}
	x.sent += int64(len(p))
	return x.wire.WriteBody(p)
}

func (x *exchange) end() {
	switch {
	case x.paged:
	case x.packing.encoder != nil:
		x.endPacked()
	default:
		x.wire.WriteEnd(&x.res)
	}
}

func (x *exchange) flush() error {
	if x.packing.encoder != nil {
		return x.flushPacked()
	}
	return x.wire.Flush()
}

// writeFailed returns the outcome of an attempt because weir cannot send anything more to the client.
func (x *exchange) writeFailed(err error) *outcome {
	reason := "client_gone"
	cut := x.cutFor()
	switch {
	case err == message.ErrMemory: // of respond
		return &outcome{failure: outOfMemory, status: http.StatusServiceUnavailable, reason: message.ErrMemory.Reason, err: err}
	case cut != "":
		reason = cut
	case errors.Is(err, os.ErrDeadlineExceeded):
		reason, err = "slow_read", slowRead(x.edge, err)
	}
	return &outcome{failure: clientGone, reason: reason, err: err}
}

// unavailable answers the request if there is no endpoint for it.
func (x *exchange) unavailable(err error) {
	x.err = err // for the log only: clients must not learn the names of backends, endpoints and settings
	if why := x.route.backend.LookupError(); why != nil && errors.Is(err, backend.ErrNoReady) {
		x.err = fmt.Errorf("%w: %w", err, why)
	}
	text := "too many requests at the moment; try again"
	if errors.Is(err, backend.ErrNoReady) {
		text = "no endpoint is ready"
	}
	x.reply(&message.Refusal{Status: http.StatusServiceUnavailable, Reason: whyNone(err), Detail: text})
}

// whyNone returns the reason for an error of Acquire.
func whyNone(err error) string {
	switch {
	case errors.Is(err, message.ErrMemory): // while it waited in the queue
		return message.ErrMemory.Reason
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
func (x *exchange) giveUp(o *outcome) {
	x.reason, x.err = o.reason, o.err
	if o.failure == clientGone || x.answered {
		if !x.answered {
			x.status = o.status
		}
		x.ended = true
		x.broken = x.answered
	} else {
		x.reply(&message.Refusal{Status: o.status, Reason: o.reason, Detail: failureText(o.status, o.reason, o.err)})
		x.err = o.err
	}
	if x.proxy.EndpointFailed != nil && o.ofEndpoint() {
		x.proxy.EndpointFailed(x.newRecord(time.Now()))
	}
}

func failureText(status int, reason string, err error) string {
	var refusal *message.Refusal
	switch {
	case reason == connectFailed && status == http.StatusGatewayTimeout:
		return "no connection to an endpoint in time"
	case reason == connectFailed:
		return "no connection to an endpoint"
	case status == http.StatusGatewayTimeout:
		return "the endpoint did not answer in time"
	case status == http.StatusRequestTimeout:
		return "the request's body did not arrive in time"
	case (status < http.StatusInternalServerError || status == http.StatusNotImplemented) && errors.As(err, &refusal):
		return refusal.Detail // the request's own fault
	case reason == message.ErrMemory.Reason:
		return message.ErrMemory.Detail
	case status == http.StatusServiceUnavailable:
		return "the endpoint refused the request"
	}
	return "the endpoint sent no valid response"
}
