package pause

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
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

// Long work does not prolong a collection.
func TestWorkWaitsForTheCollection(t *testing.T) {
	for _, processors := range []int{1, 2} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
		defer serving.Store(serving.Load())
		Serve()
		settled()
		synctest.Test(t, func(t *testing.T) {
			defer due.Store(0) // the clock of this test is another one
			var worked atomic.Bool
			apart(func() {
				go func() {
					due.Store(0)
					IfDue()
					worked.Store(true)
				}()
				synctest.Wait()
				if worked.Load() {
					t.Errorf("with %d processors, work goes on during a collection", processors)
				}
			})
			time.Sleep(length)
			synctest.Wait()
			if !worked.Load() {
				t.Errorf("with %d processors, work does not go on after the collection", processors)
			}
		})
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

// A start may use memory that is scarce later.
func TestGarbageOfAStart(t *testing.T) {
	settled()
	usual := percent()
	end := Spare()
	if got := percent(); got != sparePercent {
		t.Errorf("GOGC is %d during the start", got)
	}
	Spare()() // of other work
	if got := percent(); got != sparePercent {
		t.Errorf("GOGC is %d after other work has ended", got)
	}
	end()
	end()
	if got := percent(); got != usual {
		t.Errorf("after the start GOGC is %d, not %d", got, usual)
	}
	for _, own := range []int{-1, sparePercent - 1} {
		debug.SetGCPercent(own)
		end := Spare()
		if got := percent(); got != own {
			t.Errorf("GOGC is %d during the start, and the user has set %d", got, own)
		}
		end()
	}
	debug.SetGCPercent(usual)
}

func TestTidy(t *testing.T) {
	settled()
	defer debug.SetGCPercent(debug.SetGCPercent(10_000))
	tidy := func() (collected bool) {
		before := collections()
		Tidy(LeftGarbage)
		return collections() > before
	}
	make32 := func() {
		for range 32 {
			garbage = make([]byte, 1<<20)
		}
	}
	runtime.GC()
	if tidy() {
		t.Error("a collection without garbage")
	}
	if make32(); !tidy() {
		t.Error("no collection of 32 MiB")
	}
	if tidy() {
		t.Error("a second collection")
	}
	beginning.Lock()
	if make32(); tidy() {
		t.Error("a collection during long work")
	}
	beginning.Unlock()
	debug.SetGCPercent(-1)
	if tidy() {
		t.Error("a collection with GOGC=off")
	}
}
