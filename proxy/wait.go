package proxy

import (
	"errors"
	"os"
	"time"
)

// clientCheck is the interval at which a wait for the endpoint checks whether the client is still there.
// Shorter waits do not check.
const clientCheck = time.Second

// errClientGone is the error of an exchange that weir gave up because its client had gone.
var errClientGone = errors.New("the client closed its connection while it waited for the response")

// waitFor limits the wait for the endpoint to d from a moment on. The read deadline of the
// endpoint's connection comes earlier: it is the time to check the client.
func (a *attempt) waitFor(from time.Time, d time.Duration) {
	a.until = a.within(from.Add(d))
	a.checkAt = from.Add(min(a.until.Sub(from), clientCheck))
	a.link.SetReadDeadline(a.checkAt)
}

// waitForBody limits the wait for more of a response's body. The limit starts anew after some arrived.
func (a *attempt) waitForBody() {
	if a.moved {
		a.moved = false
		a.waitFor(time.Now(), a.all.limits.body(&a.all.backend.Settings().Timeouts))
	}
}

// waitEnded decides what follows the error that ended a wait for the endpoint. The wait
// continues (nil) if it only was the time to check the client, and the client is still there.
// Otherwise the attempt is over.
func (a *attempt) waitEnded(err error) *outcome {
	now := time.Now()
	if !errors.Is(err, os.ErrDeadlineExceeded) || now.Before(a.checkAt) {
		return a.lostEndpoint(err)
	}
	u := a.all.upload
	if u != nil && a.phase == awaitingHead {
		a.until = a.within(u.headBy(now, a.until))
	}
	if !now.Before(a.until) {
		return a.lostEndpoint(err)
	}
	if !u.running() && a.all.requester.gone() {
		return &outcome{failure: clientGone, reason: "client_gone", err: errClientGone}
	}
	a.checkAt = now.Add(min(clientCheck, a.until.Sub(now)))
	a.link.SetReadDeadline(a.checkAt)
	if waits := a.all.proxy.hooks.waits; waits != nil {
		waits()
	}
	return nil
}
