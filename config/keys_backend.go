package config

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// NewBackend returns a backend with the defaults of the file, and without endpoints.
func NewBackend(name string) Backend { return *newBackend(name) }

func newBackend(name string) *Backend {
	return &Backend{
		Name:     name,
		Protocol: ProtocolHTTP, Balance: LeastRequests, ResolveInterval: 30 * time.Second, MaxIdle: 256, HTTP2: true, MaxInterim: 16,
		TLS:      BackendTLS{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13},
		Ejection: Ejection{Failures: DefaultEjectionFailures, For: 10 * time.Second, Minimum: 20, Within: 10 * time.Second},
		Queue:    Queue{Size: 128, Timeout: 5 * time.Second},
		Timeouts: BackendTimeouts{Connect: 5 * time.Second, ResponseHead: 5 * time.Minute, BodyIdle: time.Minute, StreamIdle: DefaultStreamIdle, KeepAlive: time.Minute},
		Retries:  Retries{Attempts: 3, Share: 0.2},
	}
}

func (b *Backend) name() string { return b.Name }

var (
	protocolOfBackend = oneOf(ProtocolHTTP, ProtocolHTTPS, ProtocolH2C, ProtocolGRPC, ProtocolTCP)
	balance           = oneOf(LeastRequests, RoundRobin, Hash)
	responseFaults    = oneOf(BareLF, ChunkedHTTP10, FoldedLines, LengthWithChunked, TwiceChunked, IdentityEncoding, ControlCharacters)
	requestFaults     = oneOf(BareLF, EqualLengths, RawTargets, ControlCharacters)
	leniency          = responseFaults.explaining(requestFaults.words, "is a fault of requests; write it in lenient of the listener")
	requestLeniency   = requestFaults.explaining(responseFaults.words, "is a fault of responses; write it in lenient of the backend")
)

func (b *Backend) section() section {
	return section{object: b, position: &b.Position, check: b.settle, rules: backendRules, keys: backendKeys}
}

var backendKeys []key

func init() { // functions of the table use the table
	backendKeys = []key{
		{"protocol", lazily(nil, func(b *Backend) value { return backendProtocol(&b.Protocol) }), "The protocol of the endpoints. http: HTTP/1.1. https: HTTP/2 or HTTP/1.1 over TLS. h2c: HTTP/2 without TLS. grpc: only HTTP/2, over TLS if tls is given. tcp: raw bytes, over TLS if tls is given."},
		{"endpoints", lazily(nil, func(b *Backend) value { return b.endpoints().required(`["10.0.0.1:8080"]`) }), "The endpoints: \"host:port\" or \"unix:/path\", or a mapping. No address twice."},
		{"resolve_interval", lazily(nil, func(b *Backend) value { return duration(&b.ResolveInterval, time.Second, day) }), "How often weir resolves names. Each address of a name is an endpoint."},
		{"balance", lazily(nil, func(b *Backend) value { return balance.at(&b.Balance) }), "The load balancing algorithm; all respect weights. least_requests: the less busy of two random endpoints. hash: by client address."},
		{"prefer_local", lazily(nil, func(b *Backend) value { return truth(&b.PreferLocal) }), "weir prefers endpoints on this node, then those in its zone, then all others."},
		{"ramp_up", lazily(nil, func(b *Backend) value { return duration(&b.RampUp, 0, time.Hour) }), "Slow start: how long a new or recovered endpoint receives reduced traffic. 0s: no slow start."},
		{"send_proxy", lazily(nil, func(b *Backend) value { return proxyVersion.at(&b.SendProxy) }), "weir sends a PROXY header of this version with the client's addresses at the start of each connection."},
		{"host", lazily(func(b *Backend) any { return &b.Host }, func(b *Backend) value { return hostField.at(&b.Host).byDefault("the client's Host") }), "The Host header that weir sends to the endpoint. Not for tcp."},
		{"health_check", lazily(func(b *Backend) any { return &b.HealthCheck }, func(b *Backend) value {
			return optional(&b.HealthCheck, newHealthCheck, (*HealthCheck).section).byDefault("none: all endpoints count as ready")
		}), "Active health checks: exactly one of http, grpc and tcp. An endpoint is not ready before its first successful check."},
		{"sticky", lazily(func(b *Backend) any { return &b.Sticky }, func(b *Backend) value { return b.stickyKey().byDefault("none") }), "Sticky sessions (session affinity): a cookie keeps each client with one endpoint. Not for tcp."},
		{"ejection", lazily(nil, func(b *Backend) value { return mapping(b.Ejection.section) }), "Outlier detection: takes an endpoint out of use after consecutive failures, or after a share of failures."},
		{"max_connections", lazily(nil, func(b *Backend) value { return number(&b.MaxConnections, 0, maxNumber) }), "Maximum number of concurrent requests and tunnels over all endpoints; 0 means no limit. Further ones wait in the queue."},
		{"queue", lazily(nil, func(b *Backend) value { return mapping(b.Queue.section) }), "The queue for requests and tunnels above max_connections."},
		{"max_idle", lazily(nil, func(b *Backend) value { return number(&b.MaxIdle, 0, 100_000) }), "Maximum number of idle connections kept per endpoint."},
		{"http2", lazily(nil, func(b *Backend) value { return truth(&b.HTTP2).shownIf(b.Protocol == ProtocolHTTPS).byDefault("true") }), "Whether weir offers HTTP/2 to https endpoints. Only with protocol https."},
		{"max_interim_responses", lazily(nil, func(b *Backend) value { return number(&b.MaxInterim, 1, 10_000).shownIf(b.Protocol != ProtocolTCP) }), "Maximum number of 1xx responses, such as 102 and 103, that an endpoint may send before the response to a request. Not for tcp."},
		{"lenient", lazily(func(b *Backend) any { return &b.Lenient }, func(b *Backend) value { return list(&b.Lenient, leniency.at) }), "Faults in HTTP/1.1 responses that weir accepts from old servers. Only with protocol http or https."},
		{"tls", lazily(nil, func(b *Backend) value { return mapping(b.TLS.section).shownIf(b.UsesTLS()) }), "TLS to the endpoints: certificates and versions. Only with protocol https, grpc or tcp; for grpc and tcp this key turns TLS on, even as {}."},
		{"timeouts", lazily(nil, func(b *Backend) value { return mapping(b.Timeouts.section) }), "How long weir waits for endpoints."},
		{"retries", lazily(nil, func(b *Backend) value { return mapping(b.Retries.section) }), "Limits for retries."},
	}
}

// settle fills in what depends on several keys.
func (b *Backend) settle(_ *draft, there keySet, _ *Tree, _ path) {
	b.HTTP2 = b.HTTP2 && b.Protocol == ProtocolHTTPS
	b.Secure = (b.Protocol == ProtocolGRPC || b.Protocol == ProtocolTCP) && there.has("tls")
	if b.HealthCheck != nil && b.HealthCheck.SendProxy == inherit {
		b.HealthCheck.SendProxy = b.SendProxy
	}
}

func backendProtocol(dst *Protocol) value {
	known := protocolOfBackend.at(dst)
	read := known.read
	known.read = func(v *draft, n *Tree, p path) {
		before := len(v.errs)
		if read(v, n, p); len(v.errs) != before {
			*dst = "" // unknown: it must not cause other errors
		}
	}
	return known
}

// Leniency is a fault of HTTP/1.1 responses that a backend may accept, or a fault of requests that a listener may
// accept.
type Leniency string

// The faults of HTTP/1.1 responses. BareLF and ControlCharacters are also faults of requests.
const (
	BareLF            Leniency = "bare_lf"
	ChunkedHTTP10     Leniency = "chunked_http10"
	FoldedLines       Leniency = "folded_lines"
	LengthWithChunked Leniency = "length_with_chunked"
	TwiceChunked      Leniency = "twice_chunked"
	IdentityEncoding  Leniency = "identity_encoding"
	ControlCharacters Leniency = "control_characters"
)

// The other faults of requests. RawTargets applies to HTTP/2 as well.
const (
	EqualLengths Leniency = "equal_lengths"
	RawTargets   Leniency = "raw_targets"
)

func (b *Backend) endpoints() value {
	all := inPlace(&b.Endpoints, func() Endpoint { return Endpoint{Weight: 1} }, (*Endpoint).section)
	read := all.read
	all.read = func(v *draft, n *Tree, p path) {
		read(v, n, p)
		seen := map[string]int{}
		for i := range b.Endpoints {
			at := &b.Endpoints[i]
			if at.Address == "" {
				continue
			}
			if line, twice := seen[at.Address]; twice {
				v.failAt(v.places[&at.Address], "%s is given twice, first on line %d; keep one, and give it a weight", v.quote(&at.Address, at.Address), line)
			}
			seen[at.Address] = at.Position.Line
		}
	}
	return all
}

// section accepts an address as a short form of a mapping.
func (e *Endpoint) section() section {
	return section{object: e, position: &e.Position, short: endpointAddress.at(&e.Address), usual: true, keys: endpointKeys}
}

var endpointKeys []key

func init() { // functions of the table use the table
	endpointKeys = []key{
		{"address", lazily(func(e *Endpoint) any { return &e.Address }, func(e *Endpoint) value { return endpointAddress.at(&e.Address).required(`"10.0.0.1:8080"`) }), "An IP address or a name, and a port; or unix:/path."},
		{"node", lazily(func(e *Endpoint) any { return &e.Node }, func(e *Endpoint) value { return text(&e.Node) }), "The node that the endpoint runs on. weir compares it with the top level's node."},
		{"zone", lazily(func(e *Endpoint) any { return &e.Zone }, func(e *Endpoint) value { return text(&e.Zone) }), "The zone of the endpoint. weir compares it with the top level's zone."},
		{"weight", lazily(nil, func(e *Endpoint) value { return number(&e.Weight, 1, 1000) }), "The endpoint's share of the traffic, relative to the others."},
	}
}

var endpointAddress = kind[string]{what: `an endpoint such as "10.0.0.1:8080"`, parse: parseEndpoint, format: same[string], pattern: socketPattern + "|" + withPort}

// inherit means the backend's send_proxy, which is known when the whole backend is decoded.
const inherit = -1

// proxyVersions are the words for the versions of PROXY headers, by their number.
var proxyVersions = []string{"none", "v1", "v2"}

var proxyVersion = kind[int]{what: "one of none, v1, v2", words: proxyVersions,
	parse: func(s string) (int, error) {
		if i := slices.Index(proxyVersions, s); i >= 0 {
			return i, nil
		}
		return 0, notOneOf(s, proxyVersions)
	},
	format: func(i int) string {
		if i == inherit {
			return ""
		}
		return proxyVersions[i]
	},
}

func newHealthCheck() *HealthCheck {
	return &HealthCheck{Interval: 5 * time.Second, Timeout: 2 * time.Second, Rise: 2, Fall: 3, SendProxy: inherit}
}

func (h *HealthCheck) section() section {
	tcp := mapping(func() section { return section{} })
	connect := tcp.read
	tcp.read = func(v *draft, n *Tree, p path) {
		h.TCP = true
		connect(v, n, p)
	}
	return section{object: h, check: h.checkKeys, rules: healthCheckRules, keys: []key{
		{"http", optional(&h.HTTP, newHTTPCheck, (*HTTPCheck).section), "An HTTP GET, with the backend's protocol."},
		{"grpc", optional(&h.GRPC, func() *GRPCCheck { return &GRPCCheck{} }, (*GRPCCheck).section), "A call of grpc.health.v1.Health/Check, which must answer SERVING."},
		{"tcp", tcp.shownIf(h.TCP), "The endpoint must accept the connection. Write {}."},
		{"interval", duration(&h.Interval, 100*time.Millisecond, time.Hour), "Time between two checks of an endpoint."},
		{"timeout", duration(&h.Timeout, 10*time.Millisecond, 5*time.Minute).byDefault("2s, at most interval"), "Maximum duration of one check. Not longer than interval."},
		{"rise", number(&h.Rise, 1, 100), "Consecutive successful checks before a failed endpoint is considered up (ready) again."},
		{"fall", number(&h.Fall, 1, 100), "Consecutive failed checks before an endpoint is considered down (not ready)."},
		{"port", number(&h.Port, 1, 65535).shownIf(h.Port != 0).byDefault("the endpoint's"), "Another port for health checks."},
		{"send_proxy", proxyVersion.at(&h.SendProxy).byDefault("the backend's"), "weir sends a PROXY header of this version, without addresses, at the start of each check."},
	}}
}

func (h *HealthCheck) checkKeys(v *draft, there keySet, n *Tree, p path) {
	kinds := 0
	for _, kind := range []string{"http", "grpc", "tcp"} {
		if there.has(kind) {
			kinds++
		}
	}
	switch {
	case n.Shape != ShapeMapping: // already reported
	case kinds > 1:
		v.fail(n, p, "has more than one of http, grpc and tcp; keep one, an http or grpc check opens the connection as well")
	case kinds == 0:
		v.fail(n, p, `does not say what to check; write "http: {path: /healthz}", "grpc: {}" or "tcp: {}"`)
	}
	if h.Timeout > h.Interval {
		if v.given(&h.Timeout) {
			v.failAt(v.places[&h.Timeout], "is longer than interval (%s); one check has to end before the next begins", short(h.Interval))
		}
		h.Timeout = h.Interval
	}
}

func newHTTPCheck() *HTTPCheck { return &HTTPCheck{Path: "/", StatusMin: 200, StatusMax: 399} }

func (h *HTTPCheck) section() section {
	return section{object: h, keys: []key{
		{"path", checkPath.at(&h.Path), "The path of the request."},
		{"host", hostField.at(&h.Host).byDefault("the endpoint's address"), "The Host header of the request."},
		{"status", h.status(), "The status code or range that counts as healthy, such as 204 or 200-399."},
	}}
}

func (g *GRPCCheck) section() section {
	return section{object: g, keys: []key{
		{"service", grpcService.at(&g.Service).byDefault("the whole server"), "The service name in the health request."},
	}}
}

var (
	checkPath   = kind[string]{what: "a path such as /healthz", parse: parseCheckPath, format: same[string], pattern: `/[!-"$-~]*`}
	grpcService = kind[string]{what: "a gRPC service", parse: parseGRPCService, format: same[string], pattern: `[!-~]{1,255}`}
	serverName  = kind[string]{what: "a host", parse: parseServerName, format: same[string], pattern: namePattern}
)

func parseCheckPath(s string) (string, error) {
	if !strings.HasPrefix(s, "/") || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > 0x7e || r == '#' }) {
		return "", fmt.Errorf(`is not a path; write one such as "/healthz", in ASCII and without spaces`)
	}
	return s, nil
}

func parseGRPCService(s string) (string, error) {
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > 0x7e }) || len(s) > 255 {
		return "", fmt.Errorf(`is not the name of a service; write one such as "shop.v1.Orders", or "" for the server as a whole`)
	}
	return s, nil
}

// status is a status, or a range of them.
func (h *HTTPCheck) status() value {
	return value{
		read: func(v *draft, n *Tree, p path) {
			s, ok := v.scalar(&h.StatusMin, n, p, `a status or a range such as "200-399"`, ShapeText, ShapeInteger)
			if !ok {
				return
			}
			from, to, isRange := strings.Cut(s, "-")
			if !isRange {
				to = from
			}
			lo, errLo := strconv.Atoi(from)
			hi, errHi := strconv.Atoi(to)
			if errLo != nil || errHi != nil || lo < 200 || hi > 599 || lo > hi {
				v.fail(n, p, `%s is not a status or a range from 200 to 599; write one such as "204" or "200-399"`, v.quoteNode(n))
				return
			}
			h.StatusMin, h.StatusMax = lo, hi
		},
		print: func(*shower) *Tree { return textTree(fmt.Sprintf("%d-%d", h.StatusMin, h.StatusMax)) },
		schema: func() *schema {
			return anyOf(textLike("a status such as 204 or 200-399", `[2-5][0-9]{2}(-[2-5][0-9]{2})?`, nil), &schema{Type: "integer", Minimum: 200, Maximum: 599})
		},
	}
}

func (e *Ejection) section() section {
	byShare := e.Share > 0
	return section{object: e, rules: ejectionRules, check: e.check, keys: []key{
		{"failures", number(&e.Failures, 0, 1000), "Consecutive failures (connection refused, reset or timed out) before an endpoint is ejected; 0 turns this off."},
		{"for", duration(&e.For, 100*time.Millisecond, time.Hour), "How long an endpoint stays ejected."},
		{"share", share(&e.Share).shownIf(byShare), "Share of failed requests at which an endpoint is ejected, unless more than half of the backend's endpoints would be out; 0 turns this off."},
		{"statuses", list(&e.Statuses, errorStatus), "Statuses of responses that count as failures too, from 400 to 599, or ranges of them. They eject no endpoint if more than half of the backend's endpoints would be out."},
		{"minimum", number(&e.Minimum, 1, 1_000_000).shownIf(byShare), "Minimum number of requests to an endpoint within the time of within, below which share does not count. Only with share."},
		{"within", duration(&e.Within, time.Second, 10*time.Minute).shownIf(byShare), "The time in which share counts the requests to an endpoint. Only with share."},
	}}
}

// check reports keys that have no effect.
func (e *Ejection) check(v *draft, there keySet, n *Tree, p path) {
	for _, key := range []string{"minimum", "within"} {
		if there.has(key) && !there.has("share") {
			v.fail(n, p, "%s has no effect without share; give share as well, such as 0.5", key)
		}
	}
	if there.has("statuses") && there.has("failures") && e.Failures == 0 && !there.has("share") {
		v.fail(n, p, "statuses have no effect with failures 0 and no share; take failures out, or give share as well, such as 0.5")
	}
}

func (q *Queue) section() section {
	return section{object: q, keys: []key{
		{"size", number(&q.Size, 0, 1_000_000), "Maximum length of the queue; further requests get 503. With 0 there is no queue."},
		{"timeout", duration(&q.Timeout, time.Millisecond, 10*time.Minute), "How long a request waits in the queue before it gets 503."},
	}}
}

func (t *BackendTLS) section() section {
	min, max, suites, sha1 := t.offer().keys()
	return section{object: t, rules: backendTLSRules, keys: []key{
		{"server_name", serverName.at(&t.ServerName).byDefault("the host of the endpoint's address"), "The SNI that weir sends, and the name that the endpoint's certificate must have."},
		{"ca", text(&t.CAFile).byDefault("the system's CAs"), "PEM file of CA certificates that verify the endpoint's certificate."},
		{"cert", text(&t.CertFile), "File with the client certificate that weir sends. Needs key."},
		{"key", text(&t.KeyFile), "File with the private key of cert."},
		{"alpn", list(&t.ALPN, protocolName.at), "The protocols that weir offers to the endpoint by ALPN, the preferred one first. Only with protocol tcp."},
		{"insecure_skip_verify", truth(&t.InsecureSkipVerify), "Accepts any certificate. An attacker who can answer in place of the endpoint can then read everything."},
		{"min_version", min, "The oldest TLS version that weir offers to the endpoint."},
		{"max_version", max, "The newest TLS version that weir offers. HTTP/2 needs 1.2 or later."},
		{"cipher_suites", suites, "The suites that weir offers for TLS 1.0 to 1.2, by their IANA names."},
		{"sha1_signatures", sha1, "Accepts endpoints that sign their key exchange only with SHA-1 in TLS 1.2. Only if the versions include TLS 1.2. While a backend has this key, weir accepts such signatures from all backends in TLS 1.2, and every policy with client_auth needs min_version 1.3 or sha1_signatures itself."},
	}, check: func(v *draft, there keySet, n *Tree, p path) {
		if there.has("cert") || there.has("key") {
			v.require(there, n, p, "cert", "tls/weir.crt")
			v.require(there, n, p, "key", "tls/weir.key")
		}
	}}
}

func parseServerName(s string) (string, error) {
	if strings.HasPrefix(s, "*") {
		return "", fmt.Errorf("is not a single name; write a name that the endpoint's certificate has")
	}
	return parseHost(s)
}

func (t *BackendTimeouts) section() section {
	return section{object: t, check: boundSilence(&t.StreamIdle), keys: []key{
		{"connect", duration(&t.Connect, 10*time.Millisecond, 5*time.Minute), "For the TCP connection, the PROXY header and the TLS handshake together."},
		{"response_head", duration(&t.ResponseHead, 10*time.Millisecond, day), "From the end of the request to the end of the response head."},
		{"body_idle", duration(&t.BodyIdle, time.Second, day), "How long weir waits for more of a body, in either direction."},
		{"stream_idle", duration(&t.StreamIdle, time.Second, 30*day).shownIf(t.StreamIdle != 0).byDefault("body_idle if it is set, else 1h"), "How long a response of unknown length may be silent, such as server-sent events or a gRPC call. Bytes in either direction and HTTP/2 PINGs of a peer start it anew."},
		{"keep_alive", duration(&t.KeepAlive, time.Second, day), "How long weir keeps an idle connection. Set it shorter than the endpoint's own idle timeout."},
	}}
}

func (r *Retries) section() section {
	return section{object: r, keys: []key{
		{"attempts", number(&r.Attempts, 1, 10), "Maximum number of attempts per request or tunnel, the first included; 1 turns retries off."},
		{"share", share(&r.Share), "Retry budget: the maximum share of a backend's traffic that may be retries, besides a few that are always allowed."},
	}}
}
