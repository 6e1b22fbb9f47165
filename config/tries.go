package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// RouteTimeouts limit how long the requests of a route wait. 0: no limit besides those of the
// backend.
type RouteTimeouts struct {
	// Request and Try end with the head of the response.
	Request time.Duration // over all attempts, from the end of the request's head
	Try     time.Duration // of each attempt, from the choice of its endpoint
	// Connect, ResponseHead and BodyIdle replace the BackendTimeouts of these names.
	Connect, ResponseHead, BodyIdle time.Duration
	Send                            time.Duration // until the endpoint reads more of the request; 0: BodyIdle
	StreamIdle                      time.Duration // replaces StreamIdle of the listener and of the backend; 0: BodyIdle, or else theirs
}

// RouteRetries replace the Retries of the backend for the requests of a route. The backend's
// Share limits them too.
type RouteRetries struct {
	Attempts int           // the maximum number of attempts of one request, all of them, at least 1
	Within   time.Duration // no attempt begins later, from the first one on; 0: no limit
	Backoff  time.Duration // the minimum wait before weir repeats a request; 0: none
	// NonIdempotent repeats requests of every method, even if the endpoint may have acted on them.
	NonIdempotent bool
	// When lists the failures after which weir repeats requests, besides those that it always
	// repeats.
	When []RetryCause
	// Unshared means that the Share of the backend does not limit these retries. Only objects of a
	// cluster have it.
	Unshared bool
}

// RetryCause is a failure after which weir repeats a request: one of the constants, a status, or a
// range of statuses such as 500-599. The file has only statuses from 500 on.
type RetryCause string

// The causes that are no statuses.
const (
	RetryConnect RetryCause = "connect" // there was no connection; weir always repeats
	RetryTimeout RetryCause = "timeout" // there was no response in time
	RetryReset   RetryCause = "reset"   // the connection ended before the head of the response
)

// Statuses returns the first and the last status of the cause; 0: it is none.
func (c RetryCause) Statuses() (from, to int) {
	first, last, isRange := strings.Cut(string(c), "-")
	if !isRange {
		last = first
	}
	from, err := strconv.Atoi(first)
	to, errTo := strconv.Atoi(last)
	if err != nil || errTo != nil || len(first) != 3 || len(last) != 3 || from < 400 || to > 599 || from > to {
		return 0, 0
	}
	return from, to
}

var retryCause = kind[RetryCause]{what: `connect, timeout, reset, or a status such as 503 or 500-599`, format: same[RetryCause],
	pattern: `connect|timeout|reset|5[0-9]{2}(-5[0-9]{2})?`,
	parse: func(s string) (RetryCause, error) {
		c := RetryCause(s)
		if from, _ := c.Statuses(); from < 500 && c != RetryConnect && c != RetryTimeout && c != RetryReset {
			return "", fmt.Errorf("is no reason for a retry; write connect, timeout, reset, or statuses from 500 to 599 such as 503 or 500-599")
		}
		return c, nil
	}}

// retryCauseValue also reads a status as a number.
func retryCauseValue(dst *RetryCause) value {
	x := retryCause.at(dst)
	text, describe := x.read, x.schema
	x.read = func(v *draft, n *Tree, p path) {
		if n.Shape != ShapeInteger || n.Hidden {
			text(v, n, p)
			return
		}
		v.mark(dst, n, p)
		c, err := retryCause.parse(n.Text)
		if err != nil {
			v.fail(n, p, "%s %v", v.quoteNode(n), err)
			return
		}
		*dst = c
	}
	x.schema = func() *schema { return anyOf(describe(), &schema{Type: "integer", Minimum: 500, Maximum: 599}) }
	return x
}

func (r *Route) timeoutsKey() value {
	return optional(&r.Timeouts, func() *RouteTimeouts { return &RouteTimeouts{} }, func(t *RouteTimeouts) section {
		limit := func(dst *time.Duration) value {
			return duration(dst, 10*time.Millisecond, day).shownIf(*dst != 0).byDefault("no limit")
		}
		return section{object: &r.Timeouts, rules: triesTimeoutsRules, keys: []key{
			{"request", limit(&t.Request), "From the end of the request's head to the end of the response head, over all attempts and the queue; then 504."},
			{"try", limit(&t.Try), "For one attempt: from the choice of the endpoint to the end of the response head."},
			{"connect", limit(&t.Connect).byDefault("the backend's"), "For one connection to an endpoint, as timeouts.connect of the backend."},
			{"response_head", limit(&t.ResponseHead).byDefault("the backend's"), "From the end of the request to the end of the response head, as timeouts.response_head of the backend."},
			{"body_idle", limit(&t.BodyIdle).byDefault("the backend's"), "How long weir waits for more bytes of a body, as timeouts.body_idle of the backend."},
			{"stream_idle", duration(&t.StreamIdle, 10*time.Millisecond, 30*day).shownIf(t.StreamIdle != 0).byDefault("body_idle if it is set, else those of the listener and the backend"), "How long a stream may be silent, such as server-sent events or a gRPC call, in place of timeouts.stream_idle of the listener and of the backend."},
			{"send", limit(&t.Send).byDefault("body_idle"), "How long weir waits until the endpoint reads more of the request."},
		}, check: func(v *draft, there keySet, n *Tree, p path) {
			if len(there) == 0 && n.Shape == ShapeMapping && len(n.Parts) == 0 {
				v.fail(n, p, "is empty; give it request, try or another timeout, or take the key out")
			}
			if t.Request != 0 && t.Try > t.Request {
				v.failAt(v.places[&t.Try], "is longer than request (%s), so it has no effect; write less, or take it out", short(t.Request))
			}
		}}
	})
}

var triesTimeoutsRules = []*schema{hasAny("request", "try", "connect", "response_head", "body_idle", "stream_idle", "send")}

// checkBackoff reports a wait before retries that never fits into the request timeout.
func (v *draft) checkBackoff(r *Route) {
	if r.Retries != nil && r.Timeouts != nil && r.Timeouts.Request != 0 && r.Retries.Backoff >= r.Timeouts.Request {
		v.failAt(v.places[&r.Retries.Backoff], "is not shorter than timeouts.request (%s), so weir would repeat no request; write less, or take one of them out", short(r.Timeouts.Request))
	}
}

func (r *Route) retriesKey() value {
	return optional(&r.Retries, func() *RouteRetries { return &RouteRetries{Attempts: 3} }, func(t *RouteRetries) section {
		return section{object: &r.Retries, keys: []key{
			{"attempts", number(&t.Attempts, 1, 10), "Maximum number of attempts per request, all of them: the first one, and those to addresses that refuse the connection."},
			{"when", list(&t.When, retryCauseValue), "The failures after which weir repeats a request, besides those that it always repeats: connect, timeout, reset, statuses such as 503 or 500-599."},
			{"within", duration(&t.Within, 10*time.Millisecond, day).shownIf(t.Within != 0).byDefault("no limit"), "No attempt begins later than this after the first one."},
			{"backoff", duration(&t.Backoff, 10*time.Millisecond, day).shownIf(t.Backoff != 0).byDefault("none"), "How long weir waits before it repeats a request: at least this, and at most half as long again, at random."},
			{"non_idempotent", truth(&t.NonIdempotent).shownIf(t.NonIdempotent), "Whether weir also repeats requests that are not idempotent, such as POST. An endpoint may have acted on the first attempt."},
		}, check: func(v *draft, _ keySet, n *Tree, p path) {
			if t.Within != 0 && t.Backoff >= t.Within {
				v.failAt(v.places[&t.Backoff], "is not shorter than within (%s), so weir would repeat no request; write less, or take one of them out", short(t.Within))
			}
		}}
	})
}
