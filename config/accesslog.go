package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/proxy/message"
)

// AccessLog has a line for each request, tunnel and refused connection.
type AccessLog struct {
	Path   string    // "stdout", "stderr", NoAccessLog, or a file that is reopened on SIGHUP
	Format LogFormat // of the lines
	// Fields are the fields of a line in JSON, in their order. DefaultFields stands for those
	// that a line has by default. Empty: these.
	Fields []LogField
	// Omit are fields that a line does not have.
	Omit   []LogField
	Filter *LogFilter // which records have a line; nil: all that the format has lines for
	// Sample is the share, above 0 and up to 1, of the good requests that have a line. A
	// request is good if its status is below 400 and weir has no reason to report. All other
	// requests, tunnels and refused connections have a line.
	Sample float64
	// Redact names query parameters whose values weir does not log; lower case.
	Redact []string
	// Buffer limits the lines that wait for a slow destination, in bytes.
	Buffer int64
	// MaxLine limits a line, in bytes. Longer values are cut. 0: DefaultMaxLine.
	MaxLine int
}

// DefaultMaxLine is the default of AccessLog.MaxLine.
const DefaultMaxLine = 16 << 10

// NoAccessLog as a path turns the access log off.
const NoAccessLog = "off"

// NewAccessLog returns the access log that an empty section of a file asks for.
func NewAccessLog() *AccessLog {
	return &AccessLog{Path: "stdout", Format: LogJSON, Sample: 1, Buffer: 16 << 20, MaxLine: DefaultMaxLine}
}

// LogFormat is the format of lines: one of the constants, or else a template, a text with fields
// in braces such as "{client_address} {status}".
type LogFormat string

// The formats.
const (
	LogJSON         LogFormat = "json"          // JSON with weir's own names
	LogECS          LogFormat = "ecs"           // JSON with the names of the Elastic Common Schema
	LogOTel         LogFormat = "otel"          // JSON with the names of OpenTelemetry's conventions
	LogTraefikJSON  LogFormat = "traefik-json"  // as Traefik writes it with format: json
	LogCLF          LogFormat = "clf"           // the Common Log Format
	LogNginx        LogFormat = "nginx"         // nginx's format "combined"
	LogIngressNginx LogFormat = "ingress-nginx" // the default of ingress-nginx
	LogTraefik      LogFormat = "traefik"       // as Traefik writes it by default
)

var logFormats = []LogFormat{LogJSON, LogECS, LogOTel, LogTraefikJSON, LogCLF, LogNginx, LogIngressNginx, LogTraefik}

// JSON reports whether the lines are JSON objects, whose fields can be chosen.
func (f LogFormat) JSON() bool {
	return f == LogJSON || f == LogECS || f == LogOTel || f == LogTraefikJSON
}

// IsTemplate reports whether f is a template.
func (f LogFormat) IsTemplate() bool { return strings.Contains(string(f), "{") }

// IsObject reports whether f is a template of JSON objects.
func (f LogFormat) IsObject() bool { return strings.HasPrefix(string(f), "{{") }

// ValidLogTemplate reports whether a configuration may have s as a template.
func ValidLogTemplate(s string) bool {
	format, err := logFormat.parse(s)
	return err == nil && format.IsTemplate() && isOneLine(s)
}

// LogPart is a field, or else literal text.
type LogPart struct {
	Text  string
	Field LogField // empty: Text counts
}

// Parts returns the parts of a template. f has been read from a file, so it is valid.
func (f LogFormat) Parts() []LogPart {
	parts, _ := parseLogTemplate(string(f))
	return parts
}

// LogField is the name of a field of the access log: one of LogFields, or the name of an HTTP
// header behind RequestHeaderField or ResponseHeaderField.
type LogField string

// The beginnings of fields that are HTTP headers. The names of the headers are in lower case.
const (
	RequestHeaderField  = "request_header:"
	ResponseHeaderField = "response_header:"
)

// DefaultFields stands for the fields that a line has by default.
const DefaultFields LogField = "default"

// Header returns the name of the HTTP header that f stands for, in lower case; "": none.
func (f LogField) Header() (name string, response bool) {
	if name, is := strings.CutPrefix(string(f), RequestHeaderField); is {
		return name, false
	}
	if name, is := strings.CutPrefix(string(f), ResponseHeaderField); is {
		return name, true
	}
	return "", false
}

// LogFields are the names of the fields that a line has by default, in their order, and those
// that a configuration may add.
var LogFields, MoreLogFields = []LogField{
	"time", "kind", "listener", "client", "client_address", "client_port", "sender", "peer", "proxy_header", "proxy_local",
	"tlv_authority", "tlv_alpn", "tlv_unique_id", "tlv_netns", "tlv_aws_vpc_endpoint", "tlv_azure_link_id", "tlv_gcp_psc",
	"tlv_ssl", "tlv_ssl_verified", "tlv_ssl_version", "tlv_ssl_cipher", "tlv_ssl_cn",
	"sni", "tls_policy", "tls_offered_versions", "tls_offered_suites", "tls_offered_alpn", "tls_only_sha1", "ja4",
	"tls_version", "tls_cipher_suite", "tls_resumed", "tls_ech", "tls_client_subject",
	"route", "backend", "endpoint", "method", "host", "target", "http_version", "user_agent", "referer", "request_id", "traceparent", "trace_id", "user",
	"status", "reason", "tls_result", "error", "duration_seconds", "connect_seconds", "response_head_seconds", "sample",
	"bytes_in", "bytes_out", "retries", "more",
}, []LogField{
	"span_id", "started", "time_local", "time_unix", "time_iso8601", "local", "scheme", "host_name", "host_port", "path", "query", "protocol", "request_line",
	"endpoint_status", "endpoint_body_bytes", "endpoint_time", "body_bytes_out", "request_time", "duration_ms", "tls_protocol", "count", "tab",
}

func knownLogFields() []string {
	var all []string
	for _, list := range [][]LogField{LogFields, MoreLogFields} {
		for _, f := range list {
			all = append(all, string(f))
		}
	}
	return all
}

// secretHeaders are HTTP headers whose values must not be in a log.
var secretHeaders = []string{"authorization", "cookie", "proxy-authorization", "set-cookie"}

// parseLogField checks the name of a field.
func parseLogField(s string) (LogField, error) {
	for _, begin := range []string{RequestHeaderField, ResponseHeaderField} {
		name, is := strings.CutPrefix(s, begin)
		if !is {
			continue
		}
		name = strings.ToLower(name)
		switch {
		case !message.ValidToken([]byte(name)):
			return "", fmt.Errorf("is not the name of an HTTP header after %q; write one such as %sX-Tenant", begin, begin)
		case slices.Contains(secretHeaders, name):
			return "", errors.New("would write passwords and sessions of users to the log; take it out")
		}
		return LogField(begin + name), nil
	}
	if all := knownLogFields(); !slices.Contains(all, s) {
		if near := nearest(s, all); near != "" {
			return "", fmt.Errorf("is not a field of the access log; did you mean %q?", near)
		}
		return "", errors.New("is not a field of the access log; docs/operations.md lists the fields, and an HTTP header is request_header:NAME or response_header:NAME")
	}
	return LogField(s), nil
}

// logFieldPattern matches every valid name of a field.
var logFieldPattern = strings.Join(knownLogFields(), "|") + "|(request|response)_header:[!#-'*+.0-9A-Z^-z|~-]+"

// logField is a field of a list. byName: the list may have DefaultFields.
func logField(withDefault bool) kind[LogField] {
	k := kind[LogField]{what: "the name of a field of the access log", format: same[LogField], pattern: logFieldPattern, parse: parseLogField}
	if withDefault {
		k.pattern = string(DefaultFields) + "|" + k.pattern
		k.parse = func(s string) (LogField, error) {
			if s == string(DefaultFields) {
				return DefaultFields, nil
			}
			return parseLogField(s)
		}
	}
	return k
}

// formatsElsewhere are names that other programs give to a format.
var formatsElsewhere = map[string]LogFormat{"combined": LogNginx, "common": LogCLF, "upstreaminfo": LogIngressNginx}

// maxLogTemplate limits the length of a template.
const maxLogTemplate = 4096

// logFormat is a word or a template.
var logFormat = kind[LogFormat]{what: "a format such as json, or a template such as \"{client_address} {status}\"", format: same[LogFormat],
	pattern: func() string {
		words := make([]string, len(logFormats))
		for i, f := range logFormats {
			words[i] = string(f)
		}
		return strings.Join(words, "|") + `|([^{\x00-\x1F\x7F]|\{\{|\{(` + logFieldPattern + `)\})*\{(` + logFieldPattern + `)\}([^{\x00-\x1F\x7F]|\{\{|\{(` + logFieldPattern + `)\})*`
	}(),
	parse: func(s string) (LogFormat, error) {
		f := LogFormat(s)
		if slices.Contains(logFormats, f) {
			return f, nil
		}
		if !f.IsTemplate() {
			if here, ok := formatsElsewhere[s]; ok {
				return "", fmt.Errorf("is not known here; did you mean %q?", here)
			}
			words := make([]string, len(logFormats))
			for i, f := range logFormats {
				words[i] = string(f)
			}
			if near := nearest(s, words); near != "" {
				return "", fmt.Errorf("is not known here; did you mean %q?", near)
			}
			return "", fmt.Errorf(`is neither a format (%s) nor a template with fields in braces, such as "{client_address} {status}"`, strings.Join(words, ", "))
		}
		if len(s) > maxLogTemplate {
			return "", fmt.Errorf("is longer than %d bytes; write less", maxLogTemplate)
		}
		parts, err := parseLogTemplate(s)
		if err == nil && !slices.ContainsFunc(parts, func(p LogPart) bool { return p.Field != "" }) {
			err = errors.New("has no field in braces, so all lines would be the same; write fields such as {status}")
		}
		return f, err
	}}

// parseLogTemplate splits a template into its parts. Two opening braces are one literal brace.
func parseLogTemplate(s string) (parts []LogPart, err error) {
	literal := ""
	end := func() {
		if literal != "" {
			parts = append(parts, LogPart{Text: literal})
		}
		literal = ""
	}
	for {
		before, after, found := strings.Cut(s, "{")
		literal += before
		if !found {
			end()
			return parts, nil
		}
		if rest, double := strings.CutPrefix(after, "{"); double {
			literal, s = literal+"{", rest
			continue
		}
		name, rest, closed := strings.Cut(after, "}")
		if !closed {
			return nil, errors.New(`has a "{" without its "}"; write a field such as {status}, or {{ for a brace`)
		}
		field, err := parseLogField(name)
		if err != nil {
			return nil, fmt.Errorf("has {%s}, which %w", shorten(name), err)
		}
		end()
		parts, s = append(parts, LogPart{Field: field}), rest
	}
}

// LogFilter decides which records have a line. A request needs one of the conditions Status,
// MinDuration and Retries, unless all of them are zero. The others have no conditions.
type LogFilter struct {
	Kinds       []LogKind     // empty: all kinds that the format has lines for
	Status      []StatusRange // the status of the response
	MinDuration time.Duration // the request took at least so long
	Retries     bool          // weir made more than one attempt
}

// LogKind is a kind of records.
type LogKind string

var logKind = oneOf[LogKind]("http", "upgrade", "tunnel", "challenge", "refused")

func (a *AccessLog) filterKey() value {
	return optional(&a.Filter, func() *LogFilter { return &LogFilter{} }, func(f *LogFilter) section {
		return section{object: &a.Filter, check: f.check, rules: logFilterRules, keys: []key{
			{"kinds", list(&f.Kinds, logKind.at).byDefault("all"), "The kinds of lines: http, upgrade, tunnel, challenge, refused. The formats clf, nginx, ingress-nginx and traefik have lines for http and upgrade alone."},
			{"status", list(&f.Status, loggedStatus), "Only requests with one of these statuses have a line: a status such as 404, or a range such as 500-599."},
			{"min_duration", duration(&f.MinDuration, time.Millisecond, day).shownIf(f.MinDuration != 0).byDefault("none"), "Only requests that took at least so long have a line. A request that meets one of several conditions has a line."},
			{"retries", truth(&f.Retries).shownIf(f.Retries), "Only requests for which weir made more than one attempt have a line."},
		}}
	})
}

var (
	logFilterRules = []*schema{hasAny("kinds", "status", "min_duration", "retries")}
	accessLogRules = []*schema{when(hasAny("fields", "omit"), mayBe("format", "json", "ecs", "otel", "traefik-json"))}
)

func (f *LogFilter) check(v *draft, there keySet, n *Tree, p path) {
	if len(there) == 0 && n.Shape == ShapeMapping && len(n.Parts) == 0 {
		v.fail(n, p, "is empty; give it a condition such as status: [400-599], or take the key out")
	}
}

// loggedStatus is a status or a range of them. A single status may be a number.
func loggedStatus(dst *StatusRange) value {
	return orInteger(loggedStatuses.at(dst), wholeNumber(100, 999))
}

var loggedStatuses = kind[StatusRange]{what: `a status such as "404" or a range such as "500-599"`, pattern: `[1-9][0-9][0-9](-[1-9][0-9][0-9])?`, format: errorStatuses.format,
	parse: func(s string) (StatusRange, error) {
		first, last, isRange := strings.Cut(s, "-")
		if !isRange {
			last = first
		}
		r := StatusRange{Min: statusNumber(first), Max: statusNumber(last)}
		if r.Min == 0 || r.Max < r.Min {
			return StatusRange{}, errors.New(`is not a status or a range of them; write one such as "404" or "500-599"`)
		}
		return r, nil
	}}

// statusNumber returns a number of three digits, or 0.
func statusNumber(s string) (n int) {
	if len(s) != 3 || s[0] == '0' {
		return 0
	}
	for _, c := range s {
		if c < '0' || c > '9' {
			return 0
		}
		n = n*10 + int(c-'0')
	}
	return n
}

func (a *AccessLog) section() section {
	redact := list(&a.Redact, parameter.at)
	read, describe := redact.read, redact.schema
	redact.read = func(v *draft, n *Tree, p path) {
		if read(v, n, p); len(a.Redact) > maxRedact {
			v.fail(n, p, "has %d names; %d are the most", len(a.Redact), maxRedact)
		}
	}
	redact.schema = func() *schema {
		s := describe()
		s.MaxItems = maxRedact
		return s
	}
	return section{object: a, check: a.check, rules: accessLogRules, keys: []key{
		{"path", text(&a.Path), "The destination of the lines: stdout, stderr, off, or a file in an existing folder. SIGHUP opens the file again. off: no access log."},
		{"format", logFormat.at(&a.Format), "The format of the lines: json, ecs, otel, traefik-json, clf, nginx, ingress-nginx, traefik, or a template with fields in braces such as \"{client_address} {status}\"."},
		{"fields", list(&a.Fields, logField(true).at).byDefault("[default]"), "The fields of a line in JSON, in their order. default stands for the usual ones; request_header:NAME and response_header:NAME are HTTP headers."},
		{"omit", list(&a.Omit, logField(false).at), "Fields that a line in JSON does not have."},
		{"filter", a.filterKey().byDefault("none"), "Which requests and connections have a line."},
		{"sample", a.sample(), "The share of good requests that have a line. A request is good if its status is below 400 and it has no reason. Everything else always has a line."},
		{"redact", redact, "Names of query parameters whose values weir writes as ***, in target and referer."},
		{"buffer", size(&a.Buffer, 1<<20, 1<<30), "Maximum memory of the lines that wait for a slow destination. Further lines are dropped and counted."},
		{"max_line", size(&a.MaxLine, 1<<10, 1<<20), "Maximum length of a line. The longest values of a longer line are cut; such a value ends in ...[cut:N], where N is its whole length in bytes. Lists lose their last elements; N is then the number of all."},
	}}
}

func (a *AccessLog) check(v *draft, there keySet, n *Tree, p path) {
	for _, list := range []struct {
		key string
		dst any
	}{{"fields", &a.Fields}, {"omit", &a.Omit}} {
		if there.has(list.key) && !a.Format.JSON() {
			v.failAt(v.places[list.dst], "only the formats json, ecs, otel and traefik-json have fields to choose; write the fields into format as a template, such as \"{client_address} {status}\"")
		}
	}
}

// sample is a share that is not 0: path turns the access log off.
func (a *AccessLog) sample() value {
	x := share(&a.Sample)
	read, describe := x.read, x.schema
	x.schema = func() *schema {
		s := describe()
		s.Not = &schema{Const: 0}
		return s
	}
	x.read = func(v *draft, n *Tree, p path) {
		if read(v, n, p); a.Sample == 0 {
			v.fail(n, p, "0 would leave no line for good requests, but for all others; write a share such as 0.01, or path: off for no access log")
		}
	}
	return x
}

// Limits of access_log.redact.
const (
	maxRedact    = 64
	maxParameter = 128
)

// parameter is the name of a query parameter.
var parameter = kind[string]{what: "the name of a query parameter", format: same[string], pattern: `[!-~]{1,128}`,
	parse: func(s string) (string, error) {
		if s == "" || len(s) > maxParameter || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("&;=?#%+", r) }) {
			return "", fmt.Errorf("is not the name of a query parameter; write it decoded and without \"=\", such as token, with %d bytes at most", maxParameter)
		}
		return strings.ToLower(s), nil
	},
}
