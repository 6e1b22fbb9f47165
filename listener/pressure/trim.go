package pressure

import (
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// trim gives memory back to the system once a process has come to rest. The
// runtime by itself collects garbage when there is as much of it as is in use,
// and keeps the room for as much again: right for who goes on, but a process
// whose many connections have gone quiet would keep twice of what they take, for
// as long as they are. While there is work trim does nothing.
type trim struct {
	looked           time.Time
	allocated, freed uint64 // since the start: at the last look, and when memory was given back
	calm             int    // looks in a row with little that was allocated
}

// calmLooks is how many seconds with little work it takes.
const calmLooks = 3

// worth is how much has to have been allocated, and so may be garbage, for a
// collection that has to look at all that is live.
func worth(live uint64) uint64 { return live/4 + 2<<20 }

// look looks once a second, however often it is called.
func (t *trim) look(now time.Time) {
	if now.Sub(t.looked) < interval/2 {
		return
	}
	t.looked = now
	samples := [...]metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples[:])
	if t.due(samples[0].Value.Uint64(), samples[1].Value.Uint64()) {
		debug.FreeOSMemory()
	}
}

// due reports whether to return memory to the kernel. allocated is the number of bytes
// since the start, and live the number of bytes in use.
func (t *trim) due(allocated, live uint64) bool {
	if allocated-t.allocated > worth(live)/32 {
		t.calm = 0
	} else {
		t.calm++
	}
	t.allocated = allocated
	if t.calm < calmLooks || allocated-t.freed < worth(live) {
		return false
	}
	t.freed = allocated
	return true
}
