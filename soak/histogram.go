package soak

import (
	"maps"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"
)

// A histogram counts durations in buckets whose width is at most 1/64 of their value, so
// that percentiles are precise to 1.6 %.
const (
	stepBits = 6
	steps    = 1 << stepBits // buckets between two powers of two
	buckets  = 34 * steps
)

type histogram struct{ counts [buckets]atomic.Uint64 }

// bucket returns the number of the bucket that counts d, in microseconds.
func bucket(d time.Duration) int {
	us := uint64(max(0, d.Microseconds()))
	if us < steps {
		return int(us)
	}
	exponent := bits.Len64(us) - stepBits - 1 // us>>exponent is from steps to 2*steps-1
	return min(buckets-1, exponent*steps+int(us>>exponent))
}

// upper returns the longest duration in bucket i.
func upper(i int) time.Duration {
	if i < steps {
		return time.Duration(i) * time.Microsecond
	}
	exponent := (i - steps) / steps
	us := uint64(steps+i%steps+1)<<exponent - 1
	return time.Duration(us) * time.Microsecond
}

func (h *histogram) add(d time.Duration) { h.counts[bucket(d)].Add(1) }

// Durations is a histogram that can be sent and merged: bucket -> count.
type Durations map[int]uint64

func (h *histogram) snapshot() Durations {
	d := Durations{}
	for i := range h.counts {
		if n := h.counts[i].Load(); n > 0 {
			d[i] = n
		}
	}
	return d
}

func (d Durations) merge(other Durations) {
	for i, n := range other {
		d[i] += n
	}
}

// Percentiles summarize many durations in a report.
type Percentiles struct {
	Count uint64  `json:"count"`
	P50   float64 `json:"p50_seconds"`
	P90   float64 `json:"p90_seconds"`
	P99   float64 `json:"p99_seconds"`
	P999  float64 `json:"p99_9_seconds"`
	Max   float64 `json:"max_seconds"`
}

// Percentiles returns values that are precise to 1.6 %, and never too small.
func (d Durations) Percentiles() (p Percentiles) {
	for _, n := range d {
		p.Count += n
	}
	var below uint64
	for _, i := range slices.Sorted(maps.Keys(d)) {
		before := below
		below += d[i]
		for _, want := range []struct {
			share uint64 // per mille
			into  *float64
		}{{500, &p.P50}, {900, &p.P90}, {990, &p.P99}, {999, &p.P999}, {1000, &p.Max}} {
			if rank := (p.Count*want.share + 999) / 1000; before < rank && rank <= below {
				*want.into = upper(i).Seconds()
			}
		}
	}
	return p
}
