package proxy

import (
	"errors"
	"os"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// look is how often a wait for the endpoint looks whether the client is still
// there. Waits that are shorter never do.
const look = time.Second

// errClientGone is behind an exchange that was given up because nobody waits for it.
var errClientGone = errors.New("the client closed its connection while it waited for the response")

// waitFor bounds the wait for the endpoint by d from a moment on. The
// connection's deadline comes earlier: it is the time to look after the client.
func (s *session) waitFor(from time.Time, d time.Duration) {
	s.until = from.Add(d)
	s.lookAt = from.Add(min(d, look))
	s.link.Conn.SetReadDeadline(s.lookAt)
}

// waitForBody bounds the wait for more of a response's body, anew once some came.
func (s *session) waitForBody() {
	if s.moved {
		s.moved = false
		s.waitFor(time.Now(), s.exchange.route.backend.Settings().Timeouts.BodyIdle)
	}
}

// patient says whether a wait for the endpoint that ended in err goes on: it was
// only time to look after the client, who is still there. Where the client is
// gone it notes that as the exchange's trouble.
func (s *session) patient(err error) bool {
	now := time.Now()
	if !errors.Is(err, os.ErrDeadlineExceeded) || now.Before(s.lookAt) {
		return false
	}
	if s.upload != nil && s.phase == awaitingHead {
		s.until = s.upload.headBy(now, s.until)
	}
	if !now.Before(s.until) {
		return false
	}
	if !s.upload.running() && gone(s.conn) {
		s.fail(clientGone, s.status, "client_gone", errClientGone)
		return false
	}
	s.lookAt = now.Add(min(look, s.until.Sub(now)))
	s.link.Conn.SetReadDeadline(s.lookAt)
	return true
}

// goneInQueue says whether the client went away while its request waited for
// one of the backend's max_connections, and notes it.
func (s *session) goneInQueue() bool {
	if time.Since(s.started) < look || !gone(s.conn) {
		return false
	}
	s.fail(clientGone, 0, "client_gone", errClientGone)
	return true
}

// gone says whether a client closed or reset its connection. One that closed
// only its sending half looks the same, and is taken for gone.
func gone(c *conn.Conn) (yes bool) {
	c.Control(func(fd uintptr) { yes = hungUp(int(fd)) })
	return yes
}
