package control

import "github.com/prometheus/client_golang/prometheus"

// Metrics tell what is written to a cluster.
type Metrics struct {
	leader           prometheus.Gauge
	leaseFailures    prometheus.Counter
	events, statuses *prometheus.CounterVec
}

// NewMetrics makes Metrics and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		leader: prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_kubernetes_leader",
			Help: "1 where this replica is the one that writes events and statuses, else 0."}),
		leaseFailures: prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_kubernetes_lease_failures_total",
			Help: "Attempts to take or renew the Lease of who writes that the API server refused or did not answer."}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_kubernetes_event_writes_total",
			Help: "Events written on objects that are wrong, by result: success or failure."}, []string{"result"}),
		statuses: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_kubernetes_status_writes_total",
			Help: "Statuses of Ingresses written, by result: success or failure."}, []string{"result"}),
	}
	reg.MustRegister(m.leader, m.leaseFailures, m.events, m.statuses)
	for _, v := range []*prometheus.CounterVec{m.events, m.statuses} {
		v.WithLabelValues("success")
		v.WithLabelValues("failure")
	}
	return m
}

func result(err error) string {
	if err != nil {
		return "failure"
	}
	return "success"
}
