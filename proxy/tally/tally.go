// Package tally counts exchanges for the status page. The page does not use the counters of Prometheus,
// because they take too long to read with ten thousand routes.
package tally

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Slots is the number of slots for durations: two for each doubling, from 65 µs to 2 minutes.
const Slots = 44

// Classes is the number of classes of status codes: one for each first digit, and 0 for any other
// status.
const Classes = 6

// Tally has the counts of one route. The zero value is ready for use by any number of goroutines.
type Tally struct {
	classes [Classes]atomic.Uint64
	times   [Slots]atomic.Uint32
}

// Count counts an exchange with a status code that lasted for d.
func (t *Tally) Count(code int, d time.Duration) {
	t.classes[classOf(code)].Add(1)
	t.times[slotOf(d)].Add(1)
}

func classOf(code int) int {
	if c := code / 100; c > 0 && c < Classes {
		return c
	}
	return 0
}

// The first slot ends at 1<<firstSlot nanoseconds.
const firstSlot = 16

func slotOf(d time.Duration) int {
	m := uint64(max(d, 0)) >> (firstSlot - 1)
	if m < 2 {
		return 0
	}
	octave := bits.Len64(m) - 2
	return min(1+2*octave+int(m>>octave&1), Slots-1)
}

// bounds returns the bounds of the durations in a slot. The last slot also has all longer durations.
func bounds(slot int) (from, to time.Duration) {
	if slot == 0 {
		return 0, 1 << firstSlot
	}
	octave, half := (slot-1)/2, time.Duration((slot-1)%2)
	unit := time.Duration(1) << (firstSlot - 1 + octave)
	return (2 + half) * unit, (3 + half) * unit
}

// Total is the number of exchanges.
func (t *Tally) Total() (n uint64) {
	for i := range t.classes {
		n += t.classes[i].Load()
	}
	return n
}

// Series is the traffic of a route to one backend.
type Series struct {
	Tally
	Route   string       // its name; empty: requests that no route matched
	Tunnels atomic.Int64 // open now
}

// Counts are counts of exchanges. They only grow, so the difference of two Counts (Minus) is the traffic
// between them.
type Counts struct {
	Classes [Classes]uint64 // by the class of the status
	Times   [Slots]uint32   // by the slot of the duration; they wrap around
}

// AddTo adds the counts to sum.
func (t *Tally) AddTo(sum *Counts) {
	for i := range t.classes {
		sum.Classes[i] += t.classes[i].Load()
	}
	for i := range t.times {
		sum.Times[i] += t.times[i].Load()
	}
}

// Add adds other to c.
func (c *Counts) Add(other *Counts) {
	for i := range c.Classes {
		c.Classes[i] += other.Classes[i]
	}
	for i := range c.Times {
		c.Times[i] += other.Times[i]
	}
}

// Minus returns the counts since before. A class that has shrunk, because a route was removed, is 0.
func (c Counts) Minus(before *Counts) Counts {
	for i := range c.Classes {
		c.Classes[i] -= min(before.Classes[i], c.Classes[i])
	}
	for i := range c.Times {
		c.Times[i] -= before.Times[i]
	}
	return c
}

// Total is the number of exchanges.
func (c *Counts) Total() (n uint64) {
	for _, class := range c.Classes {
		n += class
	}
	return n
}

// Quantile returns the duration that the fraction q of the exchanges did not exceed; 0: there was no
// exchange. The error is at most half of the result, and mostly much less.
func (c *Counts) Quantile(q float64) time.Duration {
	var all uint64
	for _, n := range c.Times {
		all += uint64(n)
	}
	if all == 0 {
		return 0
	}
	rank, below := q*float64(all), 0.0
	for i, n := range c.Times {
		if n > 0 && below+float64(n) >= rank {
			from, to := bounds(i)
			return from + time.Duration(float64(to-from)*(rank-below)/float64(n))
		}
		below += float64(n)
	}
	_, to := bounds(Slots - 1)
	return to
}
