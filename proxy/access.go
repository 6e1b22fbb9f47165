package proxy

import (
	"crypto/tls"
	"sync"
	"time"

	"github.com/weirproxy/weir/proxy/accesslog"
	"github.com/weirproxy/weir/tls/policy"
)

// This file makes the records of the access log.

// describeRoute adds the route and its backend to a record.
func describeRoute(r *accesslog.Record, to *Route) {
	r.Route, r.Unlogged = to.name, to.config.Unlogged
	if to.backend != nil {
		r.Backend = to.backend.Name()
		r.EndpointSecure = to.backend.Settings().UsesTLS()
	}
}

// records are for the records of exchanges, which are needed only until their line is written.
var records = sync.Pool{New: func() any { return new(accesslog.Record) }}

// newRecord describes the exchange.
func (x *exchange) newRecord(now time.Time) *accesslog.Record {
	r := new(accesslog.Record)
	x.describe(r, now)
	return r
}

// describe completes an empty record.
func (x *exchange) describe(r *accesslog.Record, now time.Time) {
	r.Kind, r.Listener, r.Origin, r.Client = "http", x.edge.name, x.origin, x.client
	r.Started, r.Ended, r.Duration = x.started, now, now.Sub(x.started)
	r.Connect, r.ResponseHead, r.Attempts = x.attempts.connect, x.waited, x.attempts.made
	r.Request, r.User, r.Status, r.Reason, r.Err = &x.req, x.user, x.status, x.reason, x.err
	x.security.describe(r)
	if x.trace != nil {
		r.TraceID, r.SpanID = x.trace.ID, x.trace.Span
	}
	r.Received, r.Sent = x.wire.Transferred()
	r.Response, r.Body, r.Secure = &x.res, x.sent, x.Secure()
	if r.Version = x.wire.Version(); x.req.Minor == 0 {
		r.Version = "1.0"
	}
	if x.route != nil {
		describeRoute(r, x.route)
	}
	if e := x.attempts.endpoint; e != nil {
		r.Endpoint = e.Address()
	}
}

// statusClientGone is the status of an exchange whose client closed the connection before there
// was a response. No client receives it.
const statusClientGone = 499

// record counts the exchange, which has ended, and logs it.
func (x *exchange) record(now time.Time) {
	if x.status == 0 {
		x.status = statusClientGone
	}
	m := x.proxy.Metrics.none
	if x.route != nil {
		m = x.route.metrics
	}
	in, out := x.wire.Transferred()
	m.exchange(x.status, now.Sub(x.started), in, out, x.trace)
	if x.reason != "" {
		x.proxy.Metrics.slowClient(x.edge.name, x.reason)
	}
	log := x.proxy.log.Load()
	if x.route != nil && x.route.config.Unlogged {
		log = nil
	}
	if log == nil && x.trace == nil {
		return
	}
	r := records.Get().(*accesslog.Record)
	x.describe(r, now)
	if x.trace != nil {
		x.endTrace(r)
	}
	if log != nil {
		(*log)(r)
	}
	*r = accesslog.Record{}
	records.Put(r)
}

// lost reports a connection that ended with an unusual error. The reset of an idle connection
// by the client is not unusual.
func (c *clientSide) lost(reason string, err error) {
	if c.proxy.Refused != nil {
		r := &accesslog.Record{Kind: "refused", Listener: c.edge.name, Origin: c.origin, Reason: reason, Err: err}
		c.security.describe(r)
		c.proxy.Refused(r)
	}
}

// tunnelEnded counts and logs a tunnel.
func (p *Proxy) tunnelEnded(r *accesslog.Record) {
	p.Metrics.tunnelEnded(r.Route, r.Reason)
	if r.Duration == 0 {
		r.Duration = time.Since(r.Started)
	}
	if log := p.log.Load(); log != nil && !r.Unlogged {
		(*log)(r)
	}
}

// describe adds the TLS of the connection to a record.
func (s *Security) describe(r *accesslog.Record) {
	r.SNI = s.SNI
	if !s.Terminated() {
		return
	}
	r.TLSPolicy = s.PolicyName()
	if r.TLS = s.text; r.TLS == nil {
		r.TLS = s.inWords()
	}
}

// note keeps the description for the records of all exchanges of the connection.
func (s *Security) note() {
	if s.Terminated() {
		s.text = s.inWords()
	}
}

// inWords describes the state of the TLS connection; nil: the handshake ended before a version
// was agreed on.
func (s *Security) inWords() *accesslog.TLS {
	state := s.State()
	if state.Version == 0 {
		return nil
	}
	t := &accesslog.TLS{Version: policy.VersionName(state.Version), Resumed: state.DidResume, ECH: state.ECHAccepted}
	if state.CipherSuite != 0 {
		t.CipherSuite = policy.SuiteName(state.CipherSuite)
	}
	if s.verified(&state) {
		t.ClientSubject = state.PeerCertificates[0].Subject.String()
	}
	return t
}

// offerOf describes the ClientHello of a failed handshake; nil: weir read none.
func offerOf(h *tls.ClientHelloInfo) *accesslog.Offer {
	if h == nil {
		return nil
	}
	o := policy.OfferOf(h)
	return &accesslog.Offer{Versions: o.Versions, Suites: o.Suites, Protocols: o.Protocols, OnlySHA1: o.OnlySHA1, JA4: o.JA4}
}
