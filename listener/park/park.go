// Package park is where connections wait that have nothing to say, without a
// goroutine and at less than the runtime's poller would cost: an epoll set of
// our own, one-shot, that is itself one descriptor in the runtime's, and a
// wheel of coarse timers.
//
// Who waits is an object that its owner made anyway, a Waiter. All that a wait
// takes beside it are 32 bytes here and what the kernel keeps of the descriptor.
package park

// Waiter is what waits: the state of a connection, without its goroutine.
type Waiter interface {
	// Wake is called once, when the wait has ended, by a goroutine of the set or
	// by who called End. Others wait behind it, so it does no more than start
	// what follows.
	Wake(why Reason)
}

// Reason says why a wait ended.
type Reason uint8

// The reasons.
const (
	Ready  Reason = iota // bytes, an end of stream or an error are there
	Late                 // the deadline has passed
	Called               // somebody called End
)

// Token names one wait; zero names none. It says nothing any more once the
// wait has ended, even if its place and the descriptor's number belong to
// another one.
type Token uint64

func token(place, generation int32) Token {
	return Token(uint32(generation))<<32 | Token(uint32(place))
}

func (t Token) place() int32      { return int32(uint32(t)) }
func (t Token) generation() int32 { return int32(t >> 32) }
