package proxy

import (
	"errors"
	"os"
	"time"
)

// look is the interval at which a wait for the endpoint checks whether the client is still there.
// Shorter waits do not check.
const look = time.Second

// errClientGone is the error of an exchange that weir gave up because its client had gone.
var errClientGone = errors.New("the client closed its connection while it waited for the response")

// waitFor limits the wait for the endpoint to d from a moment on. The read deadline of the
// endpoint's connection comes earlier: it is the time to check the client.
func (x *exchange) waitFor(from time.Time, d time.Duration) {
	x.until = from.Add(d)
	x.lookAt = from.Add(min(d, look))
	x.link.SetReadDeadline(x.lookAt)
}

// waitForBody limits the wait for more of a response's body. The limit starts anew after some arrived.
func (x *exchange) waitForBody() {
	if x.moved {
		x.moved = false
		x.waitFor(time.Now(), x.route.backend.Settings().Timeouts.BodyIdle)
	}
}

// patient reports whether a wait for the endpoint continues after err. It does if err only was
// the time to check the client, and the client is still there. If the client is gone, patient
// notes that as the exchange's trouble.
func (x *exchange) patient(err error) bool {
	now := time.Now()
	if !errors.Is(err, os.ErrDeadlineExceeded) || now.Before(x.lookAt) {
		return false
	}
	if x.upload != nil && x.phase == awaitingHead {
		x.until = x.upload.headBy(now, x.until)
	}
	if !now.Before(x.until) {
		return false
	}
	if !x.upload.running() && x.wire.Gone() {
		x.fail(clientGone, x.status, "client_gone", errClientGone)
		return false
	}
	x.lookAt = now.Add(min(look, x.until.Sub(now)))
	x.link.SetReadDeadline(x.lookAt)
	return true
}

// goneInQueue reports whether the client went away while its request waited in the queue for
// max_connections of the backend, and notes it.
func (x *exchange) goneInQueue() bool {
	if time.Since(x.started) < look || !x.wire.Gone() {
		return false
	}
	x.fail(clientGone, 0, "client_gone", errClientGone)
	return true
}
