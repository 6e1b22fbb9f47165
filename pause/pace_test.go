package pause

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

// automatic returns how many collections Go's runtime has started itself.
func automatic() uint64 {
	sample := [1]metrics.Sample{{Name: "/gc/cycles/automatic:gc-cycles"}}
	metrics.Read(sample[:])
	return sample[0].Value.Uint64()
}

var live []byte // on the heap

// With one processor, Pace collects before the runtime does, and not during long work.
func TestPaceComesFirst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	settled()
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	live = make([]byte, 64<<20)
	defer func() { live = nil }()
	runtime.GC()
	runtime.GC() // the pools are empty
	all, own := collections(), automatic()
	for size := 0; collections() == all; size += 64 << 10 {
		if size > 200<<20 {
			t.Fatal("no collection of 200 MiB")
		}
		garbage = make([]byte, 64<<10)
		paceOnce()
	}
	if automatic() != own {
		t.Error("the runtime has started the collection")
	}
	own = collections() - automatic()
	leave := func(when string) {
		t.Helper()
		for range 1000 {
			garbage = make([]byte, 64<<10)
			paceOnce()
		}
		if collections()-automatic() != own {
			t.Error("a collection " + when)
		}
	}
	beginning.Lock()
	leave("during long work")
	beginning.Unlock()
	runtime.GOMAXPROCS(2)
	leave("with two processors")
}

func TestDueIn(t *testing.T) {
	const off = math.MaxUint64 // the runtime's goal without collections
	f := func(size, live, goal uint64, now bool, next time.Duration) {
		t.Helper()
		if gotNow, gotNext := dueIn(size, live, goal); gotNow != now || gotNext != next {
			t.Errorf("%d bytes, %d live, goal %d: %t, look again after %s", size, live, goal, gotNow, gotNext)
		}
	}
	const mib = 1 << 20
	f(100*mib, 100*mib, 200*mib, false, paceSeldom)
	f(129*mib, 100*mib, 200*mib, false, paceSeldom)
	f(131*mib, 100*mib, 200*mib, false, paceOften)
	f(159*mib, 100*mib, 200*mib, false, paceOften)
	f(160*mib, 100*mib, 200*mib, true, paceOften)
	f(7*mib, 1*mib, 8*mib, false, paceSeldom)       // a small heap
	f(140*mib, 100*mib, 149*mib, false, paceSeldom) // a memory limit
	f(145*mib, 100*mib, 150*mib, true, paceOften)   // GOGC=50
	f(1<<40, 100*mib, off, false, paceSeldom)       // GOGC=off, or long work
	f(90*mib, 100*mib, 200*mib, false, paceSeldom)  // the metrics are not of the same moment
	f(100*mib, 100*mib, 90*mib, false, paceSeldom)  // more memory than the limit
}
