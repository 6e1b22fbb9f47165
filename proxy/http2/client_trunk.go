package http2

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/http2/core"
	"github.com/weirproxy/weir/proxy/message"
)

// Trunk drives the core of a connection to an endpoint, on which any number of calls run
// at once. It owns the connection and closes it. One goroutine of the trunk reads. Each
// Call belongs to its exchange. All output goes through one flusher, which exists only
// while there is output.
type Trunk struct {
	conn    *conn.Conn
	rw      io.ReadWriter
	tls     *tls.Conn // nil: plain
	changed func()    // see NewTrunk
	flush   func()    // t.flusher, bound once
	limit   atomic.Int32
	over    atomic.Bool
	accepts atomic.Int32 // see Took
	greeted chan struct{}
	done    chan struct{}
	broken  error // the error of reading; for the reader only
	own     memory.Account

	mu        sync.Mutex // guards all below, and the calls' state
	core      core.Connection
	flushing  bool
	lost      *LostError
	goingAway bool  // weir closes the connection when no call runs
	hungUp    bool  // weir has closed the connection in an orderly way: see hangUp
	news      bool  // unlock must call changed
	opened    int32 // calls that have begun
	crowded   bool  // too much output waits for the endpoint: no new call should begin
	flushed   sync.Cond
	free      []*Call
	pulse     pulse
}

// LostError is the end of a whole connection. All calls of the connection get the same
// value.
type LostError struct {
	Err     error
	counted atomic.Bool
}

func (e *LostError) Error() string { return "the HTTP/2 connection ended: " + e.Err.Error() }
func (e *LostError) Unwrap() error { return e.Err }

// First returns true only once: the end of a connection is one failure, however many
// calls it carried.
func (e *LostError) First() bool { return !e.counted.Swap(true) }

// NewTrunk makes a trunk of an established connection. tc is nil without TLS. The trunk
// calls changed, without holding its lock, whenever Limit or Over may have changed, and
// for the last time at the end of the connection. Call Start next.
func NewTrunk(nc *conn.Conn, tc *tls.Conn, limits message.Limits, changed func()) *Trunk {
	t := &Trunk{conn: nc, tls: tc, rw: nc, changed: changed, greeted: make(chan struct{}), done: make(chan struct{})}
	config := core.Config{Role: core.Client, Limits: limits, Scheme: "http"}
	if tc != nil {
		t.rw, config.Scheme = tc, "https"
	}
	t.flush = t.flusher
	t.flushed.L = &t.mu
	t.core.Init(config, (*trunkEvents)(t))
	return t
}

// Account opens a memory account for the connection itself. The memory of calls is
// charged to clients. Call Account before Start.
func (t *Trunk) Account(p *memory.Process) {
	t.own.Open(p, netip.Prefix{}, t.conn)
	t.core.ChargeTo(&t.own) // also for the greeting, which the flusher gives back
}

// LimitInfos limits the 1xx responses to a request. Call it before Start.
func (t *Trunk) LimitInfos(most int) { t.core.LimitInfos(most) }

// Start sends the greeting and waits for the SETTINGS of the endpoint. Only they show
// that the endpoint speaks HTTP/2, and how many streams it accepts. If Start returns an
// error, which may be the cause of ctx, the connection is closed.
func (t *Trunk) Start(ctx context.Context) error {
	t.conn.Split()
	t.conn.SetReadDeadline(time.Time{}) // Pulse ends the connection if the endpoint is silent for too long
	go t.run()
	t.mu.Lock()
	t.startFlusher()
	t.mu.Unlock()
	select {
	case <-t.greeted:
		return nil
	case <-t.done:
		return fmt.Errorf("the endpoint sent no HTTP/2 SETTINGS frame: %w", t.Err())
	case <-ctx.Done():
		t.conn.Cut()
		<-t.done
		return context.Cause(ctx)
	}
}

// run reads until the end of the connection, and closes it.
func (t *Trunk) run() {
	err := t.conn.Await(t.step)
	if err == nil {
		err = t.broken
	}
	var fault *core.ConnError
	if errors.As(err, &fault) { // the flusher may still send the GOAWAY
		cut := time.AfterFunc(time.Second, t.conn.Cut)
		defer cut.Stop()
	}
	t.mu.Lock()
	t.lose(err)
	for t.flushing {
		t.flushed.Wait()
	}
	for t.core.Pending() > 0 { // output that was never flushed: the descriptor may soon belong to another connection
		t.core.Take().Free()
	}
	for _, x := range t.free {
		x.waiter.stop()
	}
	t.free = nil
	t.mu.Unlock()
	t.conn.SetDuplex(false)
	t.conn.Close()
	t.own.Close()
	close(t.done)
	t.changed()
}

// lose ends every call. The caller holds the lock.
func (t *Trunk) lose(err error) {
	if t.lost == nil {
		t.lost = &LostError{Err: err}
		t.core.Abort(core.Cancel, "lost", "the connection was lost")
		t.measure()
	}
}

// step reads the available bytes, within the connection's Await. It returns true at the
// end of the connection.
func (t *Trunk) step() bool {
	buf := conn.GetBuffer()
	defer conn.PutBuffer(buf)
	for {
		n, err := t.rw.Read(buf[:])
		if n > 0 && !t.receive(buf[:n]) {
			return true
		}
		if err == conn.ErrWouldBlock {
			return false
		}
		if err != nil {
			t.broken = err
			return true
		}
	}
}

func (t *Trunk) receive(p []byte) bool {
	now := time.Now()
	t.mu.Lock()
	t.pulse.heard(now)
	t.broken = t.take(now, p)
	if t.broken == nil && t.lost != nil {
		t.broken = t.lost.Err
	}
	t.startFlusher()
	t.unlock()
	return t.broken == nil
}

func (t *Trunk) take(now time.Time, p []byte) (err error) {
	defer rescue(&err)
	return t.core.Receive(now, p)
}

// unlock releases the lock, and then calls changed if there is news.
func (t *Trunk) unlock() {
	news := t.news
	t.news = false
	t.mu.Unlock()
	if news {
		t.changed()
	}
}

// startFlusher starts the flusher if there is output, or if the connection can be closed.
// Call it with the lock held, after every action that may add output or end the last
// call.
func (t *Trunk) startFlusher() {
	if !t.flushing && (t.core.Pending() > 0 || t.mayHangUp()) {
		t.flushing = true
		work(t.flush)
	}
}

func (t *Trunk) flusher() { flush(&t.mu, &t.core, t.rw, (*trunkOutgoing)(t)) }

// trunkOutgoing receives the calls of a Trunk's flusher, with the lock held.
type trunkOutgoing Trunk

func (t *trunkOutgoing) took() {
	t.pulse.said(time.Now())
	if !t.crowded {
		return
	}
	if (*Trunk)(t).measure(); t.news {
		t.news = false
		go t.changed() // in its own goroutine, without the lock
	}
}

func (t *trunkOutgoing) broke(err error) {
	(*Trunk)(t).lose(err)
	t.conn.Cut() // so that the reader ends
}

func (t *trunkOutgoing) through() {
	if t := (*Trunk)(t); t.mayHangUp() {
		t.hangUp()
	}
	t.flushing = false
	t.flushed.Broadcast()
}

func (t *Trunk) mayHangUp() bool {
	return t.goingAway && !t.hungUp && t.lost == nil && t.core.Working() == 0
}

// hangUp closes the connection in an orderly way. The flusher calls it with the lock
// held, and hangUp releases the lock while it writes. The output is empty, and no other
// flusher starts meanwhile.
func (t *Trunk) hangUp() {
	t.hungUp = true
	t.lose(errHungUp)
	t.mu.Unlock()
	defer t.mu.Lock()
	if t.tls != nil {
		t.tls.CloseWrite()
	}
	t.conn.CloseWrite()
	t.conn.Cut()
}

var errHungUp = errors.New("weir closed the connection, because no request used it")

// GoAway ends the connection when no call runs any more. The trunk accepts no new calls.
func (t *Trunk) GoAway() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.goingAway || t.lost != nil {
		return
	}
	t.goingAway = true
	t.core.GoAwayNow()
	t.measure()
	t.startFlusher()
}

// Err returns why the connection ended, as a *LostError, or nil.
func (t *Trunk) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lost == nil {
		return nil
	}
	return t.lost
}

// Limit returns how many calls may run at once now; 0: no further call may begin. It
// takes no lock.
func (t *Trunk) Limit() int { return int(t.limit.Load()) }

// Over reports whether no call can begin any more. It takes no lock.
func (t *Trunk) Over() bool { return t.over.Load() }

// measure updates Limit and Over. The caller holds the lock.
func (t *Trunk) measure() {
	t.goingAway = t.goingAway || t.core.GoingAway()
	over := t.lost != nil || t.goingAway
	t.crowded = t.core.Pending() >= mostUnread
	limit := int32(0)
	if !over && !t.pulse.doubtful && !t.crowded {
		limit = int32(min(t.core.StreamLimit(), mostStreams))
	}
	wasLimit, wasOver := t.limit.Swap(limit), t.over.Swap(over)
	t.news = t.news || wasLimit != limit || wasOver != over
}

// Took returns how many calls the endpoint took before it ended the connection by a GOAWAY
// that left out others; 0: it has not done so. It takes no lock.
func (t *Trunk) Took() int { return int(t.accepts.Load()) }

// mostStreams is the maximum of Limit.
const mostStreams = 1 << 20

// trunkEvents handles the core's events. The core calls it with the lock held.
type trunkEvents Trunk

func (e *trunkEvents) Request(*core.Stream) *message.Request { return nil } // for servers only

func (e *trunkEvents) Response(s *core.Stream) *message.Response { return &callOf(s).res }

func callOf(s *core.Stream) *Call {
	x, _ := s.Attached().(*Call)
	return x
}

func (e *trunkEvents) Head(s *core.Stream, _ *message.Refusal) {
	e.pulse.answered()
	callOf(s).gotHead()
}

func (e *trunkEvents) Data(s *core.Stream, p []byte) {
	e.pulse.answered()
	x := callOf(s)
	if !x.body.add(p) {
		e.core.OutOfMemory(s)
		return
	}
	x.wake()
}

func (e *trunkEvents) End(s *core.Stream) {
	x := callOf(s)
	x.ended = true
	x.wake()
}

func (e *trunkEvents) Reset(s *core.Stream, ending core.Ending) { callOf(s).end(ending) }

func (e *trunkEvents) Writable(s *core.Stream) {
	x := callOf(s)
	x.writable = true
	x.wake()
}

func (e *trunkEvents) Settings() {
	t := (*Trunk)(e)
	t.measure()
	select {
	case <-t.greeted:
	default:
		close(t.greeted)
	}
}

func (e *trunkEvents) Refused(string) {} // an endpoint's error, on a stream whose call has ended
func (e *trunkEvents) SettingsAcked() {}
func (e *trunkEvents) PingAcked()     {}

func (e *trunkEvents) GoAway(_ core.Code, last uint32) {
	if taken := int32(last/2 + last%2); taken < e.opened { // the streams are 1, 3, 5, ...
		e.accepts.Store(taken)
	}
	(*Trunk)(e).measure()
}
