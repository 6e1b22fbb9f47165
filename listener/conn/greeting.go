package conn

import (
	"math"
	"sync/atomic"
	"time"
)

// greeting has the times of a connection before its first request, for the trace of that request.
// It is small, because every parked connection has one.
type greeting struct {
	header, handshake uint32 // in microseconds; 0: there was none
	taken             atomic.Bool
}

// NoteHeader notes how long the PROXY header took, from accept. The listener calls it.
func (c *Conn) NoteHeader(d time.Duration) { c.greeting.header = micros(d) }

// NoteHandshake notes how long the TLS handshake took.
func (c *Conn) NoteHandshake(d time.Duration) { c.greeting.handshake = micros(d) }

// micros returns a duration in microseconds, at least one.
func micros(d time.Duration) uint32 { return uint32(min(max(d.Microseconds(), 1), math.MaxUint32)) }

// TakeGreeting returns how long the PROXY header and the TLS handshake took, 0 without one. Only
// the first call returns true. Several goroutines may call it.
func (c *Conn) TakeGreeting() (header, handshake time.Duration, first bool) {
	if c.greeting.taken.Load() || !c.greeting.taken.CompareAndSwap(false, true) {
		return 0, 0, false
	}
	return time.Duration(c.greeting.header) * time.Microsecond, time.Duration(c.greeting.handshake) * time.Microsecond, true
}
