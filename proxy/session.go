package proxy

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/tls/policy"
)

// session is a client connection that speaks HTTP/1.1: one exchange after the
// other, each routed anew. All its state is here and none on a stack, so that
// a connection between exchanges could do without its goroutine.
type session struct {
	proxy  *Proxy
	conn   *conn.Conn
	tls    *tls.Conn // nil: plain
	table  *Table
	edge   *edge
	server http1.Server

	sni     string
	sniHost *host // of the table that the connection began with
	policy  *policy.Policy
	trusted bool // the client's forwarding fields are kept

	certified  bool // the client proved a certificate, under client_auth
	certFields []certField

	exchange

	step  func() bool // s.serveReady, bound once
	relay func() bool // s.relayReady, bound once

	headTimed bool // the next request's head has begun, and its deadline is set
	pending   bool // a request was read that cannot be served within Await
	inAwait   bool // the running exchange is served within Await
	ended     bool // no exchange comes after the current one
	lingering bool // the client may still be sending: close by way of a half close
	broken    bool // what was sent is no whole message: reset, do not close
}

var sessions = sync.Pool{New: func() any {
	s := new(session)
	s.step, s.relay = s.serveReady, s.relayReady
	return s
}}

// serveHTTP serves exchanges on c until one side has enough, and closes it.
func serveHTTP(p *Proxy, c *conn.Conn, t *Table, e *edge, tc *tls.Conn, sni string, h *handshake) {
	s := sessions.Get().(*session)
	s.proxy, s.conn, s.table, s.edge, s.tls, s.sni = p, c, t, e, tc, sni
	var rw io.ReadWriter = c
	if tc != nil {
		rw = tc
		s.policy, s.sniHost = h.policy, h.host
		s.certify()
	}
	s.server.Init(rw, *p.limits.Load())
	s.trusted = contains(e.trusted, c.Client.Addr())
	s.bytesRead, s.bytesWritten = 0, 0 // not mark: a first request may have come with the header or the handshake
	s.headTimed = true                 // a first request's head is timed from here on
	whole := false
	defer func() {
		if !whole {
			s.abandon()
		}
	}()
	s.run()
	s.close()
	whole = true // from the next line on s may be another connection's
	s.forget()
	sessions.Put(s)
}

// abandon gives back what an exchange holds whose goroutine panics. The session
// is not used again, and Proxy.rescue ends the client's connection.
func (s *session) abandon() {
	if s.upload != nil {
		s.upload.stop()
	}
	if s.link != nil {
		s.conn.Link(nil)
		s.link.Close()
	}
	if s.held != nil {
		s.held.Release()
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
		if err := s.server.ReadHead(&s.req); err != nil {
			return s.noHead(err)
		}
		if _, whole := s.server.BufferedBody(); !whole || s.req.ExpectContinue {
			s.pending = true
			return true
		}
		s.inAwait = true
		s.serve()
		s.inAwait = false
	}
	return true
}

// noHead says what follows from there being no request: true to leave Await.
func (s *session) noHead(err error) bool {
	if err == conn.ErrWouldBlock {
		s.server.Release()
		if !s.headTimed && s.server.HeadStarted() {
			s.headTimed = true
			s.conn.SetReadDeadline(time.Now().Add(s.edge.timeouts.RequestHead))
		}
		return false
	}
	var refusal *message.Refusal
	switch {
	case errors.As(err, &refusal):
		s.refuseHead(refusal)
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
	if s.server.HeadStarted() && errors.Is(err, os.ErrDeadlineExceeded) {
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
	s.begin()
	s.ended = true
	s.reply(r)
	s.finish()
}

// serve serves the request that was read, to its end.
func (s *session) serve() {
	s.begin()
	if !s.answerChallenge() {
		switch route, refusal := s.findRoute(); {
		case refusal != nil:
			s.reply(refusal)
		case route.config.Redirect != nil:
			s.redirect(route.config.Redirect)
		default:
			s.forward(route)
		}
	}
	s.finish()
}

// begin starts an exchange: the clock, and the table that is current now.
func (s *session) begin() {
	s.exchange.reset(time.Now())
	s.conn.SetState(conn.Active)
	if t := s.proxy.table.Load(); t != s.table {
		if e := t.edges[s.edge.name]; e != nil && e.protocol == s.edge.protocol {
			s.table, s.edge, s.sniHost = t, e, nil
			s.trusted = contains(e.trusted, s.conn.Client.Addr())
		} else {
			s.ended = true // the listener is gone, or became another; this is the connection's last exchange
		}
	}
}

func (s *session) findRoute() (*Route, *message.Refusal) {
	r, refusal := s.routeOf(&s.req)
	if refusal != nil {
		return nil, refusal
	}
	s.exchange.route = r
	if limit := r.config.MaxBody; limit > 0 && s.req.Length > limit {
		return nil, refuseBody
	}
	return r, nil
}

var refuseBody = &message.Refusal{Status: http.StatusRequestEntityTooLarge, Reason: "body_too_large",
	Detail: "the request's body is larger than max_body of its route"}

// finish ends an exchange: it is counted and logged, and its request is read to
// its end or nothing is read any more.
func (s *session) finish() {
	now := time.Now()
	if s.upgraded {
		return // it ends with its tunnel
	}
	if _, whole := s.server.BufferedBody(); whole && !s.server.BodyEnded() {
		s.server.SkipBody()
	}
	if s.server.MustClose() {
		s.ended = true
		s.lingering = !s.req.Close || !s.server.BodyEnded() || s.server.HeadStarted()
	}
	s.record(now)
	s.mark()
	s.headTimed = false
	s.conn.SetState(conn.Idle)
	s.conn.SetReadDeadline(now.Add(s.edge.timeouts.KeepAlive))
}

// last says whether the response is the last one on the connection. What is
// left of the body, only its upload knows while there is one that runs.
func (s *session) last() bool {
	if s.ended || s.req.Close || s.proxy.draining.Load() {
		return true
	}
	if s.upload != nil {
		return s.upload.running()
	}
	return s.server.MustClose() && !s.bodyBuffered()
}

func (s *session) bodyBuffered() bool {
	_, whole := s.server.BufferedBody()
	return whole
}

func (s *session) close() {
	s.server.Close()
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

// forget makes s fit for the pool: all it keeps is the memory of its messages,
// emptied, and the two functions that are bound to it.
func (s *session) forget() {
	req, res := s.req, s.res
	req.Reset()
	res.Reset()
	*s = session{step: s.step, relay: s.relay}
	s.req, s.res = req, res
}
