package http2

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/weirproxy/weir/listener/conn"
)

// flushed is who is told of what a flusher does, with the lock held.
type flushed interface {
	took() // something was taken from the output
	broke(err error)
	through() // the flusher ends
}

// mostTurns bounds how often others run before the output is sent.
const mostTurns = 4

// flush sends a core's output, as long as there is some. It lets others run
// first, as long as they have something to say and it is less than a record of
// TLS, so that it leaves in the same write.
func flush(mu *sync.Mutex, c *Core, w io.Writer, tell flushed) {
	mu.Lock()
	defer mu.Unlock()
	for gathered, turns := 0, 0; gathered < c.Pending() && c.Pending() < conn.BufferSize && turns < mostTurns; turns++ {
		gathered = c.Pending()
		mu.Unlock()
		runtime.Gosched()
		mu.Lock()
	}
	for lost := false; c.Pending() > 0 && !lost; {
		out, charged := c.take(nil)
		tell.took()
		err := write(mu, w, out)
		putOutput(out)
		c.config.Account.Release(charged)
		if lost = err != nil; lost {
			tell.broke(err)
			c.dropOutput()
		}
	}
	tell.through()
}

// write sends out without the lock, which is held before and after.
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

// First is true once: the panic is to be told of by one of the calls that it ended.
func (e *PanicError) First() bool { return !e.told.Swap(true) }

func rescue(err *error) {
	if value := recover(); value != nil {
		*err = &PanicError{Value: value, Stack: debug.Stack()}
	}
}
