package proxy

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
)

// session is a client connection that speaks HTTP/1.1: one exchange after the
// other, each routed anew. All its state is here and none on a stack, so that
// a connection between exchanges could do without its goroutine.
type session struct {
	exchange
	http1 http1Wire

	step func() bool // s.serveReady, bound once

	headTimed bool // the next request's head has begun, and its deadline is set
	pending   bool // a request was read that cannot be served within Await
	lingering bool // the client may still be sending: close by way of a half close
	http2     bool // the client began with the preface of HTTP/2
}

var sessions = sync.Pool{New: func() any {
	s := new(session)
	s.step, s.relay = s.serveReady, s.relayReady
	return s
}}

// serveHTTP1 serves exchanges on a connection until one side has enough, and closes it.
func serveHTTP1(cl clientSide) {
	s := sessions.Get().(*session)
	s.begin(&cl)
	whole := false
	defer func() {
		if !whole {
			s.abandon() // and Proxy.rescue ends the client's connection
		}
	}()
	s.run()
	again := s.http2
	if again {
		s.conn.Unread(s.http1.TakeBuffered())
		s.http1.Close()
	} else {
		s.close()
	}
	whole = true // from the next line on s may be another connection's
	s.forget()
	sessions.Put(s)
	if again {
		serveHTTP2(cl)
	}
}

// begin makes s the session of a connection. Like forget, it leaves nothing on
// serveHTTP1's stack: below that, an exchange has to fit into the 4 KiB that a
// goroutine starts with under load, or else each connection has its stack copied.
func (s *session) begin(cl *clientSide) {
	s.clientSide, s.wire = *cl, &s.http1
	var rw io.ReadWriter = s.conn
	if s.tls != nil {
		rw = s.tls
	}
	s.http1.Init(rw, *s.proxy.limits.Load())
	s.http1.conn = s.conn // not mark: a first request may have come with the header or the handshake
	s.headTimed = true    // a first request's head is timed from here on
}

// prefaceHead is as much of HTTP/2's preface as looks like the head of a request.
const prefaceHead = "PRI * HTTP/2.0\r\n\r\n"

// isNotHTTP1 takes a connection that may begin as HTTP/2 does (RFC 9113, section
// 3.3) for one, or refuses it. What begins as neither is not answered in either.
func (s *session) isNotHTTP1(r *message.Refusal) {
	switch {
	case s.http1.Begins(prefaceHead):
		s.http2 = true
	case r.Reason == "bad_request_line":
		s.clientSide.lost(r.Reason, r)
	default:
		s.refuseHead(r)
	}
}

// run waits for requests within conn.Await and serves there what it can: all
// whose body has arrived with the head. The others may have to wait for the
// client while they are served, which only works outside.
func (s *session) run() {
	s.conn.SetReadDeadline(time.Now().Add(s.edge.timeouts.RequestHead))
	for !s.ended {
		if err := s.conn.Await(s.step); err != nil {
			s.waitEnded(err)
			return
		}
		if s.pending {
			s.pending = false
			s.serve()
		}
		if s.upgraded {
			s.tunnelUpgraded()
			return
		}
	}
}

// serveReady is called within Await, when bytes may be there. It returns true
// to leave.
func (s *session) serveReady() bool {
	for !s.ended && !s.upgraded {
		if err := s.http1.ReadHead(&s.req); err != nil {
			return s.noHead(err)
		}
		if _, whole := s.http1.BufferedBody(); !whole || s.req.ExpectContinue {
			s.pending = true
			return true
		}
		s.whole = true
		s.serve()
		s.whole = false
	}
	return true
}

// noHead says what follows from there being no request: true to leave Await.
func (s *session) noHead(err error) bool {
	if err == conn.ErrWouldBlock {
		s.http1.Release()
		if !s.headTimed && s.http1.HeadStarted() {
			s.headTimed = true
			s.conn.SetReadDeadline(time.Now().Add(s.edge.timeouts.RequestHead))
		}
		return false
	}
	var refusal *message.Refusal
	switch {
	case errors.As(err, &refusal):
		switch {
		case s.edge.priorKnowledge && s.tls == nil && s.started.IsZero():
			s.isNotHTTP1(refusal)
		default:
			s.refuseHead(refusal)
		}
	case err == io.EOF:
	default:
		s.lost(err)
	}
	s.ended = true
	return true
}

// waitEnded ends a connection whose wait for a request ended: silently where
// none had begun, as the client knows about idle connections (RFC 9112, section 9.3).
func (s *session) waitEnded(err error) {
	s.ended = true
	if s.http1.HeadStarted() && errors.Is(err, os.ErrDeadlineExceeded) {
		s.refuseHead(refuseSlowHead)
		return
	}
	s.lost(err)
}

var refuseSlowHead = &message.Refusal{Status: http.StatusRequestTimeout, Reason: "slow_head",
	Detail: "the request's head did not arrive in time (timeouts.request_head of the listener)"}

// refuseHead answers a request whose head could not be read: whatever comes
// after it belongs to nobody.
func (s *session) refuseHead(r *message.Refusal) {
	s.conn.SetState(conn.Active)
	s.answer(r)
	s.finish()
}

// serve serves the request that was read, to its end.
func (s *session) serve() {
	s.conn.SetState(conn.Active)
	s.exchange.serve()
	s.finish()
}

// finish ends the exchange, and what has to end with it.
func (s *session) finish() {
	if s.upgraded {
		return // it ends with its tunnel
	}
	now := time.Now()
	s.exchange.finish(now)
	if s.http1.MustClose() {
		s.ended = true
		s.lingering = !s.req.Close || !s.http1.BodyEnded() || s.http1.HeadStarted()
	}
	s.http1.mark()
	s.headTimed = false
	s.conn.SetState(conn.Idle)
	s.conn.SetReadDeadline(now.Add(s.edge.timeouts.KeepAlive))
}

// lost tells of a connection that ended in the middle of a request's head, or
// out of the ordinary.
func (s *session) lost(err error) {
	if s.http1.HeadStarted() || !conn.Routine(err) {
		s.clientSide.lost("request_head", err)
	}
}

func (s *session) close() {
	s.http1.Close()
	switch {
	case s.broken:
		s.conn.Abort()
	case s.lingering:
		if s.tls != nil {
			s.tls.CloseWrite()
		}
		s.conn.CloseAfterReply(timeout)
		return
	case s.tls != nil:
		s.tls.Close()
	}
	s.conn.Close()
}

// forget makes s fit for the pool, as exchange.forget does.
func (s *session) forget() {
	s.exchange.forget()
	s.http1 = http1Wire{}
	s.headTimed, s.pending, s.lingering, s.http2 = false, false, false, false
}
