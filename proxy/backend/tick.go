package backend

import (
	"runtime"
	"sync"
	"time"
)

// awake has the backends with regular work: recent attempts, idle connections, endpoints in their
// slow start, or an outage to report. All others cost nothing each second: a cluster may have
// ten thousand.
type awake struct {
	mu   sync.Mutex
	list []*Backend // each once, see Backend.awake
}

// wake lets the Set call tick once a second. Whatever gives a backend regular work calls it
// afterwards.
func (b *Backend) wake() {
	if b.awake.Load() || b.awake.Swap(true) {
		return
	}
	b.opts.awake.add(b)
}

func (a *awake) add(all ...*Backend) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, all...)
}

// tick does one second's work of all backends that have any.
func (a *awake) tick() {
	a.mu.Lock()
	all := a.list
	a.list = nil // backends that wake meanwhile begin another list
	a.mu.Unlock()
	stay := all[:0]
	for n, b := range all {
		b.tick()
		if !b.rests() {
			stay = append(stay, b)
		}
		if n%256 == 255 {
			runtime.Gosched() // 10,000 backends take milliseconds; exchanges must not wait that long
		}
	}
	clear(all[len(stay):])
	a.add(stay...)
}

// rests returns true if the backend has no regular work. Then it leaves the list until wake.
func (b *Backend) rests() bool {
	b.awake.Store(false)
	// Work that comes after this look finds the backend at rest, and puts it into the list.
	return !b.hasWork() || b.awake.Swap(true)
}

func (b *Backend) hasWork() bool {
	if b.stocked.Load() > 0 || b.budget.moves() {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.removed && (b.ramping || b.outage.waits())
}

// tick does the regular work.
func (b *Backend) tick() {
	b.budget.tick()
	b.mu.Lock()
	endpoints := b.endpoints // replaced, never changed
	keepAlive := max(1, uint32(b.cfg.Timeouts.KeepAlive/time.Second))
	if !b.removed {
		if b.ramping {
			b.rebuild()
		}
		b.tickOutage()
	}
	b.unlock()
	if b.stocked.Load() == 0 {
		return
	}
	for _, e := range endpoints {
		e.sweep(keepAlive)
	}
}
