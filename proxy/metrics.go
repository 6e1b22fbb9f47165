package proxy

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/pause"
	"github.com/weirproxy/weir/proxy/tally"
	"github.com/weirproxy/weir/proxy/trace"
)

// Metrics counts exchanges and tunnels. It outlives tables: after a reload, the counts of a
// remaining route continue.
type Metrics struct {
	requests *prometheus.CounterVec
	histograms
	bytes     *prometheus.CounterVec
	tunnels   *prometheus.GaugeVec
	ended     *prometheus.CounterVec
	http2     *prometheus.CounterVec
	slow      *prometheus.CounterVec
	refusals  *prometheus.CounterVec
	generated *prometheus.CounterVec
	guards    *prometheus.CounterVec
	failures  *prometheus.CounterVec
	pages     *prometheus.CounterVec
	packed    *prometheus.CounterVec
	plain     *prometheus.CounterVec
	mirrored  *prometheus.CounterVec
	retried   *prometheus.CounterVec

	registry prometheus.Registerer

	mu        sync.Mutex
	routes    map[routeKey]*routeMetrics
	listeners map[string]bool
	table     *Table                   // of the last retain; nil: none
	fresh     []*routeMetrics          // made since the last retain
	routesOf  map[string]int           // number of routes in each namespace
	reasons   map[routeLabels][]string // the reasons why tunnels of a route ended
	none      *routeMetrics            // for requests that no route matched
	limit     config.ObjectMetrics
	opened    map[string]int // number of routes of objects with series of their own, by namespace
	openedAll int
	others    map[string]*routeSeries // the series that the other routes of a namespace share
	times     map[string]*times       // by backend
	series    []*routeSeries          // of all routes, in no order; place is the index
	listed    *seriesList             // of series; nil: series has changed
	removed   tally.Counts            // of the routes that were removed
	folded    *prometheus.GaugeVec
}

// routeLabels are the labels that each series of a route has. Only route is set for a route of
// the file: Prometheus does not distinguish an empty label from a missing one.
type routeLabels struct{ route, namespace, ingress, host string }

// with returns the values of the labels, and more values after them.
func (l *routeLabels) with(more ...string) []string {
	return append(append(make([]string, 0, 6), l.route, l.namespace, l.ingress, l.host), more...)
}

// routeKey is a route and its backend.
type routeKey struct {
	routeLabels
	backend string
}

// isLimited reports whether tenants of a cluster choose the number of such routes. Another kind
// of their objects belongs here. The ports of kubernetes.tcp are the operator's.
func (k *routeKey) isLimited() bool { return k.ingress != "" }

// routeMetrics are the metrics of one route. The route's first exchange or tunnel creates its
// series, because there may be many routes, and tenants of a cluster choose their number.
type routeMetrics struct {
	key     routeKey
	m       *Metrics
	series  atomic.Pointer[routeSeries] // nil: weir has counted nothing yet
	own     bool                        // only this route uses series; guarded by m.mu
	folded  bool                        // series is shared with other routes of the namespace; guarded by m.mu
	retired bool                        // the route was removed; guarded by m.mu
	uses    int                         // number of routes of the table that have it; guarded by m.mu
}

// routeSeries has the time series of one route, or of several routes that share them.
type routeSeries struct {
	labels   routeKey
	m        *Metrics
	codes    [6]atomic.Pointer[hundred]          // by the first digit of the code
	texts    []string                            // the codes that have series; guarded by m.mu
	duration atomic.Pointer[prometheus.Observer] // nil: no exchange was counted yet
	times    *times                              // of the backend; nil: the route has none
	in, out  prometheus.Counter
	tunnels  atomic.Pointer[prometheus.Gauge] // nil: there was no tunnel yet
	replies  counters                         // that weir generated
	guards   counters                         // of the requests that guards allowed and refused
	failures counters                         // of the requests on which a guard could not decide
	asked    counters                         // of the requests for error pages
	packed   counters                         // bytes of compressed bodies
	plain    counters                         // of the responses that were not compressed
	copied   counters                         // of the requests for mirrors
	repeated counters                         // of the retries
	gone     bool                             // no scrape shows them any more; guarded by m.mu
	traffic  tally.Series
	place    int // in m.series; guarded by m.mu
}

// The limits of series that do not depend on the configuration.
const (
	// mostCodes limits the status codes in a route's series, because endpoints choose the codes.
	mostCodes = 40
)

// NewMetrics registers the metrics of exchanges and tunnels.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_http_requests_total",
			Help: "HTTP requests by route, backend and status code. Route and backend are empty if no route matched. The code is 499 if the client closed the connection before the response."},
			[]string{"route", "namespace", "ingress", "host", "backend", "code"}),
		registry: reg, histograms: newHistograms(newShape(config.NewMetrics())),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_bytes_total",
			Help: "Bytes from clients (in) and to clients (out) by route: bytes on the wire for HTTP, delivered bytes for tunnels."}, []string{"route", "namespace", "ingress", "host", "direction"}),
		tunnels: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weir_tunnels_open",
			Help: "Open tunnels by route, upgraded connections included."}, []string{"route", "namespace", "ingress", "host"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_tunnels_ended_total",
			Help: "Tunnels that ended, and connections for which no tunnel could be established, by route and reason."}, []string{"route", "namespace", "ingress", "host", "reason"}),
		http2: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_http2_errors_total",
			Help: "HTTP/2 connections and streams that weir ended because of a client error, by listener, scope and reason."}, []string{"listener", "scope", "reason"}),
		slow: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_http_slow_clients_total",
			Help: "Requests ended because the client was too slow, by reason: slow_head (sending the head), slow_body (sending the body) or slow_read (reading the response)."}, []string{"listener", "reason"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_http_refused_total",
			Help: "Requests that weir refused to forward, by listener and reason: loop, connection_auth_shared, connection_auth_http2, proxy_header or tls_on_http."}, []string{"listener", "reason"}),
		generated: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_http_generated_responses_total",
			Help: "Responses that weir generated itself, by route, backend and the reason in the access log. Route and backend are empty if no route matched."}, []string{"route", "namespace", "ingress", "host", "backend", "reason"}),
		mirrored: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_mirrored_requests_total",
			Help: "Copies of the route's requests for mirrors, by the backend of the mirror and result: sent (it answered), failed, dropped (too many copies run, or memory is short) or too_large (the body is larger than 64 KiB)."}, []string{"route", "namespace", "ingress", "host", "backend", "result"}),
		retried: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_retries_total",
			Help: "Retries of the route's requests and tunnels, by backend and reason: connect, closed, refused, timeout or status."}, []string{"route", "namespace", "ingress", "host", "backend", "reason"}),
		pages: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_error_pages_total",
			Help: "Error pages that weir requested for responses of the route, by the backend of the page and result: sent, or failed (then weir sent the original response)."}, []string{"route", "namespace", "ingress", "host", "backend", "result"}),
		guards: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_guard_requests_total",
			Help: "Requests and connections of tunnels that a guard of the route decided on, by guard (the key in the route) and result: allowed, or the reason of the refusal. A body that grows over max_body after its guard was passed is also counted as refused."}, []string{"route", "namespace", "ingress", "host", "guard", "result"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_guard_failures_total",
			Help: "Requests that weir refused because a guard of the route could not decide, by guard (the key in the route) and reason."}, []string{"route", "namespace", "ingress", "host", "guard", "reason"}),
		packed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_http_compressed_bytes_total",
			Help: "Bytes of bodies that weir compressed, by route, encoding (zstd, br or gzip) and direction: in before, out after the compression."}, []string{"route", "namespace", "ingress", "host", "encoding", "direction"}),
		plain: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_http_compression_skipped_total",
			Help: "Responses that weir did not compress although the route has compress, by route, encoding (of the client's choice) and reason: busy (half of the cores compress already) or memory (it is short)."}, []string{"route", "namespace", "ingress", "host", "encoding", "reason"}),
		folded: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weir_metrics_folded_routes",
			Help: "Routes of a namespace in use that share the time series of NAMESPACE/other, because of the limits of kubernetes.metrics."}, []string{"namespace"}),
		routes: make(map[routeKey]*routeMetrics), routesOf: make(map[string]int), reasons: make(map[routeLabels][]string), opened: make(map[string]int), others: make(map[string]*routeSeries), times: make(map[string]*times),
		limit: config.DefaultObjectMetrics,
	}
	reg.MustRegister(m.requests, m.bytes, m.tunnels, m.ended, m.http2, m.slow, m.refusals, m.generated, m.guards, m.packed, m.plain, m.failures, m.pages, m.mirrored, m.retried, m.folded)
	m.each(func(c prometheus.Collector) { reg.MustRegister(c) })
	m.none = m.route(routeKey{})
	return m
}

// SetLimit limits the routes of objects that have series of their own. Routes that already have them keep
// them.
func (m *Metrics) SetLimit(limit config.ObjectMetrics) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = limit
}

// room is the number of routes of objects that may have series of their own, in all namespaces. A route that
// serves requests has about three histograms, and six other series. The caller holds m.mu.
func (m *Metrics) room() int { return m.limit.RouteSeries() / (3*(m.buckets+3) + 6) }

// hundred has the counters of the status codes that begin with the same digit. Most routes use
// only few of these hundreds, and there are many routes.
type hundred [100]atomic.Pointer[prometheus.Counter]

func (m *Metrics) route(key routeKey) *routeMetrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.routes[key]
	if r == nil {
		r = &routeMetrics{key: key, m: m}
		m.routes[key] = r
		m.fresh = append(m.fresh, r)
	}
	return r
}

// get returns the series of a route.
func (r *routeMetrics) get() *routeSeries {
	if s := r.series.Load(); s != nil {
		return s
	}
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	return r.open()
}

// open creates the series of a route that has none: its own, or those that the namespace's
// other routes share. The caller holds m.mu.
func (r *routeMetrics) open() *routeSeries {
	if s := r.series.Load(); s != nil {
		return s
	}
	m := r.m
	var s *routeSeries
	switch {
	case r.retired: // the last exchange of a removed route must not create its series again
		s = m.detached(r.key)
	case !r.key.isLimited():
		s, r.own = m.newSeries(r.key), true
	case m.opened[r.key.namespace] < m.limit.Routes && m.openedAll < m.room():
		s, r.own = m.newSeries(r.key), true
		m.opened[r.key.namespace]++
		m.openedAll++
	default:
		if s = m.others[r.key.namespace]; s == nil {
			s = m.newSeries(routeKey{routeLabels: othersOf(r.key.namespace)})
			m.others[r.key.namespace] = s
		}
		r.folded = true
		m.folded.WithLabelValues(r.key.namespace).Inc()
	}
	r.series.Store(s)
	return s
}

// othersOf are the labels that the other routes of a namespace share. Names of routes from
// objects have more slashes.
func othersOf(namespace string) routeLabels {
	return routeLabels{route: namespace + "/other", namespace: namespace}
}

func (m *Metrics) newSeries(labels routeKey) *routeSeries {
	s := &routeSeries{labels: labels, m: m, traffic: tally.Series{Route: labels.route},
		in:  m.bytes.WithLabelValues(labels.with("in")...),
		out: m.bytes.WithLabelValues(labels.with("out")...),
	}
	switch {
	case labels.backend != "":
		s.times = m.timesOf(labels.backend)
	case labels.namespace != "" && labels.routeLabels == othersOf(labels.namespace):
		s.times = m.timesOf(labels.route)
	}
	s.place = len(m.series)
	m.series = append(m.series, s)
	m.listed = nil
	return s
}

// detached returns series that no scrape shows.
func (m *Metrics) detached(labels routeKey) *routeSeries {
	return &routeSeries{labels: labels, m: m, gone: true, in: unseen(), out: unseen()}
}

func unseen() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: "retired"})
}

// retain drops the series of routes that t does not have. It runs after each change of a cluster
// with thousands of routes, so it looks only at routes that differ from the last table. It returns
// the names of routes that are gone or have changed. Requests may use the metrics meanwhile. The
// caller makes sure that no two calls of retain overlap.
func (m *Metrics) retain(t *Table) (changed map[string]bool) {
	var before []*Route
	if m.table != nil {
		before = m.table.routes
	}
	d := config.Differ(before, t.routes, func(r *Route) string { return r.name })
	fresh := m.begin(t)
	lockEach(m, d.Added, func(j int) { m.use(t.routes[j], 1) })
	lockEach(m, d.Gone, func(i int) { m.use(before[i], -1) })
	lockEach(m, fresh, m.removeUnused)
	lockEach(m, d.Gone, func(i int) {
		for r := range before[i].eachMetrics {
			m.removeUnused(r)
		}
	})
	m.removeOthers()
	changed = make(map[string]bool, len(d.Gone))
	lockEach(m, d.Gone, func(i int) {
		m.forgetReasons(before[i].metrics.key.routeLabels)
		changed[before[i].name] = true
	})
	return changed
}

// lockEach calls f for each element, with m.mu held during the call. Between two of thousands of elements,
// requests may take the lock, and lockEach pauses.
func lockEach[T any](m *Metrics, all []T, f func(T)) {
	for _, one := range all {
		pause.IfDue()
		m.mu.Lock()
		f(one)
		m.mu.Unlock()
	}
}

// begin makes t the table in effect for the metrics. It returns the metrics that were made since the
// last table.
func (m *Metrics) begin(t *Table) (fresh []*routeMetrics) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.retainListeners(t)
	m.table = t
	fresh, m.fresh = m.fresh, nil
	return fresh
}

// removeOthers drops the shared series of each namespace that has no routes any more.
func (m *Metrics) removeOthers() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for namespace, s := range m.others {
		if m.routesOf[namespace] == 0 {
			delete(m.others, namespace)
			m.folded.DeleteLabelValues(namespace)
			m.drop(s)
			m.forgetReasons(s.labels.routeLabels)
		}
	}
}

// removeUnused removes the metrics of a route if no route of the table uses them. m.mu is held.
func (m *Metrics) removeUnused(r *routeMetrics) {
	if r.uses == 0 && m.routes[r.key] == r && r != m.none {
		delete(m.routes, r.key)
		m.retire(r)
	}
}

// retainListeners drops the series of listeners that t does not have. m.mu is held.
func (m *Metrics) retainListeners(t *Table) {
	for name := range m.listeners {
		if t.edges[name] == nil {
			m.http2.DeletePartialMatch(prometheus.Labels{"listener": name})
			m.slow.DeletePartialMatch(prometheus.Labels{"listener": name})
			m.refusals.DeletePartialMatch(prometheus.Labels{"listener": name})
			m.handshake.DeleteLabelValues(name)
		}
	}
	m.listeners = make(map[string]bool)
	for name := range t.edges {
		m.listeners[name] = true
	}
}

// use counts a route of the table n times. m.mu is held.
func (m *Metrics) use(r *Route, n int) {
	for one := range r.eachMetrics {
		one.uses += n
	}
	namespace := r.metrics.key.namespace
	if m.routesOf[namespace] += n; m.routesOf[namespace] == 0 {
		delete(m.routesOf, namespace)
	}
}

// eachMetrics calls yield with the metrics of the route, of its fallback and of its weighted backends, until
// yield returns false.
func (r *Route) eachMetrics(yield func(*routeMetrics) bool) {
	if !yield(r.metrics) || r.fallback != nil && !yield(r.fallback.metrics) || r.weighted == nil {
		return
	}
	for _, d := range r.weighted.routes {
		if !yield(d.metrics) {
			return
		}
	}
}

// forgetReasons drops the counts of ended tunnels if no route has these labels any more. m.mu is
// held.
func (m *Metrics) forgetReasons(labels routeLabels) {
	if m.reasons[labels] == nil || m.shows(labels) {
		return
	}
	for _, reason := range m.reasons[labels] {
		m.ended.DeleteLabelValues(labels.with(reason)...)
	}
	delete(m.reasons, labels)
}

// named returns the metrics of the last route of a name; nil: there is none. m.mu is held.
func (m *Metrics) named(route string) *routeMetrics {
	if route == "" {
		return m.none
	}
	if m.table == nil {
		return nil
	}
	all := m.table.find(route)
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1].metrics
}

// shows returns true if the labels belong to one or more existing routes. The caller holds m.mu.
func (m *Metrics) shows(labels routeLabels) bool {
	r := m.named(labels.route)
	return r != nil && r.key.routeLabels == labels || labels == othersOf(labels.namespace) && m.others[labels.namespace] != nil
}

// retire removes the series of a route, or removes the route from the series that it shares. The
// caller holds m.mu.
func (m *Metrics) retire(r *routeMetrics) {
	r.retired = true
	switch {
	case r.folded:
		m.folded.WithLabelValues(r.key.namespace).Dec()
	case r.own:
		m.drop(r.series.Load())
		if !r.key.isLimited() {
			return
		}
		m.openedAll--
		if m.opened[r.key.namespace]--; m.opened[r.key.namespace] == 0 {
			delete(m.opened, r.key.namespace)
		}
	}
}

// drop removes series. The caller holds m.mu.
func (m *Metrics) drop(s *routeSeries) {
	s.gone = true
	m.removeFromList(s)
	m.leaveTimes(s.times)
	s.replies.drop(s, s.m.generated)
	s.guards.drop(s, s.m.guards)
	s.failures.drop(s, s.m.failures)
	s.asked.drop(s, s.m.pages)
	s.packed.drop(s, s.m.packed)
	s.plain.drop(s, s.m.plain)
	s.copied.drop(s, s.m.mirrored)
	s.repeated.drop(s, s.m.retried)
	for _, code := range s.texts {
		m.requests.DeleteLabelValues(s.labels.with(s.labels.backend, code)...)
	}
	m.duration.DeleteLabelValues(s.labels.with(s.labels.backend)...)
	if !m.shows(s.labels.routeLabels) { // otherwise the route continues with another backend
		m.bytes.DeleteLabelValues(s.labels.with("in")...)
		m.bytes.DeleteLabelValues(s.labels.with("out")...)
		m.tunnels.DeleteLabelValues(s.labels.with()...)
	}
}

// tunnelEnded counts a tunnel that ended, or a connection that did not become a tunnel.
func (m *Metrics) tunnelEnded(route, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.named(route)
	if r == nil {
		return // the route was removed, and its series with it
	}
	labels := r.open().labels.routeLabels
	if !slices.Contains(m.reasons[labels], reason) {
		m.reasons[labels] = append(m.reasons[labels], reason)
	}
	m.ended.WithLabelValues(labels.with(reason)...).Inc()
}

// http2Error counts a connection or stream that weir ended because of an error of its client.
func (m *Metrics) http2Error(listener, scope, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listeners[listener] { // otherwise the listener was removed, and its series with it
		m.http2.WithLabelValues(listener, scope, reason).Inc()
	}
}

// slowClient counts an exchange if its reason is a slow client.
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

// refused counts a request that weir refused to forward, by reason.
func (m *Metrics) refused(listener, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listeners[listener] {
		m.refusals.WithLabelValues(listener, reason).Inc()
	}
}

// exchange counts one exchange. traced is nil unless the exchange is traced. A code is out of range
// only if the endpoint chose it.
func (r *routeMetrics) exchange(code int, d time.Duration, in, out int64, traced *trace.Trace) {
	s := r.get()
	if code < 0 || code >= len(s.codes)*len(hundred{}) {
		code = 0
	}
	s.counter(code).Inc()
	s.traffic.Count(code, d)
	if traced == nil {
		s.durations().Observe(d.Seconds())
	} else {
		observeTraced(s.durations(), d, traced)
	}
	s.in.Add(float64(in))
	s.out.Add(float64(out))
}

// durations returns the histogram of the exchanges.
func (s *routeSeries) durations() prometheus.Observer {
	if o := s.duration.Load(); o != nil {
		return *o
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	var o prometheus.Observer = prometheus.ObserverFunc(func(float64) {})
	if !s.gone { // the last exchange of a removed route must not create its series again
		o = s.m.duration.WithLabelValues(s.labels.with(s.labels.backend)...)
	}
	s.duration.Store(&o)
	return o
}

// openTunnels returns the gauge of the tunnels.
func (s *routeSeries) openTunnels() prometheus.Gauge {
	if g := s.tunnels.Load(); g != nil {
		return *g
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if g := s.tunnels.Load(); g != nil {
		return *g // of a tunnel that began at the same time
	}
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "retired"})
	if !s.gone {
		g = s.m.tunnels.WithLabelValues(s.labels.with()...)
	}
	s.tunnels.Store(&g)
	return g
}

func (s *routeSeries) counter(code int) prometheus.Counter {
	if h := s.codes[code/len(hundred{})].Load(); h != nil {
		if c := h[code%len(hundred{})].Load(); c != nil {
			return *c
		}
	}
	return s.addCode(code)
}

func (s *routeSeries) addCode(code int) prometheus.Counter {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	text := strconv.Itoa(code)
	if code == 0 || len(s.texts) >= mostCodes && !slices.Contains(s.texts, text) {
		text = "other"
	}
	c := unseen()
	if !s.gone { // the last exchange of a removed route must not create its series again
		c = s.m.requests.WithLabelValues(s.labels.with(s.labels.backend, text)...)
		if !slices.Contains(s.texts, text) {
			s.texts = append(s.texts, text)
		}
	}
	h := s.codes[code/len(hundred{})].Load()
	if h == nil {
		h = new(hundred)
		s.codes[code/len(hundred{})].Store(h)
	}
	h[code%len(hundred{})].Store(&c)
	return c
}
