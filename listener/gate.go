package listener

import (
	"math"
	"sync"
	"sync/atomic"
)

// gate lets all listeners wait together, before they accept, once as many
// connections have come as there was room for. Who waits meanwhile is in the
// kernel's queue.
type gate struct {
	left    atomic.Int64  // how many may still come; none wait above 0
	crowded chan struct{} // told when somebody begins to wait

	mu    sync.Mutex
	moved chan struct{} // closed by the next Admit
}

func newGate() *gate {
	g := &gate{crowded: make(chan struct{}, 1), moved: make(chan struct{})}
	g.left.Store(math.MaxInt64)
	return g
}

// Admit makes all listeners together accept that many further connections, and
// then wait until it is called again. Until it is called first, none waits.
func (l *Limits) Admit(most int64) {
	g := l.gate
	g.left.Store(most)
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.moved)
	g.moved = make(chan struct{})
}

// Crowded is sent to when a listener begins to wait because of Admit.
func (l *Limits) Crowded() <-chan struct{} { return l.gate.crowded }

func (g *gate) changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.moved
}

// pass waits until a connection may be accepted, or stop.
func (g *gate) pass(stop <-chan struct{}) {
	for g.left.Add(-1) < 0 {
		moved := g.changed()
		if g.left.Load() > 0 { // it moved before that
			continue
		}
		select {
		case g.crowded <- struct{}{}:
		default:
		}
		select {
		case <-moved:
		case <-stop:
			return
		}
	}
}
