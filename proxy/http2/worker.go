package http2

import (
	"runtime"
	"sync"
	"time"
)

// Workers are goroutines whose stacks have grown to the size that an exchange needs. They
// wait for the next exchange, because growing a new stack costs more than most exchanges
// do otherwise. Workers that are not needed for a while end.
//
// Requests arrive in batches, and so do the responses that set workers free. Waking a
// worker costs more than giving the task to a worker that is about to finish. So tasks
// wait until all goroutines that can run now have run once.
var workers struct {
	sync.Mutex
	tasks       []func() // tasks[first:] do not run yet: a worker dispatches them
	first       int
	dispatching bool
	idle        []*worker
	unused      int         // idle[:unused] were not used since the timer last fired
	timer       *time.Timer // runs while there are idle workers
}

const (
	mostIdle  = 256                    // limits the idle workers
	unneeded  = 250 * time.Millisecond // the time after which unused workers end
	mostTasks = 4096                   // limits the memory that is kept for tasks, in tasks

	// mostStarted limits the tasks that start before other goroutines run. Otherwise, a new
	// connection waits until the requests of all others have had their turn.
	mostStarted = 32
)

type worker struct{ next chan func() }

// work runs f in the goroutine of a worker.
func work(f func()) {
	workers.Lock()
	defer workers.Unlock()
	if t := workers.tasks; len(t) == cap(t) && workers.first > len(t)/2 { // make room instead of growing
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

// dispatch starts workers for the waiting tasks. Before that, it lets workers that are
// about to finish take tasks. It leaves one task to the worker that runs dispatch.
func dispatch() {
	workers.Lock()
	defer workers.Unlock()
	if waiting() > 1 {
		letOthersRun()
	}
	for waiting() > 1 {
		for range min(waiting()-1, mostStarted) {
			start(nextTask())
		}
		if waiting() > 1 {
			letOthersRun()
		}
	}
	workers.dispatching = false
}

// letOthersRun gives up the lock until other goroutines have run.
func letOthersRun() {
	workers.Unlock()
	runtime.Gosched()
	workers.Lock()
}

// waiting returns the number of tasks that do not run yet. The caller holds the lock.
func waiting() int { return len(workers.tasks) - workers.first }

// nextTask takes the first task, or returns nil. The caller holds the lock.
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

// start runs f in an idle worker, or in a new one. The caller holds the lock.
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
			if f = nextTask(); f == nil && !w.makeIdle() {
				workers.Unlock()
				return
			}
			workers.Unlock()
		}
	}
}

// makeIdle makes w idle. It returns false if there are enough idle workers. The caller holds
// the lock.
func (w *worker) makeIdle() bool {
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

// endUnused ends the workers that were not used since its last call.
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
