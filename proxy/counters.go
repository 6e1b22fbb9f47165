package proxy

import (
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// This file has the counters of a route that have further labels, such as the reason.

// mostCounters limits the counters of a route in one vector. Real traffic needs fewer. weir counts the rest
// as "other".
const mostCounters = 40

// counters are the counters of one route in one vector. A route has few of them, so a request
// searches the list without a lock.
type counters struct {
	list atomic.Pointer[[]labelledCounter] // replaced, never changed
}

// labelledCounter is a counter and the values of its two labels after those of the route.
type labelledCounter struct {
	labels [2]string
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

// generated returns the counter of the responses that weir generated for a reason.
func (s *routeSeries) generated(reason string) prometheus.Counter {
	return s.counter2(&s.replies, s.m.generated, s.labels.backend, reason)
}

// guard returns the counter of a guard. result is "allowed", or the reason of a refusal.
func (s *routeSeries) guard(name, result string) prometheus.Counter {
	return s.counter2(&s.guards, s.m.guards, name, result)
}

// guardFailed returns the counter of the requests on which a guard could not decide.
func (s *routeSeries) guardFailed(name, reason string) prometheus.Counter {
	return s.counter2(&s.failures, s.m.failures, name, reason)
}

// page returns the counter of the requests for error pages from a backend. result is sent or failed.
func (s *routeSeries) page(backend, result string) prometheus.Counter {
	return s.counter2(&s.asked, s.m.pages, backend, result)
}

// compressed counts the bytes of a body before and after its compression.
func (s *routeSeries) compressed(encoding string, in, out int64) {
	s.counter2(&s.packed, s.m.packed, encoding, "in").Add(float64(in))
	s.counter2(&s.packed, s.m.packed, encoding, "out").Add(float64(out))
}

// notCompressed returns the counter of the responses that weir would have compressed. reason is busy
// or memory.
func (s *routeSeries) notCompressed(encoding, reason string) prometheus.Counter {
	return s.counter2(&s.plain, s.m.plain, encoding, reason)
}

// mirrored returns the counter of the copies of requests for a backend. result is sent, failed,
// dropped or too_large.
func (s *routeSeries) mirrored(backend, result string) prometheus.Counter {
	return s.counter2(&s.copied, s.m.mirrored, backend, result)
}

// retried returns the counter of the retries at a backend. reason is the cause: connect, closed,
// refused, timeout or status.
func (s *routeSeries) retried(backend, reason string) prometheus.Counter {
	return s.counter2(&s.repeated, s.m.retried, backend, reason)
}

// counter2 returns the counter of a list whose labels have these values.
func (s *routeSeries) counter2(of *counters, vec *prometheus.CounterVec, first, second string) prometheus.Counter {
	if list := of.list.Load(); list != nil {
		for i := range *list {
			if c := &(*list)[i]; c.labels[1] == second && c.labels[0] == first {
				return c.Counter
			}
		}
	}
	return s.addCounter(of, vec, [2]string{first, second})
}

func (s *routeSeries) addCounter(of *counters, vec *prometheus.CounterVec, labels [2]string) prometheus.Counter {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.gone { // the last exchange of a removed route must not create its series again
		return unseen()
	}
	var known []labelledCounter
	if list := of.list.Load(); list != nil {
		known = *list
	}
	if len(known) >= mostCounters {
		return vec.WithLabelValues(s.labels.with(labels[0], "other")...)
	}
	c := vec.WithLabelValues(s.labels.with(labels[0], labels[1])...)
	if of == &s.replies {
		c = &replyCounter{Counter: c}
	}
	if !slices.ContainsFunc(known, func(k labelledCounter) bool { return k.labels == labels }) {
		list := append(slices.Clone(known), labelledCounter{labels, c})
		of.list.Store(&list)
	}
	return c
}

// drop removes the series of a list from its vector. The caller holds m.mu.
func (of *counters) drop(s *routeSeries, vec *prometheus.CounterVec) {
	list := of.list.Load()
	if list == nil {
		return
	}
	for _, c := range *list {
		vec.DeleteLabelValues(s.labels.with(c.labels[0], c.labels[1])...)
		vec.DeleteLabelValues(s.labels.with(c.labels[0], "other")...)
	}
}
