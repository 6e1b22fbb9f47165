package proxy

import (
	"errors"
	"net/http"
	"os"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/http2"
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
	if !a.moved {
		return
	}
	a.moved = false
	now, t := time.Now(), &a.all.backend.Settings().Timeouts
	limit := a.all.limits.body(t)
	a.came, a.silence = now, 0
	if a.owed = a.all.res.Length != message.Unknown || a.link.HTTP.Owes(); !a.owed {
		if a.silence = a.all.limits.stream(t); a.silence != 0 {
			limit = a.silence
		}
	}
	if u := a.all.upload; u != nil {
		u.noteLife(now)
	}
	a.waitFor(now, limit)
}

// noteSilence tells the requester whether somebody sends something.
func (a *attempt) noteSilence(now time.Time) {
	u, last := a.all.upload, a.came
	switch {
	case a.phase == relayingBody && a.owed, a.phase != relayingBody && !u.running(), u.running() && u.due():
		a.endSilence()
		return
	}
	if u != nil {
		last = later(last, u.lastLife())
	}
	if now.Sub(last) < clientCheck {
		a.endSilence()
		return
	}
	a.silent = true
	a.all.requester.silent(last)
}

// endSilence is called when somebody sends something.
func (a *attempt) endSilence() {
	if a.silent {
		a.heard()
	}
}

// heard is not inlined: the stack of a new connection has no room for what it needs.
//
//go:noinline
func (a *attempt) heard() {
	a.silent = false
	a.all.requester.silent(time.Time{})
}

// alive returns when the requester or the endpoint last gave a sign of life: a part of a body, which
// came at last or later, or an HTTP/2 PING.
func (a *attempts) alive(last time.Time, link *backend.Link) time.Time {
	if a.upload != nil {
		last = later(last, a.upload.lastLife())
	}
	if call, two := link.HTTP.(*http2.Call); two {
		last = later(last, call.PingedAt())
	}
	return later(last, a.requester.pinged())
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// reasonSilent is the reason for the end of a stream on which nobody sent anything for too long.
const reasonSilent = "stream_idle"

// hintSilence ends the error of a body_idle that ended a silent stream, because the file has no stream_idle.
const hintSilence = "; if such a stream may be silent for longer, set stream_idle there"

// tooSilent returns the outcome of an attempt that ended because of silence.
func (a *attempt) tooSilent(err error) *outcome {
	whose := "backends." + a.all.backend.Name() + ".timeouts.stream_idle"
	if l := a.all.limits; l != nil && l.waits.stream != 0 {
		whose = "timeouts.stream_idle of the route"
	}
	return &outcome{failure: cutShort, status: http.StatusGatewayTimeout, reason: reasonSilent,
		err: conn.Explain(err, "neither side sent anything within %v (%s)", a.silence, whose)}
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
		a.until = a.within(later(u.headBy(now, a.until), a.informed.Add(u.wait)))
	}
	if a.owed && a.phase == relayingBody && a.all.res.Length == message.Unknown && !a.link.HTTP.Owes() { // only the end of a chunk has come
		a.owed, a.silence = false, a.all.limits.stream(&a.all.backend.Settings().Timeouts)
	}
	quiet := a.phase == relayingBody && a.silence != 0
	if quiet && !now.Before(a.until) {
		a.until = a.all.alive(a.came, a.link).Add(a.silence)
	}
	switch {
	case now.Before(a.until):
	case quiet:
		return a.tooSilent(err)
	default:
		return a.lostEndpoint(err)
	}
	if !u.running() && a.all.requester.gone() {
		return &outcome{failure: clientGone, reason: "client_gone", err: errClientGone}
	}
	if a.checkAt, err = a.mayContinue(now, now.Add(min(clientCheck, a.until.Sub(now)))); err != nil {
		return a.all.to.writeFailed(err)
	}
	a.link.SetReadDeadline(a.checkAt)
	a.noteSilence(now)
	if waits := a.all.proxy.hooks.waits; waits != nil {
		waits()
	}
	return nil
}
