package tunnel

import (
	"errors"
	"io"
	"runtime/debug"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/park"
)

// direction copies one way. Its state is in this struct, not on a stack: a direction without
// bytes to copy is parked, and has no goroutine.
type direction struct {
	t       *tunnel
	bytes   int64
	splicer *splicer // nil: no splice since the direction was last parked
	back    bool     // from the endpoint to the client
	over    bool     // guarded by t.mu
	// eager: the last step moved many bytes, so the next one begins with splice.
	eager bool
	// charged is what the direction has of the tunnel's account while it has a goroutine, in bytes.
	charged int
	// noSplice: splice does not work for these sockets.
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

// run is the direction's goroutine: it copies until the direction has ended or is parked.
// When it returns, another goroutine may already own d.
func (d *direction) run() {
	defer d.rescue()
	if d.copyAll() {
		d.release()
		d.t.ended(d)
	}
}

// Running is what a direction with bytes to copy uses, in bytes: the stack of its goroutine, and its share of the
// structures of the tunnel and of TLS.
const Running = 12 << 10

var errMemory = errors.New("the connection, its client network or the whole process has used up its share of limits.memory")

// release gives back what a direction needs only while it has a goroutine.
func (d *direction) release() {
	d.t.Account.Release(d.charged)
	d.charged = 0
	d.t.Account.Settle()
}

// copyAll returns true when the direction has ended, false when it is parked.
func (d *direction) copyAll() bool {
	if !d.t.Account.Charge(Running) {
		d.t.end(ReasonMemory, errMemory)
		return true
	}
	d.charged = Running
	if d.begin() != nil {
		return true
	}
	return d.src().copyFrom(d)
}

// Wake ends the wait of the parked direction. The lot or the stream calls it.
func (d *direction) Wake(park.Reason) { go d.run() }

// park lets the direction wait for its source without a goroutine.
func (d *direction) park() bool {
	charged := d.charged
	d.release() // before another goroutine may own d
	if d.src().park(d) {
		return true
	}
	d.t.Account.Force(charged)
	d.charged = charged
	return false
}

// doze parks a direction before its first read. If bytes are already there, the lot wakes it.
func (d *direction) doze() bool {
	return d.src().dozes() && d.park()
}

// parkIdle parks a direction that had no bytes for a while. If the other direction is parked or has
// ended, parkIdle also removes the two connections from the poller of the Go runtime. Both
// directions must be idle for that: either goroutine may wait there for either connection. parkIdle
// returns false if d must wait in its goroutine.
func (t *tunnel) parkIdle(d *direction) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	d.splicer, d.eager = nil, false
	other := d.reverse()
	if t.polled() && (other.over || other.src().unpark()) {
		t.client.unpoll()
		t.endpoint.unpoll()
		if !other.over && !other.park() {
			go other.run()
		}
	}
	return d.park()
}

// polled reports whether one of the connections is registered with the poller of the Go
// runtime.
func (t *tunnel) polled() bool { return t.client.polled() || t.endpoint.polled() }

var errPanicked = errors.New("the tunnel's goroutine panicked")

// rescue ends the tunnel if one of its goroutines panics.
func (d *direction) rescue() {
	value := recover()
	if value == nil {
		return
	}
	d.t.owner.Panicked(value, debug.Stack())
	d.t.end(ReasonPanic, errPanicked)
	d.release()
	d.t.ended(d)
}

// begin delivers the bytes that were read before the tunnel began.
func (d *direction) begin() error {
	early, peeked := d.src().takeRead()
	if err := d.deliver(early); err != nil {
		return err
	}
	return d.deliver(peeked)
}

// next is the next action of a direction.
type next int

const (
	nextRead   next = iota // read more into a buffer
	nextSplice             // many bytes are there: move them within the kernel
	nextWait               // no bytes are left: wait for the poller
	nextEnd                // the direction has ended
)

// step copies the available bytes of a connection. It returns true when the direction has ended.
func (d *direction) step(from *ConnEnd) bool {
	n := nextRead
	if d.eager {
		n = nextSplice
	}
	for {
		switch n {
		case nextRead:
			n = d.copy(from)
		case nextSplice:
			n = d.splice(from)
		default:
			return n == nextEnd
		}
	}
}

// copy moves bytes through a buffer. It holds the buffer only while there are bytes.
func (d *direction) copy(from *ConnEnd) next {
	d.t.Account.Force(conn.BufferSize) // a slow destination may hold it for long
	defer d.t.Account.Release(conn.BufferSize)
	buf := conn.GetBuffer()
	defer conn.PutBuffer(buf)
	for {
		n, err := from.read(buf[:])
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
			d.t.fail(d.src(), err)
			return nextEnd
		}
	}
}

// deliver writes p to the destination. If it returns an error, it has ended the tunnel.
func (d *direction) deliver(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	dst := d.dst()
	n, err := dst.write(p)
	d.count(int64(n))
	if err != nil {
		d.t.fail(dst, err)
	}
	return err
}

// count records that the direction delivered n bytes.
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

// finish passes on the end of the source's stream.
func (d *direction) finish() {
	src, dst := d.src(), d.dst()
	truncated := src.truncated()
	src.ended.Store(true)
	dst.short.Store(truncated && dst.authenticated())
	// An endpoint that has ended its own stream may be gone. Then it answers a close_notify
	// with a reset, and the end of this direction does not matter.
	if err := dst.closeWrite(truncated); err != nil && (!dst.ended.Load() || errors.Is(err, conn.ErrCut)) {
		d.t.fail(dst, err)
		return
	}
	dst.whole.Store(true)
}
