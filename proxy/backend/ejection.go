package backend

import (
	"fmt"
	"time"

	"github.com/weirproxy/weir/config"
)

// weir ejects an endpoint, so that it gets no requests for some time, after consecutive
// failures, because a share of its last attempts failed (results.go), or because the other family of
// its name connects faster (family.go). Two rules limit this:
//   - weir never ejects the last endpoint that can serve.
//   - While an endpoint is out because of its share, or because of the statuses of its responses,
//     at most half of the endpoints are out.

// ejectionCause is the reason why weir ejected an endpoint.
type ejectionCause int

const (
	// consecutive: its last attempts all failed (ejection.failures).
	consecutive ejectionCause = iota
	// byShare: too many of its last attempts failed (ejection.share).
	byShare
	// otherFamily: an address of the other family of its name connected first (family.go).
	otherFamily
	// byStatus: its last attempts all failed, some of them by the status of a response
	// (ejection.statuses).
	byStatus
	numEjectionCauses
)

func (c ejectionCause) String() string {
	return [...]string{"consecutive", "share", "other_family", "status"}[c]
}

// adoptEjection begins or ends the count of results. Other settings need no change here. The
// caller holds backend.mu.
func (e *Endpoint) adoptEjection() {
	x := &e.backend.cfg.Ejection
	switch r := e.results.Load(); {
	case x.Share == 0:
		e.results.Store(nil)
	case r == nil || r.within != x.Within:
		e.results.Store(newResults(x.Within))
	}
}

// tooManyFailed reports whether the share of failed attempts is so large that weir ejects the
// endpoint, and returns what it has counted. It is false if the backend has no ejection.share.
func (e *Endpoint) tooManyFailed() (attempts, failed uint64, yes bool) {
	r := e.results.Load()
	if r == nil {
		return 0, 0, false
	}
	x := &e.backend.Settings().Ejection
	attempts, failed = r.sum()
	return attempts, failed, x.Share > 0 && attempts >= uint64(x.Minimum) && float64(failed)/float64(attempts) >= x.Share
}

// Answered records that the endpoint sent the head of a response with this status.
func (e *Endpoint) Answered(status int) {
	x := &e.backend.Settings().Ejection
	if !x.Counts(status) {
		e.Succeeded()
		return
	}
	e.reached()
	if r := e.results.Load(); r != nil {
		r.add(1, 1)
	}
	e.failedAttempt(x, nil, false)
}

// failedAttempt ejects the endpoint after a failed attempt, if there were too many. inRow means
// that connections failed often enough in a row; err is the last such error.
func (e *Endpoint) failedAttempt(x *config.Ejection, err error, inRow bool) {
	bad := x.Statuses != nil && int(e.bad.Add(1)) >= x.Failures && x.Failures != 0
	if _, _, tooMany := e.tooManyFailed(); inRow || bad || tooMany {
		e.tryEject(err, inRow, bad)
	}
}

// tryEject ejects the endpoint if it may be out. inRow and err are as for failedAttempt; bad means
// that statuses and failed connections together were often enough in a row.
func (e *Endpoint) tryEject(err error, inRow, bad bool) {
	b := e.backend
	b.mu.Lock()
	defer b.unlock()
	if inRow {
		e.fails(err)
	}
	if e.removed.Load() || !e.usable() {
		return
	}
	x := &b.cfg.Ejection
	if inRow && x.Failures != 0 && b.othersUsable(e) > 0 {
		e.eject(consecutive, x.For, "after consecutive failures")
	} else if bad && x.Statuses != nil && b.halfStays(e) {
		e.eject(byStatus, x.For, fmt.Sprintf("after %d consecutive failures, statuses of responses included (ejection.statuses)", x.Failures))
	} else if attempts, failed, yes := e.tooManyFailed(); yes && b.halfStays(e) {
		e.eject(byShare, x.For, fmt.Sprintf("because %d of its %d requests within %v failed (ejection.share is %g)", failed, attempts, x.Within, x.Share))
	}
}

// ejection is the time for which an endpoint gets no requests, because too many of them failed.
type ejection struct {
	until time.Time
	cause ejectionCause
	timer *time.Timer
}

// eject stops the use of the endpoint for the time d. The caller holds backend.mu.
func (e *Endpoint) eject(cause ejectionCause, d time.Duration, why string) {
	b := e.backend
	e.ejection = &ejection{until: time.Now().Add(d), cause: cause, timer: time.AfterFunc(d, e.comeBack)}
	b.ejections[cause].Add(1)
	b.notify(Event{Kind: EndpointEjected, Endpoint: e.address, Reason: "for " + d.String() + " " + why})
	b.rebuild()
}

// othersUsable counts the endpoints that could replace the endpoint not.
func (b *Backend) othersUsable(not *Endpoint) (n int) {
	for _, e := range b.endpoints {
		if e != not && e.usable() && (not.cfg.Terminating || !e.cfg.Terminating) {
			n++
		}
	}
	return n
}

// halfStays reports whether at most half of the endpoints are out when e is out, too. The
// caller holds b.mu.
func (b *Backend) halfStays(e *Endpoint) bool {
	out, all := b.countOut(e.cfg.Terminating)
	return 2*(out+1) <= all
}

// countOut counts the endpoints, and those among them that are out for any reason. Terminating
// endpoints are counted apart: they do not replace others. The caller holds b.mu.
func (b *Backend) countOut(terminating bool) (out, all int) {
	for _, e := range b.endpoints {
		if e.cfg.Terminating != terminating || e.ejection != nil && e.ejection.cause == otherFamily { // another address of its name serves
			continue
		}
		all++
		if !e.usable() {
			out++
		}
	}
	return out, all
}

// returnBeyondHalf ends ejections by share and by status, the oldest first, while more than half of the
// endpoints are out: others may have failed or left the backend since. The caller holds b.mu.
func (b *Backend) returnBeyondHalf() {
	for _, terminating := range []bool{false, true} {
		for out, all := b.countOut(terminating); 2*out > all; out-- {
			first := b.firstToReturn(terminating)
			if first == nil {
				break
			}
			first.endEjection()
		}
	}
}

// firstToReturn returns the endpoint whose ejection by share or by status ends first, among those
// that would be usable then; nil: there is none. The caller holds b.mu.
func (b *Backend) firstToReturn(terminating bool) (first *Endpoint) {
	for _, e := range b.endpoints {
		if e.cfg.Terminating != terminating || !e.ready || e.ejection == nil || e.ejection.cause != byShare && e.ejection.cause != byStatus {
			continue
		}
		if first == nil || e.ejection.until.Before(first.ejection.until) {
			first = e
		}
	}
	return first
}

// comeBack ends an ejection. The timer of the ejection calls it.
func (e *Endpoint) comeBack() {
	b := e.backend
	b.mu.Lock()
	defer b.unlock()
	if e.removed.Load() || e.ejection == nil || time.Now().Before(e.ejection.until) {
		return
	}
	e.endEjection()
	b.rebuild()
}

// endEjection ends the ejection, if there is one. The results from before do not count any
// more. The caller holds backend.mu, and calls rebuild afterwards.
func (e *Endpoint) endEjection() {
	if e.ejection == nil {
		return
	}
	e.ejection.timer.Stop()
	e.ejection = nil
	e.bad.Store(0) // a status may be the fault of the request: one more must not eject the endpoint again
	if r := e.results.Load(); r != nil {
		e.results.Store(newResults(r.within))
	}
	e.backend.notify(Event{Kind: EndpointReturned, Endpoint: e.address})
}
