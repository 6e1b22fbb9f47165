package http2

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
)

// Connection drives the core of a client's connection. One goroutine reads, by
// Step; each exchange runs in a worker's; and whoever has something to send
// leaves it to one flusher, which exists while there is something. An idle
// connection has neither workers, nor flusher, nor buffers.
//
// It does not close what it reads and writes. The zero value needs Init.
type Connection struct {
	rw    io.ReadWriter
	serve func(*Exchange)
	watch Observer
	flush func() // c.flusher, bound once

	mu       sync.Mutex // guards all below, and the exchanges' state
	core     Core
	ready    []*Exchange // came with the bytes that are being received
	heads    []*Exchange // they wait for room to write a head
	resting  int         // of the exchanges that run: tunnels whose client says nothing
	doing    Doing       // what watch was told last
	flushing bool
	failed   error // of writing
	panicked any   // what the flusher panicked with
	drained  sync.Cond
}

// Init makes c the connection that rw carries. Each request is served by a call
// of serve, in a goroutine of its own, which must end with Exchange.Close.
func (c *Connection) Init(rw io.ReadWriter, config Config, serve func(*Exchange)) {
	*c = Connection{rw: rw, serve: serve}
	c.flush = c.flusher
	c.drained.L = &c.mu
	config.Role = Server
	c.core.Init(config, (*events)(c))
}

// Observer is told what happens to a connection, with its lock held and from any goroutine.
type Observer interface {
	// Does says that the connection does something else from now on.
	Does(Doing)
	// Over says that there is nothing more to wait for: the connection has
	// Left, or cannot write any more, which Err tells.
	Over()
	// Fault says that a stream was reset for the client's fault, by a word for metrics.
	Fault(reason string)
}

// Observe makes w the connection's observer. It is called behind Init.
func (c *Connection) Observe(w Observer) { c.watch = w }

// Doing is what a connection does.
type Doing uint8

// What a connection may do. It begins with nothing.
const (
	Nothing   Doing = iota // no exchange runs
	Tunnels                // all that run are tunnels at rest: their clients say nothing, or nothing more
	Exchanges              // others run, or tunnels are not at rest
)

// look tells the observer where the connection does something else by now.
func (c *Connection) look() {
	doing := Exchanges
	switch c.core.Working() {
	case 0:
		doing = Nothing
	case c.resting:
		doing = Tunnels
	}
	if doing == c.doing {
		return
	}
	c.doing = doing
	if c.watch != nil {
		c.watch.Does(doing)
	}
}

// tellOver is called where c may have nothing more to wait for.
func (c *Connection) tellOver() {
	if c.watch != nil && (c.failed != nil || c.core.Leaving() && c.core.Working() == 0) {
		c.watch.Over()
	}
}

// Step reads until the connection has nothing more to give, and starts what
// came; nil: it has Left. The errors: conn.ErrWouldBlock (call again), io.EOF, a
// *ConnError (what it says to the client is on its way), or the connection's own.
func (c *Connection) Step() error {
	buf := conn.GetBuffer()
	defer conn.PutBuffer(buf)
	for !c.Left() {
		n, err := c.rw.Read(buf[:])
		if n > 0 {
			if err := c.receive(buf[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Connection) receive(p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.core.Receive(time.Now(), p)
	if c.failed != nil { // it ended so, and by no fault of the client's
		err = c.failed
	}
	c.startFlusher()
	for i, x := range c.ready {
		c.ready[i] = nil
		work(x.run)
	}
	c.ready = c.ready[:0]
	for err == nil && (c.core.Pending() >= mostUnread || c.core.Behind()) {
		c.drained.Wait()
		err = c.failed
	}
	return err
}

// mostUnread limits the output that a peer does not read, in bytes. Beyond it, weir reads
// nothing more from a client, and an endpoint gets no further calls on the connection.
// Bodies wait much earlier, heads do not.
const mostUnread = 512 << 10

// startFlusher is called with the lock held, by whoever may have put something into the output.
func (c *Connection) startFlusher() {
	if !c.flushing && c.failed == nil && c.core.Pending() > 0 {
		c.flushing = true
		work(c.flush)
	}
}

func (c *Connection) flusher() { flush(&c.mu, &c.core, c.rw, (*outgoing)(c)) }

// outgoing is what a Connection's flusher tells, with the lock held.
type outgoing Connection

func (c *outgoing) took() {
	c.drained.Broadcast()
	for _, x := range c.heads {
		x.writable = true
		x.changed.Broadcast()
	}
	clear(c.heads)
	c.heads = c.heads[:0]
}

// broke ends everything. A panic is left for Err: here it would end the process.
func (c *outgoing) broke(err error) {
	var p *PanicError
	if errors.As(err, &p) {
		c.panicked = fmt.Sprintf("%v, in a flusher:\n%s", p.Value, p.Stack)
	}
	c.failed = err
	c.core.Abort(InternalError, "lost", "the connection was lost")
	(*Connection)(c).tellOver()
}

func (c *outgoing) through() {
	c.flushing = false
	c.drained.Broadcast()
}

// Err is why nothing can be written any more, or nil. Where that was a panic, it goes on here.
func (c *Connection) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.panicked != nil {
		panic(c.panicked)
	}
	return c.failed
}

// Trim gives memory back that an idle connection does not need.
func (c *Connection) Trim() {
	c.locked(func() {
		if c.core.Working() == 0 && !c.flushing {
			c.core.Trim()
			c.ready, c.heads = nil, nil
		}
	})
}

// Rest calls f if no exchange runs but tunnels at rest, no head or frame has begun
// to come and nothing waits to be sent, and returns what f does. What a quiet
// connection does not need is given back before, and until f returns nobody
// reads or writes.
func (c *Connection) Rest(f func() bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	working := c.core.Working()
	if working > c.resting || c.core.Started() != 0 || c.core.Pending() > 0 || c.flushing || c.failed != nil {
		return false
	}
	if c.core.Leaving() && working == 0 {
		return false // it is to be closed
	}
	c.core.Trim()
	c.ready, c.heads = nil, nil
	return f()
}

// Start sends the greeting.
func (c *Connection) Start() { c.locked(func() {}) }

// Working is how many exchanges run.
func (c *Connection) Working() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.Working()
}

// Leave begins to go away: see Core.Leave.
func (c *Connection) Leave() { c.locked(c.core.Leave) }

// LeaveNow takes no more exchanges: see Core.LeaveNow.
func (c *Connection) LeaveNow() {
	c.locked(func() {
		c.core.LeaveNow()
		c.tellOver()
	})
}

// CutTunnels cuts the tunnels at rest. Nothing else of the connection ends.
func (c *Connection) CutTunnels() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.core.table.streams {
		if x := exchangeOf(s); x != nil && x.atRest {
			x.cut()
		}
	}
}

// Left reports whether the connection can be closed: no exchange runs or will.
func (c *Connection) Left() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.Leaving() && c.core.Working() == 0
}

func (c *Connection) locked(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	c.startFlusher()
}

// HeadStarted says which head or frame, DATA apart, has begun and not come to
// its end, by a number of its own; 0: none.
func (c *Connection) HeadStarted() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.Started()
}

// Greeted reports whether the client has sent its preface and its first frame.
func (c *Connection) Greeted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.Greeted()
}

// Fail ends the connection for a fault of the client's that its driver found.
func (c *Connection) Fail(e *ConnError) {
	c.locked(func() { c.core.fail(e.Code, e.Reason, e.Detail) })
}

// Abort ends every exchange, as nothing is read any more, and waits until they
// have noticed and what there was to say is sent. The connection's write
// deadline bounds that.
func (c *Connection) Abort() {
	c.mu.Lock()
	c.core.Abort(Cancel, "lost", "the connection was lost")
	c.startFlusher()
	for c.flushing || c.core.Working() > 0 {
		c.drained.Wait()
	}
	c.mu.Unlock()
}

// events are the core's events, which come with the lock held.
type events Connection

func exchangeOf(s *Stream) *Exchange {
	x, _ := s.User.(*Exchange)
	return x
}

func (e *events) Request(s *Stream) *message.Request {
	x := newExchange((*Connection)(e), s)
	s.User = x
	return &x.req
}

func (e *events) Response(*Stream) *message.Response { return nil } // a client's

func (e *events) Head(s *Stream, refusal *message.Refusal) {
	x := exchangeOf(s)
	x.started, x.refusal = true, refusal
	(*Connection)(e).look()
	e.ready = append(e.ready, x)
}

func (e *events) Data(s *Stream, p []byte) {
	x := exchangeOf(s)
	if x.unwanted {
		e.core.Consumed(s, len(p))
		return
	}
	if !x.body.add(p) {
		e.core.starve(s, EnhanceYourCalm)
		return
	}
	x.wake()
}

func (e *events) End(s *Stream) {
	x := exchangeOf(s)
	x.ended = true
	x.wake()
}

func (e *events) Reset(s *Stream, ending Ending) {
	x := exchangeOf(s)
	if !ending.ByPeer && e.watch != nil {
		e.watch.Fault(ending.Reason)
	}
	x.end(ending)
	if !x.started { // nobody has heard of it
		x.release()
		(*Connection)(e).look()
	}
}

func (e *events) Writable(s *Stream) {
	x := exchangeOf(s)
	x.writable = true
	x.changed.Broadcast()
}

func (e *events) Settings()      {}
func (e *events) SettingsAcked() {}
func (e *events) PingAcked()     {}
func (e *events) GoAway(Code)    {}
