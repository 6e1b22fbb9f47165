package certs

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics tells when certificates end, and how files are taken up. One Store uses it.
type Metrics struct {
	notAfter         *prometheus.Desc
	replaced, failed prometheus.Counter // files that changed

	store atomic.Pointer[Store] // nil until New has it
}

// NewMetrics registers the metrics of this package with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		notAfter: prometheus.NewDesc("weir_tls_certificate_not_after_timestamp_seconds",
			"When the certificate for a name ends; the earliest one where several serve it.", []string{"name"}, nil),
	}
	reloads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_tls_certificate_reloads_total",
		Help: "Certificate files that changed: taken up (success), or unusable so that what was read before stays in use (failure).",
	}, []string{"result"})
	reg.MustRegister(ends{m}, reloads)
	m.replaced, m.failed = reloads.WithLabelValues("success"), reloads.WithLabelValues("failure")
	return m
}

// ends collects when certificates end from those that are served at the moment.
type ends struct{ *Metrics }

// Describe implements prometheus.Collector.
func (m ends) Describe(ch chan<- *prometheus.Desc) { ch <- m.notAfter }

// Collect implements prometheus.Collector.
func (m ends) Collect(ch chan<- prometheus.Metric) {
	s := m.store.Load()
	if s == nil {
		return
	}
	for name, at := range s.table.Load().expiries() {
		ch <- prometheus.MustNewConstMetric(m.notAfter, prometheus.GaugeValue, float64(at.Unix()), name)
	}
}

// expiries returns for each listed name when the first certificate that serves it ends.
func (t *table) expiries() map[string]time.Time {
	all := make(map[string]time.Time)
	for _, e := range t.entries {
		for _, name := range e.names {
			at := e.notAfter
			if e.managed != nil {
				c := e.managed.Certificate(name)
				if c == nil {
					continue
				}
				at = c.Leaf.NotAfter
			}
			if at.IsZero() { // there is none yet
				continue
			}
			if first, ok := all[name]; !ok || at.Before(first) {
				all[name] = at
			}
		}
	}
	return all
}
