package backend

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// BackendStatus is what the admin page says of a backend.
type BackendStatus struct {
	Name      string           `json:"name"`
	InFlight  int64            `json:"in_flight"`
	Waiting   int64            `json:"waiting"`
	Ready     int              `json:"ready"`
	Endpoints []EndpointStatus `json:"endpoints"`
}

// EndpointStatus is what the admin page says of an endpoint.
type EndpointStatus struct {
	Address string `json:"address"`
	Host    string `json:"host,omitempty"` // the name that led to the address
	Node    string `json:"node,omitempty"`
	Zone    string `json:"zone,omitempty"`
	Local   bool   `json:"local"`
	Weight  int    `json:"weight"`
	// Terminating says that it serves still, where no other one does.
	Terminating bool `json:"terminating,omitempty"`
	// RampedUp is the percentage of its share that it has got to, while that is not all.
	RampedUp int `json:"ramped_up,omitempty"`
	// Up says that exchanges may go to it: it is ready and not ejected, nor
	// terminating while others serve.
	Up           bool      `json:"up"`
	EjectedUntil time.Time `json:"ejected_until,omitzero"`
	InFlight     int64     `json:"in_flight"`
	Idle         int       `json:"idle"`
	// Shared are the connections of HTTP/2, idle or not.
	Shared int `json:"shared"`
	// LastError is why the last check failed, empty when it did not.
	LastError string `json:"last_error,omitempty"`
}

// Status tells of all backends, by name.
func (s *Set) Status() []BackendStatus {
	var list []BackendStatus
	for _, b := range *s.backends.Load() {
		list = append(list, b.status())
	}
	slices.SortFunc(list, func(a, b BackendStatus) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func (b *Backend) status() BackendStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := BackendStatus{
		Name: b.name, InFlight: b.InFlight(), Waiting: b.queue.waiting.Load(), Ready: b.Ready(),
		Endpoints: make([]EndpointStatus, 0, len(b.endpoints)),
	}
	for _, e := range b.endpoints {
		st := EndpointStatus{
			Address: e.address, Node: e.cfg.Node, Zone: e.cfg.Zone, Local: e.isLocal, Weight: e.cfg.Weight, Terminating: e.cfg.Terminating,
			Up: e.up.Load(), EjectedUntil: e.ejectedUntil, InFlight: e.InFlight(), Idle: e.IdleCount(), Shared: e.SharedCount(), LastError: e.reason,
		}
		if e.path == "" && e.host != e.addr.Addr().String() {
			st.Host = e.host
		}
		if e.withheld > 0 {
			st.RampedUp = whole - e.withheld
		}
		s.Endpoints = append(s.Endpoints, st)
	}
	return s
}

// Metrics are the series of a Set. They are read when they are asked for, so
// the hot path counts nothing twice and the series of what is removed go away.
type Metrics struct {
	set                   *Set
	up, inFlight, retries *prometheus.Desc
	refused               *prometheus.Desc
}

// NewMetrics registers the metrics of set with reg.
func NewMetrics(reg prometheus.Registerer, set *Set) *Metrics {
	m := &Metrics{
		set: set,
		up: prometheus.NewDesc("weir_backend_endpoint_up",
			"Whether exchanges may go to the endpoint: 1 when it is ready and not ejected, nor terminating while others serve.", []string{"backend", "endpoint"}, nil),
		inFlight: prometheus.NewDesc("weir_backend_requests_in_flight",
			"Exchanges and tunnels that run now.", []string{"backend"}, nil),
		retries: prometheus.NewDesc("weir_backend_retries_total",
			"Exchanges that were tried once more, by why.", []string{"backend", "reason"}, nil),
		refused: prometheus.NewDesc("weir_backend_addresses_refused_total",
			"Addresses that a look-up found for a name that may not lead to this machine or its link, such as an ExternalName's; of backends that had any.",
			[]string{"backend"}, nil),
	}
	reg.MustRegister(m)
	return m
}

// Describe belongs to prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.up
	ch <- m.inFlight
	ch <- m.retries
	ch <- m.refused
}

// Collect belongs to prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for name, b := range *m.set.backends.Load() {
		ch <- prometheus.MustNewConstMetric(m.inFlight, prometheus.GaugeValue, float64(b.InFlight()), name)
		if n := b.refused.Load(); n > 0 {
			ch <- prometheus.MustNewConstMetric(m.refused, prometheus.CounterValue, float64(n), name)
		}
		for r := range numRetryReasons {
			n := b.budget.reasons[r].Load()
			ch <- prometheus.MustNewConstMetric(m.retries, prometheus.CounterValue, float64(n), name, r.String())
		}
		b.mu.Lock()
		endpoints := b.endpoints
		b.mu.Unlock()
		for _, e := range endpoints {
			up := 0.0
			if e.up.Load() {
				up = 1
			}
			ch <- prometheus.MustNewConstMetric(m.up, prometheus.GaugeValue, up, name, e.address)
		}
	}
}
