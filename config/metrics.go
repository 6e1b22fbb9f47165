package config

import (
	"slices"
	"time"
)

// Metrics are the settings of the metrics, and the metrics port. The port serves GET /metrics,
// and no request that changes weir.
type Metrics struct {
	Position Position
	Network  string
	Address  string // empty: no metrics port
	// PerEndpoint: each endpoint has time series of its own, and not only those that are not up.
	PerEndpoint bool
	// Buckets are the upper limits of the buckets of histograms of times, in ascending order.
	Buckets []time.Duration
	// Native: histograms of times are also native histograms of Prometheus.
	Native bool
}

// DefaultBuckets are the buckets of a configuration that sets none.
var DefaultBuckets = []time.Duration{time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second,
	10 * time.Second, 30 * time.Second, time.Minute}

// NewMetrics returns the metrics of a configuration that does not mention them.
func NewMetrics() *Metrics { return &Metrics{Buckets: DefaultBuckets} }

// MetricsOrDefault returns the settings of the metrics, also if the file has none.
func (c *Config) MetricsOrDefault() *Metrics {
	if c.Metrics == nil {
		return NewMetrics()
	}
	return c.Metrics
}

// maxBuckets limits the buckets of a histogram, because each route has one.
const maxBuckets = 50

func (m *Metrics) section() section {
	return section{object: m, position: &m.Position, check: m.check, rules: metricsRules, keys: []key{
		{"address", listenAddress(&m.Network, &m.Address).byDefault("no metrics port"), "The address that serves GET /metrics and nothing else. Everybody who can connect can read the metrics, so allow only Prometheus."},
		{"per_endpoint", truth(&m.PerEndpoint), "Whether each endpoint has time series of its own (weir_backend_endpoint_...), or only those that are not up."},
		{"buckets", m.bucketsKey(), "The upper limits of the buckets of all histograms of times."},
		{"native_histograms", truth(&m.Native).byUpgrade(), "Whether the histograms of times are also native histograms, which Prometheus reads if it scrapes by its protobuf format."},
	}}
}

func (m *Metrics) bucketsKey() value {
	x := list(&m.Buckets, func(dst *time.Duration) value { return duration(dst, time.Microsecond, time.Hour) }).
		shownIf(!slices.Equal(m.Buckets, DefaultBuckets)).byDefault("1ms to 1m, in 15 steps").byUpgrade()
	read, describe := x.read, x.schema
	x.read = func(v *draft, n *Tree, p path) {
		m.Buckets = nil
		read(v, n, p)
		switch {
		case len(m.Buckets) > maxBuckets:
			v.fail(n, p, "has %d buckets; %d are the most", len(m.Buckets), maxBuckets)
		case !slices.IsSorted(m.Buckets):
			v.fail(n, p, "is not in ascending order; write the smallest bucket first")
		}
	}
	x.schema = func() *schema {
		s := describe()
		s.MaxItems = maxBuckets
		return s
	}
	return x
}

var metricsRules = []*schema{hasAny("address", "per_endpoint", "buckets", "native_histograms")}

func (m *Metrics) check(v *draft, there keySet, n *Tree, p path) {
	if len(there) == 0 && n.Shape == ShapeMapping && len(n.Parts) == 0 {
		v.fail(n, p, "is empty; give it an address such as \":8088\", or take the key out")
	}
}
