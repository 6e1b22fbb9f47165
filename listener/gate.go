package listener

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/weirproxy/weir/listener/conn"
)

// gate makes all listeners wait together before they accept, after as many connections
// were accepted as there was room for. Waiting connections stay in the kernel's queue.
//
// weir cannot see which clients the connections in the queue belong to, so one client
// could fill the queue. Therefore Share lets a few connections in at a time although
// there is no room. weir finds out their client networks, and closes the connections that
// may not stay.
type gate struct {
	left    atomic.Int64  // how many may still be accepted; above 0 no listener waits
	crowded chan struct{} // gets a value when a listener begins to wait

	mu      sync.Mutex
	moved   chan struct{} // closed by the next Admit, and when there are places again
	places  int64         // for connections without room
	judging int64         // the part of these whose client network is not known yet
	may     func(conn.Network) bool
}

func newGate() *gate {
	g := &gate{crowded: make(chan struct{}, 1), moved: make(chan struct{})}
	g.left.Store(math.MaxInt64)
	return g
}

// Admit lets all listeners together accept this many further connections. Then they wait
// until the next Admit. Before the first Admit no listener waits.
func (l *Limits) Admit(most int64) {
	g := l.gate
	g.left.Store(most)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.move()
}

// Left returns how many connections may be accepted until Admit is called again. Below 0: a
// listener has begun to wait since Admit was called.
func (l *Limits) Left() int64 { return l.gate.left.Load() }

// Share lets listeners accept up to most connections although Admit makes them wait. The
// number includes connections whose network is not known yet, and connections for which
// may has returned true since Share was called. If may returns false, the listener closes
// the connection. If most is 0, the listeners wait again.
func (l *Limits) Share(most int64, may func(conn.Network) bool) {
	g := l.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	g.places, g.may = max(0, most-g.judging), may
	g.move()
}

// Crowded receives a value when a listener begins to wait because of Admit, or for a
// descriptor.
func (l *Limits) Crowded() <-chan struct{} { return l.gate.crowded }

// move wakes the listeners that wait.
func (g *gate) move() {
	close(g.moved)
	g.moved = make(chan struct{})
}

// changed returns a channel that closes at the next change, and whether there is a free
// place.
func (g *gate) changed() (moved <-chan struct{}, place bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.moved, g.places > 0
}

// pass waits until a connection may be accepted, or stop closes. If it returns true, there
// is no room for the connection, and judge must decide about it.
func (g *gate) pass(stop <-chan struct{}) (judge bool) {
	for g.left.Add(-1) < 0 {
		moved, place := g.changed()
		if g.left.Load() > 0 { // Admit was called meanwhile
			continue
		}
		g.tellCrowded()
		if place {
			return true
		}
		select {
		case <-moved:
		case <-stop:
			return false
		}
	}
	return false
}

// tellCrowded makes the Watch check the resources soon.
func (g *gate) tellCrowded() {
	select {
	case g.crowded <- struct{}{}:
	default:
	}
}

// take takes a place for a connection that judge must decide about. places may become
// negative: a listener has waited for its connection while others were accepted.
func (g *gate) take() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.places--
	g.judging++
}

// judge returns true if the connection may stay. If not, its place is free again at once.
// If it stays, its place becomes free when there is room, which Share reports.
func (g *gate) judge(n conn.Network) bool {
	g.mu.Lock()
	may := g.may
	g.mu.Unlock()
	stays := may == nil || may(n)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.judging--
	if !stays {
		g.places++
		g.move()
	}
	return stays
}

// giveUp frees the place of a connection that ended before judge decided about it.
func (g *gate) giveUp() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.judging--
	g.places++
	g.move()
}
