package soak

import "time"

// A slot has the counters of one interval of the time series. Slots of several targets and
// processes can be added.
type slot struct {
	Requests  int64
	Errors    int64
	Connected int64
	Ended     int64 // connections
	Latency   Durations
}

// series are the slots of a runner, by number.
type series struct {
	start    time.Time
	interval time.Duration
	slots    []slot
}

// now returns the current slot.
func (s *series) now() *slot {
	n := int(time.Since(s.start) / s.interval)
	for len(s.slots) <= n {
		s.slots = append(s.slots, slot{Latency: Durations{}})
	}
	return &s.slots[n]
}

// mergeSlots adds the slots of the same times.
func mergeSlots(to, from []slot) []slot {
	for i, s := range from {
		if i == len(to) {
			to = append(to, slot{Latency: Durations{}})
		}
		to[i].Requests += s.Requests
		to[i].Errors += s.Errors
		to[i].Connected += s.Connected
		to[i].Ended += s.Ended
		to[i].Latency.merge(s.Latency)
	}
	return to
}

// Point is one interval of the time series in a report.
type Point struct {
	From        float64 `json:"from_seconds"` // since the start of the run
	Requests    int64   `json:"requests"`     // that were successful
	Errors      int64   `json:"errors"`
	P50         float64 `json:"p50_seconds"`
	P99         float64 `json:"p99_seconds"`
	Max         float64 `json:"max_seconds"`
	Connections int64   `json:"connections"` // open at the end of the interval
	Opened      int64   `json:"connections_opened"`
}

// points omits the intervals after the end of the load, unless they have events.
func points(slots []slot, interval, elapsed time.Duration) []Point {
	for n := len(slots); n > 1 && time.Duration(n-1)*interval >= elapsed && slots[n-1].Requests+slots[n-1].Errors == 0; n-- {
		slots = slots[:n-1]
	}
	all := make([]Point, 0, len(slots))
	var open int64
	for i, s := range slots {
		open += s.Connected - s.Ended
		p := s.Latency.Percentiles()
		all = append(all, Point{
			From: (time.Duration(i) * interval).Seconds(), Requests: s.Requests, Errors: s.Errors,
			P50: p.P50, P99: p.P99, Max: p.Max, Connections: open, Opened: s.Connected,
		})
	}
	return all
}
