package certs

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics tells when certificates end. One Store uses it.
type Metrics struct {
	notAfter *prometheus.GaugeVec

	mu    sync.Mutex
	names map[string]time.Time // the series that exist
}

// NewMetrics registers the metrics of this package with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		notAfter: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weir_tls_certificate_not_after_timestamp_seconds",
			Help: "When the certificate for a name ends; the earliest one where several serve it.",
		}, []string{"name"}),
	}
	reg.MustRegister(m.notAfter)
	return m
}

// set makes expiries the only series.
func (m *Metrics) set(expiries map[string]time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.names {
		if _, ok := expiries[name]; !ok {
			m.notAfter.DeleteLabelValues(name)
		}
	}
	for name, at := range expiries {
		m.notAfter.WithLabelValues(name).Set(float64(at.Unix()))
	}
	m.names = expiries
}

// expiries returns for each listed name when the first certificate that serves it ends.
func (t *table) expiries() map[string]time.Time {
	all := make(map[string]time.Time)
	for _, e := range t.entries {
		for _, name := range e.names {
			if at, ok := all[name]; !ok || e.notAfter.Before(at) {
				all[name] = e.notAfter
			}
		}
	}
	return all
}
