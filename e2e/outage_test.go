package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// linesWith counts the lines of weir's own log that contain all words.
func (w *weir) linesWith(words ...string) (n int) {
lines:
	for line := range strings.Lines(w.log.String()) {
		for _, word := range words {
			if !strings.Contains(line, word) {
				continue lines
			}
		}
		n++
	}
	return n
}

// When a whole backend fails, weir writes one warning, and one line when it recovers.
// Metrics show the outage without active checks, and also if a name does not resolve.
func TestOutageOfABackend(t *testing.T) {
	t.Parallel()
	app := newWebBackend(t, "app")
	w := newWeir(t)
	w.address["app"] = app.address
	w.start(`
listeners: {web: {address: '@web', protocol: http}}
routes:
  - {listeners: [web], backend: app}
  - {listeners: [web], hosts: [named.example], backend: named}
backends:
  app: {endpoints: ['@app']}
  named: {endpoints: ['no-such-name.invalid:80']}
`)
	ask := func(status int) {
		t.Helper()
		if got, _, err := w.get("web", "/"); got != status || err != nil {
			t.Errorf("status %d, %v; want %d", got, err, status)
		}
	}
	ask(200)
	w.wantMetric(1, "weir_backend_endpoints_ready", "backend", "app")
	w.wantMetric(0, "weir_backend_endpoints_ready", "backend", "named")
	w.wantMetric(0, "weir_backend_queue_depth", "backend", "app")
	app.server.Close()
	for range 20 {
		ask(502)
	}
	w.wantMetric(0, "weir_backend_endpoints_ready", "backend", "app")
	w.wantMetric(0, "weir_backend_endpoint_up", "backend", "app")
	requests, failures := w.metric("weir_backend_endpoint_requests_total", "backend", "app"), w.metric("weir_backend_endpoint_failures_total", "backend", "app")
	if failures < 20 || requests != failures+1 { // weir also counts retries as requests
		t.Errorf("%v attempts, %v failed; want 20 or more that failed, and one that did not", requests, failures)
	}
	w.wantMetric(20, "weir_http_generated_responses_total", "backend", "app", "reason", "connect")
	app.open(t)
	ask(200)
	w.wantMetric(1, "weir_backend_endpoints_ready", "backend", "app")
	const down, up = `"a backend has no working endpoint"`, `"a backend has a working endpoint again"`
	eventually(t, "the log tells of the outages", func() error {
		if n := w.linesWith(down, `"named"`, "no-such-name.invalid"); n != 1 {
			return fmt.Errorf("%d lines tell of the name that does not resolve:\n%s", n, w.log.String())
		}
		return nil
	})
	if d, u := w.linesWith(down, `"app"`, `"warn"`, "connection refused"), w.linesWith(up, `"app"`); d != 1 || u != 1 {
		t.Errorf("%d lines tell of the outage and %d of its end, want one each:\n%s", d, u, w.log.String())
	}
}
