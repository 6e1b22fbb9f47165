package http2

import (
	"runtime"
	"sync"
	"time"
)

// Workers are goroutines that have grown their stacks to what an exchange
// needs, and wait for the next one: growing them anew costs more than most
// exchanges do otherwise. Those that were not needed for a while end.
//
// Requests come in batches, and so do the responses that set workers free. To
// wake a worker costs more than to let one go on that is about to be through,
// so tasks wait until all that can run now has run once.
var workers struct {
	sync.Mutex
	tasks       []func() // tasks[first:] nobody runs yet: there is a worker that dispatches
	first       int
	dispatching bool
	idle        []*worker
	unused      int         // how many of idle nobody took since the timer fired last
	timer       *time.Timer // runs while there are idle ones
}

const (
	mostIdle  = 256                    // bounds the workers that wait
	unneeded  = 250 * time.Millisecond // is the while after which they end
	mostTasks = 4096                   // bounds the memory for tasks that is kept
)

type worker struct{ next chan func() }

// work has f run in a worker's goroutine.
func work(f func()) {
	workers.Lock()
	defer workers.Unlock()
	if t := workers.tasks; len(t) == cap(t) && workers.first > len(t)/2 { // it makes room rather than grow
		n := copy(t, t[workers.first:])
		clear(t[n:])
		workers.tasks, workers.first = t[:n], 0
	}
	workers.tasks = append(workers.tasks, f)
	if !workers.dispatching {
		workers.dispatching = true
		start(dispatch)
	}
}

// dispatch starts workers for the tasks that are left once the workers that
// were about to be through have taken theirs. It leaves one to its own.
func dispatch() {
	workers.Lock()
	defer workers.Unlock()
	if waiting() > 1 {
		workers.Unlock()
		runtime.Gosched()
		workers.Lock()
	}
	workers.dispatching = false
	for waiting() > 1 {
		start(nextTask())
	}
}

// waiting is how many tasks nobody runs yet. The lock is held.
func waiting() int { return len(workers.tasks) - workers.first }

// nextTask takes the first task, or returns nil. The lock is held.
func nextTask() func() {
	if waiting() == 0 {
		return nil
	}
	f := workers.tasks[workers.first]
	workers.tasks[workers.first] = nil
	if workers.first++; waiting() == 0 {
		workers.tasks, workers.first = workers.tasks[:0], 0
		if cap(workers.tasks) > mostTasks {
			workers.tasks = nil
		}
	}
	return f
}

// start has f run by a worker that is idle, or by a new one. The lock is held.
func start(f func()) {
	n := len(workers.idle)
	if n == 0 {
		w := &worker{make(chan func(), 1)}
		w.next <- f
		go w.run()
		return
	}
	w := workers.idle[n-1]
	workers.idle[n-1] = nil
	workers.idle = workers.idle[:n-1]
	workers.unused = min(workers.unused, n-1)
	w.next <- f
}

func (w *worker) run() {
	for f := range w.next {
		for f != nil {
			f()
			workers.Lock()
			if f = nextTask(); f == nil && !w.rest() {
				workers.Unlock()
				return
			}
			workers.Unlock()
		}
	}
}

// rest makes w idle, if it may be. The lock is held.
func (w *worker) rest() bool {
	if len(workers.idle) >= mostIdle {
		return false
	}
	workers.idle = append(workers.idle, w)
	if len(workers.idle) > 1 {
		return true
	}
	workers.unused = 0
	if workers.timer == nil {
		workers.timer = time.AfterFunc(unneeded, endUnused)
	} else {
		workers.timer.Reset(unneeded)
	}
	return true
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
