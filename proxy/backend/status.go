package backend

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/pause"
)

// BackendStatus is the state of a backend for the admin page.
type BackendStatus struct {
	Name      string           `json:"name"`
	InFlight  int64            `json:"in_flight"`
	Waiting   int64            `json:"waiting"`
	Ready     int              `json:"ready"`
	Working   int              `json:"working"` // of the ready endpoints
	Ejections uint64           `json:"ejections"`
	Endpoints []EndpointStatus `json:"endpoints"`
}

// EndpointStatus is the state of an endpoint for the admin page.
type EndpointStatus struct {
	Address string `json:"address"`
	Host    string `json:"host,omitempty"` // the name that resolved to the address
	Node    string `json:"node,omitempty"`
	Zone    string `json:"zone,omitempty"`
	Local   bool   `json:"local"`
	Weight  int    `json:"weight"`
	// Terminating means that the endpoint will go away. It serves only if no other endpoint
	// does.
	Terminating bool `json:"terminating,omitempty"`
	// RampedUp is the percentage of its share that the endpoint gets during its slow start;
	// 0: it is not in its slow start.
	RampedUp int `json:"ramped_up,omitempty"`
	// Up means that exchanges may go to the endpoint: it is ready, it is not ejected, it is
	// not terminating while others serve, and its last attempts did not all fail.
	Up           bool      `json:"up"`
	EjectedUntil time.Time `json:"ejected_until,omitzero"`
	InFlight     int64     `json:"in_flight"`
	Idle         int       `json:"idle"`
	// Shared is the number of shared HTTP/2 connections, idle or not.
	Shared int `json:"shared"`
	// Private is the number of idle connections that each belong to one client connection.
	Private int `json:"private"`
	// Failing means that the last attempts to use the endpoint all failed.
	Failing bool `json:"failing,omitempty"`
	// LastError is the error of the last check, or of the last attempt while the endpoint
	// is failing.
	LastError string `json:"last_error,omitempty"`
}

// Summary is the state of a backend in a few numbers.
type Summary struct {
	Name      string
	Ready     int
	Working   int // of the ready endpoints
	Endpoints int
	Down      int // endpoints that are not up, without terminating ones
	InFlight  int64
	Waiting   int64
}

// Summaries calls yield with the Summary of each backend, in no order, until yield returns false.
func (s *Set) Summaries(yield func(Summary) bool) {
	i := 0
	for b := range s.all() {
		pause.InLoop(i)
		i++
		if !yield(b.summary()) {
			return
		}
	}
}

// endpointCounts are the numbers of a Summary that change only when the state of an endpoint changes.
type endpointCounts struct{ ready, working, endpoints, down int }

func (b *Backend) summary() Summary {
	n := b.counted.Load()
	if n == nil {
		n = b.countEndpoints()
	}
	return Summary{Name: b.name, Ready: n.ready, Working: n.working, Endpoints: n.endpoints, Down: n.down, InFlight: b.InFlight(), Waiting: b.queue.waiting.Load()}
}

// countEndpoints counts the endpoints, and keeps the counts until an endpoint changes.
func (b *Backend) countEndpoints() *endpointCounts {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := &endpointCounts{ready: b.Ready(), working: b.Working(), endpoints: len(b.endpoints)}
	for _, e := range b.endpoints {
		if !e.up.Load() && !e.cfg.Terminating {
			n.down++
		}
	}
	b.counted.Store(n)
	return n
}

// StatusOf returns the state of one backend; false: there is none with that name.
func (s *Set) StatusOf(name string) (BackendStatus, bool) {
	b := s.Backend(name)
	if b == nil {
		return BackendStatus{}, false
	}
	return b.status(), true
}

// Status returns the state of all backends, sorted by name.
func (s *Set) Status() []BackendStatus {
	var list []BackendStatus
	for b := range s.all() {
		list = append(list, b.status())
	}
	slices.SortFunc(list, func(a, b BackendStatus) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func (b *Backend) status() BackendStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := BackendStatus{
		Name: b.name, InFlight: b.InFlight(), Waiting: b.queue.waiting.Load(), Ready: b.Ready(), Working: b.Working(),
		Endpoints: make([]EndpointStatus, 0, len(b.endpoints)),
	}
	for cause := range b.ejections {
		s.Ejections += b.ejections[cause].Load()
	}
	for _, e := range b.endpoints {
		st := EndpointStatus{
			Address: e.address, Node: e.cfg.Node, Zone: e.cfg.Zone, Local: e.isLocal, Weight: e.cfg.Weight, Terminating: e.cfg.Terminating,
			Up: e.up.Load(), InFlight: e.InFlight(), Idle: e.IdleCount(), Shared: e.SharedCount(), Private: e.HeldCount(), LastError: e.reason,
		}
		if e.ejection != nil {
			st.EjectedUntil = e.ejection.until
		}
		if st.Failing = e.failing.Load(); st.Failing && st.LastError == "" && e.failure != nil {
			st.LastError = e.failure.Error()
		}
		if e.addr.IsValid() && e.host != e.addr.Addr().String() {
			st.Host = e.host
		}
		if e.withheld > 0 {
			st.RampedUp = whole - int(e.withheld)
		}
		s.Endpoints = append(s.Endpoints, st)
	}
	return s
}

// Metrics are the series of a Set. A scrape reads the values, so the hot path counts nothing
// twice, and the series of removed backends and endpoints disappear.
type Metrics struct {
	set                                         *Set
	up, inFlight, retries, refused, private     *prometheus.Desc
	sticky                                      *prometheus.Desc
	ready, ejections, queue, requests, failures *prometheus.Desc
	foldedBackends, foldedEndpoints, foldedDown *prometheus.Desc

	mu    sync.Mutex // guards the fields below; held while metrics are collected
	limit config.ObjectMetrics
	all   []contender // of the last collection, without its values
	// perEndpoint: all endpoints have series of their own, and not only those that are not up.
	perEndpoint bool
}

// SetPerEndpoint sets whether all endpoints have series of their own, or only those that are not up.
func (m *Metrics) SetPerEndpoint(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.perEndpoint = on
}

// SetLimit limits the backends and endpoints of objects that have series of their own.
func (m *Metrics) SetLimit(limit config.ObjectMetrics) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = limit
}

// NewMetrics registers the metrics of set with reg.
func NewMetrics(reg prometheus.Registerer, set *Set) *Metrics {
	m := &Metrics{
		set: set, limit: config.DefaultObjectMetrics,
		foldedBackends: prometheus.NewDesc("weir_metrics_folded_backends",
			"Backends of a namespace that share the time series of NAMESPACE/other, because of the limits of kubernetes.metrics.", []string{"namespace"}, nil),
		foldedEndpoints: prometheus.NewDesc("weir_metrics_folded_endpoints",
			"Endpoints of a namespace that should have time series of their own (weir_backend_endpoint_...) and have none, because of the limits of kubernetes.metrics.", []string{"namespace"}, nil),
		up: prometheus.NewDesc("weir_backend_endpoint_up",
			"1 if the endpoint passes its health check, is not ejected, is not terminating while others serve, and its last attempts did not all fail; else 0. Endpoints that are up have this metric only with metrics.per_endpoint.", []string{"backend", "endpoint"}, nil),
		requests: prometheus.NewDesc("weir_backend_endpoint_requests_total",
			"Attempts to send a request or open a tunnel to the endpoint, retries included.", []string{"backend", "endpoint"}, nil),
		failures: prometheus.NewDesc("weir_backend_endpoint_failures_total",
			"Attempts that failed because of the endpoint: it did not connect, did not answer in time, or closed the connection. Responses of the application do not count, whatever their status.", []string{"backend", "endpoint"}, nil),
		ready: prometheus.NewDesc("weir_backend_endpoints_ready",
			"Endpoints of the backend that are up (weir_backend_endpoint_up). 0 also if no endpoint is known, for example because a name does not resolve.", []string{"backend"}, nil),
		ejections: prometheus.NewDesc("weir_backend_ejections_total",
			"Endpoints ejected, by reason: consecutive (their last attempts all failed) or share (a share of their attempts failed).", []string{"backend", "reason"}, nil),
		sticky: prometheus.NewDesc("weir_backend_sticky_requests_total",
			"Requests to backends with sticky sessions, by result: kept (by the endpoint of the client's cookie), new (the client brought no cookie) or moved (the endpoint of the cookie is not ready, has gone or is unknown).", []string{"backend", "result"}, nil),
		queue: prometheus.NewDesc("weir_backend_queue_depth",
			"Requests and tunnels that wait in the queue because max_connections of the backend is reached.", []string{"backend"}, nil),
		foldedDown: prometheus.NewDesc("weir_metrics_folded_backends_down",
			"Backends without a working endpoint among those that share the time series of NAMESPACE/other.", []string{"namespace"}, nil),
		inFlight: prometheus.NewDesc("weir_backend_requests_in_flight",
			"Requests and tunnels in progress.", []string{"backend"}, nil),
		retries: prometheus.NewDesc("weir_backend_retries_total",
			"Retries by reason: connect, closed, refused, timeout or status.", []string{"backend", "reason"}, nil),
		private: prometheus.NewDesc("weir_backend_private_connections",
			"Idle connections to endpoints that are authenticated for one client connection (NTLM, Negotiate) and wait for its next request. Only backends with such connections have this metric.", []string{"backend"}, nil),
		refused: prometheus.NewDesc("weir_backend_addresses_refused_total",
			"DNS addresses refused because the name, such as an ExternalName, must not lead to this machine or its link. Only backends with refused addresses have this metric.",
			[]string{"backend"}, nil),
	}
	reg.MustRegister(m)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.up
	ch <- m.inFlight
	ch <- m.retries
	ch <- m.refused
	ch <- m.private
	ch <- m.foldedBackends
	ch <- m.foldedEndpoints
	ch <- m.foldedDown
	ch <- m.ready
	ch <- m.ejections
	ch <- m.queue
	ch <- m.requests
	ch <- m.failures
}

// Collect implements prometheus.Collector. Tenants choose the number of backends. So only a
// limited number of backends have series of their own; backends that have them keep them, unless
// others of theirs get more series than fit. The values of the rest are added up by namespace.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := collection{Metrics: m, room: m.limit.BackendSeries(), rest: make(map[string]*remainder)}
	all := m.contenders()
	for i := range all {
		c.backend(ch, &all[i])
	}
	for i := range all {
		c.endpoints(ch, &all[i])
	}
	clear(all)
	for namespace, r := range c.rest {
		if r.backends > 0 {
			c.list = m.metrics(c.list[:0], namespace+"/other", &r.totals)
			c.send(ch)
			ch <- prometheus.MustNewConstMetric(m.foldedBackends, prometheus.GaugeValue, float64(r.backends), namespace)
			ch <- prometheus.MustNewConstMetric(m.foldedDown, prometheus.GaugeValue, float64(r.down), namespace)
		}
		if r.hidden > 0 {
			ch <- prometheus.MustNewConstMetric(m.foldedEndpoints, prometheus.GaugeValue, float64(r.hidden), namespace)
		}
	}
}

// contender is a backend that may get series of its own.
type contender struct {
	*Backend
	namespace string // empty: the backend is not from objects
	place     int    // position within its namespace
}

// contenders returns all backends: the first of each namespace, then the second of each, and so on, so that no
// namespace displaces another. The caller holds m.mu.
func (m *Metrics) contenders() []contender {
	all := m.all[:0]
	for b := range m.set.all() {
		all = append(all, contender{b, b.Settings().Namespace, 0})
	}
	m.all = all
	slices.SortFunc(all, func(a, b contender) int {
		if a.namespace == b.namespace && a.exposed != b.exposed {
			if a.exposed {
				return -1
			}
			return 1
		}
		return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.name, b.name))
	})
	for i := range all {
		if i > 0 && all[i].namespace != "" && all[i].namespace == all[i-1].namespace {
			all[i].place = all[i-1].place + 1
		}
	}
	slices.SortStableFunc(all, func(a, b contender) int { return a.place - b.place })
	return all
}

// collection is one collection of the metrics.
type collection struct {
	*Metrics
	room int // number of series that backends of objects may still have
	rest map[string]*remainder
	list []prometheus.Metric // of one backend or endpoint
}

// remainder is what is collected of a namespace besides the series of its backends.
type remainder struct {
	totals         // of the backends without series of their own
	backends, down int
	shown, hidden  int // endpoints with series of their own, and those that should have some
}

// totals are the values of one backend's series, or of several backends together.
type totals struct {
	used      bool // it has had requests
	inFlight  int64
	waiting   int64
	ready     int
	closed    bool // of a closed path: the backend never has an endpoint
	ejections [numEjectionCauses]uint64
	stuck     [numStickyResults]uint64
	refused   uint64
	private   int // idle connections that each belong to one client connection
	retries   [numRetryReasons]uint64
}

// backend collects the series of a backend, or adds its values to those of the others.
func (c *collection) backend(ch chan<- prometheus.Metric, t *contender) {
	values := t.totals()
	c.list = c.metrics(c.list[:0], t.name, &values)
	if t.namespace != "" {
		if t.exposed = t.place < c.limit.Backends && len(c.list) <= c.room; !t.exposed {
			c.restOf(t.namespace).add(&values)
			return
		}
		c.room -= len(c.list)
	}
	c.send(ch)
}

// endpoints collects the series of a backend's endpoints. Those of objects get what the backends have left over.
func (c *collection) endpoints(ch chan<- prometheus.Metric, t *contender) {
	t.mu.Lock()
	all := t.Backend.endpoints // the slice is replaced, never changed
	t.mu.Unlock()
	for _, e := range all {
		if !c.perEndpoint && e.up.Load() {
			continue
		}
		c.list = c.endpointMetrics(c.list[:0], t.name, e)
		if t.namespace != "" {
			r := c.restOf(t.namespace)
			if !t.exposed || r.shown >= c.limit.Endpoints || len(c.list) > c.room {
				r.hidden++
				continue
			}
			r.shown++
			c.room -= len(c.list)
		}
		c.send(ch)
	}
}

func (c *collection) send(ch chan<- prometheus.Metric) {
	for _, m := range c.list {
		ch <- m
	}
}

func (c *collection) restOf(namespace string) *remainder {
	if c.rest[namespace] == nil {
		c.rest[namespace] = &remainder{}
	}
	return c.rest[namespace]
}

func (r *remainder) add(t *totals) {
	r.backends++
	r.used = r.used || t.used
	r.inFlight += t.inFlight
	r.waiting += t.waiting
	r.ready += t.ready
	for cause := range t.ejections {
		r.ejections[cause] += t.ejections[cause]
	}
	for result := range t.stuck {
		r.stuck[result] += t.stuck[result]
	}
	if t.ready == 0 && !t.closed {
		r.down++
	}
	r.refused += t.refused
	r.private += t.private
	for i := range t.retries {
		r.retries[i] += t.retries[i]
	}
}

func (b *Backend) totals() totals {
	t := totals{inFlight: b.InFlight(), waiting: b.queue.waiting.Load(), ready: b.Working(), closed: b.Settings().Closed,
		refused: b.refused.Load()}
	t.used = b.budget.attempts.Load() > 0 || t.inFlight > 0 || t.waiting > 0
	for cause := range b.ejections {
		t.ejections[cause] = b.ejections[cause].Load()
	}
	for result := range numStickyResults {
		t.stuck[result] = b.stuck[result].Load()
	}
	for r := range numRetryReasons {
		t.retries[r] = b.budget.reasons[r].Load()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.endpoints {
		t.private += e.HeldCount()
	}
	return t
}

// metrics adds the series of a backend to list. A cluster has thousands of backends, most of them idle. So a
// backend has the other series with its first request, and a counter with its first increment.
func (m *Metrics) metrics(list []prometheus.Metric, name string, t *totals) []prometheus.Metric {
	add := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, more ...string) {
		list = append(list, prometheus.MustNewConstMetric(d, kind, value, append([]string{name}, more...)...))
	}
	count := func(d *prometheus.Desc, n uint64, more ...string) {
		if n > 0 {
			add(d, prometheus.CounterValue, float64(n), more...)
		}
	}
	if !t.closed {
		add(m.ready, prometheus.GaugeValue, float64(t.ready))
	}
	if t.used {
		add(m.inFlight, prometheus.GaugeValue, float64(t.inFlight))
		add(m.queue, prometheus.GaugeValue, float64(t.waiting))
	}
	for cause := range numEjectionCauses {
		count(m.ejections, t.ejections[cause], cause.String())
	}
	for result := range numStickyResults {
		count(m.sticky, t.stuck[result], result.String())
	}
	count(m.refused, t.refused)
	if t.private > 0 {
		add(m.private, prometheus.GaugeValue, float64(t.private))
	}
	for r := range numRetryReasons {
		count(m.retries, t.retries[r], r.String())
	}
	return list
}

// endpointMetrics adds the series of an endpoint to list.
func (m *Metrics) endpointMetrics(list []prometheus.Metric, backend string, e *Endpoint) []prometheus.Metric {
	up := 0.0
	if e.up.Load() {
		up = 1
	}
	list = append(list, prometheus.MustNewConstMetric(m.up, prometheus.GaugeValue, up, backend, e.address))
	if n := e.requests.Load(); n > 0 {
		list = append(list, prometheus.MustNewConstMetric(m.requests, prometheus.CounterValue, float64(n), backend, e.address))
	}
	if n := e.failed.Load(); n > 0 {
		list = append(list, prometheus.MustNewConstMetric(m.failures, prometheus.CounterValue, float64(n), backend, e.address))
	}
	return list
}
