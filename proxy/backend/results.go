package backend

import (
	"sync/atomic"
	"time"
)

// results counts the attempts at an endpoint that succeeded or failed within the last
// ejection.within, for ejection.share. Its size is fixed, and it takes no lock. Each slot
// counts for a tenth of the time, so weir forgets a result after nine to ten tenths.
type results struct {
	within time.Duration
	begun  time.Time
	slots  [resultSlots]atomic.Uint64 // the number of the slot, failed attempts, all attempts
}

const (
	resultSlots = 10
	countBits   = 22
	mostCounted = 1<<countBits - 1 // a full slot counts no more; the share stays about right
	slotMask    = 1<<(64-2*countBits) - 1
)

func newResults(within time.Duration) *results {
	return &results{within: within, begun: time.Now()}
}

// slot returns the number of the current slot. The first is 1, so an unused slot is in the past.
func (r *results) slot() uint64 {
	return uint64(time.Since(r.begun)/(r.within/resultSlots)) + 1
}

// add counts attempts, and failed ones.
func (r *results) add(attempts, failed uint64) {
	number := r.slot()
	slot := &r.slots[number%resultSlots]
	for {
		old := slot.Load()
		all, bad := old&mostCounted, old>>countBits&mostCounted
		switch ahead := (old>>(2*countBits) - number) & slotMask; {
		case ahead == 0:
		case ahead < slotMask/2: // this goroutine stood still while others went on to a later slot
			return
		default:
			all, bad = 0, 0
		}
		if all == mostCounted || bad == mostCounted {
			return
		}
		if slot.CompareAndSwap(old, number&slotMask<<(2*countBits)|(bad+failed)<<countBits|(all+attempts)) {
			return
		}
	}
}

// sum returns the number of attempts within the time, and how many of them failed.
func (r *results) sum() (attempts, failed uint64) {
	number := r.slot()
	for i := range r.slots {
		word := r.slots[i].Load()
		if age := (number - word>>(2*countBits)) & slotMask; age < resultSlots {
			attempts += word & mostCounted
			failed += word >> countBits & mostCounted
		}
	}
	return attempts, min(attempts, failed) // an attempt that broke off may have begun before the time
}
