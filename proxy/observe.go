package proxy

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/weirproxy/weir/pause"
	"github.com/weirproxy/weir/proxy/tally"
)

// This file reads the metrics for the status page.

// Total returns the counts of all exchanges since the start, those without a route included.
func (m *Metrics) Total() (sum tally.Counts) {
	series, removed := m.all()
	sum = removed
	for _, s := range series {
		s.traffic.AddTo(&sum)
		pause.IfDue()
	}
	return sum
}

// Traffic returns the traffic of each route that has had any. A route with several backends occurs more
// than once. Routes of a namespace that share their time series occur as NAMESPACE/other. The order stays
// until a route is removed, and new ones come last.
func (m *Metrics) Traffic() []*tally.Series {
	series, _ := m.all()
	list := make([]*tally.Series, len(series))
	for i, s := range series {
		list[i] = &s.traffic
	}
	return list
}

// answers are the reasons of generated responses that are no refusals.
var answers = []string{"respond", "redirect", "cors_preflight", "acme_challenge", "auth_sign_in"}

// EachRefusal calls f with the number of responses that weir generated for a route because it refused
// requests, or because no endpoint answered, by reason.
func (m *Metrics) EachRefusal(f func(route, reason string, n uint64)) {
	series, _ := m.all()
	for _, s := range series {
		pause.IfDue()
		if list := s.replies.list.Load(); list != nil {
			for i := range *list {
				c := &(*list)[i]
				if slices.Contains(answers, c.labels[1]) {
					continue
				}
				f(s.labels.route, c.labels[1], uint64(readingOf(c.Counter)))
			}
		}
	}
}

// all returns the series of all routes, and the counts of removed routes. It holds the lock only for a
// moment, because requests may need it.
func (m *Metrics) all() ([]*routeSeries, tally.Counts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.series), m.removed
}

// removeFromList removes series from the list, and keeps their counts. The caller holds m.mu.
func (m *Metrics) removeFromList(s *routeSeries) {
	last := len(m.series) - 1
	m.series[s.place] = m.series[last]
	m.series[s.place].place = s.place
	m.series[last] = nil
	m.series = m.series[:last]
	s.traffic.AddTo(&m.removed)
}

// readingOf returns the value of a counter.
func readingOf(c prometheus.Counter) float64 {
	var d dto.Metric
	if c.Write(&d) != nil {
		return 0
	}
	return d.GetCounter().GetValue()
}
