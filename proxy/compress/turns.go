package compress

import (
	"runtime"
	"sync/atomic"
)

// turns limits how many encoders compute at the same time, so that other requests get the other cores.
// An encoder has a turn only while it computes. While it waits for the endpoint or the client, it has
// none. Encoders get turns in the order in which they ask.
type turns struct {
	taken   chan struct{} // full: all turns are taken
	waiting atomic.Int32
}

func newTurns(n int) *turns { return &turns{taken: make(chan struct{}, n)} }

// cores has as many turns as half of the cores.
var cores = newTurns(max(1, runtime.GOMAXPROCS(0)/2))

// mostWaiting is the number of encoders that may wait for each turn. If more would wait, weir sends
// further bodies uncompressed. A turn takes about a millisecond.
const mostWaiting = 4

// Busy reports whether so many encoders wait for a turn that weir should send further bodies
// uncompressed.
func Busy() bool { return int(cores.waiting.Load()) >= mostWaiting*cap(cores.taken) }

func (t *turns) take() {
	select {
	case t.taken <- struct{}{}:
		return
	default:
	}
	t.waiting.Add(1)
	t.taken <- struct{}{}
	t.waiting.Add(-1)
}

func (t *turns) free() { <-t.taken }
