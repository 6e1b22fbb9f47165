package proxy

import (
	"errors"
	"os"
	"time"
)

// look is how often a wait for the endpoint looks whether the client is still
// there. Waits that are shorter never do.
const look = time.Second

// errClientGone is behind an exchange that was given up because nobody waits for it.
var errClientGone = errors.New("the client closed its connection while it waited for the response")

// waitFor bounds the wait for the endpoint by d from a moment on. The
// connection's deadline comes earlier: it is the time to look after the client.
func (x *exchange) waitFor(from time.Time, d time.Duration) {
	x.until = from.Add(d)
	x.lookAt = from.Add(min(d, look))
	x.link.SetReadDeadline(x.lookAt)
}

// waitForBody bounds the wait for more of a response's body, anew once some came.
func (x *exchange) waitForBody() {
	if x.moved {
		x.moved = false
		x.waitFor(time.Now(), x.route.backend.Settings().Timeouts.BodyIdle)
	}
}

// patient reports whether a wait for the endpoint that ended in err goes on: it was
// only time to look after the client, who is still there. Where the client is
// gone it notes that as the exchange's trouble.
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

// goneInQueue reports whether the client went away while its request waited for
// one of the backend's max_connections, and notes it.
func (x *exchange) goneInQueue() bool {
	if time.Since(x.started) < look || !x.wire.Gone() {
		return false
	}
	x.fail(clientGone, 0, "client_gone", errClientGone)
	return true
}
