package config_test

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
)

func TestReceiversOfSpans(t *testing.T) {
	f := func(url, want string, wantGRPC bool) {
		t.Helper()
		o := config.OTLP{URL: url}
		if got, grpc := o.Requests(); got != want || grpc != wantGRPC {
			t.Errorf("%s: the requests go to %s, gRPC %t", url, got, grpc)
		}
	}
	f("http://a:4318", "http://a:4318/v1/traces", false)
	f("https://a/", "https://a/v1/traces", false)
	f("https://a/otlp/x", "https://a/otlp/x", false)
	f("grpc://a:4317", "http://a:4317/opentelemetry.proto.collector.trace.v1.TraceService/Export", true)
	f("grpcs://a:4317/", "https://a:4317/opentelemetry.proto.collector.trace.v1.TraceService/Export", true)
}

// The values of HTTP headers for the receiver are secrets.
func TestTraceSecrets(t *testing.T) {
	c := mustParse(t, "listeners: {web: {address: ':80', protocol: http}}\ntraces: {otlp: {url: 'http://a:4318', headers: {X-Token: secret-text, Authorization: secret-too}}}\n")
	h := c.Traces.OTLP.Headers
	if len(h) != 2 || h[0].Name != "Authorization" || string(h[1].Value) != "secret-text" {
		t.Errorf("the headers are %q", h)
	}
	if shown := string(file.Effective(c)); strings.Contains(shown, "secret-") || !strings.Contains(shown, "X-Token") {
		t.Errorf("the configuration is shown as %s", shown)
	}
}
