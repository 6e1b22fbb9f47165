package node

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
)

// serverMetrics are the metrics of the configuration and the build.
type serverMetrics struct {
	success  prometheus.Gauge
	held     prometheus.Gauge
	reloads  *prometheus.CounterVec
	hash     *prometheus.GaugeVec
	panics   prometheus.Counter
	upgrades *prometheus.CounterVec
	refused  *prometheus.CounterVec // refused requests to the admin and metrics ports

	lines        prometheus.Counter // of the access log
	droppedLines *prometheus.CounterVec
	spans        *prometheus.CounterVec
}

func newServerMetrics(reg prometheus.Registerer, b Build) *serverMetrics {
	m := &serverMetrics{
		success: prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_config_last_reload_success",
			Help: "1 if the last attempt to load the configuration succeeded; 0: an older configuration is in effect."}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_config_held",
			Help: "1 if a changed file waits for a signal, because it would lose a listener or all routes of a host (reload: careful)."}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_config_reloads_total",
			Help: "Reloads after the start, by result: success or failure."}, []string{"result"}),
		upgrades: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_upgrades_total",
			Help: "Upgrades to another binary (SIGUSR2), by result: success (in the process that took over) or failure (in the process that continues)."}, []string{"result"}),
		hash: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weir_config_hash",
			Help: "Always 1; the label is the hash of the configuration in effect, without its secrets."}, []string{"hash"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_panics_total",
			Help: "Bugs in weir that ended a connection, or prevented a change of a cluster's objects from taking effect. The log has the stack trace. Please report each of them."}),
	}
	m.lines = prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_access_log_lines_total", Help: "Lines of the access log that weir has written."})
	m.droppedLines = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_access_log_dropped_lines_total",
		Help: "Lines of the access log that weir dropped, by reason: failed (the write failed, for example because the disk is full) or full (the destination is slow, and the buffer is full)."}, []string{"reason"})
	m.spans = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_trace_spans_total",
		Help: "Spans of traces, by result: exported, full (dropped because too many waited), refused (by the receiver) or unavailable (dropped because the receiver did not answer in time)."}, []string{"result"})
	for _, result := range []string{"exported", "full", "refused", "unavailable"} {
		m.spans.WithLabelValues(result)
	}
	for _, reason := range []string{"failed", "full"} {
		m.droppedLines.WithLabelValues(reason)
	}
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weir_build_info",
		Help: "Always 1; the labels are the version and the commit of weir, and the version of Go."}, []string{"version", "revision", "goversion"})
	build.WithLabelValues(b.Version, b.Revision, runtime.Version()).Set(1)
	m.refused = newRefused(reg)
	reg.MustRegister(m.success, m.held, m.reloads, m.upgrades, m.hash, m.panics, m.lines, m.droppedLines, m.spans, build)
	for _, result := range []string{"success", "failure"} {
		m.reloads.WithLabelValues(result)
		m.upgrades.WithLabelValues(result)
	}
	return m
}

// applied records the loaded configuration, which is in effect now.
func (m *serverMetrics) applied(cfg *config.Config) {
	m.hash.Reset()
	m.hash.WithLabelValues(cfg.Hash).Set(1)
	m.success.Set(1)
}

// reloaded records the result of a reload.
func (m *serverMetrics) reloaded(err error) {
	if err != nil {
		m.success.Set(0)
		m.reloads.WithLabelValues("failure").Inc()
		return
	}
	m.reloads.WithLabelValues("success").Inc()
}
