package config

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/weirproxy/weir/proxy/message"
)

// Traces are traces of requests, by the conventions of OpenTelemetry.
type Traces struct {
	OTLP *OTLP
	// Sample is the share of requests that weir traces, from 0 to 1. Senders in trust_forwarded
	// decide for their own requests.
	Sample float64
	// Service is the name of weir in traces (service.name).
	Service string
}

// OTLP is a receiver of spans.
type OTLP struct {
	// URL is http or https for OTLP over HTTP, and grpc or grpcs for OTLP over gRPC.
	URL     string
	Headers []SecretHeader // in alphabetical order
	CAFile  string         // empty: the CAs of the system
	CAPool  []byte         // the content of CAFile
}

// SecretHeader is an HTTP header whose value is a secret.
type SecretHeader struct {
	Name  string
	Value Secret
}

// NewTraces returns the defaults of traces.
func NewTraces() *Traces { return &Traces{Sample: 0.01, Service: "weir"} }

func (t *Traces) section() section {
	return section{object: t, keys: []key{
		{"otlp", optional(&t.OTLP, func() *OTLP { return &OTLP{} }, (*OTLP).section).required(`"otlp: {url: 'http://collector.example.org:4318'}"`), "The receiver of the spans, such as an OpenTelemetry Collector."},
		{"sample", share(&t.Sample), "The share of requests that weir traces. Senders in trust_forwarded decide for their own requests, by the sampled flag of traceparent."},
		{"service", text(&t.Service), "The name of weir in traces (service.name)."},
	}}
}

func (o *OTLP) section() section {
	return section{object: o, check: o.check, keys: []key{
		{"url", otlpURLValue(&o.URL).required("http://collector.example.org:4318"), "http:// or https:// for OTLP over HTTP; without a path, weir uses /v1/traces. grpc:// or grpcs:// for OTLP over gRPC."},
		{"headers", secretHeaderValues(&o.Headers), "HTTP headers of the requests to the receiver, such as Authorization. Take secrets from the environment."},
		{"ca", text(&o.CAFile).byDefault("the CAs of the system"), "A PEM file of the CA certificates that verify the receiver. Only with https:// and grpcs://."},
	}}
}

func (o *OTLP) check(v *draft, there keySet, _ *Tree, _ path) {
	if there.has("ca") && !strings.HasPrefix(o.URL, "https:") && !strings.HasPrefix(o.URL, "grpcs:") {
		v.failAt(v.places[&o.CAFile], "has no effect without TLS; write https:// or grpcs:// in url, or take it out")
	}
}

// otlpURL is the URL of a receiver.
var otlpURL = kind[string]{what: "a URL such as http://collector.example.org:4318", format: same[string], pattern: `(https?|grpcs?)://[^#?@]+`,
	parse: func(s string) (string, error) {
		u, err := url.Parse(s)
		switch {
		case err != nil || u.Hostname() == "" || !slices.Contains([]string{"http", "https", "grpc", "grpcs"}, u.Scheme):
			return "", errors.New(`is not the URL of a receiver; write one such as "http://collector.example.org:4318" or "grpc://collector.example.org:4317"`)
		case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(s, "#"):
			return "", errors.New("has a query or a fragment; take it out")
		case strings.HasPrefix(u.Scheme, "grpc") && strings.Trim(u.Path, "/") != "":
			return "", errors.New("has a path, which gRPC does not have; take it out")
		}
		return s, nil
	}}

// otlpURLValue is the value of a key with the URL of a receiver. Its error does not show a URL with a
// password.
func otlpURLValue(dst *string) value {
	x := otlpURL.at(dst)
	read := x.read
	x.read = func(v *draft, n *Tree, p path) {
		if strings.Contains(n.Text, "@") {
			v.mark(dst, n, p)
			v.fail(n, p, "contains a user name or password, which logs would show; put it into headers, as Authorization")
			return
		}
		read(v, n, p)
	}
	return x
}

// otlpHeader is the name of an HTTP header that a configuration may set.
var otlpHeader = kind[string]{what: "the name of an HTTP header", format: same[string], pattern: token,
	parse: func(s string) (string, error) {
		if !message.ValidToken([]byte(s)) {
			return "", errors.New("is not the name of an HTTP header; write one such as Authorization")
		}
		if slices.Contains([]string{"host", "content-type", "content-length", "content-encoding", "transfer-encoding", "connection", "te", "user-agent"}, strings.ToLower(s)) {
			return "", errors.New("is written by weir itself; take it out")
		}
		return s, nil
	}}

// secretHeaderValues is the value of a key with a mapping of names of HTTP headers to secrets.
func secretHeaderValues(dst *[]SecretHeader) value {
	valid := func(s string) (string, error) {
		if strings.TrimSpace(s) != s {
			return "", errors.New("begins or ends with a space, which HTTP headers lose; take it out")
		}
		return s, nil
	}
	return value{
		read: func(v *draft, n *Tree, p path) {
			v.mark(dst, n, p)
			first := map[string]int{}
			v.mapping(n, p, func(key, value *Tree) {
				var one SecretHeader
				var err error
				if one.Name, err = otlpHeader.parse(key.Text); err != nil {
					v.fail(key, p, "%q %v", shorten(key.Text), err)
					return
				}
				lower := strings.ToLower(one.Name)
				if line, twice := first[lower]; twice {
					v.fail(key, p, "%q is given twice, first on line %d; the case of letters does not matter; keep one", one.Name, line)
					return
				}
				first[lower] = key.Line
				secret(&one.Value, valid, "").read(v, value, p.key(one.Name))
				*dst = append(*dst, one)
			})
			if n.Shape == ShapeMapping && len(n.Parts) == 0 {
				v.fail(n, p, "is empty; give it an entry, or take the key out")
			}
			slices.SortFunc(*dst, func(a, b SecretHeader) int { return strings.Compare(a.Name, b.Name) })
		},
		print: func(s *shower) *Tree {
			all := &Tree{Shape: ShapeMapping}
			for _, one := range *dst {
				all.put(one.Name, textTree(s.key(one.Value)))
			}
			return all.unlessEmpty()
		},
		schema: func() *schema {
			return &schema{Type: "object", MinProperties: 1, PropertyNames: &schema{Pattern: "^(" + otlpHeader.pattern + ")$"},
				AdditionalProperties: secret(new(Secret), valid, "").schema()}
		},
	}
}

// checkTraces reads the CA of the receiver.
func (v *draft) checkTraces(resolve func(files ...*string)) {
	if v.traces == nil || v.traces.OTLP == nil || v.traces.OTLP.CAFile == "" {
		return
	}
	o := v.traces.OTLP
	resolve(&o.CAFile)
	o.CAPool = v.authorities(&o.CAFile)
}

// Requests returns the URL for requests, with http or https, and whether they are gRPC.
func (o *OTLP) Requests() (to string, grpc bool) {
	scheme, rest, _ := strings.Cut(o.URL, "://")
	switch scheme {
	case "grpc", "grpcs":
		return fmt.Sprintf("http%s://%s/opentelemetry.proto.collector.trace.v1.TraceService/Export", strings.TrimPrefix(scheme, "grpc"), strings.TrimRight(rest, "/")), true
	}
	if !strings.Contains(strings.TrimRight(rest, "/"), "/") {
		return scheme + "://" + strings.TrimRight(rest, "/") + "/v1/traces", false
	}
	return o.URL, false
}
