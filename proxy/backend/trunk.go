package backend

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/http2"
	"github.com/weirproxy/weir/proxy/message"
)

// trunk is an HTTP/2 connection to an endpoint. Exchanges share it.
type trunk struct {
	*http2.Trunk
	endpoint *Endpoint
	made     *dialSettings // the settings that the dial used

	// Guarded by the endpoint's mu.
	taken     int    // links that use it
	calls     int    // links that have used it, and those that use it
	listed    bool   // it is in the endpoint's list
	idleSince uint32 // in the endpoint's ticks, while taken is 0

	used atomic.Bool // an exchange has ended on it
}

const (
	// mostShare is the number of exchanges that share a connection. For more exchanges weir
	// makes another connection, even if the endpoint accepts more streams: one CPU core does
	// the work of one connection.
	mostShare = 128
	// mostDials limits the connections that weir makes to an endpoint at the same time.
	mostDials = 8
)

// trunks are the HTTP/2 connections to an endpoint, and the exchanges that wait for one. The
// endpoint's mu guards them.
type trunks struct {
	list    []*trunk // connections that accept exchanges, now or later; the oldest first
	dialing int
	room    int // the limit of the newest connection, in exchanges; 0: not known
	// most is how many exchanges the endpoint takes on a connection before it ends the connection
	// and leaves out others, as nginx does (keepalive_requests); 0: any number.
	most    int
	waiting []*turn
}

// turn is the place of an exchange in the queue for a connection with room.
type turn struct{ ready chan verdict }

// verdict is the result of a turn. One field is set.
type verdict struct {
	trunk *trunk // use this connection
	dial  bool   // dial for the waiting exchanges, too
	alone bool   // dial a connection for this exchange only
	err   error
}

// take takes room on a connection, or returns nil. It fills the oldest connection first, so
// that the others become idle and end. The caller holds e.mu.
func (e *Endpoint) take() *trunk {
	for _, t := range e.trunks.list {
		if t.taken < min(t.Limit(), mostShare) {
			t.taken++
			t.calls++
			t.endIfUsedUp()
			return t
		}
	}
	return nil
}

// endIfUsedUp removes the connection from the shared connections if the endpoint will take no
// more exchanges on it. The caller holds e.mu.
func (t *trunk) endIfUsedUp() {
	if most := t.endpoint.trunks.most; most > 0 && t.calls >= most {
		t.unlist()
	}
}

// learn finds out how many exchanges the endpoint takes on a connection. The caller holds
// e.mu. If a connection that was used up ends without a GOAWAY of the endpoint, the endpoint
// has changed, or the GOAWAY had another reason.
func (t *trunk) learn() {
	w := &t.endpoint.trunks
	if n := t.Took(); n > 0 {
		w.most = n
	} else if w.most > 0 && t.calls >= w.most && t.taken == 0 && !t.Over() {
		w.most = 0
	}
}

// serve gives free room to the waiting exchanges. If there is too little room, it makes some
// of them dial: as many as the others need. The caller holds e.mu.
func (e *Endpoint) serve() {
	w := &e.trunks
	for len(w.waiting) > 0 {
		v := verdict{trunk: e.take()}
		if v.trunk == nil {
			each := mostShare
			for _, limit := range [...]int{w.room, w.most} {
				if limit > 0 {
					each = min(each, limit)
				}
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

// dismiss gives the same verdict to all waiting exchanges. The caller holds e.mu.
func (e *Endpoint) dismiss(v verdict) {
	for _, w := range e.trunks.waiting {
		w.ready <- v
	}
	e.trunks.waiting = nil
}

// share takes room on an HTTP/2 connection, or makes a connection if there is no room. If
// many exchanges call it at the same time, a few dial, and the others wait for them.
func (e *Endpoint) share(ctx context.Context, d *dialSettings, need Need) (*Link, error) {
	e.mu.Lock()
	if t := e.take(); t != nil {
		e.mu.Unlock()
		return t.link(), nil
	}
	w := &turn{ready: make(chan verdict, 1)}
	e.trunks.waiting = append(e.trunks.waiting, w)
	e.serve()
	e.mu.Unlock()

	v := e.await(ctx, d, w)
	switch {
	case v.err != nil:
		return nil, v.err
	case v.trunk != nil:
		return v.trunk.link(), nil
	}
	return e.dialShared(ctx, d, need, v.dial)
}

// await waits for w's turn.
func (e *Endpoint) await(ctx context.Context, d *dialSettings, w *turn) verdict {
	select {
	case v := <-w.ready:
		return v
	case <-ctx.Done():
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case v := <-w.ready: // the verdict came at the last moment
		return v
	default:
	}
	e.trunks.waiting = slices.DeleteFunc(e.trunks.waiting, func(o *turn) bool { return o == w })
	return verdict{err: e.dialError("waiting for a connection to", d, context.Cause(ctx))}
}

// dialShared makes a connection, and gives its room to the waiting exchanges. counted: the
// dial is part of trunks.dialing, so other exchanges wait for it.
func (e *Endpoint) dialShared(ctx context.Context, d *dialSettings, need Need, counted bool) (*Link, error) {
	if deadline, ok := ctx.Deadline(); ok && counted { // the end of this exchange must not cancel the dial, because others wait for it
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(context.WithoutCancel(ctx), deadline)
		defer cancel()
	}
	s, err := e.dialHTTP(ctx, d, nil, need)
	e.mu.Lock()
	if counted {
		e.trunks.dialing--
	}
	e.old.Store(err == nil && s.call.trunk == nil)
	switch {
	case err != nil && e.trunks.dialing == 0:
		e.dismiss(verdict{err: &sameFailure{err}}) // another attempt now would fail, too
	case err != nil:
	case s.call.trunk == nil:
		e.dismiss(verdict{alone: true}) // an HTTP/1.1 connection serves only one exchange
	default:
		e.list(s.call.trunk)
	}
	e.serve()
	e.mu.Unlock()
	return s, err
}

// sameFailure is a failure to connect that another exchange has already reported.
type sameFailure struct{ error }

func (f *sameFailure) Unwrap() error { return f.error }

// list adds a new connection to the shared connections. It does not if the settings have
// changed, the endpoint was removed, or the connection has ended. The caller holds e.mu.
func (e *Endpoint) list(t *trunk) {
	if e.dial.Load().takes(t.made) && !e.removed.Load() && !t.Over() {
		t.listed = true
		e.trunks.list = append(e.trunks.list, t)
		e.stock()
		e.trunks.room = t.Limit()
		t.endIfUsedUp()
	}
}

// dialHTTP makes a connection for the HTTP version that both sides agree on. It does not add
// an HTTP/2 connection to the shared connections; dialShared does.
func (e *Endpoint) dialHTTP(ctx context.Context, d *dialSettings, out *Outgoing, need Need) (*Link, error) {
	s, err := e.dialAs(ctx, d, out, d.config(need), nil)
	if err != nil {
		return nil, err
	}
	if !d.agreed(s.own.tls) {
		s.Speak(need.Limits)
		return s, nil
	}
	t := &trunk{endpoint: e, made: d, taken: 1, calls: 1}
	s.own.WriteTimeout = d.bodyIdle
	t.Trunk = http2.NewTrunk(s.own.Conn, s.own.tls, need.Limits, t.changed)
	t.LimitInfos(d.infos)
	t.Account(need.Memory)
	if err := t.Start(ctx); err != nil {
		return nil, e.dialError("starting HTTP/2 with", d, err)
	}
	return t.link(), nil
}

// changed updates the list and serves the waiting exchanges. http2.Trunk calls it when the
// room of the connection may have changed.
func (t *trunk) changed() {
	e := t.endpoint
	e.mu.Lock()
	defer e.mu.Unlock()
	t.learn()
	if !t.listed {
		return
	}
	if t.Over() {
		t.unlist()
	}
	e.serve()
}

// unlist removes the connection from the shared connections. The caller holds e.mu.
func (t *trunk) unlist() {
	t.listed = false
	t.endpoint.trunks.list = slices.DeleteFunc(t.endpoint.trunks.list, func(o *trunk) bool { return o == t })
}

// release gives back the room of take. It ends an idle connection that is not listed any
// more.
func (t *trunk) release() {
	e := t.endpoint
	e.mu.Lock()
	t.taken--
	t.used.Store(true)
	idle := t.taken == 0
	if idle {
		t.idleSince = e.ticks
		t.learn()
	}
	e.serve()
	if idle = idle && t.taken == 0; idle && t.listed && e.idleTrunks() > e.mostIdle() {
		t.unlist()
	}
	end := idle && !t.listed
	e.mu.Unlock()
	if end {
		t.GoAway()
	}
}

// idleTrunks counts the idle shared connections. The caller holds e.mu.
func (e *Endpoint) idleTrunks() (n int) {
	for _, t := range e.trunks.list {
		if t.taken == 0 {
			n++
		}
	}
	return n
}

// retire removes all shared connections from the list. Each one ends when no exchange uses
// it. The caller must not hold e.mu.
func (e *Endpoint) retire() {
	e.mu.Lock()
	var unused []*trunk // the last release ends the others
	for _, t := range e.trunks.list {
		t.listed = false
		if t.taken == 0 {
			unused = append(unused, t)
		}
	}
	e.trunks.list = nil
	e.mu.Unlock()
	for _, t := range unused {
		t.GoAway()
	}
}

// sweepTrunks ends shared connections that were idle for keepAlive seconds, and calls Pulse
// for all. sweep calls it once a second.
func (e *Endpoint) sweepTrunks(keepAlive uint32) {
	e.mu.Lock()
	if len(e.trunks.list) == 0 {
		e.mu.Unlock()
		return
	}
	list := slices.Clone(e.trunks.list)
	var ending []*trunk
	for _, t := range list {
		if t.taken == 0 && e.ticks-t.idleSince >= keepAlive {
			t.unlist()
			ending = append(ending, t)
		}
	}
	e.mu.Unlock()
	for _, t := range ending {
		t.GoAway()
	}
	now := time.Now()
	for _, t := range list {
		t.Pulse(now)
	}
}

// Need contains the requirements of an exchange for its link.
type Need struct {
	// Upgrade: the request asks for another protocol. weir uses HTTP/1.1 if the endpoint
	// supports it, else an extended CONNECT of HTTP/2.
	Upgrade bool
	// Private: others must not use the connection at the same time. weir uses HTTP/1.1 if
	// the endpoint supports it.
	Private bool
	// Limits apply to the responses of the endpoint.
	Limits message.Limits
	// Memory is the account of the process. weir charges it for an HTTP/2 connection; nil:
	// none.
	Memory *memory.Process
}

// Connect returns a new link for an exchange, after Idle has returned nil: a connection of
// its own, or a stream of a shared connection. patience limits it, or, if it is 0,
// timeouts.connect, as for Dial. If ctx is canceled, Connect returns early, unless others also
// wait for the connection.
func (e *Endpoint) Connect(ctx context.Context, out *Outgoing, need Need, patience time.Duration) (*Link, error) {
	d := e.dial.Load().within(patience)
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
