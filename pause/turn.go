package pause

import (
	"runtime"
	"sync"
)

var turn sync.Mutex // held by the goroutine that waits for its turn

// Turn lets goroutines with network events run before work that takes about as long as a TLS handshake
// (0.2 ms). Such work begins one by one. Otherwise the many handshakes of clients that connect at the same
// time would all run before Go's scheduler looks for network events again, and each step of a request would
// wait that long. With several processors, and before Serve, Turn does nothing. Several goroutines may call it
// at the same time.
func Turn() {
	if count := counter.Load(); count != nil {
		(*count)()
	}
	if !serving.Load() || runtime.GOMAXPROCS(0) > 1 {
		return
	}
	turn.Lock()
	defer turn.Unlock()
	pollNetwork()
	runtime.Gosched() // runs everything that is runnable now, once
}
