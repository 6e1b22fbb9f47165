package tunnel

import (
	"errors"
	"io"
	"runtime/debug"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/park"
)

// direction copies one way. What it knows lives here and not on a stack: while
// it has nothing to copy it is parked, and has none.
type direction struct {
	t       *tunnel
	bytes   int64
	splicer *splicer // nil: nothing was spliced since it was quiet
	back    bool     // from the endpoint to the client
	over    bool     // guarded by t.mu
	// eager: the last step moved so much that the next may begin by splicing.
	eager bool
	// noSplice: it does not work for these sockets.
	noSplice bool
}

func (d *direction) src() *side {
	if d.back {
		return &d.t.endpoint
	}
	return &d.t.client
}

func (d *direction) dst() *side {
	if d.back {
		return &d.t.client
	}
	return &d.t.endpoint
}

func (d *direction) counter() Counter {
	if d.back {
		return d.t.Received
	}
	return d.t.Sent
}

func (d *direction) reverse() *direction {
	if d.back {
		return &d.t.up
	}
	return &d.t.down
}

// run is the direction's goroutine: it copies until the direction has ended or
// is parked. When it returns, d may be another goroutine's.
func (d *direction) run() {
	defer d.rescue()
	if d.copyAll() {
		d.t.ended(d)
	}
}

// copyAll returns true when the direction has ended, false when it is parked.
func (d *direction) copyAll() bool {
	if d.begin() != nil {
		return true
	}
	s := d.src()
	if s.Stream != nil {
		return d.receive(s.Stream)
	}
	err := conn.ErrQuiet
	if s.parks() {
		if err = s.Conn.AwaitBusy(d.step); err == conn.ErrQuiet && d.t.rest(d) {
			return false
		}
	}
	if err == conn.ErrQuiet { // it cannot be parked, and waits here
		err = s.Conn.Await(d.step)
	}
	if err != nil {
		d.t.fail(s, err)
	}
	return true
}

// Wake ends the direction's rest.
func (d *direction) Wake(park.Reason) { go d.run() }

// park gives up the direction's goroutine until its source has something. It
// returns false where that cannot be done.
func (d *direction) park() bool {
	if s := d.src().Stream; s != nil {
		return s.Rest(d)
	}
	return d.src().Conn.Park(d, time.Time{})
}

// doze parks a direction that has not begun, before it looked: the lot looks as well.
func (d *direction) doze() bool {
	s := d.src()
	return s.parks() && s.TLS == nil && len(s.Early) == 0 && !s.Conn.HasPeeked() && d.park()
}

// rest parks a direction that found nothing for a while. The second one to rest
// also gives back what the runtime's poller holds for the two connections,
// which is theirs both: either goroutine may wait there for either of them. It
// returns false where d has to wait by itself.
func (t *tunnel) rest(d *direction) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	d.splicer, d.eager = nil, false
	if s := d.src(); s.TLS != nil {
		conn.ReleaseTLS(s.TLS)
	}
	other := d.reverse()
	if t.polled() && (other.over || other.src().unpark()) {
		t.client.shed()
		t.endpoint.shed()
		if !other.over && !other.park() {
			go other.run()
		}
	}
	return d.park()
}

// polled reports whether the runtime's poller knows one of the connections.
func (t *tunnel) polled() bool {
	for _, s := range [...]*side{&t.client, &t.endpoint} {
		if s.Stream == nil && s.Conn.Polled() {
			return true
		}
	}
	return false
}

var errPanicked = errors.New("the tunnel's goroutine panicked")

// rescue ends a tunnel one of whose goroutines panics.
func (d *direction) rescue() {
	value := recover()
	if value == nil {
		return
	}
	d.t.owner.Panicked(value, debug.Stack())
	d.t.end(ReasonPanic, errPanicked)
	d.t.ended(d)
}

// receive is copyAll for what comes by a stream.
func (d *direction) receive(from Stream) bool {
	for {
		p, err := from.Receive()
		switch {
		case err == conn.ErrQuiet:
			if d.t.rest(d) {
				return false
			}
		case err == io.EOF:
			d.finish()
			return true
		case err != nil:
			d.t.fail(d.src(), err)
			return true
		case d.deliver(p) != nil:
			return true
		}
	}
}

// begin delivers what was read before the tunnel began.
func (d *direction) begin() error {
	s := d.src()
	early := s.Early
	s.Early = nil
	if err := d.deliver(early); err != nil {
		return err
	}
	if s.TLS != nil || s.Stream != nil {
		return nil // what was peeked belongs to the session
	}
	return d.deliver(s.Conn.TakePeeked())
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
	if d.eager {
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
	src := d.src()
	buf := conn.GetBuffer()
	defer conn.PutBuffer(buf)
	for {
		var n int
		var err error
		if src.TLS == nil {
			n, err = src.Conn.Read(buf[:])
		} else {
			n, err = src.TLS.Read(buf[:])
		}
		if n > 0 && d.deliver(buf[:n]) != nil {
			return nextEnd
		}
		switch {
		case err == nil:
			if n == len(buf) && !d.noSplice {
				return nextSplice
			}
		case err == conn.ErrWouldBlock:
			return nextWait
		case err == io.EOF:
			d.finish()
			return nextEnd
		default:
			d.t.fail(src, err)
			return nextEnd
		}
	}
}

// deliver writes p to the destination. An error has ended the tunnel.
func (d *direction) deliver(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	dst := d.dst()
	n := len(p)
	var err error
	switch {
	case dst.Stream != nil:
		if err = dst.Stream.Send(p); err != nil {
			n = 0
		}
	case dst.TLS == nil:
		n, err = dst.Conn.Write(p)
	default:
		n, err = dst.TLS.Write(p)
	}
	d.count(int64(n))
	if err != nil {
		d.t.fail(dst, err)
	}
	return err
}

// count notes that n bytes went by.
func (d *direction) count(n int64) {
	if n == 0 {
		return
	}
	d.bytes += n
	d.t.moved(time.Now())
	if c := d.counter(); c != nil {
		c.Add(float64(n))
	}
}

// finish passes the end of the source's stream on.
func (d *direction) finish() {
	src, dst := d.src(), d.dst()
	truncated := src.truncated()
	src.ended.Store(true)
	dst.short.Store(truncated && dst.TLS != nil)
	// An endpoint that has ended its own stream may be gone. Then it answers a close_notify
	// with a reset, and the end of this direction does not matter.
	if err := dst.closeWrite(truncated); err != nil && (!dst.ended.Load() || errors.Is(err, conn.ErrCut)) {
		d.t.fail(dst, err)
		return
	}
	dst.whole.Store(true)
}
