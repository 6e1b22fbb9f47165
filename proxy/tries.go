package proxy

import (
	"errors"
	"math"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/http2"
)

// tryLimits are the timeouts and retries of a route, in the form that attempts need. A nil
// *tryLimits: those of the backend apply alone.
type tryLimits struct {
	request, try   time.Duration // 0: no limit
	waits          waits         // 0: those of the backend
	attempts       int           // 0: the limit of the backend
	within         time.Duration // after the first attempt, in which others may begin; 0: no limit
	backoff        time.Duration // the minimum wait before a retry; 0: none
	unsafe         bool          // repeat requests that are not idempotent, too
	timeout, reset bool          // repeat after these failures
	unshared       bool          // the share of the backend does not limit the retries
	statuses       [200]bool     // repeat after these statuses, from 400 on
}

// waits are the limits of the waits for an endpoint.
type waits struct {
	connect, head time.Duration
	body          time.Duration // for more of the response
	send          time.Duration // until the endpoint reads more of the request
	stream        time.Duration // in which nobody owes anything
}

// head returns the limit of the wait for the head of a response. The timeouts of the backend
// count where the route has none. l may be nil.
func (l *tryLimits) head(of *config.BackendTimeouts) time.Duration {
	if l == nil || l.waits.head == 0 {
		return of.ResponseHead
	}
	return l.waits.head
}

// body returns the limit of the wait for more of a response.
func (l *tryLimits) body(of *config.BackendTimeouts) time.Duration {
	if l == nil || l.waits.body == 0 {
		return of.BodyIdle
	}
	return l.waits.body
}

// stream returns the limit of a silence in a response in which nobody owes anything; 0: body is the
// limit, because the file has it.
func (l *tryLimits) stream(of *config.BackendTimeouts) time.Duration {
	if l == nil || l.waits.stream == 0 && l.waits.body == 0 {
		return of.StreamIdle
	}
	return l.waits.stream
}

// send returns the limit of the wait for the endpoint to read more of the request.
func (l *tryLimits) send(of *config.BackendTimeouts) time.Duration {
	if l == nil || l.waits.send == 0 {
		return l.body(of)
	}
	return l.waits.send
}

// connect returns the limit of the wait for a connection; 0: that of the backend.
func (l *tryLimits) connect() time.Duration {
	if l == nil {
		return 0
	}
	return l.waits.connect
}

func newTryLimits(r *config.Route) *tryLimits {
	if r.Timeouts == nil && r.Retries == nil {
		return nil
	}
	l := &tryLimits{}
	if t := r.Timeouts; t != nil {
		l.request, l.try = t.Request, t.Try
		l.waits = waits{t.Connect, t.ResponseHead, t.BodyIdle, t.Send, t.StreamIdle}
	}
	if t := r.Retries; t != nil {
		l.attempts, l.within, l.backoff, l.unsafe, l.unshared = t.Attempts, t.Within, t.Backoff, t.NonIdempotent, t.Unshared
		for _, cause := range t.When {
			l.timeout = l.timeout || cause == config.RetryTimeout
			l.reset = l.reset || cause == config.RetryReset
			if from, to := cause.Statuses(); from != 0 {
				for status := from; status <= to; status++ {
					l.statuses[status-400] = true
				}
			}
		}
	}
	return l
}

// keepsBodies reports whether weir keeps bodies that arrive slowly, to repeat them.
func (l *tryLimits) keepsBodies() bool { return l != nil && l.attempts > 1 }

// mostKeptBody limits the body that weir keeps for the retries of a route, in bytes.
const mostKeptBody = 64 << 10

// deadline returns the end of the request timeout; zero: there is none.
func (r *retries) deadline() time.Time {
	if r.limits == nil || r.limits.request == 0 {
		return time.Time{}
	}
	return r.begun.Add(r.limits.request)
}

// limit sets the time until which the attempt must have the head of the response.
func (a *attempt) limit() {
	l := a.all.limits
	if l == nil {
		return
	}
	a.headUntil = a.all.deadline()
	if l.try != 0 {
		if until := time.Now().Add(l.try); a.headUntil.IsZero() || until.Before(a.headUntil) {
			a.headUntil = until
		}
	}
}

// within returns t, or the end of the route's timeouts if that comes earlier.
func (a *attempt) within(t time.Time) time.Time {
	if a.phase != relayingBody && !a.headUntil.IsZero() && a.headUntil.Before(t) {
		return a.headUntil
	}
	return t
}

// timedOut returns the outcome of an attempt that a timeout of the route has ended; nil: none
// has. The end of the request timeout is not counted as a failure of the endpoint, which may have had little time.
func (a *attempt) timedOut(err error) *outcome {
	now := time.Now()
	switch end := a.all.deadline(); {
	case a.phase == relayingBody || a.headUntil.IsZero() || now.Before(a.headUntil):
		return nil
	case !end.IsZero() && !now.Before(end):
		return a.all.ranOut(err)
	}
	a.endpoint.Failed(err)
	err = conn.Explain(err, "the endpoint sent no response within %v (timeouts.try of the route)", a.all.limits.try)
	return &outcome{failure: late, status: http.StatusGatewayTimeout, reason: "try_timeout", err: err}
}

// ranOut returns the outcome of attempts that the request timeout has ended.
func (a *attempts) ranOut(err error) *outcome {
	err = conn.Explain(err, "no endpoint sent a response within %v (timeouts.request of the route)", a.limits.request)
	return &outcome{failure: failed, status: http.StatusGatewayTimeout, reason: "request_timeout", err: err}
}

// discards returns the outcome of an attempt whose response weir does not pass on, because it
// repeats the request; nil: weir passes the response on. The retry is taken from its limits. A
// response that arrives before the request was sent is passed on.
func (a *attempts) discards(status int) *outcome {
	l := a.limits
	if l == nil || status < 400 || status > 599 || !l.statuses[status-400] || !a.upload.delivered() || !a.repeatable(discarded) ||
		a.made-a.untaken >= a.most() || !a.mayBegin(true) || !a.retries.allowRetry() {
		return nil
	}
	return &outcome{failure: discarded}
}

// allowRetry reports whether the share of retries of the backend allows one more. It takes it.
func (r *retries) allowRetry() bool {
	return r.limits != nil && r.limits.unshared || r.backend.AllowRetry()
}

// most returns the limit of attempts.
func (r *retries) most() int {
	if r.limits != nil && r.limits.attempts != 0 {
		return r.limits.attempts
	}
	return r.backend.Settings().Retries.Attempts
}

// left returns the time that is left in which another attempt may begin.
func (r *retries) left() time.Duration {
	left := time.Duration(math.MaxInt64)
	if r.limits != nil && r.limits.within != 0 {
		left = r.limits.within - time.Since(r.first)
	}
	if end := r.deadline(); !end.IsZero() {
		left = min(left, time.Until(end))
	}
	return left
}

// mayBegin reports whether another attempt may begin in time. rests: weir waits before.
func (r *retries) mayBegin(rests bool) bool {
	if r.limits == nil {
		return true
	}
	if rests {
		return r.left() > r.limits.backoff
	}
	return r.left() > 0
}

// rests reports whether weir waits before it repeats a request after the outcome o. An idle
// connection that had ended is no failure of an endpoint, and neither are a GOAWAY and a better
// address of the same name.
func (r *retries) rests(o *outcome) bool {
	return r.limits != nil && r.limits.backoff != 0 && o.failure != unanswered && !(o.failure == refused && http2.GoingAway(o.err)) &&
		!(o.failure == unsent && errors.Is(o.err, backend.ErrOtherFamily))
}

// pause waits before another attempt: at least backoff of the route, and at most half as long
// again, because otherwise requests that failed at the same time would be repeated at the same
// time. It returns the outcome if the requester does not wait any longer; nil: it does.
func (a *attempts) pause() *outcome {
	least := a.limits.backoff
	more := min(least, a.left()-least) / 2
	_, err := waitUnlessGone(a.requester, nil, least+rand.N(max(more, 0)+1))
	a.requester.CutAlso(nil)
	if err == nil {
		return nil
	}
	return a.abandoned(err)
}

// abandoned returns the outcome if weir cut the requester, or the requester has gone.
func (a *attempts) abandoned(err error) *outcome {
	if reason := a.requester.cutFor(); reason != "" {
		return &outcome{failure: clientGone, status: http.StatusServiceUnavailable, reason: reason, err: err}
	}
	return &outcome{failure: clientGone, reason: "client_gone", err: err} // the client left, or reset its stream
}

// connectAgain reports whether another attempt may follow one without a connection.
func (r *retries) connectAgain(o *outcome, tried []*backend.Endpoint) bool {
	if r.limits != nil && r.limits.attempts != 0 && !errors.Is(o.err, backend.ErrOtherFamily) {
		return len(tried)-r.excused < r.limits.attempts && r.allowRetry() // attempts counts all others
	}
	return r.backend.AllowConnect(tried, &r.excused, o.err, r.connect)
}

// inTime returns true if the request timeout has not ended.
func (a *attempts) inTime() bool {
	end := a.deadline()
	return end.IsZero() || time.Now().Before(end)
}
