package http2

import "sync"

// Workers are goroutines that have grown their stacks to what an exchange
// needs, and wait for the next one: growing them anew costs more than most
// exchanges do otherwise.
var workers struct {
	sync.Mutex
	idle []*worker
}

// mostIdle bounds the workers that wait.
const mostIdle = 256

type worker struct{ next chan *Exchange }

// work has x served in a worker's goroutine.
func work(x *Exchange) {
	workers.Lock()
	var w *worker
	if n := len(workers.idle); n > 0 {
		w = workers.idle[n-1]
		workers.idle[n-1] = nil
		workers.idle = workers.idle[:n-1]
	}
	workers.Unlock()
	if w == nil {
		w = &worker{make(chan *Exchange, 1)}
		go w.run()
	}
	w.next <- x
}

func (w *worker) run() {
	for {
		x := <-w.next
		x.conn.serve(x)
		workers.Lock()
		if len(workers.idle) >= mostIdle {
			workers.Unlock()
			return
		}
		workers.idle = append(workers.idle, w)
		workers.Unlock()
	}
}
