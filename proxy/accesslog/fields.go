package accesslog

import (
	"bytes"
	"net/netip"
	"strings"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/header"
	"github.com/weirproxy/weir/proxy/message"
)

// field is a field of a line.
type field struct {
	name  config.LogField
	write func(l *line, r *Record)
}

// fields are all fields: first those that a line has by default, in their order, then more that
// a configuration may choose. Package config has the same names.
var fields = []field{
	{"time", func(l *line, r *Record) { l.time(r.Ended) }},
	{"kind", func(l *line, r *Record) { l.text(r.Kind) }},
	{"listener", func(l *line, r *Record) { l.text(r.Listener) }},
	{"client", writeClient},
	{"client_address", func(l *line, r *Record) {
		if c := r.ClientAddress(); c.IsValid() {
			l.host(c.Addr())
		}
	}},
	{"client_port", func(l *line, r *Record) {
		if c := r.ClientAddress(); c.Port() != 0 {
			l.number(int64(c.Port()))
		}
	}},
	{"sender", func(l *line, r *Record) {
		if r.Client.IsValid() && r.Origin != nil && r.Client != r.Origin.Client {
			l.address(r.Origin.Client)
		}
	}},
	{"peer", func(l *line, r *Record) {
		if r.Origin != nil && r.Origin.Peer.IsValid() {
			l.address(r.Origin.Peer)
		}
	}},
	{"proxy_header", func(l *line, r *Record) {
		if h := r.header(); h != nil {
			l.number(int64(h.Version))
		}
	}},
	{"proxy_local", func(l *line, r *Record) {
		if h := r.header(); h != nil {
			l.yes(h.Local)
		}
	}},
	{"tlv_authority", ofTLVs(func(l *line, t *header.TLVs) { l.text(t.Authority) })},
	{"tlv_alpn", ofTLVs(func(l *line, t *header.TLVs) { l.text(t.ALPN) })},
	{"tlv_unique_id", ofTLVs(func(l *line, t *header.TLVs) { l.hex(t.UniqueID) })},
	{"tlv_netns", ofTLVs(func(l *line, t *header.TLVs) { l.text(t.Netns) })},
	{"tlv_aws_vpc_endpoint", ofTLVs(func(l *line, t *header.TLVs) { l.text(t.AWSVPCEndpoint) })},
	{"tlv_azure_link_id", ofTLVs(func(l *line, t *header.TLVs) {
		if t.AzureLinkID != 0 {
			l.unsigned(uint64(t.AzureLinkID))
		}
	})},
	{"tlv_gcp_psc", ofTLVs(func(l *line, t *header.TLVs) {
		if t.HasGCP {
			l.unsigned(t.GCPPSC)
		}
	})},
	{"tlv_ssl", ofTLVs(func(l *line, t *header.TLVs) {
		if t.SSL != nil {
			l.either(t.SSL.TLS)
		}
	})},
	{"tlv_ssl_verified", ofTLVs(func(l *line, t *header.TLVs) {
		if t.SSL != nil {
			l.either(t.SSL.Verified)
		}
	})},
	{"tlv_ssl_version", ofTLVs(func(l *line, t *header.TLVs) {
		if t.SSL != nil {
			l.text(t.SSL.Version)
		}
	})},
	{"tlv_ssl_cipher", ofTLVs(func(l *line, t *header.TLVs) {
		if t.SSL != nil {
			l.text(t.SSL.Cipher)
		}
	})},
	{"tlv_ssl_cn", ofTLVs(func(l *line, t *header.TLVs) {
		if t.SSL != nil {
			l.text(t.SSL.CommonName)
		}
	})},
	{"sni", func(l *line, r *Record) { l.text(r.SNI) }},
	{"tls_policy", func(l *line, r *Record) { l.text(r.TLSPolicy) }},
	{"tls_offered_versions", ofOffer(func(l *line, o *Offer) { l.list(o.Versions) })},
	{"tls_offered_suites", ofOffer(func(l *line, o *Offer) { l.list(o.Suites) })},
	{"tls_offered_alpn", ofOffer(func(l *line, o *Offer) {
		if len(o.Protocols) > 0 {
			l.list(o.Protocols)
		}
	})},
	{"tls_only_sha1", ofOffer(func(l *line, o *Offer) { l.yes(o.OnlySHA1) })},
	{"ja4", ofOffer(func(l *line, o *Offer) { l.text(o.JA4) })},
	{"tls_version", ofTLS(func(l *line, t *TLS) { l.text(t.Version) })},
	{"tls_cipher_suite", ofTLS(func(l *line, t *TLS) { l.text(t.CipherSuite) })},
	{"tls_resumed", ofTLS(func(l *line, t *TLS) { l.yes(t.Resumed) })},
	{"tls_ech", ofTLS(func(l *line, t *TLS) { l.yes(t.ECH) })},
	{"tls_client_subject", ofTLS(func(l *line, t *TLS) { l.text(t.ClientSubject) })},
	{"route", func(l *line, r *Record) { l.text(r.Route) }},
	{"backend", func(l *line, r *Record) { l.text(r.Backend) }},
	{"endpoint", func(l *line, r *Record) { l.text(r.Endpoint) }},
	{"method", ofRequest(func(l *line, q *message.Request) { l.bytes(q.Bytes(q.Method)) })},
	{"host", ofRequest(func(l *line, q *message.Request) { l.optional(q.Bytes(q.Host)) })},
	{"target", ofRequest(func(l *line, q *message.Request) { l.url(q.Bytes(q.Target)) })},
	{"http_version", func(l *line, r *Record) {
		if r.request() != nil {
			l.text(r.Version)
		}
	}},
	{"user_agent", ofRequest(func(l *line, q *message.Request) { l.optional(l.fields.of(q).agent) })},
	{"referer", ofRequest(func(l *line, q *message.Request) { l.url(l.fields.of(q).referer) })},
	{"request_id", ofRequest(func(l *line, q *message.Request) { l.optional(q.Get(message.XRequestID)) })},
	{"traceparent", ofRequest(func(l *line, q *message.Request) { l.optional(l.fields.of(q).trace) })},
	{"trace_id", func(l *line, r *Record) {
		if r.TraceID != [16]byte{} {
			l.hex(r.TraceID[:])
		}
	}},
	{"user", func(l *line, r *Record) { l.text(r.User) }},
	{"status", func(l *line, r *Record) {
		if r.Status != 0 {
			l.number(int64(r.Status))
		}
	}},
	{"reason", func(l *line, r *Record) { l.text(r.Reason) }},
	{"tls_result", func(l *line, r *Record) { l.text(r.Result) }},
	{"error", func(l *line, r *Record) {
		if r.Err != nil {
			l.text(r.Err.Error())
		}
	}},
	{"duration_seconds", served(func(l *line, r *Record) { l.seconds(r.Duration) })},
	{"connect_seconds", served(func(l *line, r *Record) {
		if r.Connect > 0 {
			l.seconds(r.Connect)
		}
	})},
	{"response_head_seconds", served(func(l *line, r *Record) {
		if r.ResponseHead > 0 {
			l.seconds(r.ResponseHead)
		}
	})},
	{"sample", served(func(l *line, r *Record) {
		if l.share < 1 {
			l.float(l.share)
		}
	})},
	{"bytes_in", served(func(l *line, r *Record) { l.number(r.Received) })},
	{"bytes_out", served(func(l *line, r *Record) { l.number(r.Sent) })},
	{"retries", served(func(l *line, r *Record) { l.number(int64(max(0, r.Attempts-1))) })},
	{"more", func(l *line, r *Record) {
		if r.More > 0 {
			l.number(int64(r.More))
		}
	}},

	{"span_id", func(l *line, r *Record) {
		if r.TraceID != [16]byte{} {
			l.hex(r.SpanID[:])
		}
	}},
	{"started", func(l *line, r *Record) {
		if !r.Started.IsZero() {
			l.time(r.Started)
		}
	}},
	{"time_local", func(l *line, r *Record) { l.localTime(r.Ended) }},
	{"time_unix", func(l *line, r *Record) {
		l.thousandths(time.Duration(r.Ended.UnixNano()))
	}},
	{"time_iso8601", func(l *line, r *Record) {
		l.begin()
		l.mark()
		l.b = r.Ended.AppendFormat(l.b, "2006-01-02T15:04:05-07:00")
		l.mark()
	}},
	{"local", func(l *line, r *Record) {
		if r.Origin != nil && r.Origin.Local.IsValid() {
			l.address(r.Origin.Local)
		}
	}},
	{"scheme", func(l *line, r *Record) {
		if r.request() != nil {
			l.word(r.scheme())
		}
	}},
	{"host_name", ofRequest(func(l *line, q *message.Request) {
		name, _ := splitHost(q.Bytes(q.Host))
		l.optional(name)
	})},
	{"host_port", func(l *line, r *Record) {
		if port := r.hostPort(); port > 0 {
			l.number(int64(port))
		}
	}},
	{"path", ofRequest(func(l *line, q *message.Request) { l.optional(q.Bytes(q.Path)) })},
	{"query", ofRequest(func(l *line, q *message.Request) { l.optional(l.query(q)) })},
	{"protocol", func(l *line, r *Record) {
		if r.request() != nil && r.Version != "" {
			l.protocol(r)
		}
	}},
	{"request_line", func(l *line, r *Record) {
		if q := r.request(); q != nil {
			l.requestLine(r, q)
		}
	}},
	{"endpoint_status", func(l *line, r *Record) {
		if status := r.endpointStatus(); status > 0 {
			l.number(int64(status))
		}
	}},
	{"endpoint_body_bytes", func(l *line, r *Record) {
		if r.endpointStatus() > 0 {
			l.number(r.Body)
		}
	}},
	{"endpoint_time", func(l *line, r *Record) {
		if r.endpointStatus() > 0 {
			l.thousandths(r.Duration)
		}
	}},
	{"body_bytes_out", func(l *line, r *Record) {
		if r.Status != 0 {
			l.number(r.Body)
		}
	}},
	{"request_time", served(func(l *line, r *Record) { l.thousandths(r.Duration) })},
	{"duration_ms", served(func(l *line, r *Record) { l.number(r.Duration.Milliseconds()) })},
	{"tls_protocol", ofTLS(func(l *line, t *TLS) {
		if version, ok := strings.CutPrefix(t.Version, "TLS "); ok {
			l.word("TLSv" + strings.TrimSuffix(version, ".0"))
		}
	})},
	{"count", func(l *line, r *Record) { l.number(int64(l.count())) }},
	{"tab", func(l *line, _ *Record) {
		if l.key == "" {
			l.b = append(l.b, '\t')
		}
	}},
}

// fieldNamed returns how a field is written.
func fieldNamed(name config.LogField) func(*line, *Record) {
	if header, ofResponse := name.Header(); header != "" {
		if ofResponse {
			return func(l *line, r *Record) {
				if r.Response != nil {
					l.optional(r.Response.GetName(header))
				}
			}
		}
		if header == "referer" {
			return fieldNamed("referer")
		}
		return ofRequest(func(l *line, q *message.Request) { l.optional(q.GetName(header)) })
	}
	for i := range fields {
		if fields[i].name == name {
			return fields[i].write
		}
	}
	return func(*line, *Record) {} // config has checked the name
}

// headerFields are the HTTP headers of a request that most lines have. They are found together,
// because a search goes through all headers.
type headerFields struct {
	in                    *message.Request
	agent, referer, trace []byte
}

func (h *headerFields) of(q *message.Request) *headerFields {
	if h.in == q {
		return h
	}
	*h = headerFields{in: q}
	for i := range q.Fields {
		if q.Fields[i].Dropped {
			continue
		}
		switch name := q.Name(i); len(name) {
		case len("user-agent"):
			if h.agent == nil && message.EqualFold(name, "user-agent") {
				h.agent = q.Value(i)
			}
		case len("referer"):
			if h.referer == nil && message.EqualFold(name, "referer") {
				h.referer = q.Value(i)
			}
		case len("traceparent"):
			if h.trace == nil && message.EqualFold(name, "traceparent") {
				h.trace = q.Value(i)
			}
		}
	}
	return h
}

func (r *Record) scheme() string {
	if r.Secure {
		return "https"
	}
	return "http"
}

// splitHost splits a Host into the name and the port, which may be empty. An IPv6 address keeps
// its brackets.
func splitHost(host []byte) (name, port []byte) {
	end := bytes.IndexByte(host, ']') + 1 // 0: no bracket
	if colon := bytes.IndexByte(host[end:], ':'); colon >= 0 {
		return host[:end+colon], host[end+colon+1:]
	}
	return host, nil
}

// HostAndPort returns the host of the request, and its port; 0: it has none that is valid. The name
// is valid as long as the request.
func (r *Record) HostAndPort() (name []byte, port int) {
	if q := r.request(); q != nil {
		name, _ = splitHost(q.Bytes(q.Host))
	}
	return name, r.hostPort()
}

// hostPort returns the port in the Host, or else the port of the scheme; 0: there is no request.
func (r *Record) hostPort() int {
	q := r.request()
	if q == nil {
		return 0
	}
	if _, port := splitHost(q.Bytes(q.Host)); len(port) > 0 && len(port) <= 5 {
		n := 0
		for _, c := range port {
			if c < '0' || c > '9' {
				return 0
			}
			n = n*10 + int(c-'0')
		}
		return n
	}
	if r.Secure {
		return 443
	}
	return 80
}

// endpointStatus returns the status of the endpoint's response; 0: weir made the response.
func (r *Record) endpointStatus() int {
	if r.ResponseHead == 0 || r.Endpoint == "" {
		return 0
	}
	return r.Status
}

// query returns the query of the request, without the values of the parameters that must not be
// in the log.
func (l *line) query(q *message.Request) []byte {
	_, query, _ := bytes.Cut(l.public(q.Bytes(q.Target)), []byte{'?'})
	return query
}

func (l *line) protocol(r *Record) {
	l.begin()
	l.mark()
	l.b = appendProtocol(l.b, r)
	l.mark()
}

// appendProtocol writes the version as web servers do.
func appendProtocol(b []byte, r *Record) []byte {
	b = append(append(b, "HTTP/"...), r.Version...)
	if r.Version == "2" {
		b = append(b, ".0"...)
	}
	return b
}

// requestLine writes method, target and version.
func (l *line) requestLine(r *Record, q *message.Request) {
	target := l.public(q.Bytes(q.Target))
	l.begin()
	l.mark()
	l.b = appendValue(l, append(appendValue(l, l.b, q.Bytes(q.Method), true), ' '), target, true)
	l.b = appendProtocol(append(l.b, ' '), r)
	l.mark()
}

// ClientAddress returns the client that sent the request, or else the one of the connection. The
// port is 0 if it is unknown.
func (r *Record) ClientAddress() netip.AddrPort {
	if r.Client.IsValid() || r.Origin == nil {
		return r.Client
	}
	return r.Origin.Client
}

// writeClient omits a port that X-Forwarded-For did not have.
func writeClient(l *line, r *Record) {
	switch c := r.ClientAddress(); {
	case !c.IsValid():
	case c.Port() == 0 && (r.Origin == nil || c != r.Origin.Client):
		l.host(c.Addr())
	default:
		l.address(c)
	}
}

// header returns the PROXY header of the connection, or nil.
func (r *Record) header() *header.Header {
	if r.Origin == nil || r.Origin.Header == nil || r.Origin.Header.Version == 0 {
		return nil
	}
	return r.Origin.Header
}

// request returns the request if its request line was read, or nil.
func (r *Record) request() *message.Request {
	if r.Request == nil || r.Request.Method.Len() == 0 {
		return nil
	}
	return r.Request
}

func ofTLVs(write func(*line, *header.TLVs)) func(*line, *Record) {
	return func(l *line, r *Record) {
		if h := r.header(); h != nil {
			write(l, &h.TLVs)
		}
	}
}

func ofOffer(write func(*line, *Offer)) func(*line, *Record) {
	return func(l *line, r *Record) {
		if r.Offer != nil {
			write(l, r.Offer)
		}
	}
}

func ofTLS(write func(*line, *TLS)) func(*line, *Record) {
	return func(l *line, r *Record) {
		if r.TLS != nil {
			write(l, r.TLS)
		}
	}
}

func ofRequest(write func(*line, *message.Request)) func(*line, *Record) {
	return func(l *line, r *Record) {
		if q := r.request(); q != nil {
			write(l, q)
		}
	}
}

// served is a field of everything but refused connections.
func served(write func(*line, *Record)) func(*line, *Record) {
	return func(l *line, r *Record) {
		if r.Kind != "refused" {
			write(l, r)
		}
	}
}
