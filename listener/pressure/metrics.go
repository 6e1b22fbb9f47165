package pressure

import "github.com/prometheus/client_golang/prometheus"

// Metrics show how short resources are, and what weir did about it.
type Metrics struct {
	usage, step *prometheus.GaugeVec
	steps       *prometheus.CounterVec
	ended       *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		usage: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weir_overload_usage_ratio",
			Help: "Usage as a fraction of weir's own budget for memory or descriptors; 0 if unlimited."}, []string{"resource"}),
		step: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weir_overload_step",
			Help: "Current reaction to a resource that runs short: 0 none, 1 weir closes idle connections, 2 new connections wait as well, 3 weir closes connections of the largest client networks to make room for others, 4 weir closes the connections with the most open requests."}, []string{"resource"}),
		steps: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_overload_steps_total",
			Help: "How often each reaction to a resource that runs short began: shed (weir closes idle connections), pause (new connections wait), share (weir closes connections of the largest client networks) or cut (weir closes the connections with the most open requests)."}, []string{"resource", "step"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_overload_connections_ended_total",
			Help: "Connections closed because a resource ran short, by kind: idle clients (http1, http2), idle tunnels (tunnel), and active connections (busy)."}, []string{"kind"}),
	}
	reg.MustRegister(m.usage, m.step, m.steps, m.ended)
	m.count(Ended{})
	return m
}

// count adds closed connections.
func (m *Metrics) count(e Ended) {
	m.ended.WithLabelValues("http1").Add(float64(e.HTTP1))
	m.ended.WithLabelValues("http2").Add(float64(e.HTTP2))
	m.ended.WithLabelValues("tunnel").Add(float64(e.Tunnels))
	m.ended.WithLabelValues("busy").Add(float64(e.Busy))
}

// resourceMetrics are the metrics of one resource, looked up once.
type resourceMetrics struct {
	usage, step prometheus.Gauge
	steps       [numSteps]prometheus.Counter
}

func (m *Metrics) resource(name string) *resourceMetrics {
	r := &resourceMetrics{usage: m.usage.WithLabelValues(name), step: m.step.WithLabelValues(name)}
	for s := Shed; s < numSteps; s++ {
		r.steps[s] = m.steps.WithLabelValues(name, s.String())
	}
	return r
}

func (r *resourceMetrics) update(ratio float64, s Step) {
	r.usage.Set(ratio)
	r.step.Set(float64(s))
}

func (r *resourceMetrics) begin(s Step) { r.steps[s].Inc() }
