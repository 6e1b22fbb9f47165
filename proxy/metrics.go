package proxy

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts exchanges and tunnels. It outlives tables: a route that stays
// keeps its counts through a reload.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	bytes    *prometheus.CounterVec
	tunnels  *prometheus.GaugeVec
	ended    *prometheus.CounterVec
	http2    *prometheus.CounterVec
	slow     *prometheus.CounterVec

	mu        sync.Mutex
	routes    map[routeKey]*routeMetrics
	listeners map[string]bool
	names     map[string]bool     // of routes
	reasons   map[string][]string // for which tunnels of a route ended
	none      *routeMetrics       // of requests that no route matched
}

type routeKey struct{ route, backend string }

// routeMetrics are the handles of one route, resolved when a table is built.
type routeMetrics struct {
	key      routeKey
	m        *Metrics
	codes    [6]atomic.Pointer[hundred] // by the first digit
	texts    []string                   // the codes there are series of; guarded by m.mu
	duration prometheus.Observer
	in, out  prometheus.Counter
	tunnels  prometheus.Gauge
	retired  bool // its series are gone; guarded by m.mu
}

// NewMetrics registers the metrics of exchanges and tunnels.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_http_requests_total",
			Help: "HTTP exchanges by route, backend and status code; both are empty where no route matched, the code is 499 where the client was gone before the response."},
			[]string{"route", "backend", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "weir_http_request_duration_seconds",
			Help:    "Time from a request's head to the end of its response.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}},
			[]string{"route", "backend"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_bytes_total",
			Help: "Bytes from (in) and to (out) clients by route, as on the wire."}, []string{"route", "direction"}),
		tunnels: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weir_tunnels_open",
			Help: "Tunnels open by route."}, []string{"route"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_tunnels_ended_total",
			Help: "Tunnels that ended, and connections that came to none, by route and reason."}, []string{"route", "reason"}),
		http2: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_http2_errors_total",
			Help: "Connections and streams of clients that were ended for a fault of theirs, by listener and reason."}, []string{"listener", "scope", "reason"}),
		slow: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_http_slow_clients_total",
			Help: "Exchanges that were ended because the client was too slow, by what it was slow with: slow_head, slow_body or slow_read."}, []string{"listener", "reason"}),
		routes: make(map[routeKey]*routeMetrics), reasons: make(map[string][]string),
	}
	reg.MustRegister(m.requests, m.duration, m.bytes, m.tunnels, m.ended, m.http2, m.slow)
	m.none = m.route("", "")
	return m
}

// hundred are the counters of the codes with one first digit. Most routes see
// few of them, and there are many routes.
type hundred [100]atomic.Pointer[prometheus.Counter]

func (m *Metrics) route(route, backend string) *routeMetrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := routeKey{route, backend}
	r := m.routes[key]
	if r == nil {
		r = &routeMetrics{key: key, m: m,
			duration: m.duration.WithLabelValues(route, backend),
			in:       m.bytes.WithLabelValues(route, "in"),
			out:      m.bytes.WithLabelValues(route, "out"),
			tunnels:  m.tunnels.WithLabelValues(route),
		}
		m.routes[key] = r
	}
	return r
}

// retain drops the series of routes that t does not have.
func (m *Metrics) retain(t *Table) {
	keep := map[routeKey]bool{{}: true}
	names := map[string]bool{"": true}
	for _, e := range t.edges {
		e.each(func(r *Route) {
			keep[r.metrics.key] = true
			names[r.name] = true
		})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.listeners {
		if t.edges[name] == nil {
			m.http2.DeletePartialMatch(prometheus.Labels{"listener": name})
			m.slow.DeletePartialMatch(prometheus.Labels{"listener": name})
		}
	}
	for name, reasons := range m.reasons {
		if !names[name] {
			for _, reason := range reasons {
				m.ended.DeleteLabelValues(name, reason)
			}
			delete(m.reasons, name)
		}
	}
	m.names = names
	m.listeners = make(map[string]bool)
	for name := range t.edges {
		m.listeners[name] = true
	}
	for key, r := range m.routes {
		if keep[key] {
			continue
		}
		r.retired = true
		delete(m.routes, key)
		for _, code := range r.texts {
			m.requests.DeleteLabelValues(key.route, key.backend, code)
		}
		m.duration.DeleteLabelValues(key.route, key.backend)
		if !names[key.route] {
			m.bytes.DeleteLabelValues(key.route, "in")
			m.bytes.DeleteLabelValues(key.route, "out")
			m.tunnels.DeleteLabelValues(key.route)
		}
	}
}

// each calls f with every route of the listener, some more than once.
func (e *edge) each(f func(*Route)) {
	host := func(h *host) {
		if h.passthrough != nil {
			f(h.passthrough)
		}
		for i := range h.paths {
			f(h.paths[i].route)
		}
	}
	for _, r := range []*Route{e.raw, e.ssh} {
		if r != nil {
			f(r)
		}
	}
	for _, h := range e.hosts {
		host(h)
	}
	for _, h := range e.wildcards {
		host(h)
	}
	if e.any != nil {
		host(e.any)
	}
}

// tunnelEnded counts a tunnel, or what came to none.
func (m *Metrics) tunnelEnded(route, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[route] { // else it went, and its series with it
		if !slices.Contains(m.reasons[route], reason) {
			m.reasons[route] = append(m.reasons[route], reason)
		}
		m.ended.WithLabelValues(route, reason).Inc()
	}
}

// http2Error counts a connection or stream that was ended for its client's fault.
func (m *Metrics) http2Error(listener, scope, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listeners[listener] { // else it went, and its series with it
		m.http2.WithLabelValues(listener, scope, reason).Inc()
	}
}

// slowClient counts an exchange whose reason is that its client was too slow.
func (m *Metrics) slowClient(listener, reason string) {
	switch reason {
	case "slow_head", "slow_body", "slow_read":
	default:
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listeners[listener] {
		m.slow.WithLabelValues(listener, reason).Inc()
	}
}

// exchange counts one. A code out of range is an endpoint's invention.
func (r *routeMetrics) exchange(code int, d time.Duration, in, out int64) {
	if code < 0 || code >= len(r.codes)*len(hundred{}) {
		code = 0
	}
	r.counter(code).Inc()
	r.duration.Observe(d.Seconds())
	r.in.Add(float64(in))
	r.out.Add(float64(out))
}

func (r *routeMetrics) counter(code int) prometheus.Counter {
	if h := r.codes[code/len(hundred{})].Load(); h != nil {
		if c := h[code%len(hundred{})].Load(); c != nil {
			return *c
		}
	}
	return r.addCode(code)
}

func (r *routeMetrics) addCode(code int) prometheus.Counter {
	text := strconv.Itoa(code)
	if code == 0 {
		text = "other"
	}
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	var c prometheus.Counter
	if r.retired { // the last exchange of a removed route must not bring its series back
		c = prometheus.NewCounter(prometheus.CounterOpts{Name: "retired"})
	} else {
		c = r.m.requests.WithLabelValues(r.key.route, r.key.backend, text)
		r.texts = append(r.texts, text)
	}
	h := r.codes[code/len(hundred{})].Load()
	if h == nil {
		h = new(hundred)
		r.codes[code/len(hundred{})].Store(h)
	}
	h[code%len(hundred{})].Store(&c)
	return c
}
