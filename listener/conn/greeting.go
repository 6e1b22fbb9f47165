package conn

import (
	"math"
	"sync/atomic"
	"time"
)

// greeting has the times of a connection before its first request, for the trace of that request.
// It is small, because every parked connection has one.
type greeting struct {
	header    atomic.Uint32 // in microseconds; 0: there was none; greetingTaken: TakeGreeting returned it
	handshake uint32        // in microseconds; 0: there was none
}

const greetingTaken = math.MaxUint32

// NoteHeader notes how long the PROXY header took, from accept. The listener calls it.
func (c *Conn) NoteHeader(d time.Duration) { c.greeting.header.Store(micros(d)) }

// NoteHandshake notes how long the TLS handshake took.
func (c *Conn) NoteHandshake(d time.Duration) { c.greeting.handshake = micros(d) }

// micros returns a duration in microseconds, at least one, and less than greetingTaken.
func micros(d time.Duration) uint32 {
	return uint32(min(max(d.Microseconds(), 1), greetingTaken-1))
}

// TakeGreeting returns how long the PROXY header and the TLS handshake took, 0 without one. Only
// the first call returns true. Several goroutines may call it.
func (c *Conn) TakeGreeting() (header, handshake time.Duration, first bool) {
	g := &c.greeting
	if g.header.Load() == greetingTaken {
		return 0, 0, false
	}
	took := g.header.Swap(greetingTaken)
	if took == greetingTaken {
		return 0, 0, false
	}
	return time.Duration(took) * time.Microsecond, time.Duration(g.handshake) * time.Microsecond, true
}
