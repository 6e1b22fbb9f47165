package certs

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics tells when certificates end, and how files are taken up. One Store uses it.
type Metrics struct {
	notAfter         *prometheus.GaugeVec
	replaced, failed prometheus.Counter // files that changed

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
	reloads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_tls_certificate_reloads_total",
		Help: "Certificate files that changed: taken up (success), or unusable so that what was read before stays in use (failure).",
	}, []string{"result"})
	reg.MustRegister(m.notAfter, reloads)
	m.replaced, m.failed = reloads.WithLabelValues("success"), reloads.WithLabelValues("failure")
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
