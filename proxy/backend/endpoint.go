package backend

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/http2"
)

// Endpoint is one address of a backend. It outlives reloads by its address.
type Endpoint struct {
	backend *Backend
	address string         // what it is called: ip:port or unix:/path
	addr    netip.AddrPort // not valid for a Unix socket
	path    string         // of a Unix socket
	seed    uint64         // for balance: hash

	inFlight atomic.Int64
	failures atomic.Int32  // consecutive failures
	requests atomic.Uint64 // attempts that were made
	failed   atomic.Uint64 // attempts that failed
	failing  atomic.Bool   // the last attempts all failed, see outage.go
	dial     atomic.Pointer[dialSettings]
	removed  atomic.Bool
	foreign  atomic.Bool // see config.Endpoint
	up       atomic.Bool // requests may go to it, and it probably answers
	resting  atomic.Bool // it is about to go away and others serve, so its connections are not kept
	old      atomic.Bool // speaks HTTP/1.1 alone, by what its last connection agreed on

	// Guarded by backend.mu.
	host         string // as configured; certificates are checked against it
	cfg          config.Endpoint
	dialFrom     *dialSettings // that dial was made of
	isLocal      bool
	distance     distance
	ready        bool // what the check says; without one true
	judged       bool // the check said something, or there is none
	reason       string
	failure      error  // the last error, while the endpoint is failing
	check        *Check // nil: none
	stopCheck    func()
	ejectedUntil time.Time
	ejection     *time.Timer
	serving      bool      // as one that is not about to go away, by the newest view
	since        time.Time // when it came to others, or back to them; zero: it did not
	withheld     int       // percent of its share that it does without while it ramps up

	mu      sync.Mutex // guards what follows
	idle    []*Session // the newest at the end
	held    map[*Session]struct{}
	trunks  trunks
	ticks   uint32 // seconds the pool has seen
	closes  closes
	tunnels map[conn.Linked]struct{}
}

func newEndpoint(b *Backend, m member) *Endpoint {
	return &Endpoint{backend: b, address: m.address, addr: m.addr, path: m.path, seed: seedOf(m.address)}
}

// Address is what the endpoint is called: ip:port, or unix:/path.
func (e *Endpoint) Address() string { return e.address }

// AddrPort returns the address as a value; invalid for a Unix socket.
func (e *Endpoint) AddrPort() netip.AddrPort { return e.addr }

// Backend is the backend that the endpoint belongs to.
func (e *Endpoint) Backend() *Backend { return e.backend }

// Removed says that no configuration or name server knows the endpoint any
// more. Its running exchanges end as usual; its tunnels are to be drained.
func (e *Endpoint) Removed() bool { return e.removed.Load() }

// InFlight counts the exchanges and tunnels between Acquire and Release.
func (e *Endpoint) InFlight() int64 { return e.inFlight.Load() }

// Release ends what Acquire began. It is called exactly once for each Acquire,
// after the session was kept or closed.
func (e *Endpoint) Release() {
	e.inFlight.Add(-1)
	e.backend.queue.release()
}

// adopt takes over what m says. backend.mu is held.
func (e *Endpoint) adopt(m member) {
	b := e.backend
	known := e.dialFrom == b.dial && e.host == m.host
	e.host, e.cfg = m.host, m.cfg
	e.foreign.Store(m.cfg.Foreign)
	e.locate()
	if !known {
		e.adoptDial()
	}
	e.adoptCheck(b.cfg.HealthCheck)
}

// locate finds out how far away the endpoint is. backend.mu is held.
func (e *Endpoint) locate() {
	l := &e.backend.locality
	e.isLocal, e.distance = l.isLocal(e), anywhere
	switch {
	case e.isLocal:
		e.distance = sameNode
	case l.zone != "" && l.zone == e.cfg.Zone:
		e.distance = sameZone
	}
}

// adoptDial takes over how connections are made. Those that were made with
// settings that must not be used any more end. backend.mu is held.
func (e *Endpoint) adoptDial() {
	b := e.backend
	d := b.dial.forHost(e.host)
	e.dialFrom = b.dial
	if was := e.dial.Swap(d); was != nil && !d.takes(was) {
		idle := e.takeIdle()
		e.old.Store(false)
		b.later(func() {
			closeAll(idle)
			e.retire()
		})
	}
}

// adoptCheck starts, keeps, replaces or ends the active check. A replaced check
// begins with the verdict of the old one, so that a reload does not make it flap.
func (e *Endpoint) adoptCheck(want *config.HealthCheck) {
	if want != nil && e.check != nil && sameCheck(want, &e.check.Settings) {
		return
	}
	e.endCheck()
	if want == nil {
		e.ready, e.judged, e.reason = true, true, ""
		return
	}
	e.check = &Check{Settings: *want, WasReady: e.ready, endpoint: e}
	if e.backend.opts.StartCheck != nil {
		e.stopCheck = e.backend.opts.StartCheck(e.check)
	}
}

func (e *Endpoint) endCheck() {
	if e.stopCheck != nil {
		e.backend.later(e.stopCheck)
	}
	e.check, e.stopCheck = nil, nil
}

func sameCheck(a, b *config.HealthCheck) bool {
	x, y := *a, *b
	x.HTTP, y.HTTP, x.GRPC, y.GRPC = nil, nil, nil, nil
	return x == y && same(a.HTTP, b.HTTP) && same(a.GRPC, b.GRPC)
}

func same[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// remove ends all that the endpoint has of its own. backend.mu is held.
func (e *Endpoint) remove() {
	b := e.backend
	e.removed.Store(true)
	e.up.Store(false)
	e.endCheck()
	if e.ejection != nil {
		e.ejection.Stop()
	}
	idle := e.takeIdle()
	e.mu.Lock()
	tunnels := make([]conn.Linked, 0, len(e.tunnels))
	for c := range e.tunnels {
		tunnels = append(tunnels, c)
	}
	e.tunnels = nil
	e.mu.Unlock()
	b.later(func() {
		closeAll(idle)
		e.retire()
		if len(tunnels) > 0 && b.opts.Gone != nil {
			b.opts.Gone(e, tunnels)
		}
	})
}

// Track remembers c, the client's end of a tunnel, so that Options.Gone is told
// of it when the endpoint goes; at once when it has gone already. The owner
// calls untrack before it closes c.
func (e *Endpoint) Track(c conn.Linked) (untrack func()) {
	e.mu.Lock()
	gone := e.removed.Load()
	if !gone {
		if e.tunnels == nil {
			e.tunnels = make(map[conn.Linked]struct{})
		}
		e.tunnels[c] = struct{}{}
	}
	e.mu.Unlock()
	if gone && e.backend.opts.Gone != nil {
		e.backend.opts.Gone(e, []conn.Linked{c})
	}
	return func() {
		e.mu.Lock()
		delete(e.tunnels, c)
		e.mu.Unlock()
	}
}

// Succeeded says that an exchange or a connection to the endpoint went well.
func (e *Endpoint) Succeeded() {
	if e.failures.Load() != 0 {
		e.failures.Store(0)
		if e.failing.Load() {
			e.works()
		}
	}
}

// Failed says that the endpoint did not connect, or broke off. Failures in a row
// eject it for a while, but never the last endpoint that is ready. After its
// return one more failure ejects it again, until it has succeeded once. Errors that are
// weir's own (no descriptors, no ports, the client went away) do not count.
func (e *Endpoint) Failed(err error) {
	if ourOwn(err) {
		return
	}
	e.failed.Add(1)
	if counted(err) {
		return
	}
	if n := e.failures.Add(1); int(n) >= e.backend.failuresToFail() {
		e.eject(err)
	}
}

func ourOwn(err error) bool {
	return conn.Exhausted(err) || errors.Is(err, syscall.EADDRNOTAVAIL) ||
		errors.Is(err, context.Canceled) || errors.Is(err, conn.ErrCut)
}

// counted reports whether err is a failure that another exchange has told of: one
// connection, or one attempt to make it, may be of many.
func counted(err error) bool {
	var same *sameFailure
	var lost *http2.LostError
	return errors.As(err, &same) || errors.As(err, &lost) && !lost.First()
}

// eject stops using the endpoint for some time if others can serve. Its last attempts all
// failed; err is the last error.
func (e *Endpoint) eject(err error) {
	b := e.backend
	b.mu.Lock()
	defer b.unlock()
	e.fails(err)
	if b.cfg.Ejection.Failures == 0 || e.removed.Load() || !e.ready || !e.ejectedUntil.IsZero() || b.othersUsable(e) == 0 {
		return
	}
	d := b.cfg.Ejection.For
	e.ejectedUntil = time.Now().Add(d)
	e.ejection = time.AfterFunc(d, e.comeBack)
	b.ejections.Add(1)
	b.notify(Event{Kind: EndpointEjected, Endpoint: e.address, Reason: "for " + d.String() + " after consecutive failures"})
	b.rebuild()
}

// othersUsable counts the endpoints that could serve in the place of one.
func (b *Backend) othersUsable(not *Endpoint) (n int) {
	for _, e := range b.endpoints {
		if e != not && e.usable() && (not.cfg.Terminating || !e.cfg.Terminating) {
			n++
		}
	}
	return n
}

// comeBack is called by the timer of an ejection.
func (e *Endpoint) comeBack() {
	b := e.backend
	b.mu.Lock()
	defer b.unlock()
	if e.removed.Load() || e.ejectedUntil.IsZero() || time.Now().Before(e.ejectedUntil) {
		return
	}
	e.endEjection()
	b.rebuild()
}

// endEjection is called with backend.mu held; the caller rebuilds.
func (e *Endpoint) endEjection() {
	if e.ejectedUntil.IsZero() {
		return
	}
	e.ejection.Stop()
	e.ejectedUntil = time.Time{}
	e.backend.notify(Event{Kind: EndpointReturned, Endpoint: e.address})
}

// usable reports whether exchanges may go to the endpoint where there is no better
// one. backend.mu is held.
func (e *Endpoint) usable() bool { return e.ready && e.ejectedUntil.IsZero() }

// countsHere reports whether the endpoint counts for this node's verdict. backend.mu is held.
func (e *Endpoint) countsHere() bool { return e.ready && e.isLocal && !e.cfg.Terminating }

// settle takes over what a new view makes of the endpoint. Where others serve
// in its place before it goes away, its idle connections would only keep it from
// ending, and be closed by it under somebody's request. backend.mu is held.
func (e *Endpoint) settle(v *view) {
	rests := e.cfg.Terminating && v.better > 0
	rested := e.resting.Swap(rests)
	e.showUp()
	if rested || !rests {
		return
	}
	idle := e.takeIdle()
	e.backend.later(func() {
		closeAll(idle)
		e.retire()
	})
}
