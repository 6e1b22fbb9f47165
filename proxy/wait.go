package proxy

import (
	"errors"
	"net/http"
	"os"
	"time"

	"github.com/weirproxy/weir/proxy/message"
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

// continueAfter is the time after which weir itself tells the client to send the request's body, if
// the endpoint has the head and is silent. Some endpoints never send 100 Continue, and some clients
// wait for it for ever (RFC 9110, section 10.1.1, tells them not to).
const continueAfter = time.Second

// sayContinue tells the client to send its body. res has no response yet.
func sayContinue(res *message.Response, to destination) error {
	defer res.Reset()
	res.Reset()
	res.Status = http.StatusContinue
	res.Reason = res.StoreString(http.StatusText(http.StatusContinue))
	return to.inform()
}

// mayContinue says 100 Continue in place of the endpoint, if that is due. It returns when to look again.
func (a *attempt) mayContinue(now, next time.Time) (time.Time, error) {
	u := a.all.upload
	if !u.running() || a.phase != awaitingHead || !a.all.req.ExpectContinue {
		return next, nil
	}
	sent := u.awaited.Load()
	if sent == 0 {
		return next, nil
	}
	if due := u.begun.Add(time.Duration(sent) + continueAfter); now.Before(due) {
		if due.Before(next) {
			next = due
		}
		return next, nil
	}
	return next, sayContinue(a.all.res, a.all.to)
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
	if a.checkAt, err = a.mayContinue(now, now.Add(min(clientCheck, a.until.Sub(now)))); err != nil {
		return a.all.to.writeFailed(err)
	}
	a.link.SetReadDeadline(a.checkAt)
	if waits := a.all.proxy.hooks.waits; waits != nil {
		waits()
	}
	return nil
}
