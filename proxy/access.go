package proxy

import (
	"crypto/tls"
	"encoding/hex"
	"net/netip"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/header"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/tls/policy"
)

// Record is the data of one line of the access log, for an exchange or a tunnel. The receiver
// may use the record until the call returns. Received and Sent of a connection's first exchange
// include the TLS handshake.
type Record struct {
	Kind     string // "http", "upgrade" (a tunnel that was an exchange), "tunnel", "challenge" or "refused"
	Listener string
	Origin   *conn.Origin
	Client   netip.AddrPort // the client that sent the request; zero: the other end of the connection
	Security Security
	Hello    *tls.ClientHelloInfo // of a failed handshake; nil: weir read none
	Result   string               // of a failed handshake, as in the metrics

	Route, Backend, Endpoint string
	Attempts                 int

	Started        time.Time
	Duration       time.Duration
	Connect        time.Duration // zero: an idle connection was reused
	ResponseHead   time.Duration // until the endpoint's response head arrived
	Received, Sent int64         // bytes from and to the client: on the wire for http, delivered for tunnels
	Request        *message.Request
	User           string // the user whom the route authenticated; empty: none
	Version        string // of HTTP: "1.0", "1.1" or "2"
	Status         int
	Reason         string // why weir generated the response, or how a tunnel ended
	Err            error
	Redaction      *Redaction // applied to the result of Fields; nil: none
	Sample         float64    // the share of such records that have a line; 0: all

	unlogged bool // the route has no access log
}

func (r *Record) route(to *Route) {
	r.Route, r.unlogged = to.name, to.config.Unlogged
	if to.backend != nil {
		r.Backend = to.backend.Name()
	}
}

// newRecord describes the exchange.
func (x *exchange) newRecord(now time.Time) Record {
	r := Record{Kind: "http", Listener: x.edge.name, Origin: x.origin, Client: x.client, Security: x.security,
		Started: x.started, Duration: now.Sub(x.started), Connect: x.attempts.connect, ResponseHead: x.waited,
		Attempts: x.attempts.made, Request: &x.req, User: x.user, Status: x.status, Reason: x.reason, Err: x.err}
	r.Received, r.Sent = x.wire.Transferred()
	if r.Version = x.wire.Version(); x.req.Minor == 0 {
		r.Version = "1.0"
	}
	if x.route != nil {
		r.route(x.route)
	}
	if e := x.attempts.endpoint; e != nil {
		r.Endpoint = e.Address()
	}
	return r
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
	m.exchange(x.status, now.Sub(x.started), in, out)
	if x.reason != "" {
		x.proxy.Metrics.slowClient(x.edge.name, x.reason)
	}
	if x.route != nil && x.route.config.Unlogged {
		return
	}
	if log := x.proxy.log.Load(); log != nil {
		r := x.newRecord(now)
		(*log)(&r)
	}
}

// lost reports a connection that ended with an unusual error. The reset of an idle connection
// by the client is not unusual.
func (c *clientSide) lost(reason string, err error) {
	if c.proxy.Refused != nil {
		c.proxy.Refused(&Record{Kind: "refused", Listener: c.edge.name, Origin: c.origin, Security: c.security,
			Reason: reason, Err: err})
	}
}

// tunnelEnded counts and logs a tunnel.
func (p *Proxy) tunnelEnded(r *Record) {
	p.Metrics.tunnelEnded(r.Route, r.Reason)
	if r.Duration == 0 {
		r.Duration = time.Since(r.Started)
	}
	if log := p.log.Load(); log != nil && !r.unlogged {
		(*log)(r)
	}
}

// Good reports whether the record is a request that was served as it should be: its status is
// below 400, and weir has no reason to report.
func (r *Record) Good() bool { return r.Kind == "http" && r.Status < 400 && r.Reason == "" }

// Fields returns the fields of the access log's line, without empty values.
func (r *Record) Fields() []zap.Field {
	f := make([]zap.Field, 0, 48)
	f = append(f, zap.String("kind", r.Kind), zap.String("listener", r.Listener))
	f = appendOrigin(f, r.Origin, r.Client)
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
			zap.ByteString("target", r.Redaction.apply(q.Bytes(q.Target))), zap.String("http_version", r.Version))
		text("user_agent", string(q.GetName("user-agent")))
		text("referer", string(r.Redaction.apply(q.GetName("referer"))))
		text("request_id", string(q.Get(message.XRequestID)))
		text("traceparent", string(q.GetName("traceparent")))
	}
	text("user", r.User)
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
	if r.Sample > 0 {
		f = append(f, zap.Float64("sample", r.Sample))
	}
	return append(f, zap.Int64("bytes_in", r.Received), zap.Int64("bytes_out", r.Sent), zap.Int("retries", max(0, r.Attempts-1)))
}

// appendOrigin adds the client that sent the request, the addresses of its connection, and
// the content of the connection's PROXY header.
func appendOrigin(f []zap.Field, c *conn.Origin, client netip.AddrPort) []zap.Field {
	switch {
	case client.IsValid() && client != c.Client:
		f = append(appendClient(f, client, addressText(client)), zap.String("sender", c.Client.String()))
	case c.Client.IsValid():
		f = appendClient(f, c.Client, c.Client.String())
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

// appendClient adds the client as text: as a whole, and in its parts. It omits an unknown
// port.
func appendClient(f []zap.Field, client netip.AddrPort, text string) []zap.Field {
	address := text
	if i := strings.LastIndexByte(text, ':'); i > 0 && (text[0] == '[' || client.Addr().Is4()) {
		address = strings.Trim(text[:i], "[]")
	}
	f = append(f, zap.String("client", text), zap.String("client_address", address))
	if port := client.Port(); port != 0 {
		f = append(f, zap.Int("client_port", int(port)))
	}
	return f
}

// addressText omits an unknown port.
func addressText(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
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
	if r.Security.SNI != "" {
		f = append(f, zap.String("sni", r.Security.SNI))
	}
	if !r.Security.Terminated() {
		return f
	}
	if name := r.Security.PolicyName(); name != "" {
		f = append(f, zap.String("tls_policy", name))
	}
	if r.Hello != nil {
		f = appendHello(f, r.Hello)
	}
	state := r.Security.State()
	if state.Version == 0 {
		return f // the handshake ended before a version was agreed on
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

// appendHello adds the offer of the client's ClientHello.
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

// RefusedFields returns the line for a connection that ended before its PROXY header was read.
func RefusedFields(client, peer netip.AddrPort, listener, reason string, err error) []zap.Field {
	f := []zap.Field{zap.String("kind", "refused"), zap.String("listener", listener), zap.String("reason", reason)}
	if client.IsValid() {
		f = appendClient(f, client, client.String())
	}
	if peer.IsValid() {
		f = append(f, zap.String("peer", peer.String()))
	}
	if err != nil {
		f = append(f, zap.String("error", err.Error()))
	}
	return f
}
