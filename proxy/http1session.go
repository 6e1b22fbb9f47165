package proxy

import (
	"crypto/tls"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/message"
)

// http1Session is a client connection that speaks HTTP/1.1. Its exchanges run one after the
// other, and weir routes each one anew. If no request comes for a moment, weir parks the
// connection; then only a parkedClient remains of the session.
type http1Session struct {
	exchange
	conn    *conn.Conn
	tls     *tls.Conn // nil: plain
	http1   http1Wire
	own     privates
	parked  *parkedClient // its state while it was parked last; nil: it was not parked
	holding memory.Account

	step    func() bool // s.serveReady, bound once
	mayPark func() bool // s.idle, bound once

	served    bool // a request was served, or refused
	headTimed bool // the next request's head has begun, and its deadline is set
	// linesTimed and idleUntil are the number of empty lines and the deadline before headTimed. They have no
	// meaning before the first request.
	linesTimed int
	idleUntil  time.Time

	pending   bool // a request was read, but cannot be served within Await
	lingering bool // the client may still be sending: close only the sending half first
	http2     bool // the client began with the preface of HTTP/2
	charged   bool // the running exchange, or the head that arrives, is charged to the memory account
}

var http1Sessions = sync.Pool{New: func() any {
	s := new(http1Session)
	s.step, s.mayPark, s.relay = s.serveReady, s.idle, s.attempts.relayReady
	return s
}}

// newHTTP1Session returns the session of a connection that is about to speak HTTP/1.1. tc and
// h are nil without TLS.
func newHTTP1Session(p *Proxy, c *conn.Conn, t *Table, e *edge, tc *tls.Conn, h *handshake) *http1Session {
	cl := newClientSide(p, c, t, e, tc, h)
	s := http1Sessions.Get().(*http1Session)
	s.begin(&cl, c, tc)
	s.conn.SetReadDeadline(time.Now().Add(s.edge.timeouts.RequestHead))
	return s
}

// serveAll serves exchanges until the client or weir ends the connection, and then closes it;
// or until the connection is parked. Wake then continues. serveAll begins with a wait for a
// request, or where such a wait has ended with err.
func (s *http1Session) serveAll(err error) {
	whole := false
	defer func() {
		if !whole {
			s.abandon()
			s.holding.Close() // Proxy.rescue ends the client's connection
		}
	}()
	parked := s.run(err)
	switch {
	case s.http2:
		whole = true
		s.becomeHTTP2()
		return
	case parked:
		s.http1.Close() // closes what it holds, but not the connection, which has another owner now
	default:
		s.close()
	}
	whole = true // from the next line on, s may belong to another connection
	s.forget()
	http1Sessions.Put(s)
}

// becomeHTTP2 starts HTTP/2 on a connection whose client began with the preface of HTTP/2.
func (s *http1Session) becomeHTTP2() {
	s.conn.Unread(s.http1.TakeBuffered())
	s.http1.Close()
	side, c, tc := s.clientSide, s.conn, s.tls
	s.forget()
	http1Sessions.Put(s)
	serveHTTP2(side, c, tc)
}

// begin makes s the session of a connection. Like newHTTP1Session and forget, it leaves nothing
// on the stack. An exchange must fit into the rest of the 4 KiB stack with which a goroutine
// starts under load. Otherwise the Go runtime copies the stack of each connection.
func (s *http1Session) begin(cl *clientSide, c *conn.Conn, tc *tls.Conn) {
	s.conn, s.tls = c, tc
	s.clientSide, s.wire, s.privates = *cl, &s.http1, &s.own
	var rw io.ReadWriter = s.conn
	if s.tls != nil {
		rw = s.tls
	}
	s.holding.Open(s.proxy.Memory, s.conn.Network().Prefix(), s.conn)
	s.account = &s.holding
	s.http1.Init(rw, *s.proxy.limits.Load())
	s.http1.ChargeTo(s.account)
	s.http1.exchange = &s.exchange
	s.http1.conn = s.conn // not startCount: a first request may have come with the PROXY header or the handshake
	s.headTimed = true    // the deadline for a first request's head counts from here
}

// charge charges an exchange to the memory account. The charge lasts from the time when the
// head begins to arrive until the exchange is finished. It returns false if the account refuses.
func (s *http1Session) charge() bool {
	s.charged = s.charged || s.account.Charge(memory.Exchange)
	return s.charged
}

// prefaceHead is the part of HTTP/2's preface that looks like the head of a request.
const prefaceHead = "PRI * HTTP/2.0\r\n\r\n"

// isNotHTTP1 handles a head that is not HTTP/1.1, on a connection that may begin with HTTP/2
// (RFC 9113, section 3.3). It accepts HTTP/2 and refuses a bad request. If the first line is
// neither, weir closes the connection without a response.
func (s *http1Session) isNotHTTP1(r *message.Refusal) {
	switch {
	case s.http1.Begins(prefaceHead):
		s.http2 = true
	case r.Reason == "bad_request_line":
		s.clientSide.lost(r.Reason, r)
	default:
		s.refuseHead(r)
	}
}

// run waits for requests within conn.AwaitOrPark. There it serves the requests whose whole
// body has arrived with the head. Other requests may have to wait for the client while they
// are served, which works only outside. run returns true when the connection is parked. err
// is the error with which a wait has ended, or nil.
func (s *http1Session) run(err error) (parked bool) {
	for !s.ended {
		if err == nil {
			err = s.conn.AwaitOrPark(s.step, s.mayPark)
		}
		if err == conn.ErrQuiet {
			if s.park() {
				return true
			}
			err = nil
			continue
		}
		if err != nil {
			s.waitEnded(err)
			return false
		}
		if s.pending {
			s.pending = false
			s.serve()
		}
		if s.upgraded {
			s.tunnelUpgraded()
			return false
		}
	}
	return false
}

// idle reports whether no byte of a next request has come.
func (s *http1Session) idle() bool { return !s.http1.HeadStarted() }

// serveReady is called within Await, when bytes may have arrived. It returns true to leave
// Await.
func (s *http1Session) serveReady() bool {
	for !s.ended && !s.upgraded {
		s.http1.Tolerate(s.edge.lenient)
		if err := s.http1.ReadHead(&s.req); err != nil {
			return s.noHead(err)
		}
		if !s.charge() {
			s.refuseHead(message.ErrMemory)
			return true
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

// noHead handles the error of a request that was not read. It returns true to leave Await.
func (s *http1Session) noHead(err error) bool {
	other := s.otherProtocol()
	if err == conn.ErrWouldBlock && other == nil {
		s.http1.Release()
		s.timeHead()
		if !s.charged && s.http1.HeadStarted() && !s.charge() {
			s.refuseHead(message.ErrMemory)
			return true
		}
		return false
	}
	var refusal *message.Refusal
	switch {
	case other != nil:
		s.proxy.Metrics.refused(s.edge.name, other.Reason)
		s.refuseHead(other)
	case errors.As(err, &refusal):
		switch {
		case s.edge.priorKnowledge && s.tls == nil && !s.served:
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

// timeHead sets the deadline for the next request's head when its first byte has arrived. That
// byte may turn out to be the first of an empty line, which begins no request. Then the
// connection is idle again, with the same deadline as before.
func (s *http1Session) timeHead() {
	lines := s.http1.EmptyLines()
	if s.headTimed && s.served && lines != s.linesTimed {
		s.headTimed = false
		s.conn.SetReadDeadline(s.idleUntil)
	}
	if !s.headTimed && s.http1.HeadStarted() {
		s.headTimed, s.linesTimed, s.idleUntil = true, lines, s.conn.ReadDeadline()
		s.conn.SetReadDeadline(time.Now().Add(s.edge.timeouts.RequestHead))
	}
}

// waitEnded ends a connection whose wait for a request ended with err. If no request had begun,
// it sends no response, because clients expect that idle connections end (RFC 9112, section 9.3).
func (s *http1Session) waitEnded(err error) {
	s.ended = true
	if s.http1.HeadStarted() && errors.Is(err, os.ErrDeadlineExceeded) {
		s.refuseHead(s.edge.slowHead())
		return
	}
	s.lost(err)
}

// refuseHead answers a request whose head could not be read. Weir does not read the bytes
// after the head, because they cannot be assigned to a request.
func (s *http1Session) refuseHead(r *message.Refusal) {
	s.conn.SetState(conn.Active)
	s.answer(r)
	s.finish()
}

// serve serves the request that has been read, to its end.
func (s *http1Session) serve() {
	s.conn.SetState(conn.Active)
	s.exchange.serve()
	s.finish()
}

// finish ends the exchange, and prepares the connection for the next one.
func (s *http1Session) finish() {
	if s.upgraded {
		return // the exchange ends with its tunnel
	}
	now := s.now()
	s.exchange.finish(now)
	if s.charged {
		s.charged = false
		s.account.Release(memory.Exchange)
	}
	if s.http1.MustClose() {
		s.ended = true
		s.lingering = !s.req.Close || !s.http1.BodyEnded() || s.http1.HeadStarted()
	}
	s.http1.startCount()
	s.served, s.headTimed = true, false
	s.conn.SetState(conn.Idle)
	s.conn.Quiet(now)
	s.conn.SetReadDeadline(now.Add(s.edge.timeouts.KeepAlive))
}

// lost reports a connection that ended in the middle of a request's head, or with an unusual
// error.
func (s *http1Session) lost(err error) {
	if s.http1.HeadStarted() || !conn.Routine(err) {
		s.clientSide.lost("request_head", err)
	}
}

func (s *http1Session) close() {
	s.own.drop()
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

// forget prepares s for the pool, as exchange.forget does.
func (s *http1Session) forget() {
	s.holding.Close()
	s.exchange.forget()
	s.http1 = http1Wire{}
	s.conn, s.tls, s.parked, s.own = nil, nil, nil, nil
	s.linesTimed, s.idleUntil = 0, time.Time{}
	s.served, s.headTimed, s.pending, s.lingering, s.http2, s.charged = false, false, false, false, false, false
}
