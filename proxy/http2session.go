package proxy

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
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/listener/park"
	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/proxy/http2"
	"github.com/weirproxy/weir/proxy/http2/core"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/tunnel"
)

// http2Session is a client connection that speaks HTTP/2. Its own goroutine reads, unless the
// connection is parked. Weir routes each exchange anew, and runs it in the goroutine of a
// worker, at the same time as the others.
type http2Session struct {
	http2   http2.Connection
	proxy   *Proxy
	conn    *conn.Conn
	tls     *tls.Conn // nil: no TLS
	holding memory.Account
	side    atomic.Pointer[clientSide] // for new exchanges

	step    func() bool // s.read, bound once
	mayPark func() bool // s.idle, bound once
	err     error       // the error that ended read

	before    int64        // bytes that had arrived at the last call of read
	timing    uint64       // the head or frame that has a deadline; 0: none
	greeting  bool         // the preface and the first frame have a deadline
	timeless  bool         // the connection is parked without a deadline; guarded by http2's lock
	idleSince atomic.Int64 // end of the last exchange, in nanoseconds since began; or busy or tunnelling
	began     time.Time

	goingAway atomic.Pointer[time.Timer] // set by goAway; when it fires, weir accepts no more exchanges
}

// These are the values of idleSince while exchanges run.
const (
	busy       = -1
	tunnelling = -2 // all of them are idle tunnels
)

// serveHTTP2 serves exchanges on a connection until the client or weir ends it, and then
// closes it; or until the connection is parked. Wake then continues.
func serveHTTP2(cl clientSide, c *conn.Conn, tc *tls.Conn) {
	s := &http2Session{proxy: cl.proxy, conn: c, tls: tc, began: time.Now(), greeting: true}
	s.holding.Open(s.proxy.Memory, s.conn.Network().Prefix(), s.conn)
	cl.account = &s.holding
	s.side.Store(&cl)
	s.step, s.mayPark = s.read, s.idle
	var rw io.ReadWriter = s.conn
	if s.tls != nil {
		rw = s.tls
	}
	s.conn.Split()
	s.http2.Init(rw, core.Config{Limits: *s.proxy.limits.Load(), Streams: cl.edge.streams, RawTargets: cl.edge.lenient&http1.RawTargets != 0, Account: cl.account}, s.serve)
	s.http2.Observe(s)
	s.proxy.http2.add(s)
	s.conn.SetReadDeadline(s.began.Add(s.side.Load().edge.timeouts.RequestHead))
	s.http2.Start()
	s.drive(nil)
}

// drive serves the connection until it is parked or has ended. err is the error with which a
// wait for bytes has ended, or nil.
func (s *http2Session) drive(err error) {
	whole := false
	defer func() {
		if !whole {
			s.conn.Cut()
			s.http2.Abort() // and Proxy.rescue ends the client's connection
			s.proxy.http2.remove(s)
			s.holding.Close()
		}
	}()
	if parked, err := s.run(err); !parked {
		s.close(err)
		s.proxy.http2.remove(s)
		s.holding.Close()
	}
	whole = true
}

// run reads until the connection is parked or has ended. It returns the error that ended the
// connection, or nil if weir left it. Its argument is the error with which a wait has ended,
// or nil.
func (s *http2Session) run(err error) (parked bool, _ error) {
	for ; ; err = nil {
		if err == nil {
			err = s.conn.AwaitOrPark(s.step, s.mayPark)
		}
		if err == nil {
			err = s.err
		}
		switch {
		case err == conn.ErrQuiet:
			s.wait(time.Now()) // an exchange may have moved the deadline
			if s.park() {
				return true, nil
			}
		case err == conn.ErrInterrupted:
			s.conn.Resume()
			s.http2.RepeatPanic()
			if err := s.http2.Err(); err != nil {
				return false, err
			}
			if s.http2.Left() {
				return false, nil
			}
			if !s.timed() {
				s.wait(time.Now())
			}
		case errors.Is(err, os.ErrDeadlineExceeded):
			if s.timed() {
				return false, s.slowHead()
			}
			s.wait(time.Now())
		default:
			return false, err
		}
	}
}

// idle reports whether the connection may be parked: no exchange runs except idle tunnels,
// no head or frame has begun to arrive, and weir has sent no GOAWAY. A connection
// with a GOAWAY may be parked while it has tunnels, because they wake it when they end.
func (s *http2Session) idle() bool {
	since := s.idleSince.Load()
	return (since == tunnelling || since != busy && s.goingAway.Load() == nil) && !s.timed()
}

// park leaves the connection without a goroutine and returns true, or returns false if that
// is impossible. After park returns true, Wake owns the connection. If weir sends GOAWAY
// meanwhile, the flusher writes it.
func (s *http2Session) park() bool {
	return s.http2.Park(func() bool {
		if s.idleSince.Load() == tunnelling { // tunnels have limits of their own
			s.conn.SetReadDeadline(time.Time{})
			s.timeless = true
		}
		if s.tls != nil {
			conn.ReleaseTLS(s.tls)
		}
		s.conn.Unpoll()
		return s.conn.Park(s, s.conn.ReadDeadline())
	})
}

// Wake continues with a parked connection.
func (s *http2Session) Wake(why park.Reason) { go s.resume(why) }

func (s *http2Session) resume(why park.Reason) {
	defer s.proxy.rescue(s.conn, s.side.Load().edge.name)
	s.conn.JoinPoller()
	s.drive(s.conn.Woken(why))
}

// slowHead returns the error for a client that does not send a whole head, frame or preface
// in time.
func (s *http2Session) slowHead() error {
	return &core.ConnError{Code: core.EnhanceYourCalm, Reason: "slow_head", Detail: fmt.Sprintf(
		"the client did not complete the HTTP/2 preface, or a frame or header list that it had begun, within %v (timeouts.request_head of the listener)",
		s.side.Load().edge.timeouts.RequestHead)}
}

// read is called within Await when bytes may have arrived. It returns true to leave Await.
func (s *http2Session) read() bool {
	s.err = s.http2.Step()
	if s.err != conn.ErrWouldBlock {
		return true
	}
	if s.timed() || s.timing != 0 || s.greeting {
		s.time()
	}
	if s.before == s.conn.BytesRead && s.idleSince.Load() != busy {
		s.http2.Trim() // Await calls read again if no bytes came for a moment
	}
	s.before = s.conn.BytesRead
	return false
}

// timed reports whether the client has begun something that has its own deadline.
func (s *http2Session) timed() bool {
	return s.greeting && !s.http2.Greeted() || s.http2.HeadStarted() != 0
}

// time sets the deadline for a head or frame that has begun, or that of an idle connection.
func (s *http2Session) time() {
	now := time.Now()
	if s.greeting {
		if !s.http2.Greeted() {
			return // the deadline is set already
		}
		s.greeting = false
		if s.idleSince.CompareAndSwap(0, int64(now.Sub(s.began))) {
			s.conn.SetState(conn.Idle)
			s.conn.Quiet(now)
		}
	}
	begun := s.http2.HeadStarted()
	switch {
	case begun == s.timing:
	case begun != 0:
		if until, idle := s.idleUntil(); idle && !now.Before(until) {
			s.goAway() // a client must not gain time by beginning frame after frame
		}
		s.conn.SetReadDeadline(now.Add(s.side.Load().edge.timeouts.RequestHead))
	default:
		s.wait(now)
	}
	s.timing = begun
}

// wait sets the deadline of an idle connection, and ends a connection that was idle for too
// long. Running exchanges have deadlines of their own.
func (s *http2Session) wait(now time.Time) {
	if until, idle := s.idleUntil(); idle {
		if now.Before(until) {
			s.conn.SetReadDeadline(until)
			return
		}
		s.goAway()
	}
	s.conn.SetReadDeadline(now.Add(s.side.Load().edge.timeouts.KeepAlive))
}

// idleUntil returns the time when the idle time is over; false: the connection is not idle.
func (s *http2Session) idleUntil() (time.Time, bool) {
	since := s.idleSince.Load()
	return s.began.Add(time.Duration(since) + s.side.Load().edge.timeouts.KeepAlive), since >= 0
}

// follow makes new exchanges use t, so that they do not keep an older table in memory. It
// returns false if t does not have the connection's listener.
func (s *http2Session) follow(t *Table) bool {
	side := s.side.Load()
	next := *side
	if !next.follow(t) {
		return false
	}
	s.side.CompareAndSwap(side, &next) // no swap: an exchange has stored a side already
	return true
}

// Over wakes the goroutine that reads: the connection goes away and its last exchange has
// ended, or weir cannot write to it.
func (s *http2Session) Over() { s.conn.Interrupt() }

// Fault counts a stream that weir reset because of an error of the client.
func (s *http2Session) Fault(reason string) {
	s.proxy.Metrics.http2Error(s.side.Load().edge.name, "stream", reason)
}

// Does is called when exchanges begin and end, and when tunnels become idle. A connection
// without exchanges has an idle limit. If it was parked without a deadline, Does wakes it.
func (s *http2Session) Does(d http2.Doing) {
	if d == http2.Exchanges {
		s.idleSince.Store(busy)
		s.conn.SetState(conn.Active)
		return
	}
	now := time.Now()
	s.conn.Quiet(now)
	if d == http2.Tunnels {
		s.idleSince.Store(tunnelling)
		s.conn.SetState(conn.Tunnel)
		s.conn.Stir()
		return
	}
	s.idleSince.Store(int64(now.Sub(s.began)))
	s.conn.SetState(conn.Idle)
	if s.timeless {
		s.timeless = false
		s.conn.Interrupt()
	} else {
		s.conn.Stir()
	}
}

// goAway begins to end the connection without loss: weir sends GOAWAY, and serves the requests
// that the client sends before it receives GOAWAY. Any goroutine may call goAway.
func (s *http2Session) goAway() {
	t := time.AfterFunc(timeout, s.http2.GoAwayNow)
	if !s.goingAway.CompareAndSwap(nil, t) {
		t.Stop()
		return
	}
	s.http2.GoAway()
}

// close ends the exchanges that still run, and closes the connection.
func (s *http2Session) close(err error) {
	if t := s.goingAway.Load(); t != nil {
		t.Stop()
	}
	var fault *core.ConnError
	if errors.As(err, &fault) {
		s.http2.Fail(fault)
	}
	if err == nil { // responses may still be on their way to a slow client
		s.http2.Abort()
	} else {
		cut := time.AfterFunc(timeout, s.conn.Cut)
		s.http2.Abort()
		cut.Stop()
	}
	s.http2.RepeatPanic()
	s.conn.Resume()
	s.conn.SetDuplex(false)
	side := s.side.Load()
	switch {
	case fault != nil:
		s.proxy.Metrics.http2Error(side.edge.name, "connection", fault.Reason)
		side.lost(fault.Reason, err)
	case !conn.Routine(err), s.timed() && err != nil:
		side.lost("request_head", err)
	}
	if err == nil || fault != nil {
		if s.tls != nil {
			s.tls.CloseWrite()
		}
		s.conn.CloseAfterReply(timeout)
		return
	}
	if s.tls != nil {
		s.tls.Close()
	}
	s.conn.Close()
}

// streams is a pool of exchanges for HTTP/2.
var streams = sync.Pool{New: func() any {
	x := new(exchange)
	x.relay = x.attempts.relayReady
	return x
}}

// serve serves one exchange, in the goroutine of a worker.
func (s *http2Session) serve(h *http2.Exchange) {
	x := streams.Get().(*exchange)
	var end *streamEnd // the end of a tunnel, which then owns h; nil: no tunnel
	defer func() {
		if value := recover(); value != nil {
			s.panicked(x, value)
			if end != nil {
				end.Close()
			} else {
				h.Close()
			}
		}
	}()
	side := s.side.Load()
	x.clientSide, x.wire = *side, h
	h.SetWriteTimeout(side.edge.timeouts.BodyIdle)
	x.serveHTTP2(h)
	left, moved := x.orphaned || x.outlived, x.table != side.table
	if moved && !x.orphaned {
		next := x.clientSide
		s.side.CompareAndSwap(side, &next) // no swap: a reload has stored a side already
	}
	if x.upgraded {
		end = &streamEnd{conn: s.conn, http2: h}
		h.Lighten()
		x.startTunnel(x.openTunnel(&tunnel.StreamEnd{Stream: end, Client: s.conn}))
	} else {
		h.Close()
	}
	x.forget()
	streams.Put(x)
	if left || s.proxy.draining.Load() {
		s.goAway()
	}
}

func (x *exchange) serveHTTP2(h *http2.Exchange) {
	if refusal, bad := h.ReadHead(&x.req).(*message.Refusal); bad {
		x.answer(refusal)
	} else {
		_, whole := h.BufferedBody()
		x.whole = whole && !x.req.ExpectContinue
		x.serve()
	}
	if x.upgraded {
		h.SetWriteTimeout(0) // the tunnel has limits of its own
		return
	}
	x.finish(x.now())
	h.AwaitEnd(timeout)
}

// streamEnd is the client's end of a tunnel that began with an extended CONNECT (RFC 8441).
// Other goroutines may hold it for longer than the tunnel lasts.
type streamEnd struct {
	conn  *conn.Conn // the connection of the stream
	mu    sync.Mutex
	http2 *http2.Exchange // nil after the tunnel has ended
}

func (e *streamEnd) CutAlso(other conn.Cuttable) { e.http2.CutAlso(other) }

func (e *streamEnd) Receive() ([]byte, error) {
	p, err := e.http2.Receive()
	return p, e.cause(err)
}

func (e *streamEnd) Park(w park.Waiter) bool { return e.http2.Park(w) }

func (e *streamEnd) Unpark() bool { return e.http2.Unpark() }

func (e *streamEnd) Send(p []byte) error {
	if err := e.http2.WriteBody(p); err != nil {
		return e.cause(err)
	}
	return e.cause(e.http2.Flush())
}

// cause returns conn.ErrCut instead of err if the whole connection was cut.
func (e *streamEnd) cause(err error) error {
	if err != nil && err != io.EOF && err != conn.ErrQuiet && e.conn.WasCut() {
		return conn.ErrCut
	}
	return err
}

func (e *streamEnd) SendEnd() error { return e.cause(e.http2.SendEnd()) }

func (e *streamEnd) Err() error { return e.cause(e.http2.Ended()) }

// Cut ends the tunnel. Any goroutine may call it at any time.
func (e *streamEnd) Cut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.http2 != nil {
		e.http2.Cut()
	}
}

func (e *streamEnd) WasCut() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.http2 == nil || e.http2.WasCut()
}

// Close ends the stream. The owner of the tunnel calls it when the tunnel ends.
func (e *streamEnd) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.http2 != nil {
		e.http2.Close()
		e.http2 = nil
	}
}

// panicked ends a connection after a panic in one of its exchanges, as Proxy.rescue does. The
// caller closes the stream of the exchange.
func (s *http2Session) panicked(x *exchange, value any) {
	stack := debug.Stack()
	x.abandon()
	s.conn.Abort()
	s.conn.Cut()
	if s.proxy.Panicked != nil {
		s.proxy.Panicked(s.side.Load().edge.name, value, stack)
	}
}

// http2Sessions are the open HTTP/2 connections, so that reloads and drains can end them.
type http2Sessions struct {
	mu   sync.Mutex
	open map[*http2Session]struct{}
}

func (t *http2Sessions) add(s *http2Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = make(map[*http2Session]struct{})
	}
	t.open[s] = struct{}{}
}

func (t *http2Sessions) remove(s *http2Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, s)
}

// leave leaves the connections for which f returns true.
func (t *http2Sessions) goAway(f func(*http2Session) bool) {
	for _, s := range t.those(f) {
		s.goAway()
	}
}

// those returns the connections for which f returns true.
func (t *http2Sessions) those(f func(*http2Session) bool) (all []*http2Session) {
	t.mu.Lock()
	n := len(t.open)
	t.mu.Unlock()
	all = make([]*http2Session, 0, n) // without the lock: allocating may wait for the garbage collector
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.open {
		if f(s) {
			all = append(all, s)
		}
	}
	return all
}
