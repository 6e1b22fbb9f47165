package http2

import (
	"sync"
	"time"
)

// Workers are goroutines that have grown their stacks to what an exchange
// needs, and wait for the next one: growing them anew costs more than most
// exchanges do otherwise. Those that were not needed for a while end.
var workers struct {
	sync.Mutex
	idle   []*worker
	unused int         // how many of idle nobody took since the timer fired last
	timer  *time.Timer // runs while there are idle ones
}

const (
	mostIdle = 256                    // bounds the workers that wait
	unneeded = 250 * time.Millisecond // is the while after which they end
)

type worker struct{ next chan func() }

// work has f run in a worker's goroutine.
func work(f func()) {
	workers.Lock()
	var w *worker
	if n := len(workers.idle); n > 0 {
		w = workers.idle[n-1]
		workers.idle[n-1] = nil
		workers.idle = workers.idle[:n-1]
		workers.unused = min(workers.unused, n-1)
	}
	workers.Unlock()
	if w == nil {
		w = &worker{make(chan func(), 1)}
		go w.run()
	}
	w.next <- f
}

func (w *worker) run() {
	for f := range w.next {
		f()
		workers.Lock()
		if len(workers.idle) >= mostIdle {
			workers.Unlock()
			return
		}
		workers.idle = append(workers.idle, w)
		if len(workers.idle) == 1 {
			workers.unused = 0
			if workers.timer == nil {
				workers.timer = time.AfterFunc(unneeded, endUnused)
			} else {
				workers.timer.Reset(unneeded)
			}
		}
		workers.Unlock()
	}
}

// endUnused ends the workers that nobody needed since it was called last.
func endUnused() {
	workers.Lock()
	defer workers.Unlock()
	n := workers.unused
	for _, w := range workers.idle[:n] {
		close(w.next)
	}
	left := copy(workers.idle, workers.idle[n:])
	clear(workers.idle[left:])
	workers.idle = workers.idle[:left]
	workers.unused = left
	if left > 0 {
		workers.timer.Reset(unneeded)
	}
}
