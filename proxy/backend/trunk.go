package backend

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/http2"
	"github.com/weirproxy/weir/proxy/message"
)

// trunk is a connection of HTTP/2 to an endpoint, which exchanges share.
type trunk struct {
	*http2.Trunk
	endpoint *Endpoint
	made     *dialSettings // what it was made with

	// Guarded by the endpoint's mu.
	taken     int    // sessions
	listed    bool   // it is among the endpoint's
	idleSince uint32 // in the endpoint's ticks, while none is taken

	used atomic.Bool // an exchange has ended on it
}

const (
	// mostShare is how many exchanges share a connection before another one is
	// made, whatever the endpoint takes: one connection is one core's work.
	mostShare = 128
	// mostDials bounds the connections that are made to an endpoint at a time.
	mostDials = 8
)

// trunks are an endpoint's connections of HTTP/2, and who waits for one. The
// endpoint's mu guards them.
type trunks struct {
	list    []*trunk // those that take exchanges, or will again; the oldest first
	dialing int
	room    int // what the newest connection has room for, 0: not known
	waiting []*turn
}

// turn is an exchange's place in the line for a connection that has room.
type turn struct{ ready chan verdict }

// verdict is what came of a turn: a trunk to use, the task to dial, to do
// without those of others, or an error.
type verdict struct {
	trunk *trunk
	dial  bool
	alone bool
	err   error
}

// take takes room on a connection, or returns nil. Exchanges are packed onto the
// oldest, so that the others become idle and end. e.mu is held.
func (e *Endpoint) take() *trunk {
	for _, t := range e.trunks.list {
		if t.taken < min(t.Limit(), mostShare) {
			t.taken++
			return t
		}
	}
	return nil
}

// serve gives those who wait what there is, and has as many of them dial as the
// others need. e.mu is held.
func (e *Endpoint) serve() {
	w := &e.trunks
	for len(w.waiting) > 0 {
		v := verdict{trunk: e.take()}
		if v.trunk == nil {
			each := mostShare
			if w.room > 0 {
				each = min(each, w.room)
			}
			if w.dialing >= mostDials || w.dialing*(each-1) >= len(w.waiting) {
				return
			}
			w.dialing++
			v.dial = true
		}
		w.waiting[0].ready <- v
		w.waiting = slices.Delete(w.waiting, 0, 1)
	}
}

// dismiss gives the same verdict to all who wait. e.mu is held.
func (e *Endpoint) dismiss(v verdict) {
	for _, w := range e.trunks.waiting {
		w.ready <- v
	}
	e.trunks.waiting = nil
}

// share finds room on a connection of HTTP/2, and makes one where there is none.
// Of those that come at once, few dial and the others wait for them.
func (e *Endpoint) share(ctx context.Context, d *dialSettings, need Need) (*Session, error) {
	e.mu.Lock()
	if t := e.take(); t != nil {
		e.mu.Unlock()
		return t.session(), nil
	}
	w := &turn{ready: make(chan verdict, 1)}
	e.trunks.waiting = append(e.trunks.waiting, w)
	e.serve()
	e.mu.Unlock()

	v := e.await(ctx, w)
	switch {
	case v.err != nil:
		return nil, v.err
	case v.trunk != nil:
		return v.trunk.session(), nil
	}
	return e.dialShared(ctx, d, need, v.dial)
}

// await waits for w's turn.
func (e *Endpoint) await(ctx context.Context, w *turn) verdict {
	select {
	case v := <-w.ready:
		return v
	case <-ctx.Done():
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case v := <-w.ready: // it came at the last moment
		return v
	default:
	}
	e.trunks.waiting = slices.DeleteFunc(e.trunks.waiting, func(o *turn) bool { return o == w })
	return verdict{err: e.dialError("waiting for a connection to", e.dial.Load(), context.Cause(ctx))}
}

// dialShared makes a connection for all who wait. counted: others rely on it.
func (e *Endpoint) dialShared(ctx context.Context, d *dialSettings, need Need, counted bool) (*Session, error) {
	if deadline, ok := ctx.Deadline(); ok && counted { // one client's end must not be that of the others' connection
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(context.WithoutCancel(ctx), deadline)
		defer cancel()
	}
	s, err := e.dialHTTP(ctx, d, nil, need)
	e.mu.Lock()
	if counted {
		e.trunks.dialing--
	}
	e.old.Store(err == nil && s.trunk == nil)
	switch {
	case err != nil && e.trunks.dialing == 0:
		e.dismiss(verdict{err: &sameFailure{err}}) // who would try again now would find the same
	case err != nil:
	case s.trunk == nil:
		e.dismiss(verdict{alone: true}) // a connection of HTTP/1.1 is one exchange's
	default:
		e.list(s.trunk)
	}
	e.serve()
	e.mu.Unlock()
	return s, err
}

// sameFailure is a failure to connect that another exchange has told of.
type sameFailure struct{ error }

func (f *sameFailure) Unwrap() error { return f.error }

// list adds a new connection to those that are shared, unless it came too late. e.mu is held.
func (e *Endpoint) list(t *trunk) {
	if e.dial.Load().takes(t.made) && !e.removed.Load() && !t.Over() {
		t.listed = true
		e.trunks.list = append(e.trunks.list, t)
		e.trunks.room = t.Limit()
	}
}

// dialHTTP makes a connection that speaks HTTP, of whatever version the two
// sides agree on. One of HTTP/2 is not listed yet.
func (e *Endpoint) dialHTTP(ctx context.Context, d *dialSettings, out *Outgoing, need Need) (*Session, error) {
	s, err := e.dialAs(ctx, d, out, d.config(need), nil)
	if err != nil {
		return nil, err
	}
	if !d.agreed(s.TLS) {
		s.Speak(need.Limits)
		return s, nil
	}
	t := &trunk{endpoint: e, made: d, taken: 1}
	s.Conn.WriteTimeout = d.bodyIdle
	t.Trunk = http2.NewTrunk(s.Conn, s.TLS, need.Limits, t.changed)
	t.Account(need.Memory)
	if err := t.Start(ctx); err != nil {
		return nil, e.dialError("starting HTTP/2 with", d, err)
	}
	return t.session(), nil
}

var streamSessions = sync.Pool{New: func() any { return new(Session) }}

// session is a session on room that was taken.
func (t *trunk) session() *Session {
	s := streamSessions.Get().(*Session)
	s.Stream, s.trunk, s.endpoint, s.Reused = t.Call(), t, t.endpoint, t.used.Load()
	s.HTTP = s.Stream
	return s
}

// end gives a session back that is a part of a trunk.
func (s *Session) end() {
	t := s.trunk
	s.Stream.End()
	*s = Session{}
	streamSessions.Put(s)
	t.release()
}

// changed is called when the connection's room may have changed.
func (t *trunk) changed() {
	e := t.endpoint
	e.mu.Lock()
	defer e.mu.Unlock()
	if !t.listed {
		return
	}
	if t.Over() {
		t.unlist()
	}
	e.serve()
}

// unlist takes the connection from those that are shared. e.mu is held.
func (t *trunk) unlist() {
	t.listed = false
	t.endpoint.trunks.list = slices.DeleteFunc(t.endpoint.trunks.list, func(o *trunk) bool { return o == t })
}

// release ends what take began.
func (t *trunk) release() {
	e := t.endpoint
	e.mu.Lock()
	t.taken--
	t.used.Store(true)
	idle := t.taken == 0
	if idle {
		t.idleSince = e.ticks
	}
	e.serve()
	if idle = idle && t.taken == 0; idle && t.listed && e.idleTrunks() > e.mostIdle() {
		t.unlist()
	}
	leave := idle && !t.listed
	e.mu.Unlock()
	if leave {
		t.Leave()
	}
}

// idleTrunks counts the shared connections that nobody uses. e.mu is held.
func (e *Endpoint) idleTrunks() (n int) {
	for _, t := range e.trunks.list {
		if t.taken == 0 {
			n++
		}
	}
	return n
}

// retire takes all shared connections out of use. They end once nothing runs
// on them. e.mu is not held.
func (e *Endpoint) retire() {
	e.mu.Lock()
	var unused []*trunk // of the others, the last release ends it
	for _, t := range e.trunks.list {
		t.listed = false
		if t.taken == 0 {
			unused = append(unused, t)
		}
	}
	e.trunks.list = nil
	e.mu.Unlock()
	for _, t := range unused {
		t.Leave()
	}
}

// sweepTrunks is called once a second. It ends connections that were idle for
// keepAlive seconds, and has the others looked after.
func (e *Endpoint) sweepTrunks(keepAlive uint32) {
	e.mu.Lock()
	if len(e.trunks.list) == 0 {
		e.mu.Unlock()
		return
	}
	list := slices.Clone(e.trunks.list)
	var leaving []*trunk
	for _, t := range list {
		if t.taken == 0 && e.ticks-t.idleSince >= keepAlive {
			t.unlist()
			leaving = append(leaving, t)
		}
	}
	e.mu.Unlock()
	for _, t := range leaving {
		t.Leave()
	}
	now := time.Now()
	for _, t := range list {
		t.Look(now)
	}
}

// Need is what an exchange needs of a session.
type Need struct {
	// Upgrade: the request asks for another protocol. To an endpoint that speaks
	// HTTP/1.1 as well it goes by that; over HTTP/2 by an extended CONNECT.
	Upgrade bool
	// Private: others must not use the connection at the same time. weir uses HTTP/1.1 if
	// the endpoint supports it.
	Private bool
	// Limits are those of what the endpoint answers.
	Limits message.Limits
	// Memory is the account of the process, which is charged for an HTTP/2 connection; nil:
	// none.
	Memory *memory.Process
}

// Connect finds a way to the endpoint for an exchange that Idle had nothing for:
// a connection of its own, or a part of one that is shared. It is bounded as
// Dial is. If ctx is canceled, it returns early, unless others wait for the connection, too.
func (e *Endpoint) Connect(ctx context.Context, out *Outgoing, need Need) (*Session, error) {
	d := e.dial.Load()
	ctx, cancel := context.WithTimeout(ctx, d.connect)
	defer cancel()
	switch {
	case !d.mayShare(need): // a PROXY header names one client for the whole connection
		return e.dialHTTP(ctx, d, out, need)
	case e.old.Load():
		return e.dialShared(ctx, d, need, false)
	}
	return e.share(ctx, d, need)
}
