package conn

import (
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/listener/park"
)

// quietMark is since when a connection has had nothing to do: a step of time,
// or zero where nobody said so.
type quietMark struct{ at atomic.Uint32 }

// quietStep is as exact as a mark is. It is the wall clock's: a mark has to cost
// four bytes, and one that a change of the clock falsifies does little harm.
const quietStep = 100 * time.Millisecond

func quietAt(now time.Time) uint32 { return max(1, uint32(now.UnixMilli()/quietStep.Milliseconds())) }

// Quiet notes that the connection has had nothing to do since now, so that it
// may be ended if weir runs short of memory or descriptors. The owner says so
// when its last exchange has ended; a tunnel, with every byte that goes by.
func (c *Conn) Quiet(now time.Time) {
	if at := quietAt(now); c.quietSince.at.Load() != at { // a busy connection writes it ten times a second at most
		c.quietSince.at.Store(at)
	}
}

// Unquiet makes QuietFor know of nothing, until Quiet. Anyone may call it.
func (c *Conn) Unquiet() { c.quietSince.at.Store(0) }

// QuietFor is how long ago Quiet was called last; false: never. It says nothing
// of a connection whose state is Active. Anyone may call it.
func (c *Conn) QuietFor(now time.Time) (time.Duration, bool) {
	at := c.quietSince.at.Load()
	if at == 0 {
		return 0, false
	}
	return time.Duration(max(0, int32(quietAt(now)-at))) * quietStep, true
}

// EndIdle ends the wait of a client's connection that is parked, as its idle limit
// would, and returns true. Where it returns false something has come meanwhile,
// or it is not parked yet, and nothing has happened. A request that has come
// is served either way (see Woken). Where there is no lot, it is Cut. Anyone may
// call it.
func (c *Conn) EndIdle() bool {
	if lot() == nil {
		c.Cut()
		return true
	}
	t := c.parked.Load()
	return t != 0 && lot().Expire(park.Token(t))
}
