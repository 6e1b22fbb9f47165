// Package tunnel copies two connections into each other until both directions
// have ended: raw TCP, TLS that is passed through unopened, and HTTP upgrades,
// where either end may be TLS.
//
// A stream is either passed on whole, and then its end is passed on as a half
// close, or the end that did not get all of it gets a reset: nobody can mistake
// a cut stream for a whole one.
package tunnel

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// End is one of the two connections. The caller owns and closes it.
type End struct {
	Conn *conn.Conn
	// TLS is the handshaken session over Conn; nil: plain.
	TLS *tls.Conn
	// Early is what was read from this end already, after TLS, beyond what the
	// caller wanted: it goes to the other end first.
	Early []byte
	// Stream is the end where it is no connection but a part of one; then there is no Conn.
	Stream Stream
}

// Stream is an end that shares its connection with others, such as a stream of
// HTTP/2. One goroutine receives while another sends. Cut ends the waits of both.
type Stream interface {
	conn.Linked
	// Receive returns the next bytes, valid until the next call, or io.EOF.
	Receive() ([]byte, error)
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

// begin makes the end fit for a tunnel; the watch ends all its waits.
func (e *End) begin() {
	if e.Stream == nil {
		e.Conn.SetDuplex(true)
		e.Conn.SetReadDeadline(time.Time{})
	}
}

func (e *End) end() {
	if e.Stream == nil {
		e.Conn.SetDuplex(false)
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
	ReasonCut           = "cut" // somebody called Cut on either Conn
)

// Result is what became of a tunnel.
type Result struct {
	// Sent and Received are the bytes delivered from client to endpoint and back, after TLS.
	Sent, Received int64
	Reason         string
	// Err is nil with ReasonEOF. The limits and Cut give errors that are conn.Routine.
	Err error
}

// Run copies until both directions have ended and returns when nothing of the
// tunnel is left running. It uses the caller's goroutine and one more.
//
// The caller owns both connections before and after, and closes them: with any
// reason but ReasonEOF there is nothing else to do with them, as their waits
// are ended for good, and the ends that were given less than the whole stream
// are prepared to be reset by Close. Cut on either connection ends the tunnel.
//
// A panic of either goroutine goes on in the caller's, once both have ended.
func Run(client, endpoint End, o Options) Result {
	t := &tunnel{idle: o.Idle, lifetime: o.Lifetime, begun: time.Now()}
	if t.idle <= 0 {
		t.idle = DefaultIdle
	}
	t.client = side{End: client, failed: ReasonClientReset}
	t.endpoint = side{End: endpoint, failed: ReasonEndpointReset}
	t.up = direction{t: t, src: &t.client, dst: &t.endpoint, counter: o.Sent}
	t.down = direction{t: t, src: &t.endpoint, dst: &t.client, counter: o.Received}

	client.begin()
	endpoint.begin()
	client.link(endpoint.Linked())
	if endpoint.Stream != nil {
		endpoint.link(client.Linked())
	}
	t.startWatch()

	t.running.Go(func() { t.guard(t.down.run) })
	t.guard(t.up.run)
	t.running.Wait()

	t.stopWatch()
	client.link(nil)
	if endpoint.Stream != nil {
		endpoint.link(nil)
	}
	client.end()
	endpoint.end()
	if t.panicked != nil {
		panic(t.panicked) // where it ends this connection alone
	}
	if t.reason == "" {
		t.reason = ReasonEOF
	}
	return Result{Sent: t.up.bytes, Received: t.down.bytes, Reason: t.reason, Err: t.err}
}

// tunnel is the state of one Run.
type tunnel struct {
	client, endpoint side
	up, down         direction
	running          sync.WaitGroup

	idle, lifetime time.Duration
	begun          time.Time
	active         atomic.Int64 // when bytes last went by, as a time.Duration since begun

	mu       sync.Mutex
	watch    *time.Timer
	over     bool // the watch has nothing more to do
	reason   string
	err      error
	panicked any // what a direction panicked with
}

// guard runs a direction, and ends the tunnel if that panics.
func (t *tunnel) guard(run func()) {
	defer func() {
		if value := recover(); value != nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.panicked = fmt.Sprintf("%v, in a tunnel:\n%s", value, debug.Stack())
			t.failLocked("panic", errPanicked)
		}
	}()
	run()
}

var errPanicked = errors.New("a fault of weir's own")

// side is an End and how far it was served.
type side struct {
	End
	failed string      // the reason when this side fails
	whole  atomic.Bool // it was given the whole stream of the other side, end included
}

// closeWrite passes an end of stream on.
func (s *side) closeWrite() error {
	if s.Stream != nil {
		return s.Stream.SendEnd()
	}
	if s.TLS != nil {
		if err := s.TLS.CloseWrite(); err != nil {
			return err
		}
	}
	return s.Conn.CloseWrite()
}

// fail ends the tunnel. The first failure gives the reason, those that follow
// from it say nothing new.
func (t *tunnel) fail(reason string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failLocked(reason, err)
}

func (t *tunnel) failLocked(reason string, err error) {
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
				return s.failed, why
			}
		}
	}
	return ReasonCut, err
}

// startWatch sets the one timer of the tunnel. It is not moved when bytes go
// by: when it fires it looks how long ago that was.
func (t *tunnel) startWatch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watch = time.AfterFunc(t.untilLimit(0), t.look)
}

func (t *tunnel) stopWatch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	t.watch.Stop()
}

func (t *tunnel) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Since(t.begun)
	left := t.untilLimit(now)
	switch {
	case t.over:
	case left > 0:
		t.watch.Reset(left)
	case t.lifetime > 0 && now >= t.lifetime:
		t.failLocked(ReasonLifetime, fmt.Errorf("tunnel reached its lifetime of %s (max_lifetime of the route): %w", t.lifetime, os.ErrDeadlineExceeded))
	default:
		t.failLocked(ReasonIdle, fmt.Errorf("nothing went through the tunnel for %s (tunnel_idle of the route or listener): %w", t.idle, os.ErrDeadlineExceeded))
	}
}

// untilLimit is the time from now, counted from the beginning, to the nearer limit.
func (t *tunnel) untilLimit(now time.Duration) time.Duration {
	left := time.Duration(t.active.Load()) + t.idle - now
	if t.lifetime > 0 {
		left = min(left, t.lifetime-now)
	}
	return left
}

// direction copies one way. What it knows lives here and not on the stack, so
// that an idle tunnel may one day do without its goroutines.
type direction struct {
	t        *tunnel
	src, dst *side
	counter  Counter
	bytes    int64
	splicer  splicer
}

func (d *direction) run() {
	if err := d.begin(); err != nil {
		return
	}
	if d.src.Stream != nil {
		d.receive()
		return
	}
	if err := d.src.Conn.Await(d.step); err != nil {
		d.t.fail(d.src.failed, err)
	}
}

// receive is run for what comes by a stream.
func (d *direction) receive() {
	for {
		p, err := d.src.Stream.Receive()
		switch {
		case err == io.EOF:
			d.finish()
			return
		case err != nil:
			d.t.fail(d.src.failed, err)
			return
		case d.deliver(p) != nil:
			return
		}
	}
}

// begin delivers what was read before the tunnel began.
func (d *direction) begin() error {
	if err := d.deliver(d.src.Early); err != nil {
		return err
	}
	if d.src.TLS != nil || d.src.Stream != nil {
		return nil // what was peeked belongs to the session
	}
	return d.deliver(d.src.Conn.TakePeeked())
}

// next is what a direction does next.
type next int

const (
	nextRead   next = iota // look for more through a buffer
	nextSplice             // much is there: move it within the kernel
	nextWait               // nothing is left until the poller has news
	nextEnd                // the direction has ended
)

// step copies what is there. It returns true when the direction has ended.
func (d *direction) step() bool {
	n := nextRead
	if d.splicer.eager {
		n = nextSplice
	}
	for {
		switch n {
		case nextRead:
			n = d.copy()
		case nextSplice:
			n = d.splice()
		default:
			return n == nextEnd
		}
	}
}

// copy moves bytes through a buffer that it holds no longer than there are any.
func (d *direction) copy() next {
	buf := conn.GetBuffer()
	defer conn.PutBuffer(buf)
	for {
		var n int
		var err error
		if d.src.TLS == nil {
			n, err = d.src.Conn.Read(buf[:])
		} else {
			n, err = d.src.TLS.Read(buf[:])
		}
		if n > 0 && d.deliver(buf[:n]) != nil {
			return nextEnd
		}
		switch {
		case err == nil:
			if n == len(buf) && !d.splicer.off {
				return nextSplice
			}
		case err == conn.ErrWouldBlock:
			return nextWait
		case err == io.EOF:
			d.finish()
			return nextEnd
		default:
			d.t.fail(d.src.failed, err)
			return nextEnd
		}
	}
}

// deliver writes p to the destination. An error has ended the tunnel.
func (d *direction) deliver(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	n := len(p)
	var err error
	switch {
	case d.dst.Stream != nil:
		if err = d.dst.Stream.Send(p); err != nil {
			n = 0
		}
	case d.dst.TLS == nil:
		n, err = d.dst.Conn.Write(p)
	default:
		n, err = d.dst.TLS.Write(p)
	}
	d.count(int64(n))
	if err != nil {
		d.t.fail(d.dst.failed, err)
	}
	return err
}

// count notes that n bytes went by.
func (d *direction) count(n int64) {
	if n == 0 {
		return
	}
	d.bytes += n
	d.t.active.Store(int64(time.Since(d.t.begun)))
	if d.counter != nil {
		d.counter.Add(float64(n))
	}
}

// finish passes the end of the source's stream on.
func (d *direction) finish() {
	if err := d.dst.closeWrite(); err != nil {
		d.t.fail(d.dst.failed, err)
		return
	}
	d.dst.whole.Store(true)
}
