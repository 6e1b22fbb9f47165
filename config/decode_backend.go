package config

import (
	"crypto/tls"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// NewBackend returns a backend with the defaults of the file, and without endpoints.
func NewBackend(name string) Backend {
	return Backend{
		Name:     name,
		Protocol: ProtocolHTTP, Balance: LeastRequests, ResolveInterval: 30 * time.Second, MaxIdle: 256, HTTP2: true,
		TLS:      BackendTLS{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13},
		Ejection: Ejection{Failures: DefaultEjectionFailures, For: 10 * time.Second},
		Queue:    Queue{Size: 128, Timeout: 5 * time.Second},
		Timeouts: BackendTimeouts{Connect: 5 * time.Second, ResponseHead: time.Minute, BodyIdle: time.Minute, KeepAlive: time.Minute},
		Retries:  Retries{Attempts: 3, Share: 0.2},
	}
}

func (v *draft) backend(name string, key, n *yaml.Node, p path) {
	b := new(Backend)
	*b = NewBackend(name)
	b.Position = v.at(key)
	v.mark(b, key, p)
	v.backends = append(v.backends, b)
	there := v.section(n, p, []field{
		{"protocol", v.backendProtocol(&b.Protocol)},
		{"endpoints", v.endpoints(b)},
		{"resolve_interval", v.duration(&b.ResolveInterval, time.Second, day)},
		{"balance", choice(v.decoder, &b.Balance, LeastRequests, RoundRobin, Hash)},
		{"prefer_local", v.truth(&b.PreferLocal)},
		{"ramp_up", v.duration(&b.RampUp, 0, time.Hour)},
		{"send_proxy", v.sendProxy(&b.SendProxy)},
		{"host", parsed(v.decoder, &b.Host, "a host", parseHostField)},
		{"health_check", v.healthCheck(b)},
		{"ejection", v.ejection(&b.Ejection)},
		{"max_connections", v.number(&b.MaxConnections, 0, maxNumber)},
		{"queue", v.queue(&b.Queue)},
		{"max_idle", v.number(&b.MaxIdle, 0, 100_000)},
		{"http2", v.truth(&b.HTTP2)},
		{"lenient", list(v.decoder, &b.Lenient, v.leniency)},
		{"tls", v.backendTLS(&b.TLS)},
		{"timeouts", v.backendTimeouts(&b.Timeouts)},
		{"retries", v.retries(&b.Retries)},
	}...)
	v.require(there, n, p, "endpoints", `["10.0.0.1:8080"]`)
	b.HTTP2 = b.HTTP2 && b.Protocol == ProtocolHTTPS
	b.Secure = (b.Protocol == ProtocolGRPC || b.Protocol == ProtocolTCP) && there["tls"]
	if b.HealthCheck != nil && b.HealthCheck.SendProxy == inherit {
		b.HealthCheck.SendProxy = b.SendProxy
	}
}

func (d *decoder) backendProtocol(dst *Protocol) setter {
	known := choice(d, dst, ProtocolHTTP, ProtocolHTTPS, ProtocolH2C, ProtocolGRPC, ProtocolTCP)
	return func(n *yaml.Node, p path) {
		d.mark(dst, n, p)
		before := len(d.errs)
		if known(n, p); len(d.errs) != before {
			*dst = "" // unknown: it must not cause other errors
		}
	}
}

// Leniency is a fault of HTTP/1.1 responses that a backend may accept.
type Leniency string

// The faults of HTTP/1.1 responses.
const (
	BareLF            Leniency = "bare_lf"
	ChunkedHTTP10     Leniency = "chunked_http10"
	FoldedLines       Leniency = "folded_lines"
	LengthWithChunked Leniency = "length_with_chunked"
)

func (d *decoder) leniency(dst *Leniency) setter {
	return choice(d, dst, BareLF, ChunkedHTTP10, FoldedLines, LengthWithChunked)
}

func (v *draft) endpoints(b *Backend) setter {
	return func(n *yaml.Node, p path) {
		elements := v.elements(n, p)
		b.Endpoints = make([]Endpoint, len(elements))
		seen := map[string]int{}
		for i, e := range elements {
			at := &b.Endpoints[i]
			v.endpoint(at, e, p.index(i))
			if at.Address == "" {
				continue
			}
			if line, twice := seen[at.Address]; twice {
				v.failAt(v.places[&at.Address], "%s is given twice, first on line %d; keep one, and give it a weight", v.quote(&at.Address, at.Address), line)
			}
			seen[at.Address] = e.Line
		}
	}
}

func (v *draft) endpoint(e *Endpoint, n *yaml.Node, p path) {
	e.Position, e.Weight = v.at(n), 1
	address := parsed(v.decoder, &e.Address, `an endpoint such as "10.0.0.1:8080"`, parseEndpoint)
	if n.Kind != yaml.MappingNode {
		if !v.broken[n] {
			address(n, p)
		}
		return
	}
	there := v.section(n, p, []field{
		{"address", address},
		{"node", v.text(&e.Node)},
		{"zone", v.text(&e.Zone)},
		{"weight", v.number(&e.Weight, 1, 1000)},
	}...)
	v.require(there, n, p, "address", `"10.0.0.1:8080"`)
}

// inherit means the backend's send_proxy, which is known when the whole backend is
// decoded.
const inherit = -1

func (d *decoder) sendProxy(dst *int) setter {
	words := []string{"none", "v1", "v2"}
	return parsed(d, dst, "one of none, v1, v2", func(s string) (int, error) {
		for i, w := range words {
			if w == s {
				return i, nil
			}
		}
		return 0, notOneOf(s, words)
	})
}

func (v *draft) healthCheck(b *Backend) setter {
	return func(n *yaml.Node, p path) {
		h := &HealthCheck{Interval: 5 * time.Second, Timeout: 2 * time.Second, Rise: 2, Fall: 3, SendProxy: inherit}
		v.mark(h, n, p)
		b.HealthCheck = h
		there := v.section(n, p, []field{
			{"http", func(n *yaml.Node, p path) {
				h.HTTP = &HTTPCheck{Path: "/", StatusMin: 200, StatusMax: 399}
				v.section(n, p, []field{
					{"path", parsed(v.decoder, &h.HTTP.Path, "a path such as /healthz", parseCheckPath)},
					{"host", parsed(v.decoder, &h.HTTP.Host, "a host", parseHostField)},
					{"status", v.status(h.HTTP)},
				}...)
			}},
			{"grpc", func(n *yaml.Node, p path) {
				h.GRPC = new(GRPCCheck)
				v.section(n, p, []field{
					{"service", parsed(v.decoder, &h.GRPC.Service, "a gRPC service", parseGRPCService)},
				}...)
			}},
			{"tcp", func(n *yaml.Node, p path) {
				h.TCP = true
				v.section(n, p)
			}},
			{"interval", v.duration(&h.Interval, 100*time.Millisecond, time.Hour)},
			{"timeout", v.duration(&h.Timeout, 10*time.Millisecond, 5*time.Minute)},
			{"rise", v.number(&h.Rise, 1, 100)},
			{"fall", v.number(&h.Fall, 1, 100)},
			{"port", v.number(&h.Port, 1, 65535)},
			{"send_proxy", v.sendProxy(&h.SendProxy)},
		}...)
		kinds := 0
		for _, kind := range []string{"http", "grpc", "tcp"} {
			if there[kind] {
				kinds++
			}
		}
		switch {
		case n.Kind != yaml.MappingNode: // already reported
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
}

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

func (d *decoder) status(h *HTTPCheck) setter {
	return func(n *yaml.Node, p path) {
		s, ok := d.scalar(&h.StatusMin, n, p, `a status or a range such as "200-399"`, "!!str", "!!int")
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
			d.fail(n, p, `%s is not a status or a range from 200 to 599; write one such as "204" or "200-399"`, d.quoteNode(n))
			return
		}
		h.StatusMin, h.StatusMax = lo, hi
	}
}

func (v *draft) ejection(e *Ejection) setter {
	return func(n *yaml.Node, p path) {
		v.section(n, p, []field{
			{"failures", v.number(&e.Failures, 0, 1000)},
			{"for", v.duration(&e.For, 100*time.Millisecond, time.Hour)},
		}...)
	}
}

func (v *draft) queue(q *Queue) setter {
	return func(n *yaml.Node, p path) {
		v.mark(q, n, p)
		v.section(n, p, []field{
			{"size", v.number(&q.Size, 0, 1_000_000)},
			{"timeout", v.duration(&q.Timeout, time.Millisecond, 10*time.Minute)},
		}...)
	}
}

func (v *draft) backendTLS(t *BackendTLS) setter {
	return func(n *yaml.Node, p path) {
		v.mark(t, n, p)
		there := v.section(n, p, append([]field{
			{"server_name", parsed(v.decoder, &t.ServerName, "a host", parseServerName)},
			{"ca", v.text(&t.CAFile)},
			{"cert", v.text(&t.CertFile)},
			{"key", v.text(&t.KeyFile)},
			{"alpn", list(v.decoder, &t.ALPN, v.protocolName)},
			{"insecure_skip_verify", v.truth(&t.InsecureSkipVerify)},
		}, v.offerFields(t.offer())...)...)
		if there["cert"] || there["key"] {
			v.require(there, n, p, "cert", "tls/weir.crt")
			v.require(there, n, p, "key", "tls/weir.key")
		}
	}
}

func parseServerName(s string) (string, error) {
	if strings.HasPrefix(s, "*") {
		return "", fmt.Errorf("is not a single name; write a name that the endpoint's certificate has")
	}
	return parseHost(s)
}

func (v *draft) backendTimeouts(t *BackendTimeouts) setter {
	return func(n *yaml.Node, p path) {
		v.section(n, p, []field{
			{"connect", v.duration(&t.Connect, 10*time.Millisecond, 5*time.Minute)},
			{"response_head", v.duration(&t.ResponseHead, 10*time.Millisecond, day)},
			{"body_idle", v.duration(&t.BodyIdle, time.Second, day)},
			{"keep_alive", v.duration(&t.KeepAlive, time.Second, day)},
		}...)
	}
}

func (v *draft) retries(r *Retries) setter {
	return func(n *yaml.Node, p path) {
		v.section(n, p, []field{
			{"attempts", v.number(&r.Attempts, 1, 10)},
			{"share", v.share(&r.Share)},
		}...)
	}
}
