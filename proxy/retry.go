package proxy

import (
	"errors"
	"time"

	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/http2"
	"github.com/weirproxy/weir/proxy/trace"
)

// trier needs an endpoint: for a request (attempts), or for a tunnel (tunnelDial).
type trier interface {
	// acquire chooses the endpoint for the next attempt, if possible one that was not tried.
	// own is the client's private connection to it, or nil.
	acquire(tried []*backend.Endpoint) (e *backend.Endpoint, own *backend.Link, err error)
	// try makes one attempt. fresh: the attempt must make a new connection. The caller
	// releases e, unless the outcome is a tunnel.
	try(e *backend.Endpoint, own *backend.Link, fresh bool) *outcome
	// repeatable reports whether the trier may send the same again after an attempt that
	// ended with t.
	repeatable(t failure) bool
	// pause waits before the next attempt, if the limits have a backoff. It returns the outcome if
	// nobody waits for the next attempt any longer.
	pause() *outcome
	// abandoned returns the outcome of a request or tunnel whose client left while it waited.
	abandoned(err error) *outcome
}

// retries are the attempts for one request or tunnel, and their limit. All retries of weir
// are made in run.
type retries struct {
	backend *backend.Backend
	limits  *tryLimits        // of the route; nil: only those of the backend
	metrics *routeMetrics     // of the route; nil: the request is weir's own
	held    *backend.Endpoint // the endpoint of the running attempt or of the tunnel, until it is released
	once    bool              // no retry
	made    int               // attempts
	excused int               // attempts that do not count: the address refused or could not be reached
	untaken int               // attempts that do not count: the endpoint did not take the request
	connect time.Duration     // how long the last attempt to connect took
	trace   *trace.Trace      // nil: the request is not traced
	begun   time.Time         // when the request timeout of limits began
	queued  time.Time         // when the wait for the endpoint began; zero: the backend has no queue
	first   time.Time         // when the first attempt began; set only if limits has within
}

// run makes attempts until one succeeds, or until no other attempt may follow. It returns
// the last outcome.
func (r *retries) run(t trier) *outcome {
	var tried []*backend.Endpoint
	for fresh := false; ; {
		r.waits()
		e, own, err := t.acquire(tried)
		r.waited()
		switch {
		case errors.Is(err, errClientGone):
			return t.abandoned(err)
		case err != nil:
			return &outcome{failure: noEndpoint, reason: whyNone(err), err: err}
		}
		r.held = e
		if r.made++; r.made == 1 && r.limits != nil && r.limits.within != 0 {
			r.first = time.Now()
		}
		if r.trace != nil {
			r.trace.Try(r.queued, e.Address(), r.connect)
		}
		o := t.try(e, own, fresh)
		if r.trace != nil {
			r.tried(o)
		}
		if o == tunnelOpened {
			return o // the endpoint is released when its tunnel ends
		}
		r.held = nil
		e.Release()
		if o == nil {
			return nil
		}
		if tried = append(tried, e); r.once || !r.allows(t, o, tried) {
			return o
		}
		if r.untaken == 1 && http2.GoingAway(o.err) { // the endpoint ended a connection, and may take the next
			tried = tried[:len(tried)-1]
		}
		if r.rests(o) {
			if gone := t.pause(); gone != nil {
				return gone
			}
		}
		fresh = fresh || o.failure == unanswered || o.failure == dropped // another idle connection may have ended as well
	}
}

// waits notes when the wait for an endpoint begins, if the backend has a queue. It is apart from
// acquire, because the stack of an exchange is small.
func (r *retries) waits() {
	if r.metrics != nil && r.backend.Settings().MaxConnections > 0 {
		r.queued = time.Now()
	}
}

// waited counts the time in the queue.
func (r *retries) waited() {
	if !r.queued.IsZero() {
		r.metrics.get().times.queued(time.Since(r.queued))
	}
}

// allows reports whether another attempt may follow the outcome o. What was sent must be
// repeatable, and the retries must be within their limits. If an idle connection had ended,
// that is no sign of overload, and it happens only once, because the next attempt uses a new
// connection. So that retry does not count for the share of retries. If a new connection
// ended, the request may be the cause, so weir tries only another endpoint.
func (r *retries) allows(t trier, o *outcome, tried []*backend.Endpoint) bool {
	b, reason, spends := r.backend, backend.RetryClosed, true
	if o.failure != discarded && !r.mayBegin(r.rests(o)) {
		return false
	}
	switch o.failure {
	case unsent:
		if r.connectAgain(o, tried) {
			r.count(backend.RetryConnect)
			return true
		}
		return false
	case dropped:
		reset := r.limits != nil && r.limits.reset
		if !reset && !b.Another(tried) {
			return false
		}
	case late:
		if r.limits == nil || !r.limits.timeout {
			return false
		}
		reason = backend.RetryTimeout
	case discarded: // discards has taken the retry from its limits
		r.count(backend.RetryStatus)
		return true
	case unanswered:
		spends = false
	case refused:
		reason, spends = backend.RetryRefused, !http2.GoingAway(o.err) // GOAWAY is no sign of overload
		r.untaken = min(r.untaken+1, mostUncounted)
	default:
		return false
	}
	if !t.repeatable(o.failure) || r.made-r.excused-r.untaken >= r.most() || spends && !r.allowRetry() {
		return false
	}
	r.count(reason)
	return true
}

// mostUncounted is how many attempts of a request or tunnel do not count because the endpoint
// did not take the request.
const mostUncounted = 3

// count counts a retry for the backend, and for the route.
func (r *retries) count(why backend.RetryReason) {
	r.backend.Retried(why)
	if r.metrics != nil {
		r.metrics.get().retried(r.backend.Name(), why.String()).Inc()
	}
}
