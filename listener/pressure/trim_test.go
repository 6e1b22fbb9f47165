package pressure

import (
	"runtime"
	"sync"
	"testing"
	"time"
	"weak"
)

// Memory is returned when there is enough of it and the process is idle. It is returned
// again only when there is enough again.
func TestTrim(t *testing.T) {
	const mib, live = 1 << 20, 88 << 20 // 24 MiB are worth a collection
	var r trim
	total := uint64(0)
	f := func(allocated uint64, want bool) {
		t.Helper()
		total += allocated
		if got := r.due(total, live); got != want {
			t.Errorf("after %d MiB more: %t", allocated/mib, got)
		}
	}
	f(0, false) // the process has only begun
	f(0, false)
	f(0, false)
	for range 10 {
		f(5*mib, false) // busy
	}
	f(mib/2, false)
	f(mib/2, false)
	f(5*mib, false) // busy once more
	f(mib/2, false)
	f(0, false)
	f(mib/2, true)
	for range 40 {
		f(mib/2, false)
	}
	for range 7 {
		f(mib/2, false)
	}
	f(mib/2, true) // many small allocations are now worth a collection
	f(0, false)
}

// After a burst of work the pools hold many objects. An idle process does not keep them.
func TestTrimEmptiesPools(t *testing.T) {
	type session [4 << 10]byte
	var pool sync.Pool
	var all []weak.Pointer[session]
	for range 1 << 10 { // 4 MiB are worth a collection
		s := new(session)
		all = append(all, weak.Make(s))
		pool.Put(s)
	}
	var r trim
	now := time.Now()
	for range 1 + calmLooks { // the first look notices the work
		r.look(now)
		now = now.Add(interval)
	}
	held := 0
	for _, s := range all {
		if s.Value() != nil {
			held++
		}
	}
	if held > 0 {
		t.Errorf("the pool still holds %d of %d objects", held, len(all))
	}
	runtime.KeepAlive(&pool)
}
