package proxy

import (
	"crypto/tls"
	"encoding/hex"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/header"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/tls/policy"
)

// Record is the access log's line of an exchange or a tunnel. Who gets one may
// use it until it returns.
type Record struct {
	Kind     string // "http", "upgrade" (a tunnel that was an exchange), "tunnel", "challenge" or "refused"
	Listener string
	Conn     *conn.Conn
	TLS      *tls.Conn // nil: plain or passed through
	SNI      string
	Policy   string
	Hello    *tls.ClientHelloInfo // of a handshake that failed; nil: none was read
	Result   string               // of a handshake that failed, as the metrics name it

	Route, Backend, Endpoint string
	Attempts                 int

	Started        time.Time
	Duration       time.Duration
	Connect        time.Duration // zero: an idle connection was reused
	ResponseHead   time.Duration // until the endpoint's response head
	Received, Sent int64         // bytes from and to the client: on the wire for http (the TLS handshake's with the first exchange), delivered for tunnels
	Request        *message.Request
	Status         int
	Reason         string // why weir answered itself, or how a tunnel ended
	Err            error
}

func (r *Record) route(to *Route) {
	r.Route = to.name
	if to.backend != nil {
		r.Backend = to.backend.Name()
	}
}

// newRecord describes the session's exchange.
func (s *session) newRecord(now time.Time) Record {
	r := Record{Kind: "http", Listener: s.edge.name, Conn: s.conn, TLS: s.tls, SNI: s.sni,
		Started: s.started, Duration: now.Sub(s.started), Connect: s.connect, ResponseHead: s.waited,
		Attempts: s.attempts, Request: &s.req, Status: s.status, Reason: s.reason, Err: s.err,
		Received: s.conn.BytesRead - s.bytesRead, Sent: s.conn.BytesWritten - s.bytesWritten, Policy: s.policyName()}
	if s.exchange.route != nil {
		r.route(s.exchange.route)
	}
	if s.endpoint != nil {
		r.Endpoint = s.endpoint.Address()
	}
	return r
}

func (s *session) policyName() string {
	if s.policy == nil {
		return ""
	}
	return s.policy.Name
}

// statusClientGone is what an exchange counts as whose client went away before
// there was a response: nobody saw a status.
const statusClientGone = 499

// record counts the exchange that ended, and logs it.
func (s *session) record(now time.Time) {
	if s.status == 0 {
		s.status = statusClientGone
	}
	m := s.proxy.Metrics.none
	if s.exchange.route != nil {
		m = s.exchange.route.metrics
	}
	m.exchange(s.status, now.Sub(s.started), s.conn.BytesRead-s.bytesRead, s.conn.BytesWritten-s.bytesWritten)
	if log := s.proxy.log.Load(); log != nil {
		r := s.newRecord(now)
		(*log)(&r)
	}
}

// mark notes where the next exchange's bytes begin.
func (s *session) mark() {
	s.bytesRead, s.bytesWritten = s.conn.BytesRead, s.conn.BytesWritten
}

// lost tells of a connection that ended in the middle of a request's head, or
// out of the ordinary. An idle one that the client resets is neither.
func (s *session) lost(err error) {
	if s.proxy.Refused != nil && (s.server.HeadStarted() || !conn.Routine(err)) {
		s.proxy.Refused(&Record{Kind: "refused", Listener: s.edge.name, Conn: s.conn, TLS: s.tls, SNI: s.sni,
			Policy: s.policyName(), Reason: "request_head", Err: err})
	}
}

// tunnelEnded hands a tunnel's record over.
func (p *Proxy) tunnelEnded(r *Record) {
	if r.Duration == 0 {
		r.Duration = time.Since(r.Started)
	}
	if log := p.log.Load(); log != nil {
		(*log)(r)
	}
}

// Fields is the record as the access log's line has it; empty values are left out.
func (r *Record) Fields() []zap.Field {
	f := make([]zap.Field, 0, 48)
	f = append(f, zap.String("kind", r.Kind), zap.String("listener", r.Listener))
	f = appendConn(f, r.Conn)
	f = r.appendTLS(f)
	text := func(key, value string) {
		if value != "" {
			f = append(f, zap.String(key, value))
		}
	}
	text("route", r.Route)
	text("backend", r.Backend)
	text("endpoint", r.Endpoint)
	if q := r.Request; q != nil && q.Method.Len() > 0 {
		f = append(f, zap.ByteString("method", q.Bytes(q.Method)), zap.ByteString("host", q.Bytes(q.Host)),
			zap.ByteString("target", q.Bytes(q.Target)), zap.Int("http_minor", q.Minor))
		text("user_agent", string(q.GetName("user-agent")))
		text("referer", string(q.GetName("referer")))
		text("request_id", string(q.Get(message.XRequestID)))
		text("traceparent", string(q.GetName("traceparent")))
	}
	if r.Status != 0 {
		f = append(f, zap.Int("status", r.Status))
	}
	text("reason", r.Reason)
	text("tls_result", r.Result)
	if r.Err != nil {
		text("error", r.Err.Error())
	}
	if r.Kind == "refused" {
		return f
	}
	f = append(f, zap.Float64("duration_seconds", r.Duration.Seconds()))
	if r.Connect > 0 {
		f = append(f, zap.Float64("connect_seconds", r.Connect.Seconds()))
	}
	if r.ResponseHead > 0 {
		f = append(f, zap.Float64("response_head_seconds", r.ResponseHead.Seconds()))
	}
	return append(f, zap.Int64("bytes_in", r.Received), zap.Int64("bytes_out", r.Sent), zap.Int("retries", max(0, r.Attempts-1)))
}

// appendConn adds where a connection came from, and what its header said.
func appendConn(f []zap.Field, c *conn.Conn) []zap.Field {
	if c.Client.IsValid() {
		f = append(f, zap.String("client", c.Client.String()))
	}
	if c.Peer.IsValid() {
		f = append(f, zap.String("peer", c.Peer.String()))
	}
	if c.Header.Version == 0 {
		return f
	}
	f = append(f, zap.Int("proxy_header", c.Header.Version))
	if c.Header.Local {
		f = append(f, zap.Bool("proxy_local", true))
	}
	return appendTLVs(f, &c.Header.TLVs)
}

func appendTLVs(f []zap.Field, t *header.TLVs) []zap.Field {
	text := func(key, value string) {
		if value != "" {
			f = append(f, zap.String(key, value))
		}
	}
	text("tlv_authority", t.Authority)
	text("tlv_alpn", t.ALPN)
	text("tlv_unique_id", hex.EncodeToString(t.UniqueID))
	text("tlv_netns", t.Netns)
	text("tlv_aws_vpc_endpoint", t.AWSVPCEndpoint)
	if t.AzureLinkID != 0 {
		f = append(f, zap.Uint32("tlv_azure_link_id", t.AzureLinkID))
	}
	if t.HasGCP {
		f = append(f, zap.Uint64("tlv_gcp_psc", t.GCPPSC))
	}
	if s := t.SSL; s != nil {
		f = append(f, zap.Bool("tlv_ssl", s.TLS), zap.Bool("tlv_ssl_verified", s.Verified))
		text("tlv_ssl_version", s.Version)
		text("tlv_ssl_cipher", s.Cipher)
		text("tlv_ssl_cn", s.CommonName)
	}
	return f
}

func (r *Record) appendTLS(f []zap.Field) []zap.Field {
	if r.SNI != "" {
		f = append(f, zap.String("sni", r.SNI))
	}
	if r.TLS == nil {
		return f
	}
	if r.Policy != "" {
		f = append(f, zap.String("tls_policy", r.Policy))
	}
	if r.Hello != nil {
		f = appendHello(f, r.Hello)
	}
	state := r.TLS.ConnectionState()
	if state.Version == 0 {
		return f // the handshake ended before one was agreed on
	}
	f = append(f, zap.String("tls_version", policy.VersionName(state.Version)))
	if state.CipherSuite != 0 {
		f = append(f, zap.String("tls_cipher_suite", policy.SuiteName(state.CipherSuite)))
	}
	if state.DidResume {
		f = append(f, zap.Bool("tls_resumed", true))
	}
	if state.ECHAccepted {
		f = append(f, zap.Bool("tls_ech", true))
	}
	if len(state.PeerCertificates) > 0 {
		f = append(f, zap.String("tls_client_subject", state.PeerCertificates[0].Subject.String()))
	}
	return f
}

// appendHello adds what a client offered.
func appendHello(f []zap.Field, h *tls.ClientHelloInfo) []zap.Field {
	o := policy.OfferOf(h)
	f = append(f, zap.Strings("tls_offered_versions", o.Versions), zap.Strings("tls_offered_suites", o.Suites))
	if len(o.Protocols) > 0 {
		f = append(f, zap.Strings("tls_offered_alpn", o.Protocols))
	}
	if o.OnlySHA1 {
		f = append(f, zap.Bool("tls_only_sha1", true))
	}
	return append(f, zap.String("ja4", o.JA4))
}

// RefusedFields is a line for a connection that ended before its header was through.
func RefusedFields(client, peer netip.AddrPort, listener, reason string, err error) []zap.Field {
	f := []zap.Field{zap.String("kind", "refused"), zap.String("listener", listener), zap.String("reason", reason)}
	if client.IsValid() {
		f = append(f, zap.String("client", client.String()))
	}
	if peer.IsValid() {
		f = append(f, zap.String("peer", peer.String()))
	}
	if err != nil {
		f = append(f, zap.String("error", err.Error()))
	}
	return f
}
