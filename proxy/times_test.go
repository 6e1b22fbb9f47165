package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/backend"
)

// histogram returns a histogram by its name and its label values; nil: there is none.
func histogramOf(t testing.TB, reg *prometheus.Registry, name string, labels ...string) *dto.Histogram {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			found := 0
			for _, l := range m.GetLabel() {
				for i := 0; i < len(labels); i += 2 {
					if l.GetName() == labels[i] && l.GetValue() == labels[i+1] {
						found++
					}
				}
			}
			if 2*found == len(labels) {
				return m.GetHistogram()
			}
		}
	}
	return nil
}

// Each part of a request is counted in its own histogram.
func TestTimesOfARequest(t *testing.T) {
	const text = `
listeners: {web: {address: '@0', protocol: tls}}
certificates: [{self_signed: {hosts: [a]}}]
routes: [{listeners: [web], backend: app}, {listeners: [web], paths: [/own], respond: {body: x}}]
backends: {app: {endpoints: ['@app'], max_connections: 1, queue: {size: 5, timeout: 5s}}}
`
	entered, release := make(chan bool, 1), make(chan bool)
	app := newHandler(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			entered <- true
			<-release
		}
	})
	r := newRig(t, text, nil, "@app", app)
	backend.NewMetrics(r.registry, r.set)
	want := func(name string, n uint64, labels ...string) *dto.Histogram {
		t.Helper()
		h := histogramOf(t, r.registry, name, labels...)
		if h.GetSampleCount() != n {
			t.Errorf("%s has counted %d times, not %d", name, h.GetSampleCount(), n)
		}
		return h
	}
	ask := func(path string) *peer {
		c := r.dialTLS("web", "a", nil)
		c.write("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n")
		return c
	}
	a := ask("/slow")
	<-entered
	b := ask("/")
	eventually(t, "the request is in the queue", func() error {
		if n := r.counter("weir_backend_queue_depth", "backend", "app"); n != 1 {
			return fmt.Errorf("%v are", n)
		}
		return nil
	})
	const wait = 20 * time.Millisecond
	time.Sleep(wait) // the time that the histogram must have
	close(release)
	a.response("GET")
	b.response("GET")
	ask("/own").response("GET")
	for range 3 {
		r.record()
	}
	want("weir_http_request_duration_seconds", 2, "backend", "app")
	if h := want("weir_backend_response_head_duration_seconds", 2, "backend", "app"); h.GetSampleSum() < 2*wait.Seconds() {
		t.Errorf("the two heads took %v s", h.GetSampleSum())
	}
	if h := want("weir_backend_queue_duration_seconds", 2, "backend", "app"); h.GetSampleSum() < wait.Seconds() {
		t.Errorf("the wait in the queue took %v s", h.GetSampleSum())
	}
	if n := histogramOf(t, r.registry, "weir_backend_connect_duration_seconds", "backend", "app").GetSampleCount(); n < 1 || n > 2 {
		t.Errorf("%d connects", n)
	}
	want("weir_tls_handshake_duration_seconds", 3, "listener", "web")

	// A removed backend and a removed listener have no histograms.
	r.load(`
listeners: {other: {address: '@0', protocol: http}}
routes: [{listeners: [other], backend: next}]
backends: {next: {endpoints: ['@app']}}
`, nil, "@app", app)
	for _, name := range []string{"weir_backend_response_head_duration_seconds", "weir_backend_queue_duration_seconds", "weir_backend_connect_duration_seconds", "weir_tls_handshake_duration_seconds"} {
		if h := histogramOf(t, r.registry, name); h != nil {
			t.Errorf("%s is still there: %v", name, h)
		}
	}
}

// Backends whose routes share the series of a namespace share the histograms, too.
func TestTimesOfSharedSeries(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	m.SetLimit(config.ObjectMetrics{Series: 1e6, Routes: 1})
	for i := range 3 {
		key := routeKey{routeLabels: routeLabels{route: fmt.Sprintf("ns/a/%d/x", i), namespace: "ns", ingress: fmt.Sprint(i)}, backend: fmt.Sprintf("ns/app-%d", i)}
		s := m.route(key).get()
		s.times.responseHead(time.Second)
		s.times.connected(time.Second)
	}
	for backend, n := range map[string]uint64{"ns/app-0": 1, "ns/app-1": 0, "ns/other": 2} {
		for _, name := range []string{"weir_backend_response_head_duration_seconds", "weir_backend_connect_duration_seconds"} {
			if got := histogramOf(t, reg, name, "backend", backend).GetSampleCount(); got != n {
				t.Errorf("%s of %s: %d, not %d", name, backend, got, n)
			}
		}
	}
	var none *times
	none.responseHead(1)
	none.connected(1)
	none.queued(1)
}

func TestShape(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	c := config.NewMetrics()
	c.Buckets, c.Native = []time.Duration{time.Millisecond, time.Minute}, true
	m.Shape(c)
	m.route(routeKey{routeLabels: routeLabels{route: "a"}, backend: "b"}).exchange(200, time.Second, 0, 0, nil)
	h := histogramOf(t, reg, "weir_http_request_duration_seconds", "route", "a")
	if len(h.GetBucket()) != 2 || h.GetBucket()[1].GetUpperBound() != 60 || h.GetBucket()[1].GetCumulativeCount() != 1 || len(h.GetPositiveSpan()) == 0 {
		t.Errorf("the histogram is %v", h)
	}
	if text := h.String(); strings.Contains(text, "exemplar") {
		t.Error(text)
	}
}
