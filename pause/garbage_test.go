package pause

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
)

func collections() uint64 {
	sample := [1]metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(sample[:])
	return sample[0].Value.Uint64()
}

// percent returns the setting GOGC.
func percent() int {
	p := debug.SetGCPercent(-1)
	debug.SetGCPercent(p)
	return p
}

// settled waits until the garbage of earlier work was collected.
func settled() {
	beginning.Lock()
	defer beginning.Unlock()
}

var garbage []byte // on the heap

func TestGarbageIsCollectedApart(t *testing.T) {
	for _, processors := range []int{1, 2} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
		defer serving.Store(serving.Load())
		Serve()
		settled()
		usual := percent()
		end := Begin()
		if got := percent(); got != -1 {
			t.Errorf("GOGC is %d during long work", got)
		}
		before := collections()
		for range 100 { // with GOGC=100 this causes collections
			garbage = make([]byte, 1<<20)
		}
		if n := collections() - before; n != 0 {
			t.Errorf("%d collections during long work", n)
		}
		Begin()() // other work
		if got := percent(); got != -1 {
			t.Errorf("GOGC is %d after other work has ended", got)
		}
		end()
		end()
		settled()
		if got := percent(); got != usual || collections() == before {
			t.Errorf("after the work GOGC is %d, not %d, with %d collections", got, usual, collections()-before)
		}
	}
}

// Work that makes very much garbage does not take all memory.
func TestMuchGarbageIsCollected(t *testing.T) {
	defer serving.Store(serving.Load())
	Serve()
	settled()
	end := Begin()
	for before := collections(); collections() == before; {
		garbage = make([]byte, 1<<20)
		if size := heapSize(); size > 100*mostGarbage {
			t.Fatalf("the heap has %d bytes", size)
		}
		runtime.Gosched()
	}
	end()
	settled()
}

// Who has turned collections off gets none.
func TestCollectionsAreOff(t *testing.T) {
	defer serving.Store(serving.Load())
	Serve()
	settled()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	before := collections()
	Begin()()
	settled()
	if got := percent(); got != -1 || collections() != before {
		t.Errorf("GOGC is %d, after %d collections", got, collections()-before)
	}
}

// A start takes no longer.
func TestNoTrafficYet(t *testing.T) {
	defer serving.Store(serving.Load())
	serving.Store(false)
	settled()
	usual := percent()
	end := Begin()
	if got := percent(); got != usual {
		t.Errorf("GOGC is %d before the process serves traffic", got)
	}
	end()
}
