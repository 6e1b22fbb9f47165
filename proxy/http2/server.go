// Package http2 is the HTTP/2 codec in both roles. Package core has the protocol without
// I/O, and this package its drivers: Connection and Exchange for clients of weir, Trunk and
// Call for endpoints. A driver connects a core with a socket, guards it with a lock, and
// lets goroutines wait for its events.
package http2

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/http2/core"
	"github.com/weirproxy/weir/proxy/message"
)

// Connection drives the core of a client's connection. One goroutine calls Step, which
// reads. Each exchange runs in the goroutine of a worker. All output goes through one
// flusher, which exists only while there is output. An idle connection has neither
// workers, nor flusher, nor buffers.
//
// Connection does not close rw. The zero value needs Init.
type Connection struct {
	rw    io.ReadWriter
	serve func(*Exchange)
	watch Observer
	flush func() // c.flusher, bound once

	account *memory.Account // nil: nothing is charged

	mu          sync.Mutex // guards all below, and the exchanges' state
	core        core.Connection
	ready       []*Exchange // exchanges that began with the bytes that are being received
	heads       []*Exchange // exchanges that wait for room to write a head
	idleTunnels int         // idle tunnels and silent streams, among the exchanges that run: their clients send nothing
	doing       Doing       // the last value that watch received
	flushing    bool
	failed      error // the error of writing; nil: none
	panicked    any   // the panic of the flusher, with its stack
	drained     sync.Cond
}

// Init prepares c for the connection rw. c calls serve for each request, in a goroutine
// of its own. serve must end with Exchange.Close.
func (c *Connection) Init(rw io.ReadWriter, config core.Config, serve func(*Exchange)) {
	*c = Connection{rw: rw, serve: serve, account: config.Account}
	c.flush = c.flusher
	c.drained.L = &c.mu
	config.Role = core.Server
	c.core.Init(config, (*events)(c))
}

// Observer receives the events of a connection. The calling goroutine holds the
// connection's lock, and may be any goroutine.
type Observer interface {
	// Does reports what the connection does from now on.
	Does(Doing)
	// Over reports that the connection can be closed: it goes away and its last exchange
	// has ended, or it cannot write any more (see Err).
	Over()
	// Fault reports that weir reset a stream: because of an error of the client, or for
	// lack of memory. reason is a word for metrics.
	Fault(reason string)
}

// Observe makes w the connection's observer. Call it after Init.
func (c *Connection) Observe(w Observer) { c.watch = w }

// Doing is what a connection does.
type Doing uint8

// The values of Doing. A connection begins with Nothing.
const (
	Nothing   Doing = iota // no exchange runs
	Tunnels                // all exchanges that run are idle tunnels or silent streams: their clients send nothing, or have ended their direction
	Exchanges              // other exchanges run, or tunnels that are not idle
)

// notify calls the observer if the connection does something else now.
func (c *Connection) notify() {
	doing := Exchanges
	switch c.core.Working() {
	case 0:
		doing = Nothing
	case c.idleTunnels:
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

// tellOver calls the observer if c has nothing more to wait for.
func (c *Connection) tellOver() {
	if c.watch != nil && (c.failed != nil || c.core.GoingAway() && c.core.Working() == 0) {
		c.watch.Over()
	}
}

// Step reads until the connection has no more bytes for now, and starts the requests that
// arrived. nil: the connection has Left. Errors: conn.ErrWouldBlock (call Step again
// later), io.EOF, a *core.ConnError (the GOAWAY for the client is in the output), or an error
// of the connection itself.
func (c *Connection) Step() error {
	buf := conn.GetBuffer()
	defer conn.PutBuffer(buf)
	for !c.Left() {
		c.account.AwaitRation()
		n, err := c.rw.Read(buf[:])
		for p := buf[:n]; len(p) > 0; {
			piece := p[:c.turn(len(p))]
			if err := c.receive(piece); err != nil {
				return err
			}
			if p = p[len(piece):]; len(p) > 0 {
				runtime.Gosched()
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// shortTurn is how many bytes a connection handles at a time while memory is short.
const shortTurn = 512

// turn returns how many of n bytes the connection handles before other goroutines run. A
// few bytes of HPACK may cause much work. Without turns, a new client waits for a whole
// buffer of each attacker.
func (c *Connection) turn(n int) int {
	if c.account.Short() {
		return min(n, shortTurn)
	}
	return n
}

func (c *Connection) receive(p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		c.catchUp()
		rest, err := c.core.ReceiveUntilBehind(time.Now(), p)
		if c.failed != nil { // a failed write ended the core; the client made no error
			err = c.failed
		}
		c.startFlusher()
		c.startExchanges()
		if p = rest; err != nil || len(p) == 0 {
			return err
		}
	}
}

// catchUp waits until the client has read enough of the output, and until enough of the ended
// exchanges are released. Exchanges also end between two reads, so call it before bytes are
// received. The caller holds the lock.
func (c *Connection) catchUp() {
	for c.failed == nil && (c.core.Pending() >= mostUnread || c.core.Behind()) {
		c.drained.Wait()
	}
}

// startExchanges starts the exchanges that have just begun. The caller holds the lock.
func (c *Connection) startExchanges() {
	for i, x := range c.ready {
		c.ready[i] = nil
		work(x.run)
	}
	c.ready = c.ready[:0]
}

// mostUnread limits the output that a peer does not read, in bytes. Beyond it, weir reads
// nothing more from a client, and an endpoint gets no further calls on the connection.
// Bodies and the heads of responses wait earlier (see core.Connection.Crowded). The heads of
// requests do not.
const mostUnread = 512 << 10

// startFlusher starts the flusher if there is output. Call it with the lock held, after
// every action that may add output.
func (c *Connection) startFlusher() {
	if !c.flushing && c.failed == nil && c.core.Pending() > 0 {
		c.flushing = true
		work(c.flush)
	}
}

func (c *Connection) flusher() { flush(&c.mu, &c.core, c.rw, (*outgoing)(c)) }

// outgoing receives the calls of a Connection's flusher, with the lock held.
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

// broke ends all exchanges. It keeps a panic for RepeatPanic: a panic here would end the process.
func (c *outgoing) broke(err error) {
	var p *PanicError
	if errors.As(err, &p) {
		c.panicked = fmt.Sprintf("%v, in a flusher:\n%s", p.Value, p.Stack)
	}
	c.failed = err
	c.core.Abort(core.InternalError, "lost", "the connection was lost")
	(*Connection)(c).tellOver()
}

func (c *outgoing) through() {
	c.flushing = false
	c.drained.Broadcast()
}

// Err returns why nothing can be written any more, or nil. After a panic of the flusher it
// returns a *PanicError.
func (c *Connection) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// RepeatPanic panics if the flusher has panicked, with the same value and its stack. So the
// goroutine that owns the connection ends it as after a panic of its own.
func (c *Connection) RepeatPanic() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.panicked != nil {
		panic(c.panicked)
	}
}

// Trim gives back the memory that an idle connection does not need.
func (c *Connection) Trim() {
	c.locked(func() {
		if c.core.Working() == 0 && !c.flushing {
			c.core.Trim()
			c.ready, c.heads = nil, nil
		}
	})
}

// Park calls f and returns its result, if no exchange runs except idle tunnels, no
// head or frame is incomplete, and no output waits. Otherwise it returns false. Before
// the call, Park gives back the memory that an idle connection does not need. Until f
// returns, no goroutine reads or writes.
func (c *Connection) Park(f func() bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	working := c.core.Working()
	if working > c.idleTunnels || c.core.Started() != 0 || c.core.Pending() > 0 || c.flushing || c.failed != nil {
		return false
	}
	if c.core.GoingAway() && working == 0 {
		return false // the connection must be closed
	}
	c.core.Trim()
	c.ready, c.heads = nil, nil
	return f()
}

// Start sends the greeting.
func (c *Connection) Start() { c.locked(func() {}) }

// GoAway begins to end the connection: see core.Connection.GoAway.
func (c *Connection) GoAway() { c.locked(c.core.GoAway) }

// GoAwayNow accepts no more exchanges: see core.Connection.GoAwayNow.
func (c *Connection) GoAwayNow() {
	c.locked(func() {
		c.core.GoAwayNow()
		c.tellOver()
	})
}

// CutTunnels cuts the idle tunnels and silent streams. All other exchanges continue.
func (c *Connection) CutTunnels() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.core.Streams() {
		if x := exchangeOf(s); x != nil && x.idleTunnel {
			x.cut()
		}
	}
}

// Left reports whether the connection can be closed: no exchange runs, and none will
// begin.
func (c *Connection) Left() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.GoingAway() && c.core.Working() == 0
}

func (c *Connection) locked(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	c.startFlusher()
}

// HeadStarted returns the number of the incomplete head or frame (except DATA) that the
// client has begun; 0: none. Each head or frame has a number of its own.
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

// Fail ends the connection because of an error of the client that the driver found.
func (c *Connection) Fail(e *core.ConnError) {
	c.locked(func() { c.core.Fail(e) })
}

// Abort ends every exchange, because nothing is read any more. It waits until all
// exchanges have ended and the output is sent. The connection's write deadline limits
// that wait.
func (c *Connection) Abort() {
	c.mu.Lock()
	c.core.Abort(core.Cancel, "lost", "the connection was lost")
	c.startFlusher()
	for c.flushing || c.core.Working() > 0 {
		c.drained.Wait()
	}
	c.mu.Unlock()
}

// events handles the core's events. The core calls it with the lock held.
type events Connection

func exchangeOf(s *core.Stream) *Exchange {
	x, _ := s.Attached().(*Exchange)
	return x
}

func (e *events) Request(s *core.Stream) *message.Request {
	x := newExchange((*Connection)(e), s)
	s.Attach(x)
	return &x.req
}

func (e *events) Response(*core.Stream) *message.Response { return nil } // for clients only

func (e *events) Head(s *core.Stream, refusal *message.Refusal) {
	x := exchangeOf(s)
	x.started, x.refusal = true, refusal
	(*Connection)(e).notify()
	e.ready = append(e.ready, x)
}

func (e *events) Data(s *core.Stream, p []byte) {
	x := exchangeOf(s)
	if x.unwanted {
		e.core.Consumed(s, len(p))
		return
	}
	if !x.body.add(p) {
		e.core.OutOfMemory(s)
		return
	}
	x.wake()
}

func (e *events) End(s *core.Stream) {
	x := exchangeOf(s)
	x.ended = true
	x.wake()
}

func (e *events) Reset(s *core.Stream, ending core.Ending) {
	x := exchangeOf(s)
	if !ending.ByPeer && e.watch != nil {
		e.watch.Fault(ending.Reason)
	}
	x.end(ending)
	if !x.started { // no worker knows it
		x.release()
		(*Connection)(e).notify()
	}
}

func (e *events) Refused(reason string) {
	if e.watch != nil {
		e.watch.Fault(reason)
	}
}

func (e *events) Writable(s *core.Stream) {
	x := exchangeOf(s)
	x.writable = true
	x.changed.Broadcast()
}

func (e *events) Settings()                {}
func (e *events) SettingsAcked()           {}
func (e *events) PingAcked()               {}
func (e *events) GoAway(core.Code, uint32) {}
