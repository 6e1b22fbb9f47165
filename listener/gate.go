package listener

import (
	"math"
	"sync"
	"sync/atomic"
)

// gate lets all listeners wait together, before they accept, while as many
// connections are open as there is room for. Who waits meanwhile is in the
// kernel's queue. Passing an open gate costs two loads.
type gate struct {
	most    atomic.Int64  // connections that may be open; none wait below
	crowded chan struct{} // told when somebody begins to wait

	mu    sync.Mutex
	moved chan struct{} // closed by the next Admit
}

func newGate() *gate {
	g := &gate{crowded: make(chan struct{}, 1), moved: make(chan struct{})}
	g.most.Store(math.MaxInt64)
	return g
}

// Admit makes listeners accept no further connection while most are open, until
// it is called again. The connections that there are stay.
func (l *Limits) Admit(most int64) {
	g := l.gate
	g.most.Store(most)
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

// awaitRoom waits until a connection may be accepted, or stop.
func (l *Limits) awaitRoom(stop <-chan struct{}) {
	for l.isFull() {
		moved := l.gate.changed()
		if !l.isFull() { // it moved before that
			return
		}
		select {
		case l.gate.crowded <- struct{}{}:
		default:
		}
		select {
		case <-moved:
		case <-stop:
			return
		}
	}
}

func (l *Limits) isFull() bool { return l.connections.Load() >= l.gate.most.Load() }
