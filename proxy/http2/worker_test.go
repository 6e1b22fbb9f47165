package http2

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// No task waits for the end of another task, however the tasks come: in batches, one by
// one, or from another task.
func TestWorkHoldsNothingUp(t *testing.T) {
	const batch, batches = 20, 10
	all := make(chan struct{})
	var begun sync.WaitGroup
	task := func() {
		begun.Done()
		<-all
	}
	begun.Add(3 * batch * batches)
	for range batches {
		for range batch {
			work(task)
			work(func() {
				work(task)
				task()
			})
		}
		runtime.Gosched() // some batches meet a running dispatcher, others do not
	}
	go func() {
		begun.Wait()
		close(all)
	}()
	select {
	case <-all:
	case <-time.After(20 * time.Second):
		t.Fatal("some tasks did not begin while others waited")
	}
}

// Tasks start in small groups, so that other goroutines need not wait for all of them.
func TestOthersRunBetweenTasks(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const tasks = 10_000
	var begun atomic.Int64
	var ended sync.WaitGroup
	ended.Add(tasks)
	gate := make(chan struct{})
	workers.Lock()
	workers.dispatching = true // the dispatcher begins when all tasks are there
	workers.Unlock()
	for range tasks {
		work(func() { begun.Add(1); <-gate; ended.Done() })
	}
	workers.Lock()
	start(dispatch)
	workers.Unlock()
	for range 6 { // the dispatcher begins, and starts its first tasks
		runtime.Gosched()
	}
	if n := begun.Load(); n > tasks/10 {
		t.Errorf("%d of %d tasks began before another goroutine ran again", n, tasks)
	}
	close(gate)
	ended.Wait()
}

// Workers run one task after the other, and end if there is none for a while.
func TestWorkersEnd(t *testing.T) {
	for range 3 {
		var done sync.WaitGroup
		done.Add(2 * mostIdle)
		for range 2 * mostIdle {
			work(done.Done)
		}
		done.Wait()
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		workers.Lock()
		idle, tasks := len(workers.idle), len(workers.tasks)
		workers.Unlock()
		if idle == 0 && tasks == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d workers still wait for work, %d tasks for workers", idle, tasks)
		}
	}
}
