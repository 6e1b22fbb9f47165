package conn

import (
	"math"
	"sync/atomic"
	"time"
)

// prelude has the times of a connection before its first request, for the trace of that request.
// It is small, because every parked connection has one.
type prelude struct {
	header    atomic.Uint32 // in microseconds; 0: there was none; preludeTaken: TakePrelude returned it
	handshake uint32        // in microseconds; 0: there was none
}

const preludeTaken = math.MaxUint32

// NoteHeader notes how long the PROXY header took, from accept. The listener calls it.
func (c *Conn) NoteHeader(d time.Duration) { c.prelude.header.Store(micros(d)) }

// NoteHandshake notes how long the TLS handshake took.
func (c *Conn) NoteHandshake(d time.Duration) { c.prelude.handshake = micros(d) }

// micros returns a duration in microseconds, at least one, and less than preludeTaken.
func micros(d time.Duration) uint32 {
	return uint32(min(max(d.Microseconds(), 1), preludeTaken-1))
}

// TakePrelude returns how long the PROXY header and the TLS handshake took, 0 without one. Only
// the first call returns true. Several goroutines may call it.
func (c *Conn) TakePrelude() (header, handshake time.Duration, first bool) {
	took := c.prelude.header.Swap(preludeTaken)
	if took == preludeTaken {
		return 0, 0, false
	}
	return time.Duration(took) * time.Microsecond, time.Duration(c.prelude.handshake) * time.Microsecond, true
}
