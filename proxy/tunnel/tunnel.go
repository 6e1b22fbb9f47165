// Package tunnel copies two connections into each other until both directions
// have ended: raw TCP, TLS that is passed through unopened, and HTTP upgrades,
// where either end may be TLS.
//
// A stream is either passed on whole, and then its end is passed on as a half
// close, or the end that did not get all of it gets a reset: nobody can mistake
// a cut stream for a whole one.
//
// A tunnel takes goroutines, buffers and pipes while bytes go by, and none of
// these while it is quiet.
package tunnel

import (
	"crypto/tls"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/park"
)

// End is one of the two connections. The caller owns and closes it.
type End struct {
	Conn *conn.Conn
	// TLS is the handshaken session over Conn; nil: plain.
	TLS *tls.Conn
	// Early is what was read from this end already, after TLS, beyond what the
	// caller wanted: it goes to the other end first.
	Early []byte
	// Stream is the end where it is no connection but a part of one. Conn is that
	// one then, if anything, and no more than told when bytes go by.
	Stream Stream
}

// Stream is an end that shares its connection with others, such as a stream of
// HTTP/2. One goroutine receives while another sends. Cut ends the waits of both.
type Stream interface {
	conn.Linked
	// Receive returns the next bytes, valid until the next call, or io.EOF.
	// conn.ErrQuiet: nothing came for conn.Linger.
	Receive() ([]byte, error)
	// Rest has w woken once, when there is something to Receive, which nobody
	// calls until then. False: there is already.
	Rest(w park.Waiter) bool
	// Unrest takes back what Rest did, and returns true. False: w was woken.
	Unrest() bool
	// Send waits until there is room for p.
	Send(p []byte) error
	// SendEnd sends the end of the stream.
	SendEnd() error
	// Link makes the stream's end before its time cut other as well; nil undoes it.
	Link(other conn.Linked)
	// Err is how the stream ended before its time: conn.ErrCut by Cut; nil: it did not.
	Err() error
}

// Linked is what others may cut to end the tunnel.
func (e *End) Linked() conn.Linked {
	if e.Stream != nil {
		return e.Stream
	}
	return e.Conn
}

// begin makes the end fit for a tunnel; the watch ends all its waits. Nothing
// of it waits yet, so what the runtime's poller holds for it is given back: for
// all that is known the tunnel is a quiet one.
func (e *End) begin() {
	if e.Stream == nil {
		e.Conn.SetDuplex(true)
		e.Conn.SetReadDeadline(time.Time{})
		e.shed()
	}
}

func (e *End) end() {
	if e.Stream == nil {
		e.Conn.SetDuplex(false)
	}
}

// parks reports whether the end is a connection that can wait without a goroutine.
func (e *End) parks() bool { return e.Stream == nil && e.Conn.CanPark() }

// unpark takes the end back from who waits for it, and returns true. False: it
// is about to be woken, or does not wait.
func (e *End) unpark() bool {
	if e.Stream != nil {
		return e.Stream.Unrest()
	}
	return e.Conn.Unpark()
}

func (e *End) shed() {
	if e.parks() {
		e.Conn.Shed()
	}
}

func (e *End) link(other conn.Linked) {
	if e.Stream != nil {
		e.Stream.Link(other)
	} else {
		e.Conn.Link(other)
	}
}

// Counter is told of bytes as they go by. A prometheus.Counter is one.
type Counter interface{ Add(float64) }

// Options are the limits of one tunnel.
type Options struct {
	// Idle ends the tunnel when nothing went either way for this long; zero: one hour.
	Idle time.Duration
	// Lifetime ends the tunnel however busy it is; zero: never.
	Lifetime time.Duration
	// Sent and Received count bytes from client to endpoint and back; nil: not counted.
	Sent, Received Counter
}

// DefaultIdle is the idle limit where Options name none.
const DefaultIdle = time.Hour

// The reasons of a Result.
const (
	ReasonEOF           = "eof"            // both ends sent their end of stream
	ReasonClientReset   = "client_reset"   // the client's connection failed
	ReasonEndpointReset = "endpoint_reset" // the endpoint's connection failed
	ReasonIdle          = "idle"
	ReasonLifetime      = "lifetime"
	ReasonCut           = "cut"   // somebody called Cut on either Conn
	ReasonPanic         = "panic" // weir's own fault
)

// Result is what became of a tunnel.
type Result struct {
	// Sent and Received are the bytes delivered from client to endpoint and back, after TLS.
	Sent, Received int64
	Reason         string
	// Err is nil with ReasonEOF. The limits and Cut give errors that are conn.Routine.
	Err error
}

// Owner is told what becomes of a tunnel.
type Owner interface {
	// Ended is called once, when nothing of the tunnel is left running, by
	// whichever goroutine was its last. Both connections are the owner's again.
	Ended(Result)
	// Panicked is told of a panic in one of the tunnel's goroutines, which ends
	// the tunnel. Ended follows.
	Panicked(value any, stack []byte)
}

// Start makes two connections a tunnel, which copies until both directions have
// ended. It uses the caller's goroutine while there is something to copy from
// client to endpoint, and returns before or after Ended is called. A direction
// that has nothing to copy takes no goroutine, see rest.
//
// The connections are the tunnel's until Ended is called, and the owner's after
// that, who closes them: with any reason but ReasonEOF there is nothing else to
// do with them, as their waits are ended for good, and the ends that were given
// less than the whole stream are prepared to be reset by Close. Cut on either
// connection ends the tunnel.
func Start(client, endpoint End, o Options, owner Owner) {
	if o.Idle <= 0 {
		o.Idle = DefaultIdle
	}
	t := &tunnel{Options: o, owner: owner, begun: time.Now()}
	t.client.End, t.endpoint.End = client, endpoint
	t.up.t, t.down.t, t.down.back = t, t, true
	client.begin()
	endpoint.begin()
	client.link(endpoint.Linked())
	if endpoint.Stream != nil {
		endpoint.link(client.Linked())
	}
	t.moved(t.begun)
	t.startWatch()
	if !t.down.doze() {
		go t.down.run()
	}
	t.up.run()
}

// tunnel is the state of two connections that are copied into each other.
type tunnel struct {
	Options
	owner            Owner
	client, endpoint side
	up, down         direction

	begun  time.Time
	active atomic.Int64 // when bytes last went by, as a time.Duration since begun

	mu     sync.Mutex
	watch  watch
	over   bool // both directions have ended
	reason string
	err    error
}

// moved notes that bytes went by, for the limits and for whoever has to find
// the tunnels that were quiet for longest.
func (t *tunnel) moved(now time.Time) {
	t.active.Store(int64(now.Sub(t.begun)))
	if c := t.client.Conn; c != nil {
		c.Quiet(now)
	}
}

// side is an End and how far it was served.
type side struct {
	End
	whole atomic.Bool // it was given the whole stream of the other side, end included
	short atomic.Bool // it got an end without close_notify, to which it may object
	ended atomic.Bool // it has ended its own stream
}

// truncated returns true if the stream ended without the close_notify of TLS. Anybody on
// the network path can end a connection in this way, but clients that just close their
// socket do so as well.
func (s *side) truncated() bool { return s.TLS != nil && s.Conn.SawEnd() }

// closeWrite passes on an end of stream. Over TLS, a truncated end stays truncated.
func (s *side) closeWrite(truncated bool) error {
	if s.Stream != nil {
		return s.Stream.SendEnd()
	}
	if s.TLS != nil && !truncated {
		if err := s.TLS.CloseWrite(); err != nil {
			return err
		}
	}
	return s.Conn.CloseWrite()
}

// failed is the reason of a tunnel whose end s fails.
func (t *tunnel) failed(s *side) string {
	if s == &t.client {
		return ReasonClientReset
	}
	return ReasonEndpointReset
}

// fail ends the tunnel because of an error at s.
func (t *tunnel) fail(s *side, err error) {
	if s.short.Load() && !errors.Is(err, conn.ErrCut) {
		s, err = t.opposite(s), errTruncated // its reaction to that is not its fault
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

// end ends the tunnel. The first failure gives the reason, those that follow
// from it say nothing new.
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
		if s.Stream == nil && !s.whole.Load() {
			s.Conn.Abort()
		}
	}
	t.client.Linked().Cut()
	t.endpoint.Linked().Cut()
}

// cutBy is why an end was cut: by somebody, or because the stream at the other
// end was over.
func (t *tunnel) cutBy(err error) (string, error) {
	for _, s := range [...]*side{&t.client, &t.endpoint} {
		if s.Stream != nil {
			if why := s.Stream.Err(); why != nil && !errors.Is(why, conn.ErrCut) {
				return t.failed(s), why
			}
		}
	}
	return ReasonCut, err
}

// ended notes that a direction has, and after the second one hands all back.
func (t *tunnel) ended(d *direction) {
	if t.endedLast(d) {
		t.finish()
	}
}

// endedLast returns true once.
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
	t.client.link(nil)
	if t.endpoint.Stream != nil {
		t.endpoint.link(nil)
	}
	t.client.End.end()
	t.endpoint.End.end()
	if t.reason == "" {
		t.reason = ReasonEOF
	}
	t.owner.Ended(Result{Sent: t.up.bytes, Received: t.down.bytes, Reason: t.reason, Err: t.err})
}
