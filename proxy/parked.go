package proxy

import (
	"crypto/tls"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/park"
	"github.com/weirproxy/weir/tls/policy"
)

// parkedClient is a parked HTTP/1.1 connection: only the state that its next session needs. It holds
// neither a table nor a goroutine. The read deadline of the connection is also the deadline of
// its wait in the lot. Only a finished exchange moves this deadline, so bytes that form no
// request cannot prolong the wait.
type parkedClient struct {
	proxy    *Proxy
	conn     *conn.Conn
	tls      *tls.Conn // nil: plain
	listener string

	sni    string
	policy *policy.Policy
	cert   *clientCert
	own    *privates // nil: none

	served, headTimed bool  // as in http1Session
	skipped           int   // empty lines that arrived before the next request
	in, out           int64 // as in http1Wire
}

// park leaves the connection without a goroutine and returns true, or returns false if that
// is impossible. After park returns true, Wake owns the connection, and the caller forgets s.
func (s *http1Session) park() bool {
	r := s.parked
	if r == nil {
		r = new(parkedClient)
	}
	*r = parkedClient{proxy: s.proxy, conn: s.conn, tls: s.tls, listener: s.edge.name,
		sni: s.security.SNI, policy: s.security.Policy, cert: s.security.cert,
		served: s.served, headTimed: s.headTimed, skipped: s.http1.EmptyLines(), in: s.http1.in, out: s.http1.out}
	if len(s.own) > 0 {
		own := s.own // a copy, because another session will use s soon
		r.own = &own
	}
	if s.tls != nil {
		conn.ReleaseTLS(s.tls)
	}
	s.conn.Unpoll()
	return s.conn.Park(r, s.conn.ReadDeadline())
}

// Wake continues with the connection: a request may have come, or its deadline has passed.
func (r *parkedClient) Wake(why park.Reason) { go r.resume(why) }

func (r *parkedClient) resume(why park.Reason) {
	defer r.proxy.rescue(r.conn, r.listener)
	t, e := r.proxy.edge(r.listener)
	if !r.fits(e) {
		t, e = r.proxy.departedEdge(r.listener)
	}
	if !r.fits(e) {
		r.close() // reloads have removed its listener
		return
	}
	r.conn.WriteTimeout = e.timeouts.BodyIdle
	s := http1Sessions.Get().(*http1Session)
	s.wake(r, t, e)
	s.serveAll(r.conn.Woken(why))
}

// fits reports whether e can be the connection's listener: its protocol must fit the connection.
func (r *parkedClient) fits(e *edge) bool {
	return e != nil && e.protocol != config.ProtocolTCP && e.protocol == config.ProtocolTLS == (r.tls != nil)
}

// wake makes s the session of a connection that was parked. Like begin, it leaves nothing on
// the stack.
func (s *http1Session) wake(r *parkedClient, t *Table, e *edge) {
	s.begin(&clientSide{proxy: r.proxy, conn: r.conn, origin: &r.conn.Origin, security: newSecurity(r.tls, r.sni, r.policy),
		table: t, edge: e, trusts: e.forwarding.Believes(r.conn.Client.Addr())}, r.conn, r.tls)
	s.security.cert = r.cert
	if r.proxy.log.Load() != nil {
		s.security.note()
	}
	if r.own != nil {
		s.own, r.own = *r.own, nil
	}
	s.parked = r
	s.http1.Skipped(r.skipped)
	s.served, s.headTimed, s.http1.in, s.http1.out = r.served, r.headTimed, r.in, r.out
}

func (r *parkedClient) close() {
	if r.own != nil {
		r.own.drop()
	}
	if r.tls != nil {
		r.tls.Close()
	}
	r.conn.Close()
}
