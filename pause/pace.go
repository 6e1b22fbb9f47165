package pause

import (
	"runtime"
	"runtime/metrics"
	"time"
)

// On a process with one processor, a collection that Go's runtime starts itself delays requests: goroutines that
// allocate memory have to help, and while the process is busy, it looks for network events only every 10 ms. So
// weir starts each collection a little before the runtime would, and apart from requests (see apart). The runtime
// starts when at least 70 % of the room between the live memory and its goal are used.

const (
	paceAt     = 60      // percent of the room
	leastRoom  = 8 << 20 // bytes; smaller heaps are collected in a few milliseconds
	paceOften  = 10 * time.Millisecond
	paceSeldom = 100 * time.Millisecond
)

// Pace starts the collections of a process with one processor. It does not return.
func Pace() {
	for {
		time.Sleep(paceOnce())
	}
}

// paceOnce collects garbage if it is time to, and returns when to look again. With several processors, during long
// work and with GOGC=off it does nothing.
func paceOnce() (next time.Duration) {
	if runtime.GOMAXPROCS(0) > 1 { // it may change: the runtime follows the cgroup's limit
		return paceSeldom
	}
	samples := [...]metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/goal:bytes"}}
	metrics.Read(samples[:])
	now, next := dueIn(samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64())
	if now && beginning.TryLock() {
		defer beginning.Unlock()
		collect()
	}
	return next
}

// dueIn decides from the bytes of the heap, of its live objects and of the runtime's goal whether to collect, and
// when to look again. If the goal is near the live memory because of a memory limit, the runtime collects, because
// it limits the CPU time of collections. With GOGC=off the goal is out of reach.
func dueIn(size, live, goal uint64) (now bool, next time.Duration) {
	if goal < live+max(leastRoom, live/2) {
		return false, paceSeldom
	}
	switch percent := (goal - live) / 100; {
	case size < live+percent*paceAt/2:
		return false, paceSeldom
	case size < live+percent*paceAt:
		return false, paceOften
	}
	return true, paceOften
}
