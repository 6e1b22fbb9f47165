package soak

import (
	"testing"
	"time"
)

func TestBuckets(t *testing.T) {
	last := -1
	for d := time.Duration(0); d < 150*time.Hour; d += d/50 + time.Microsecond {
		i := bucket(d)
		if i < last {
			t.Fatalf("%s is counted in bucket %d, below that of shorter ones", d, i)
		}
		last = i
		if u := upper(i); u < d.Truncate(time.Microsecond) || u > d+d/60 {
			t.Fatalf("%s is counted as up to %s", d, u)
		}
		if i > 0 && bucket(upper(i)) != i {
			t.Fatalf("%s, the end of bucket %d, is counted in %d", upper(i), i, bucket(upper(i)))
		}
	}
	for _, d := range []time.Duration{-time.Second, 1<<63 - 1} {
		if i := bucket(d); i < 0 || i >= buckets {
			t.Errorf("bucket(%s) is %d", d, i)
		}
	}
}

func TestPercentiles(t *testing.T) {
	f := func(ms []int, want Percentiles) {
		t.Helper()
		var h histogram
		for _, n := range ms {
			h.add(time.Duration(n) * time.Millisecond)
		}
		got := h.snapshot().Percentiles()
		near := func(got, want float64) bool { return got >= want && got <= want*1.017 }
		if got.Count != want.Count || !near(got.P50, want.P50) || !near(got.P90, want.P90) || !near(got.P99, want.P99) || !near(got.P999, want.P999) || !near(got.Max, want.Max) {
			t.Errorf("%d values: got %+v, want about %+v", len(ms), got, want)
		}
	}
	var hundred []int
	for i := range 100 {
		hundred = append(hundred, i+1)
	}
	f(nil, Percentiles{})
	f([]int{7}, Percentiles{1, .007, .007, .007, .007, .007})
	f([]int{1, 1000}, Percentiles{2, .001, 1, 1, 1, 1})
	f(hundred, Percentiles{100, .050, .090, .099, .100, .100})

	a, b := Durations{1: 2}, Durations{1: 3, 9: 1}
	a.merge(b)
	if a[1] != 5 || a[9] != 1 {
		t.Errorf("merged: %v", a)
	}
}
