// Package pause lets traffic go on beside long work, such as a reload with 10,000 routes.
//
// Go's scheduler takes a processor from a busy goroutine only every 10 ms, and looks for
// network events only when no other goroutine could run. A request has several steps. On one
// processor, each step would wait that long. So long work calls IfDue often. Work that makes
// much garbage also calls Begin.
package pause

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	stretch = 250 * time.Microsecond // of work between two pauses
	length  = 50 * time.Microsecond  // the kernel may make it twice as long
)

var (
	serving atomic.Bool
	due     atomic.Int64 // time of the next pause, in nanoseconds since 1970
	counter atomic.Pointer[func()]
)

// Serve says that this process serves traffic from now on. Before it, IfDue, Begin and Turn do
// nothing, so that a start takes no longer.
func Serve() { serving.Store(true) }

// Count makes IfDue and Turn call f each time, until end is called. Tests count in this way how much
// work there is between two calls. Several goroutines may call f at the same time.
func Count(f func()) (end func()) {
	counter.Store(&f)
	return func() { counter.Store(nil) }
}

// IfDue lets other goroutines run, those with network events too, if the process serves traffic and
// has worked long enough since the last pause. Otherwise it costs about as much as a look at the
// clock. The caller holds no lock that a request may need. Several goroutines may call IfDue at the
// same time. While garbage is collected apart from requests, IfDue waits.
func IfDue() {
	if count := counter.Load(); count != nil {
		(*count)()
	}
	if !serving.Load() {
		return
	}
	wait := time.Duration(due.Load() - time.Now().UnixNano())
	if wait > 0 && wait <= stretch { // a longer wait means that the clock was set back
		return
	}
	awaitCollection()
	if runtime.GOMAXPROCS(0) == 1 {
		pollNetwork()
		runtime.Gosched()
	} else {
		time.Sleep(length) // an idle processor polls the network
	}
	due.Store(time.Now().Add(stretch).UnixNano())
}

// InLoop calls IfDue in every 64th step of a loop; i is the index of the step. It is for steps that take
// less time than a look at the clock.
func InLoop(i int) {
	if i%64 == 0 {
		IfDue()
	}
}

// pollNetwork makes goroutines runnable whose network events have come. The runtime itself polls
// when a processor has nothing to do. While it sweeps garbage, the only processor of a process has
// always something to do, and then the runtime polls every 10 ms. It also polls when it starts the
// world again. A profile that has no room for all goroutines costs little more than that.
func pollNetwork() {
	var tooFew [1]runtime.StackRecord
	runtime.GoroutineProfile(tooFew[:])
}
