// Package park is the place where idle connections wait without a goroutine, at a lower
// cost than in the runtime's poller. It has its own one-shot epoll set, which is itself
// one descriptor in the runtime's poller, and a wheel of coarse timers.
//
// The Waiter of a wait is an object that the owner of the connection has anyway. In
// addition a wait needs 32 bytes here, and the state that the kernel keeps for the
// descriptor.
package park

// Waiter is the object that waits: the state of a connection, without a goroutine.
type Waiter interface {
	// Wake is called once, when the wait has ended, by a goroutine of the set or by the
	// caller of End. Other waiters have to wait for its return, so it must only start the
	// next work.
	Wake(why Reason)
}

// Reason is the reason why a wait ended.
type Reason uint8

// The reasons.
const (
	Ready  Reason = iota // there are bytes, an end of stream or an error
	Late                 // the deadline has passed
	Called               // End was called
)

// Token names one wait; zero names none. After the wait has ended, the token is not valid
// any more, even if another wait uses its place and the number of its descriptor.
type Token uint64

func token(place, generation int32) Token {
	return Token(uint32(generation))<<32 | Token(uint32(place))
}

func (t Token) place() int32      { return int32(uint32(t)) }
func (t Token) generation() int32 { return int32(t >> 32) }
