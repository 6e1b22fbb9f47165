package conn

import (
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/listener/park"
)

// quietMark is the time since which a connection is idle, in steps of quietStep. Zero:
// not known.
type quietMark struct{ at atomic.Uint32 }

// quietStep is the precision of a mark. A mark uses the wall clock because it must fit
// into four bytes. If the clock changes, a wrong mark does little harm.
const quietStep = 100 * time.Millisecond

func quietAt(now time.Time) uint32 { return max(1, uint32(now.UnixMilli()/quietStep.Milliseconds())) }

// Quiet records that the connection has been idle since now, so that weir may close it if
// memory or descriptors run short. The owner calls it when the last exchange has ended. A
// tunnel calls it for every byte that it copies.
func (c *Conn) Quiet(now time.Time) {
	if at := quietAt(now); c.quietSince.at.Load() != at { // busy: at most ten stores a second
		c.quietSince.at.Store(at)
	}
}

// Unquiet clears the mark: QuietFor returns false until the next Quiet. Any goroutine may
// call it.
func (c *Conn) Unquiet() { c.quietSince.at.Store(0) }

// QuietFor is the time since the last call of Quiet; false: Quiet was never called. The
// result has no meaning for a connection whose state is Active. Any goroutine may call
// it.
func (c *Conn) QuietFor(now time.Time) (time.Duration, bool) {
	at := c.quietSince.at.Load()
	if at == 0 {
		return 0, false
	}
	return time.Duration(max(0, int32(quietAt(now)-at))) * quietStep, true
}

// EndIdle ends the wait of a parked client connection, as its idle limit would, and
// returns true. If it returns false, nothing has happened: bytes have arrived meanwhile,
// or the connection is not parked yet. In both cases weir serves a request that has
// arrived (see Woken). On systems without a lot, EndIdle calls Cut. Any goroutine may
// call it.
func (c *Conn) EndIdle() bool {
	if c.lot() == nil {
		c.Cut()
		return true
	}
	t := c.parked.Load()
	return t != 0 && c.lot().Expire(park.Token(t))
}
