package tally

import (
	"testing"
	"time"
)

// Each duration is within the bounds of its slot, and the slots follow each other.
func TestSlots(t *testing.T) {
	for i := range Slots {
		from, to := bounds(i)
		if from >= to {
			t.Errorf("slot %d is from %v to %v", i, from, to)
		}
		if i > 0 {
			if _, end := bounds(i - 1); end != from {
				t.Errorf("slot %d begins at %v, and the one before ends at %v", i, from, end)
			}
		}
		if got := slotOf(from); got != i {
			t.Errorf("%v is in slot %d, want %d", from, got, i)
		}
		if got := slotOf(to - 1); got != i {
			t.Errorf("%v is in slot %d, want %d", to-1, got, i)
		}
	}
	if _, to := bounds(Slots - 1); to < 2*time.Minute {
		t.Errorf("the last slot ends at %v", to)
	}
	for d, want := range map[time.Duration]int{-time.Second: 0, 0: 0, time.Hour: Slots - 1} {
		if got := slotOf(d); got != want {
			t.Errorf("%v is in slot %d, want %d", d, got, want)
		}
	}
}

func TestCounts(t *testing.T) {
	var one Tally
	for code, n := range map[int]int{200: 90, 204: 2, 304: 3, 404: 4, 503: 1, 0: 1, 99: 1, 700: 1, -5: 1} {
		for range n {
			one.Count(code, time.Millisecond)
		}
	}
	one.Count(200, 4*time.Second)
	var c Counts
	one.AddTo(&c)
	if want := [Classes]uint64{4, 0, 93, 3, 4, 1}; c.Classes != want {
		t.Errorf("classes %v, want %v", c.Classes, want)
	}
	if n := c.Total(); n != 105 {
		t.Errorf("total %d, want 105", n)
	}
	if p := c.Quantile(0.5); p < 500*time.Microsecond || p > 2*time.Millisecond {
		t.Errorf("the median of 1 ms is %v", p)
	}
	if p := c.Quantile(1); p < 3*time.Second || p > 6*time.Second {
		t.Errorf("the maximum of 4 s is %v", p)
	}
	before := c
	for range 10 {
		one.Count(500, 4*time.Second)
	}
	var after Counts
	one.AddTo(&after)
	d := after.Minus(&before)
	if d.Total() != 10 || d.Classes[5] != 10 {
		t.Errorf("the difference is %v", d.Classes)
	}
	if p := d.Quantile(0.01); p < time.Second {
		t.Errorf("all took 4 s, but the first percentile is %v", p)
	}
	if d := before.Minus(&after); d.Classes[5] != 0 {
		t.Errorf("a class that shrank is %d, want 0", d.Classes[5])
	}
	var none Counts
	if p := none.Quantile(0.5); p != 0 {
		t.Errorf("the median of nothing is %v", p)
	}
	sum := before
	sum.Add(&d)
	if sum != after {
		t.Errorf("%v and %v is %v, want %v", before, d, sum, after)
	}
}

// A count of a slot wraps around without harm.
func TestCountsWrapAround(t *testing.T) {
	before, after := Counts{}, Counts{}
	before.Times[3], after.Times[3] = 1<<32-2, 5
	if d := after.Minus(&before); d.Times[3] != 7 {
		t.Errorf("the difference is %d, want 7", d.Times[3])
	}
}
