package pause

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

// LeftGarbage is how many bytes of garbage changes of a cluster may leave.
const LeftGarbage = 16 << 20

// A collection of garbage takes a quarter of the processors for stretches of up to 10 ms. Work that
// makes much garbage would cause several collections, and goroutines that serve requests would have to
// help with them. So the garbage of such work is collected apart from it.

const (
	mostGarbage  = 192 << 20 // bytes that the heap may grow by without a collection
	sparePercent = 25
	lookEvery    = 5 * time.Millisecond
	pollEvery    = 200 * time.Microsecond // during a collection, with one processor
)

var (
	beginning  sync.Mutex                    // held from Begin until the garbage was collected
	collecting atomic.Pointer[chan struct{}] // closed when the collection has ended; nil: there is none
)

// Begin begins long work that makes much garbage. Garbage is collected when there are 192 MiB more,
// and after the caller has called end; the memory limit of the process (GOMEMLIMIT) applies as
// always. end does not wait for the collection. If other work has begun already, Begin does nothing.
func Begin() (end func()) {
	if !serving.Load() || !beginning.TryLock() {
		return func() {}
	}
	percent := debug.SetGCPercent(-1)
	if percent < 0 { // GOGC=off
		beginning.Unlock()
		return func() {}
	}
	ended := make(chan struct{})
	go func() {
		defer beginning.Unlock()
		defer debug.SetGCPercent(percent)
		collectUntil(ended)
	}()
	return sync.OnceFunc(func() { close(ended) })
}

// Spare limits the garbage to a quarter of the memory in use until end is called. It is for the start
// of a process that will use much memory: nothing waits for the collections. If long work has begun
// already, Spare does nothing.
func Spare() (end func()) {
	if !beginning.TryLock() {
		return func() {}
	}
	percent := debug.SetGCPercent(sparePercent)
	if percent < sparePercent { // a lower GOGC, or GOGC=off
		debug.SetGCPercent(percent)
		beginning.Unlock()
		return func() {}
	}
	return sync.OnceFunc(func() {
		debug.SetGCPercent(percent)
		beginning.Unlock()
	})
}

// Tidy collects garbage, apart from requests, if there are more bytes of it than left, and than a sixteenth of the
// memory in use, which a collection has to read. It is for work that makes a little garbage again and again, such as
// changes of a cluster. With much memory in use, the
// runtime itself would let garbage accumulate until it is as large as the memory in use. Tidy waits for
// the collection. During long work, and with GOGC=off, it does nothing.
func Tidy(left uint64) {
	if size, live := garbageSize(); size < max(left, live/16) || !beginning.TryLock() {
		return
	}
	defer beginning.Unlock()
	collect()
}

// collectUntil collects garbage when there is much of it, and when ended is closed.
func collectUntil(ended chan struct{}) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	most := heapSize() + mostGarbage
	for {
		select {
		case <-ended:
			collect()
			return
		case <-look.C:
			if heapSize() > most {
				collect()
				most = heapSize() + mostGarbage
			}
		}
	}
}

// collect collects garbage. Processors that are idle do it, and look for network events meanwhile.
// The goroutines that allocate memory do not help, because the next collection is not due yet. The
// caller holds beginning.
func collect() { apart(runtime.GC) }

// apart runs a collection, and makes long work wait until it has ended.
func apart(collection func()) {
	collected := make(chan struct{})
	collecting.Store(&collected)
	go func() {
		defer close(collected)
		defer collecting.Store(nil)
		collection()
	}()
	if runtime.GOMAXPROCS(0) > 1 {
		<-collected
		return
	}
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		select {
		case <-collected:
			return
		case <-poll.C:
			pollNetwork()
		}
	}
}

// awaitCollection waits while garbage is collected apart from requests. Without it a collection would
// get only a quarter of the only processor, and would last four times as long. Go's runtime keeps the
// processor for a fixed share of the time that a collection has lasted.
func awaitCollection() {
	if collected := collecting.Load(); collected != nil {
		<-*collected
	}
}

// heapSize returns the bytes of objects in the heap, garbage included.
func heapSize() uint64 {
	sample := [1]metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample[:])
	return sample[0].Value.Uint64()
}

// garbageSize returns how many bytes of objects were allocated since the last collection, or 0 with
// GOGC=off, and how many were in use then.
func garbageSize() (garbage, live uint64) {
	samples := [...]metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}, {Name: "/gc/gogc:percent"}}
	metrics.Read(samples[:])
	size, live := samples[0].Value.Uint64(), samples[1].Value.Uint64()
	if samples[2].Value.Uint64() == math.MaxUint64 || size < live {
		return 0, live
	}
	return size - live, live
}
