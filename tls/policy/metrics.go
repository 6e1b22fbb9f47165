package policy

import (
	"crypto/tls"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts handshakes. It outlives reloads of the configuration.
type Metrics struct {
	handshakes *prometheus.CounterVec

	// handles holds the counters in use. The map is replaced, never changed, so that
	// counting takes no lock and allocates nothing. All labels except the first two come
	// from small fixed sets, so the map soon stops growing.
	handles atomic.Pointer[map[labels]prometheus.Counter]
	change  sync.Mutex
}

type labels struct {
	listener, policy string
	version, suite   uint16
	result           string
}

// NewMetrics registers the metrics of this package with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		handshakes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_tls_handshakes_total",
			Help: "TLS handshakes by listener, policy, version, cipher suite and result. " +
				"Version and suite are empty if the handshake failed before they were negotiated.",
		}, []string{"listener", "policy", "version", "cipher_suite", "result"}),
	}
	m.handles.Store(&map[labels]prometheus.Counter{})
	reg.MustRegister(m.handshakes)
	return m
}

// Handshake counts one handshake that ended with err. policy is empty if none was chosen
// yet. version and suite are those of the tls.ConnectionState; zero if not negotiated.
func (m *Metrics) Handshake(listener, policy string, version, suite uint16, err error) {
	l := labels{listener, policy, version, suite, HandshakeResult(err)}
	c, ok := (*m.handles.Load())[l]
	if !ok {
		c = m.add(l)
	}
	c.Inc()
}

func (m *Metrics) add(l labels) prometheus.Counter {
	m.change.Lock()
	defer m.change.Unlock()
	c := m.handshakes.WithLabelValues(l.listener, l.policy, VersionName(l.version), SuiteName(l.suite), l.result)
	next := maps.Clone(*m.handles.Load())
	next[l] = c
	m.handles.Store(&next)
	return c
}

// Retain removes the series of listeners and policies that are no longer in use. weir
// calls it after a reload.
func (m *Metrics) Retain(inUse func(listener, policy string) bool) {
	m.change.Lock()
	defer m.change.Unlock()
	next := maps.Clone(*m.handles.Load())
	for l := range next {
		if !inUse(l.listener, l.policy) {
			m.handshakes.DeleteLabelValues(l.listener, l.policy, VersionName(l.version), SuiteName(l.suite), l.result)
			delete(next, l)
		}
	}
	m.handles.Store(&next)
}

// VersionName is the name of a TLS version in logs and metrics: "TLS 1.2". Zero is empty.
func VersionName(version uint16) string {
	if version == 0 {
		return ""
	}
	return tls.VersionName(version)
}

// SuiteName is the name of a cipher suite in logs and metrics: its IANA name. Zero is
// empty.
func SuiteName(id uint16) string {
	if id == 0 {
		return ""
	}
	return tls.CipherSuiteName(id)
}
