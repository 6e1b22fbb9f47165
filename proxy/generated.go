package proxy

import (
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// This file has the metrics of the responses that weir generated itself, by route and reason.

// mostReasons limits the reasons in a route's series. Real traffic has fewer reasons; weir counts
// further reasons as "other".
const mostReasons = 40

// generated has the counters of one route. A route has few reasons, so a request searches the
// list without a lock.
type generated struct {
	byReason atomic.Pointer[[]reasonCounter] // replaced, never changed
}

type reasonCounter struct {
	reason string
	prometheus.Counter
}

// generate counts a response that weir generated.
func (x *exchange) generate(reason string) {
	m := x.proxy.Metrics.none
	if x.route != nil {
		m = x.route.metrics
	}
	m.get().generated(reason).Inc()
}

// generated returns the counter of a reason.
func (s *routeSeries) generated(reason string) prometheus.Counter {
	if list := s.own.byReason.Load(); list != nil {
		for i := range *list {
			if c := &(*list)[i]; c.reason == reason {
				return c.Counter
			}
		}
	}
	return s.addReason(reason)
}

func (s *routeSeries) addReason(reason string) prometheus.Counter {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.gone { // the last exchange of a removed route must not create its series again
		return unseen()
	}
	var known []reasonCounter
	if list := s.own.byReason.Load(); list != nil {
		known = *list
	}
	if len(known) >= mostReasons {
		return s.m.generated.WithLabelValues(s.labels.with(s.labels.backend, "other")...)
	}
	c := s.m.generated.WithLabelValues(s.labels.with(s.labels.backend, reason)...)
	if !slices.ContainsFunc(known, func(k reasonCounter) bool { return k.reason == reason }) {
		list := append(slices.Clone(known), reasonCounter{reason, c})
		s.own.byReason.Store(&list)
	}
	return c
}

// dropGenerated removes the series. The caller holds m.mu.
func (s *routeSeries) dropGenerated() {
	if list := s.own.byReason.Load(); list != nil {
		for _, c := range *list {
			s.m.generated.DeleteLabelValues(s.labels.with(s.labels.backend, c.reason)...)
		}
		s.m.generated.DeleteLabelValues(s.labels.with(s.labels.backend, "other")...)
	}
}
