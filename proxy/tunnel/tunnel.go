// Package tunnel copies two connections into each other until both directions have ended:
// raw TCP, TLS passthrough, and HTTP upgrades. In HTTP upgrades either end may be TLS.
//
// If weir passes on a stream completely, it passes on its end as a half close. Otherwise the
// end that did not get the whole stream gets a reset. So a receiver can distinguish a
// truncated stream from a complete one.
//
// A tunnel holds goroutines, buffers and pipes while it copies bytes. An idle tunnel holds
// none of these.
package tunnel

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
)

// End is one of the two ends: a ConnEnd or a StreamEnd. The caller owns and closes it.
type End interface {
	// Cuttable returns the stream or the connection. Other goroutines may cut it to end the
	// tunnel.
	Cuttable() conn.Cuttable
	// Close closes the end of a tunnel that ended for a reason. The owner calls it.
	Close(reason string)

	// begin prepares the end for a tunnel, and end undoes it.
	begin()
	end()
	// link makes a cut of the end, and for a stream also its premature end, cut other; nil
	// undoes it.
	cutAlso(other conn.Cuttable)
	// endsItself reports whether the end may be cut because of its peer.
	endsItself() bool
	// err returns the error with which the end was cut; nil or conn.ErrCut: by Cut.
	err() error
	// abort is called if the end did not get the whole stream: its close will be a reset.
	abort()
	// moved reports that the tunnel copies bytes. The tunnel calls it for the client's end.
	moved(now time.Time)

	// parks reports whether the end can wait in the lot, without a goroutine.
	parks() bool
	// dozes reports whether the end can wait in the lot before its first read.
	dozes() bool
	// park registers d, so that d.Wake is called when the end has bytes. If park returns
	// true, the goroutine must end. It returns false if the end cannot wait now.
	park(d *direction) bool
	// unpark undoes park, and returns true. False: d is about to be woken, or it is not
	// registered.
	unpark() bool
	// polled reports whether the end is registered with the poller of the Go runtime, and
	// unpoll removes it from there, if that is possible.
	polled() bool
	unpoll()

	// takeRead returns the bytes that were read before the tunnel began: first those that
	// the caller has read, then those that the connection read ahead.
	takeRead() (early, peeked []byte)
	// copyFrom copies from the end to the other one, as the goroutine of d. It returns true
	// when the direction has ended, false when it is parked.
	copyFrom(d *direction) bool
	write(p []byte) (int, error)
	// closeWrite passes on an end of stream. truncated: it came without the close_notify of
	// TLS.
	closeWrite(truncated bool) error
	// truncated reports whether the end's stream ended without the close_notify of TLS. Any
	// machine on the network path can end a connection like that. Clients that only close
	// their socket cause the same.
	truncated() bool
	// authenticated reports whether the end of the stream to this end is a close_notify.
	authenticated() bool
	// plainTCP returns the connection if splice(2) can use it, or nil.
	plainTCP() *conn.Conn
}

// Counter counts bytes when the tunnel copies them. A prometheus.Counter implements it.
type Counter interface{ Add(float64) }

// Options are the limits of one tunnel.
type Options struct {
	// Idle ends the tunnel after this time without bytes in either direction; zero: one hour.
	Idle time.Duration
	// Lifetime ends the tunnel after this time, even if it is busy; zero: never.
	Lifetime time.Duration
	// Sent and Received count bytes from client to endpoint and back; nil: not counted.
	Sent, Received Counter
	// Account is charged while the tunnel copies bytes; nil: nothing is charged.
	Account *memory.Account
}

// DefaultIdle is the idle limit if Options.Idle is zero.
const DefaultIdle = time.Hour

// The reasons of a Result.
const (
	ReasonEOF           = "eof"            // both ends sent their end of stream
	ReasonClientReset   = "client_reset"   // the client's connection failed
	ReasonEndpointReset = "endpoint_reset" // the endpoint's connection failed
	ReasonIdle          = "idle"
	ReasonLifetime      = "lifetime"
	ReasonCut           = "cut"    // Cut was called on either end
	ReasonPanic         = "panic"  // a panic in weir
	ReasonMemory        = "memory" // the account refused what a direction needs
)

// Result describes how a tunnel ended.
type Result struct {
	// Sent and Received are the numbers of bytes delivered from client to endpoint and back,
	// without the overhead of TLS.
	Sent, Received int64
	Reason         string
	// Err is nil with ReasonEOF. The limits and Cut give errors that are conn.Routine.
	Err error
}

// Owner gets the result of a tunnel.
type Owner interface {
	// Ended is called once, by the last goroutine of the tunnel. Then the owner owns both
	// connections again.
	Ended(Result)
	// Panicked reports a panic in one of the tunnel's goroutines. The panic ends the tunnel;
	// Ended follows.
	Panicked(value any, stack []byte)
}

// Start makes a tunnel of two connections. The tunnel copies until both directions have
// ended. It uses the caller's goroutine while there are bytes to copy from client to
// endpoint. Start returns before or after Ended is called. A direction without bytes to copy
// holds no goroutine, see parkIdle.
//
// The tunnel owns the connections until it calls Ended. Then the owner owns them again, and
// closes them. With any reason except ReasonEOF the owner can only close them: their waits
// have ended permanently, and Close will reset an end that did not get the whole stream. Cut
// on either connection ends the tunnel.
func Start(client, endpoint End, o Options, owner Owner) {
	if o.Idle <= 0 {
		o.Idle = DefaultIdle
	}
	t := &tunnel{Options: o, owner: owner, begun: time.Now()}
	t.client.End, t.endpoint.End = client, endpoint
	t.up.t, t.down.t, t.down.back = t, t, true
	client.begin()
	endpoint.begin()
	client.cutAlso(endpoint.Cuttable())
	if endpoint.endsItself() {
		endpoint.cutAlso(client.Cuttable())
	}
	t.moved(t.begun)
	t.startWatch()
	if !t.down.doze() {
		go t.down.run()
	}
	t.up.run()
}

// tunnel is the state of a running tunnel.
type tunnel struct {
	Options
	owner            Owner
	client, endpoint side
	up, down         direction

	begun  time.Time
	active atomic.Int64 // the time of the last bytes, as a time.Duration since begun

	mu     sync.Mutex
	watch  watch
	over   bool // both directions have ended
	reason string
	err    error
}

// moved records the time of the last bytes, for the limits of the tunnel. It also records it
// in the client's connection, so that weir can find the tunnels that were idle longest.
func (t *tunnel) moved(now time.Time) {
	t.active.Store(int64(now.Sub(t.begun)))
	t.client.moved(now)
}

// side is an End and the state of its streams.
type side struct {
	End
	whole atomic.Bool // this side received the whole stream of the other side, including its end
	short atomic.Bool // this side received an end without close_notify, which it may treat as an error
	ended atomic.Bool // this side has ended its own stream
}

// failed returns the reason of a tunnel that ended because s failed.
func (t *tunnel) failed(s *side) string {
	if s == &t.client {
		return ReasonClientReset
	}
	return ReasonEndpointReset
}

// fail ends the tunnel because of an error at s.
func (t *tunnel) fail(s *side, err error) {
	if s.short.Load() && !errors.Is(err, conn.ErrCut) {
		s, err = t.opposite(s), errTruncated // s only reacted to the truncated end
	}
	t.end(t.failed(s), err)
}

var errTruncated = errors.New("the connection ended without TLS close_notify, and the other side treated that as truncation")

func (t *tunnel) opposite(s *side) *side {
	if s == &t.client {
		return &t.endpoint
	}
	return &t.client
}

// end ends the tunnel. The first failure sets the reason; later failures only follow from it.
func (t *tunnel) end(reason string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endLocked(reason, err)
}

func (t *tunnel) endLocked(reason string, err error) {
	if t.reason != "" {
		return
	}
	if errors.Is(err, conn.ErrCut) {
		reason, err = t.cutBy(err)
	}
	t.reason, t.err = reason, err
	for _, s := range [...]*side{&t.client, &t.endpoint} {
		if !s.whole.Load() {
			s.abort()
		}
	}
	t.client.Cuttable().Cut()
	t.endpoint.Cuttable().Cut()
}

// cutBy returns the reason for a cut: the premature end of a stream, which cut the other end
// by Link, or else a call of Cut.
func (t *tunnel) cutBy(err error) (string, error) {
	for _, s := range [...]*side{&t.client, &t.endpoint} {
		if why := s.err(); why != nil && !errors.Is(why, conn.ErrCut) {
			return t.failed(s), why
		}
	}
	return ReasonCut, err
}

// ended records the end of a direction. After the second one it returns the connections to
// the owner.
func (t *tunnel) ended(d *direction) {
	if t.endedLast(d) {
		t.finish()
	}
}

// endedLast records the end of d. It returns true once: when both directions have ended.
func (t *tunnel) endedLast(d *direction) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	d.over = true
	if t.over || !t.up.over || !t.down.over {
		return false
	}
	t.over = true
	t.watch.stop()
	return true
}

func (t *tunnel) finish() {
	t.client.cutAlso(nil)
	if t.endpoint.endsItself() {
		t.endpoint.cutAlso(nil)
	}
	t.client.end()
	t.endpoint.end()
	if t.reason == "" {
		t.reason = ReasonEOF
	}
	t.owner.Ended(Result{Sent: t.up.bytes, Received: t.down.bytes, Reason: t.reason, Err: t.err})
}
