package backend

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/http2"
)

// Endpoint is one address of a backend. A reload keeps an endpoint if its address stays.
type Endpoint struct {
	backend *Backend
	address string         // the name: ip:port, or unixPrefix and a path
	addr    netip.AddrPort // invalid for a Unix socket
	seed    uint64         // hash of address, for balance: hash

	inFlight     atomic.Int64
	requests     atomic.Uint64           // attempts
	failed       atomic.Uint64           // failed attempts
	failures     atomic.Int32            // consecutive failures
	bad          atomic.Int32            // consecutive failures, statuses of responses included; 0 without ejection.statuses
	failing      atomic.Bool             // the last attempts all failed, see outage.go
	results      atomic.Pointer[results] // nil: the backend has no ejection.share
	dial         atomic.Pointer[dialSettings]
	removed      atomic.Bool
	foreign      atomic.Bool // see config.Endpoint
	bothFamilies atomic.Bool // its name has addresses of both families
	up           atomic.Bool // requests may go to it, and it probably answers
	draining     atomic.Bool // it is terminating while others serve: weir keeps no idle connections
	old          atomic.Bool // its last connection selected HTTP/1.1 by ALPN

	// Guarded by backend.mu. In a cluster with 10,000 Services there may be 100,000 endpoints, so the
	// order of the fields leaves no gaps, and state that few endpoints have is behind a pointer.
	isLocal   bool
	distance  distance
	ready     bool             // the verdict of the check; true without a check
	judged    bool             // the check has given a verdict, or there is no check
	serving   bool             // it is usable and not terminating, by the newest view
	withheld  int8             // percent of its share that it does not get yet during slow start
	host      string           // as configured; TLS checks the certificate against it
	cfg       *config.Endpoint // shared with the backend's settings; never changed
	dialFrom  *dialSettings    // the backend's settings, of which dial was made
	reason    string
	failure   error  // the last error, while the endpoint is failing
	check     *Check // nil: none
	stopCheck func()
	ejection  *ejection     // nil: it is not ejected
	since     *time.Time    // the begin of its slow start; nil: none
	cookie    *stickyCookie // nil: not known yet

	mu      sync.Mutex // guards the fields below
	idle    []*Link    // the newest at the end
	held    map[*Link]struct{}
	trunks  trunks
	stocked bool   // see stock
	ticks   uint32 // seconds in which there were connections
	closes  closes
	tunnels map[conn.Cuttable]struct{}
}

// unixPrefix begins the address of an endpoint that is a Unix socket.
const unixPrefix = "unix:"

// path is the path of a Unix socket; empty: the endpoint is none.
func (e *Endpoint) path() string {
	path, _ := strings.CutPrefix(e.address, unixPrefix)
	if e.addr.IsValid() {
		return ""
	}
	return path
}

func newEndpoint(b *Backend, m member) *Endpoint {
	return &Endpoint{backend: b, address: m.address, addr: m.addr, seed: seedOf(m.address)}
}

// Address returns the name of the endpoint: ip:port, or unix:/path.
func (e *Endpoint) Address() string { return e.address }

// AddrPort returns the address as a value; invalid for a Unix socket.
func (e *Endpoint) AddrPort() netip.AddrPort { return e.addr }

// Backend returns the backend of the endpoint.
func (e *Endpoint) Backend() *Backend { return e.backend }

// Removed reports whether the configuration and the name servers no longer have the
// endpoint. Its running exchanges end as usual. Its tunnels must be drained.
func (e *Endpoint) Removed() bool { return e.removed.Load() }

// InFlight counts the exchanges and tunnels between Acquire and Release.
func (e *Endpoint) InFlight() int64 { return e.inFlight.Load() }

// Release ends an exchange or tunnel that Acquire began. The caller calls it exactly once
// for each Acquire, after it has kept or closed the link.
func (e *Endpoint) Release() {
	e.inFlight.Add(-1)
	e.backend.queue.release()
}

// adopt applies the settings of m. The caller holds backend.mu.
func (e *Endpoint) adopt(m member) {
	b := e.backend
	known := e.dialFrom == b.dial && e.host == m.host
	e.host, e.cfg = m.host, m.cfg
	e.foreign.Store(m.cfg.Foreign)
	e.bothFamilies.Store(m.bothFamilies)
	e.locate()
	if !known {
		e.adoptDial()
	}
	e.adoptEjection()
	e.adoptCheck(b.cfg.HealthCheck)
}

// locate computes the distance to the endpoint. The caller holds backend.mu.
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

// adoptDial applies the dial settings. It ends the idle connections whose settings must not
// be used any more. The caller holds backend.mu.
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

// adoptCheck starts, keeps, replaces or ends the active check. A new check begins with the
// verdict of the old one, so that a reload does not make the verdict flap.
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

// remove ends the check, the ejection timer and the idle connections of the endpoint, and
// passes its tunnels to Options.Gone. The caller holds backend.mu.
func (e *Endpoint) remove() {
	b := e.backend
	e.removed.Store(true)
	e.up.Store(false)
	e.endCheck()
	if e.ejection != nil {
		e.ejection.timer.Stop()
	}
	idle := e.takeIdle()
	e.mu.Lock()
	tunnels := make([]conn.Cuttable, 0, len(e.tunnels))
	for c := range e.tunnels {
		tunnels = append(tunnels, c)
	}
	e.tunnels = nil
	e.unstock()
	e.mu.Unlock()
	b.later(func() {
		closeAll(idle)
		e.retire()
		if len(tunnels) > 0 && b.opts.Gone != nil {
			b.opts.Gone(e, tunnels)
		}
	})
}

// Track registers c, the client's end of a tunnel. If the endpoint is removed, Options.Gone
// gets c; if it was removed before, Track passes c to Options.Gone at once. The owner calls
// untrack before it closes c.
func (e *Endpoint) Track(c conn.Cuttable) (untrack func()) {
	e.mu.Lock()
	gone := e.removed.Load()
	if !gone {
		if e.tunnels == nil {
			e.tunnels = make(map[conn.Cuttable]struct{})
		}
		e.tunnels[c] = struct{}{}
	}
	e.mu.Unlock()
	if gone && e.backend.opts.Gone != nil {
		e.backend.opts.Gone(e, []conn.Cuttable{c})
	}
	return func() {
		e.mu.Lock()
		delete(e.tunnels, c)
		e.mu.Unlock()
	}
}

// Succeeded records that an exchange or a connection to the endpoint succeeded.
func (e *Endpoint) Succeeded() {
	if r := e.results.Load(); r != nil {
		r.add(1, 0)
	}
	if e.bad.Load() != 0 {
		e.bad.Store(0)
	}
	e.reached()
}

// reached ends the count of consecutive failures to reach the endpoint.
func (e *Endpoint) reached() {
	if e.failures.Load() != 0 {
		e.failures.Store(0)
		if e.failing.Load() {
			e.works()
		}
	}
}

// Failed records that the connection to the endpoint failed or broke. Consecutive failures
// eject the endpoint for a while, but never the last ready endpoint. After its return, one
// more failure ejects it again, until an attempt has succeeded. A large share of failed
// attempts ejects it too (ejection.go). Errors that are not the endpoint's fault (no
// descriptors, no ports, the client went away) do not count.
func (e *Endpoint) Failed(err error) { e.fail(err, 1) }

// BrokeOff is Failed for an attempt that was reported by Succeeded before: its response broke
// off.
func (e *Endpoint) BrokeOff(err error) { e.fail(err, 0) }

// fail counts a failure, and attempts that Succeeded has not counted.
func (e *Endpoint) fail(err error, attempts uint64) {
	if ourOwn(err) {
		return
	}
	e.failed.Add(1)
	if counted(err) {
		return
	}
	if errors.Is(err, ErrOtherFamily) {
		e.lose()
		return
	}
	if r := e.results.Load(); r != nil {
		r.add(attempts, 1)
	}
	inRow := int(e.failures.Add(1)) >= e.backend.failuresToFail()
	e.failedAttempt(&e.backend.Settings().Ejection, err, inRow)
}

func ourOwn(err error) bool {
	return conn.Exhausted(err) || errors.Is(err, syscall.EADDRNOTAVAIL) ||
		errors.Is(err, context.Canceled) || errors.Is(err, conn.ErrCut)
}

// counted reports whether another exchange has already reported this failure: many
// exchanges may share one connection, or one attempt to connect.
func counted(err error) bool {
	var same *sameFailure
	var lost *http2.LostError
	return errors.As(err, &same) || errors.As(err, &lost) && !lost.First()
}

// usable reports whether exchanges may go to the endpoint if there is no better one. The
// caller holds backend.mu.
func (e *Endpoint) usable() bool { return e.ready && e.ejection == nil }

// countsHere reports whether the endpoint counts for the verdict about this node. The caller
// holds backend.mu.
func (e *Endpoint) countsHere() bool { return e.ready && e.isLocal && !e.cfg.Terminating }

// applyView applies a new view to the endpoint. If the endpoint is terminating while others
// serve, applyView closes its idle connections: they would delay its end, and the endpoint
// would close them, perhaps during a request. The caller holds backend.mu.
func (e *Endpoint) applyView(v *view) {
	draining := e.cfg.Terminating && v.better > 0
	before := e.draining.Swap(draining)
	e.showUp()
	if before || !draining {
		return
	}
	idle := e.takeIdle()
	e.backend.later(func() {
		closeAll(idle)
		e.retire()
	})
}
