package proxy

import (
	"crypto/tls"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/filter"
	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/tls/policy"
)

// clientSide is the information of an exchange about its client connection. Each exchange has
// its own copy, because the exchanges of one connection may run at the same time, and by
// different tables.
type clientSide struct {
	proxy *Proxy
	conn  *conn.Conn // HTTP/2: the exchanges share it

	origin   *conn.Origin
	security Security

	account *memory.Account // the account of the connection

	table *Table
	edge  *edge

	sniHost *host        // the host of the SNI, in the table at the start of the connection
	trusts  filter.Trust // the information about clients that weir accepts from the other end
}

// Secure reports whether the client used TLS: to weir, or by the PROXY header to the sender
// of that header.
func (c *clientSide) Secure() bool {
	return c.security.Terminated() || c.origin.Header.TLVs.SSL != nil && c.origin.Header.TLVs.SSL.TLS
}

// newClientSide describes a connection that is about to speak HTTP. h is nil without TLS.
func newClientSide(p *Proxy, c *conn.Conn, t *Table, e *edge, tc *tls.Conn, h *handshake) clientSide {
	cl := clientSide{proxy: p, conn: c, origin: &c.Origin, table: t, edge: e, trusts: e.forwarding.Believes(c.Client.Addr())}
	if h != nil {
		cl.security, cl.sniHost = newSecurity(tc, h.sni, h.policy), h.host
		cl.certify()
	}
	if p.log.Load() != nil {
		cl.security.note()
	}
	return cl
}

// clientCert describes the client certificate of a connection. It does not change.
type clientCert struct {
	fields   filter.ClientCert   // the HTTP headers about it for the endpoints of all routes
	standing *policy.Standing    // nil: it cannot be revoked
	report   *filter.Certificate // not nil: routes decide about the certificate, and not the policy
}

// sent reports whether the client proved that it has the key of a certificate. c may be nil.
func (c *clientCert) sent() bool { return c != nil && (c.report == nil || c.report.Sent) }

// good reports whether routes decide about the certificate, and it is good. c may be nil.
func (c *clientCert) good() bool { return c != nil && c.report != nil && c.report.Err == nil }

// certify sets c.security.cert. If routes decide about the certificate, it verifies the certificate first. Otherwise
// crypto/tls has verified it in the handshake, and package policy in a resumed session.
func (c *clientSide) certify() {
	under := c.security.Policy
	if under.ClientAuth == config.ClientAuthNone {
		return
	}
	state := under.State(c.security.State())
	if x := under.Examine(&state, time.Now()); x != nil {
		c.security.cert = &clientCert{report: filter.NewCertificate(x.Leaf, x.Err, x.Reason, x.Unknown)}
		return
	}
	if len(state.PeerCertificates) > 0 {
		c.security.cert = &clientCert{fields: filter.NewClientCert(&state, under.Forward), standing: under.Stand(state.VerifiedChains)}
	}
}

// follow makes c use t. It returns false if t does not have the connection's listener.
func (c *clientSide) follow(t *Table) bool {
	e := t.edges[c.edge.name]
	if e == nil || e.protocol != c.edge.protocol {
		return false
	}
	c.table, c.edge, c.sniHost = t, e, nil
	c.trusts = e.forwarding.Believes(c.origin.Client.Addr())
	return true
}

// wire is the interface of an exchange to its client, for every version of HTTP: it reads the
// request's body, writes the response, and checks whether the client is still there. One
// goroutine may read while another writes. *http1Wire and *http2.Exchange implement it.
type wire interface {
	source
	responseWriter
	// SkipBody consumes the bytes that BufferedBody returned.
	SkipBody()
	// Accepts reports whether the client can receive a response. It refuses a 101 that
	// the request did not ask for, and a response that the client would read as a 101.
	Accepts(req *message.Request, res *message.Response) bool
	// Gone reports whether the client is gone and does not wait for the response.
	Gone() bool
	// CutAlso makes a cut of the client's connection or stream end the waits of other, too;
	// nil undoes it.
	CutAlso(other conn.Cuttable)
	// Transferred returns how many bytes were read and written for the exchange, as on the wire.
	Transferred() (in, out int64)
	// Version returns the version of HTTP; "1.1" stands for all versions of HTTP/1.
	Version() string
}

// responseWriter writes a response to the client. The methods are those of http1.Server,
// which documents them.
type responseWriter interface {
	WriteHead(req *message.Request, res *message.Response)
	WriteBody(p []byte) error
	WriteEnd(res *message.Response)
	Flush() error
}

// downgrader is a wire that can make the client repeat the request over HTTP/1.1. That ends
// the exchange without a response.
type downgrader interface{ RequireHTTP1() }

// http1Wire is an HTTP/1.1 connection as the wire of its exchanges, one after the other.
type http1Wire struct {
	http1.Server
	conn     *conn.Conn
	exchange *exchange // the only one of the connection at a time
	in, out  int64     // bytes of the connection when the exchange began
}

// WriteHead buffers a response's head. The head announces the end of the connection if no
// other request may follow.
func (w *http1Wire) WriteHead(req *message.Request, res *message.Response) {
	w.Server.WriteHead(req, res, w.last())
}

// last reports whether the response is the last one on the connection. While an upload runs,
// only the upload knows whether the rest of the body was read.
func (w *http1Wire) last() bool {
	x := w.exchange
	if x.ended || x.req.Close || x.proxy.draining.Load() {
		return true
	}
	if u := x.attempts.upload; u != nil {
		return u.running()
	}
	_, whole := w.BufferedBody()
	return w.MustClose() && !whole
}

// Share joins the poller of the Go runtime, where two goroutines may wait.
func (w *http1Wire) Share()                      { w.conn.JoinPoller() }
func (w *http1Wire) SetReadDeadline(t time.Time) { w.conn.SetReadDeadline(t) }
func (w *http1Wire) Interrupt()                  { w.conn.Interrupt() }
func (w *http1Wire) Resume()                     { w.conn.Resume() }
func (w *http1Wire) CutAlso(other conn.Cuttable) { w.conn.CutAlso(other) }
func (w *http1Wire) Transferred() (in, out int64) {
	return w.conn.BytesRead - w.in, w.conn.BytesWritten - w.out
}
func (w *http1Wire) Version() string { return "1.1" }

// Accepts returns true: the client receives the response as it is and checks it.
func (w *http1Wire) Accepts(*message.Request, *message.Response) bool { return true }

// Gone also returns true for a client that closed only its sending half: it looks the same.
func (w *http1Wire) Gone() (yes bool) {
	w.conn.Control(func(fd uintptr) { yes = hungUp(int(fd)) })
	return yes
}

// startCount notes the byte counts at which the next exchange begins.
func (w *http1Wire) startCount() { w.in, w.out = w.conn.BytesRead, w.conn.BytesWritten }
