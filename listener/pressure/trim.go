package pressure

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// trim returns memory to the system when the process has become idle. The runtime itself
// collects garbage only when there is as much garbage as memory in use, and keeps the
// room for this garbage. That is right for a busy process. But a process whose many
// connections have become idle would keep twice the memory that they need, for as long as
// they are idle. While there is work, trim does nothing.
type trim struct {
	looked           time.Time
	allocated, freed uint64 // bytes since the start: at the last check, and when trim last returned memory
	calm             int    // consecutive checks with few allocations
}

// calmLooks is the number of seconds with little work before trim acts.
const calmLooks = 3

// worth returns how many bytes must have been allocated, and so may be garbage, before a
// collection is worth its cost: it has to scan all live memory.
func worth(live uint64) uint64 { return live/4 + 2<<20 }

// look checks at most about once a second, however often it is called.
func (t *trim) look(now time.Time) {
	if now.Sub(t.looked) < interval/2 {
		return
	}
	t.looked = now
	samples := [...]metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples[:])
	if t.due(samples[0].Value.Uint64(), samples[1].Value.Uint64()) {
		giveBack()
	}
}

// giveBack collects garbage twice, and returns the free memory to the system. Objects in a
// sync.Pool survive one collection. Without the second one, an idle process would keep the
// sessions and buffers of its last burst.
func giveBack() {
	runtime.GC()
	debug.FreeOSMemory() // collects, too
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
