package control

import "github.com/prometheus/client_golang/prometheus"

// Metrics count the writes of weir to a cluster.
type Metrics struct {
	leader           prometheus.Gauge
	leaseFailures    prometheus.Counter
	events, statuses *prometheus.CounterVec
}

// NewMetrics makes Metrics and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		leader: prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_kubernetes_leader",
			Help: "1 on the leader, the replica that writes events and statuses; 0 on the others."}),
		leaseFailures: prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_kubernetes_lease_failures_total",
			Help: "Failed attempts to acquire or renew the leader-election Lease."}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_kubernetes_event_writes_total",
			Help: "Events that weir wrote on objects, by result: success or failure."}, []string{"result"}),
		statuses: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_kubernetes_status_writes_total",
			Help: "Statuses of Ingresses that weir wrote, by result: success or failure."}, []string{"result"}),
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
