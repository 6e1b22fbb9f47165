package http2

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/http2/core"
)

// flushed receives the calls of a flusher, with the lock held.
type flushed interface {
	took() // the flusher took the output
	broke(err error)
	through() // the flusher ends
}

// mostTurns limits how often other goroutines run before the flusher sends the output.
const mostTurns = 4

// flush sends a core's output until it is empty. Before that, it lets other goroutines
// run, as long as they add output and the output is smaller than a TLS record. So their
// output leaves in the same write.
func flush(mu *sync.Mutex, c *core.Connection, w io.Writer, tell flushed) {
	mu.Lock()
	defer mu.Unlock()
	for gathered, turns := 0, 0; gathered < c.Pending() && c.Pending() < conn.BufferSize && turns < mostTurns; turns++ {
		gathered = c.Pending()
		mu.Unlock()
		runtime.Gosched()
		mu.Lock()
	}
	for lost := false; c.Pending() > 0 && !lost; {
		out := c.Take()
		tell.took()
		err := write(mu, w, out.Bytes())
		out.Free()
		if lost = err != nil; lost {
			tell.broke(err)
			c.Take().Free()
		}
	}
	tell.through()
}

// write writes out. It releases the lock meanwhile; the caller holds it before and after.
func write(mu *sync.Mutex, w io.Writer, out []byte) (err error) {
	mu.Unlock()
	defer mu.Lock()
	defer rescue(&err)
	_, err = w.Write(out)
	return err
}

// PanicError is a panic that ended one connection instead of the process.
type PanicError struct {
	Value any
	Stack []byte
	told  atomic.Bool
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// First returns true only once: one of the calls that the panic ended reports it.
func (e *PanicError) First() bool { return !e.told.Swap(true) }

func rescue(err *error) {
	if value := recover(); value != nil {
		*err = &PanicError{Value: value, Stack: debug.Stack()}
	}
}
