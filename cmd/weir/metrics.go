package main

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
)

// serverMetrics tell of the configuration and the build.
type serverMetrics struct {
	success prometheus.Gauge
	reloads *prometheus.CounterVec
	hash    *prometheus.GaugeVec
	panics  prometheus.Counter
}

func newServerMetrics(reg prometheus.Registerer) *serverMetrics {
	m := &serverMetrics{
		success: prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_config_last_reload_success",
			Help: "1 when the last attempt to load the configuration succeeded, else 0: an older one is in effect."}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_config_reloads_total",
			Help: "Attempts to load a configuration after the first, by result: success or failure."}, []string{"result"}),
		hash: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weir_config_hash",
			Help: "Always 1; the label is the hash of the configuration in effect, the same on every node that has the same one."}, []string{"hash"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_panics_total",
			Help: "Connections, and changes of a cluster's objects, that a fault of weir's own ended; the log has the stack. Anything but 0 is worth a report."}),
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weir_build_info",
		Help: "Always 1; the labels tell which weir this is."}, []string{"version", "goversion"})
	build.WithLabelValues(buildVersion(), runtime.Version()).Set(1)
	reg.MustRegister(m.success, m.reloads, m.hash, m.panics, build)
	m.reloads.WithLabelValues("success")
	m.reloads.WithLabelValues("failure")
	return m
}

// applied notes the configuration that was loaded and is in effect now.
func (m *serverMetrics) applied(cfg *config.Config) {
	m.hash.Reset()
	m.hash.WithLabelValues(cfg.Hash).Set(1)
	m.success.Set(1)
}

// reloaded notes how a reload ended.
func (m *serverMetrics) reloaded(err error) {
	if err != nil {
		m.success.Set(0)
		m.reloads.WithLabelValues("failure").Inc()
		return
	}
	m.reloads.WithLabelValues("success").Inc()
}
