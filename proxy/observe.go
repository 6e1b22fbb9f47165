package proxy

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/weirproxy/weir/proxy/tally"
)

// This file gives the status page what it shows of the metrics.

// Total returns the counts of all exchanges since the start, those without a route included.
func (m *Metrics) Total() (sum tally.Counts) {
	series, removed := m.all()
	sum = removed
	for _, s := range series {
		s.tally.AddTo(&sum)
	}
	return sum
}

// EachRoute calls f with the counts and the open tunnels of each route that has had traffic. The name is empty for
// requests that no route matched. A route with several backends occurs more than once. Routes of a
// namespace that share their time series occur as NAMESPACE/other. f must not keep c.
func (m *Metrics) EachRoute(f func(route string, c *tally.Counts, tunnels int)) {
	series, _ := m.all()
	for _, s := range series {
		var c tally.Counts
		s.tally.AddTo(&c)
		f(s.labels.route, &c, int(readingOf(s.tunnels)))
	}
}

// EachRefusal calls f with the number of responses that weir generated for a route and a reason.
func (m *Metrics) EachRefusal(f func(route, reason string, n uint64)) {
	series, _ := m.all()
	for _, s := range series {
		if list := s.replies.list.Load(); list != nil {
			for i := range *list {
				c := &(*list)[i]
				f(s.labels.route, c.labels[1], uint64(readingOf(c.Counter)))
			}
		}
	}
}

// all returns the series of all routes, and the counts of removed ones.
func (m *Metrics) all() ([]*routeSeries, tally.Counts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]*routeSeries, 0, len(m.series))
	for s := range m.series {
		list = append(list, s)
	}
	return list, m.removed
}

// readingOf returns the value of a counter or gauge.
func readingOf(m prometheus.Metric) float64 {
	var d dto.Metric
	if m.Write(&d) != nil {
		return 0
	}
	return d.GetCounter().GetValue() + d.GetGauge().GetValue()
}
