package accesslog

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/config"
)

// This file has the formats with names of other programs.

// dialect is a set of names for the fields of a line in JSON.
type dialect struct {
	begin   string // what every line has, as JSON
	prefix  string // of the fields without another name
	request string // the key of an HTTP header of the request is this and the header's name
	respond string // the same of the response
	usual   []config.LogField
	names   map[config.LogField][]column // an empty list: a line never has the field
}

// column is a field under another name.
type column struct {
	key   string
	write func(l *line, r *Record) // nil: as the field itself
}

func (d *dialect) steps(name config.LogField) (steps []step) {
	key := func(s string) string { return `,"` + s + `":` }
	if columns, known := d.names[name]; known {
		for _, c := range columns {
			write := c.write
			if write == nil {
				write = fieldNamed(name)
			}
			steps = append(steps, step{key: key(c.key), write: write})
		}
		return steps
	}
	as := d.prefix + string(name)
	if header, ofResponse := name.Header(); header != "" {
		before := d.request
		if ofResponse {
			before = d.respond
		}
		if as = before + header; strings.HasSuffix(before, "_") {
			as = strings.ReplaceAll(as, "-", "_")
		}
	}
	return []step{{key: key(as), write: fieldNamed(name)}}
}

// as returns the columns of a field with another name.
func as(key string) []column { return []column{{key: key}} }

// by returns the columns of a field that has another value as well.
func by(key string, write func(l *line, r *Record)) []column { return []column{{key, write}} }

var none = []column{}

var dialects = map[config.LogFormat]dialect{
	config.LogJSON: {request: "request_header_", respond: "response_header_", usual: slices.DeleteFunc(slices.Clone(config.LogFields),
		func(f config.LogField) bool { return f == "client_address" || f == "client_port" })}, // client has both
	config.LogECS: {
		begin:  `"ecs.version":"8.11.0","event.kind":"event","event.dataset":"weir.access"`,
		prefix: "weir.", request: "http.request.headers.", respond: "http.response.headers.",
		names: map[config.LogField][]column{
			"time": as("@timestamp"), "started": as("event.start"), "client": none, "client_address": {{"client.address", nil}, {"client.ip", nil}}, "client_port": as("client.port"),
			"sni": as("tls.client.server_name"), "tls_version": {{"tls.version", versionOf}, {"tls.version_protocol", tlsName}}, "tls_cipher_suite": as("tls.cipher"),
			"tls_resumed": as("tls.resumed"), "tls_client_subject": as("tls.client.subject"),
			"method": as("http.request.method"), "host": {{"url.domain", fieldNamed("host_name")}, {"url.port", fieldNamed("host_port")}},
			"target": {{"url.original", nil}, {"url.path", fieldNamed("path")}, {"url.query", fieldNamed("query")}, {"url.scheme", fieldNamed("scheme")}},
			"path":   as("url.path"), "query": as("url.query"), "scheme": as("url.scheme"), "host_name": as("url.domain"), "host_port": as("url.port"),
			"http_version": as("http.version"), "user_agent": as("user_agent.original"), "referer": as("http.request.referrer"), "request_id": as("http.request.id"), "trace_id": as("trace.id"), "span_id": as("span.id"),
			"user": as("user.name"), "status": as("http.response.status_code"), "reason": as("event.reason"), "error": as("error.message"),
			"duration_seconds": by("event.duration", nanoseconds), "bytes_in": as("http.request.bytes"), "bytes_out": as("http.response.bytes"),
			"body_bytes_out": as("http.response.body.bytes"),
		}},
	config.LogOTel: {
		prefix: "weir.", request: "http.request.header.", respond: "http.response.header.",
		names: map[config.LogField][]column{
			"time": as("timestamp"), "client": none, "client_address": as("client.address"), "client_port": as("client.port"),
			"peer": {{"network.peer.address", peerAddress}, {"network.peer.port", peerPort}},
			"sni":  as("tls.client.server_name"), "tls_version": {{"tls.protocol.version", versionOf}, {"tls.protocol.name", tlsName}}, "tls_cipher_suite": as("tls.cipher"),
			"tls_resumed": as("tls.resumed"), "tls_client_subject": as("tls.client.subject"),
			"route": as("http.route"), "method": as("http.request.method"), "host": {{"server.address", fieldNamed("host_name")}, {"server.port", fieldNamed("host_port")}},
			"target": {{"url.path", fieldNamed("path")}, {"url.query", fieldNamed("query")}, {"url.scheme", fieldNamed("scheme")}},
			"path":   as("url.path"), "query": as("url.query"), "scheme": as("url.scheme"), "host_name": as("server.address"), "host_port": as("server.port"),
			"http_version": {{"network.protocol.name", protocolName}, {"network.protocol.version", nil}}, "user_agent": as("user_agent.original"),
			"trace_id": {{"trace_id", nil}}, "span_id": {{"span_id", nil}},
			"user": as("user.name"), "status": as("http.response.status_code"), "reason": as("error.type"), "error": as("error.message"),
			"duration_seconds": as("http.server.request.duration"), "bytes_in": as("http.request.size"), "bytes_out": as("http.response.size"),
			"body_bytes_out": as("http.response.body.size"),
		}},
	config.LogTraefikJSON: {
		request: "request_", respond: "downstream_", begin: `"level":"info","msg":""`,
		usual: []config.LogField{"started", "duration_seconds", "route", "backend", "endpoint", "client", "client_address", "client_port", "user", "host", "host_name", "host_port",
			"method", "target", "protocol", "scheme", "response_head_seconds", "endpoint_status", "status", "body_bytes_out", "count", "retries",
			"tls_version", "tls_cipher_suite", "tls_client_subject", "trace_id", "span_id", "listener", "time"},
		names: map[config.LogField][]column{
			"started": {{"StartUTC", startUTC}, {"StartLocal", nil}}, "duration_seconds": by("Duration", nanoseconds), "route": as("RouterName"), "backend": as("ServiceName"),
			"endpoint": {{"ServiceURL", endpointURL}, {"ServiceAddr", nil}}, "client": as("ClientAddr"), "client_address": as("ClientHost"), "client_port": by("ClientPort", asText("client_port")),
			"user": as("ClientUsername"), "host": as("RequestAddr"), "host_name": as("RequestHost"), "host_port": by("RequestPort", asText("host_port")), "method": as("RequestMethod"), "target": as("RequestPath"),
			"protocol": as("RequestProtocol"), "scheme": as("RequestScheme"), "response_head_seconds": by("OriginDuration", originDuration), "endpoint_status": as("OriginStatus"),
			"status": as("DownstreamStatus"), "body_bytes_out": as("DownstreamContentSize"), "count": as("RequestCount"), "retries": as("RetryAttempts"),
			"tls_version": by("TLSVersion", versionOf), "tls_cipher_suite": as("TLSCipher"), "tls_client_subject": as("TLSClientSubject"), "listener": as("entryPointName"),
			"trace_id": as("TraceId"), "span_id": as("SpanId"),
			"user_agent": as("request_User-Agent"), "referer": as("request_Referer"), "request_id": as("request_X-Request-Id"),
		}},
}

// otherPeer writes the peer unless it is the client.
func otherPeer(l *line, r *Record) {
	if r.Origin != nil && r.Origin.Peer.IsValid() && r.Origin.Peer != r.ClientAddress() {
		l.address(r.Origin.Peer)
	}
}

// versionOf writes 1.3 for TLS 1.3.
func versionOf(l *line, r *Record) {
	if r.TLS != nil {
		l.text(strings.TrimPrefix(r.TLS.Version, "TLS "))
	}
}

func tlsName(l *line, r *Record) {
	if r.TLS != nil {
		l.word("tls")
	}
}

func protocolName(l *line, r *Record) {
	if r.request() != nil {
		l.word("http")
	}
}

func peerAddress(l *line, r *Record) {
	if r.Origin != nil && r.Origin.Peer.IsValid() {
		l.host(r.Origin.Peer.Addr())
	}
}

func peerPort(l *line, r *Record) {
	if r.Origin != nil && r.Origin.Peer.Port() > 0 {
		l.number(int64(r.Origin.Peer.Port()))
	}
}

func nanoseconds(l *line, r *Record) {
	if r.Kind != "refused" {
		l.number(r.Duration.Nanoseconds())
	}
}

func originDuration(l *line, r *Record) {
	if r.ResponseHead > 0 {
		l.number(r.ResponseHead.Nanoseconds())
	}
}

func startUTC(l *line, r *Record) {
	if !r.Started.IsZero() {
		l.begin()
		l.mark()
		l.b = r.Started.UTC().AppendFormat(l.b, time.RFC3339Nano)
		l.mark()
	}
}

// endpointURL writes the endpoint as Traefik does.
func endpointURL(l *line, r *Record) {
	if r.Endpoint == "" {
		return
	}
	l.begin()
	l.mark()
	scheme := "http://"
	if r.EndpointSecure {
		scheme = "https://"
	}
	l.b = append(append(l.b, scheme...), r.Endpoint...)
	l.mark()
}

// asText writes a number between quotation marks.
func asText(name config.LogField) func(l *line, r *Record) {
	write := fieldNamed(name)
	return func(l *line, r *Record) {
		before := len(l.b)
		if write(l, r); len(l.b) == before {
			return
		}
		at := bytes.LastIndexByte(l.b, ':') + 1
		l.b = append(l.b, '"', '"')
		copy(l.b[at+1:], l.b[at:len(l.b)-2])
		l.b[at] = '"'
	}
}

// presets are the formats of other programs. An element is literal text, the name of a field, or
// a function that writes a value.
var presets = map[config.LogFormat][]any{
	config.LogCLF:   {client, " - ", user, " [", timeLocal, `] "`, requestLine, `" `, status, " ", body},
	config.LogNginx: {client, " - ", user, " [", timeLocal, `] "`, requestLine, `" `, status, " ", body, ` "`, referer, `" "`, agent, `"`},
	config.LogIngressNginx: {client, " - ", user, " [", timeLocal, `] "`, requestLine, `" `, status, " ", body, ` "`, referer, `" "`, agent, `" `,
		config.LogField("bytes_in"), " ", config.LogField("request_time"), " [", config.LogField("backend"), "] [] ", config.LogField("endpoint"), " ", config.LogField("endpoint_body_bytes"), " ", config.LogField("endpoint_time"), " ",
		config.LogField("endpoint_status"), " ", config.LogField("request_id")},
	config.LogTraefik: {client, " - ", user, " [", timeLocal, `] "`, requestLine, `" `, status, " ", body, ` "`, referer, `" "`, agent, `" `,
		config.LogField("count"), ` "`, config.LogField("route"), `" "`, endpointURL, `" `, config.LogField("duration_ms"), "ms"},
}

const (
	client      = config.LogField("client_address")
	user        = config.LogField("user")
	timeLocal   = config.LogField("time_local")
	requestLine = config.LogField("request_line")
	status      = config.LogField("status")
	body        = config.LogField("body_bytes_out")
	referer     = config.LogField("referer")
	agent       = config.LogField("user_agent")
)

// presetSteps compiles a preset.
func presetSteps(parts []any) (steps []step) {
	quoted := false
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			steps = append(steps, step{text: p})
			quoted = quoted != oddQuotes(p)
		case config.LogField:
			steps = append(steps, step{quoted: quoted, write: fieldNamed(p)})
		case func(*line, *Record):
			steps = append(steps, step{quoted: quoted, write: p})
		}
	}
	return steps
}

// oddQuotes reports whether the text begins or ends a quotation.
func oddQuotes(text string) bool { return strings.Count(text, `"`)%2 == 1 }
