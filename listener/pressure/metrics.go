package pressure

import "github.com/prometheus/client_golang/prometheus"

// Metrics tell how short resources are, and what was done about it.
type Metrics struct {
	usage, step *prometheus.GaugeVec
	steps       *prometheus.CounterVec
	ended       *prometheus.CounterVec
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		usage: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weir_overload_usage_ratio",
			Help: "How much of what weir lets itself use of a resource is used; 0 where there is no limit."}, []string{"resource"}),
		step: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weir_overload_step",
			Help: "What is done about a resource that runs short: 0 nothing, 1 idle connections are ended, 2 no connection is accepted."}, []string{"resource"}),
		steps: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_overload_steps_total",
			Help: "Steps that began, by resource: shed (idle connections are ended) and pause (no connection is accepted)."}, []string{"resource", "step"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_overload_connections_ended_total",
			Help: "Idle connections and quiet tunnels that were ended because a resource ran short, by kind."}, []string{"kind"}),
	}
	reg.MustRegister(m.usage, m.step, m.steps, m.ended)
	m.count(Ended{})
	return m
}

// count adds connections that were ended.
func (m *Metrics) count(e Ended) {
	m.ended.WithLabelValues("http1").Add(float64(e.HTTP1))
	m.ended.WithLabelValues("http2").Add(float64(e.HTTP2))
	m.ended.WithLabelValues("tunnel").Add(float64(e.Tunnels))
}

// resourceMetrics are one resource's, resolved once.
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
