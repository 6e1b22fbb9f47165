package backend

import (
	"crypto/tls"
	"errors"
	"io"
	"slices"
	"syscall"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/http1"
)

// Session is one connection to an endpoint. It has one owner at a time: who
// got it from Dial or Idle, until Keep or Close.
type Session struct {
	Conn *conn.Conn
	TLS  *tls.Conn // nil for a plain connection
	// RW is what bytes go through: TLS, or else Conn.
	RW io.ReadWriter
	// HTTP is the codec of an HTTP session; who dials it initialises it.
	HTTP http1.Client
	// Reused says that the session came from the pool: the endpoint may have
	// closed it while it was idle.
	Reused bool

	endpoint   *Endpoint
	generation uint32 // of the dial settings it was made with
	idleSince  uint32 // in the endpoint's ticks
}

// Endpoint is the other end.
func (s *Session) Endpoint() *Endpoint { return s.endpoint }

// Close ends the connection, over TLS with a close_notify, and gives the
// codec's memory back.
func (s *Session) Close() error {
	s.HTTP.Close()
	if s.TLS != nil {
		return s.TLS.Close()
	}
	return s.Conn.Close()
}

// Idle takes the session that became idle last, or nil. The caller looks
// whether it is still alive and closes it otherwise.
func (e *Endpoint) Idle() *Session {
	e.mu.Lock()
	n := len(e.idle)
	if n == 0 {
		e.mu.Unlock()
		return nil
	}
	s := e.idle[n-1]
	e.idle[n-1] = nil
	e.idle = e.idle[:n-1]
	e.mu.Unlock()
	s.Reused = true
	return s
}

// Keep gives a session back that can be used again, to be kept for keep_alive.
// It is closed instead where max_idle are kept, the endpoint is gone or its TLS
// or header settings changed. The caller must not use it any more.
func (e *Endpoint) Keep(s *Session) {
	d := e.dial.Load()
	e.mu.Lock()
	if len(e.idle) < d.maxIdle && s.generation == d.generation && !e.removed.Load() {
		s.idleSince = e.ticks
		e.idle = append(e.idle, s)
		e.mu.Unlock()
		return
	}
	e.mu.Unlock()
	s.Close()
}

// IdleCount counts the sessions in the pool.
func (e *Endpoint) IdleCount() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.idle)
}

func (e *Endpoint) takeIdle() []*Session {
	e.mu.Lock()
	defer e.mu.Unlock()
	idle := e.idle
	e.idle = nil
	return idle
}

func closeAll(sessions []*Session) {
	for _, s := range sessions {
		s.Close()
	}
}

// looksPerTick bounds the system calls that a sweep makes under the pool's lock.
const looksPerTick = 16

// sweep is called once a second. It closes what was idle for keepAlive seconds,
// and of the oldest few those that the endpoint closed: the newest is taken
// first, so the oldest would otherwise wait half closed for all that time.
func (e *Endpoint) sweep(keepAlive uint32) {
	maxIdle := e.dial.Load().maxIdle
	e.mu.Lock()
	e.ticks++
	var closing []*Session
	cut := max(0, len(e.idle)-maxIdle) // a reload made max_idle smaller
	for cut < len(e.idle) && e.ticks-e.idle[cut].idleSince >= keepAlive {
		cut++
	}
	closing = append(closing, e.idle[:cut]...)
	e.idle = slices.Delete(e.idle, 0, cut)
	looks := 0
	e.idle = slices.DeleteFunc(e.idle, func(s *Session) bool {
		if looks++; looks > looksPerTick || !s.ended() {
			return false
		}
		closing = append(closing, s)
		return true
	})
	e.mu.Unlock()
	closeAll(closing)
}

// ended says whether the endpoint closed an idle connection, or sent on a plain
// one what nobody asked for. Over TLS bytes may be session tickets.
func (s *Session) ended() bool {
	ended := false
	err := s.Conn.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case err == syscall.EAGAIN || err == syscall.EINTR:
		case err != nil || n == 0:
			ended = true
		default:
			ended = s.TLS == nil
		}
	})
	return ended || err != nil && !errors.Is(err, errors.ErrUnsupported)
}
