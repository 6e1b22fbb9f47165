package proxy

import (
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/pause"
	"github.com/weirproxy/weir/proxy/tally"
)

// This file reads the metrics for the status page.

// Total returns the counts of all exchanges since the start, also of exchanges without a route.
func (m *Metrics) Total() (sum tally.Counts) {
	list, removed := m.all()
	sum = removed
	for i, s := range list.traffic {
		pause.InLoop(i)
		s.AddTo(&sum)
	}
	return sum
}

// Traffic returns the traffic of each route that has had any. A route with several backends occurs more
// than once. Routes of a namespace that share their time series occur as NAMESPACE/other. New series come
// last, and the others keep their order until a route is removed. The caller must not change the result.
func (m *Metrics) Traffic() []*tally.Series {
	list, _ := m.all()
	return list.traffic
}

// answers are the reasons of generated responses that are no refusals.
var answers = []string{"respond", "redirect", "cors_preflight", "acme_challenge", "auth_sign_in"}

// EachRefusal calls f with the number of responses that weir generated for a route because it refused
// requests, or because no endpoint answered, by reason.
func (m *Metrics) EachRefusal(f func(route, reason string, n uint64)) {
	list, _ := m.all()
	for at, s := range list.series {
		pause.InLoop(at)
		replies := s.replies.list.Load()
		if replies == nil {
			continue
		}
		for i := range *replies {
			if r := &(*replies)[i]; !slices.Contains(answers, r.labels[1]) {
				f(s.labels.route, r.labels[1], r.Counter.(*replyCounter).n.Load())
			}
		}
	}
}

// seriesList has the series of all routes. It never changes.
type seriesList struct {
	series  []*routeSeries
	traffic []*tally.Series // of series, in the same order
}

// all returns the series of all routes, and the counts of removed routes. It holds the lock only for a
// moment, because requests may need it.
func (m *Metrics) all() (*seriesList, tally.Counts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listed == nil {
		m.listed = &seriesList{slices.Clone(m.series), make([]*tally.Series, len(m.series))}
		for i, s := range m.series {
			m.listed.traffic[i] = &s.traffic
		}
	}
	return m.listed, m.removed
}

// replyCounter counts the responses that weir generated for a reason. The status page reads n, because each
// reading of a Prometheus counter allocates memory.
type replyCounter struct {
	prometheus.Counter
	n atomic.Uint64
}

// Inc counts a response. Add would change only the Prometheus counter; weir does not call it here.
func (c *replyCounter) Inc() {
	c.n.Add(1)
	c.Counter.Inc()
}

// removeFromList removes series from the list, and keeps their counts. The caller holds m.mu.
func (m *Metrics) removeFromList(s *routeSeries) {
	last := len(m.series) - 1
	m.series[s.place] = m.series[last]
	m.series[s.place].place = s.place
	m.series[last] = nil
	m.series = m.series[:last]
	m.listed = nil
	s.traffic.AddTo(&m.removed)
}
