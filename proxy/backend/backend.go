// Package backend contains the destinations of exchanges and tunnels: named sets of
// endpoints, their health state and passive ejection, balancing, the queue in front of a
// full backend, pools of idle connections, name resolution and dialling.
//
// A Set lives as long as the process. Update gives it the backends of a new configuration.
// Backends with the same name, and endpoints with the same address, keep their
// connections, health and counts. The hot path is Acquire, Idle or Dial, Succeeded or
// Failed, Keep, Release. Only Dial and a wait in the queue allocate.
package backend

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/config"
)

// Backend is one named set of endpoints. A reload keeps a backend if its name stays. A
// removed backend still serves the few exchanges that were routed to it before: its
// endpoints stay as they were, but weir no longer pools connections or runs checks.
type Backend struct {
	name string
	opts *Options

	view   atomic.Pointer[view] // never nil
	queue  queue
	turn   atomic.Uint64 // round robin
	budget budget
	copies atomic.Int64 // see Copies

	stocked   atomic.Int32  // endpoints with connections that tick must look at
	awake     atomic.Bool   // it is in awake.list, see wake
	refused   atomic.Uint64 // addresses that objects must not use
	ejections [numEjectionCauses]atomic.Uint64
	stuck     [numStickyResults]atomic.Uint64
	counted   atomic.Pointer[endpointCounts] // nil: an endpoint has changed since the last summary
	exposed   bool                           // it is from objects, and has series of its own; guarded by Metrics.mu

	mu        sync.Mutex // guards the fields below, and the health state of the endpoints
	cfg       *config.Backend
	dial      *dialSettings
	sticky    *stickyMaker // nil: no sticky sessions, or no key for them yet
	locality  locality
	names     map[string]*name // by configured address
	endpoints []*Endpoint      // in the order of the configuration
	refusals  []Refusal        // the refused addresses; replaced, never changed
	removed   bool
	ramping   bool     // some endpoint is in its slow start
	outage    *outage  // nil: there was none yet
	after     []func() // unlock calls them after it has released the lock
}

func newBackend(name string, opts *Options) *Backend {
	b := &Backend{name: name, opts: opts}
	b.view.Store(&view{cfg: &config.Backend{Name: name}})
	return b
}

// Name returns the backend's name in the configuration.
func (b *Backend) Name() string { return b.name }

// Settings returns the backend's part of the newest configuration. The result never changes.
func (b *Backend) Settings() *config.Backend { return b.view.Load().cfg }

// HasEndpoint reports whether exchanges may use an endpoint now. A terminating endpoint counts.
func (b *Backend) HasEndpoint() bool { return len(b.view.Load().tiers) > 0 }

// Ready counts the endpoints that exchanges may use now, without terminating ones.
func (b *Backend) Ready() int { return b.view.Load().ready }

// LocalReady counts the endpoints on this node that are ready by their checks, without
// terminating ones. Ejected endpoints count: an ejection lasts seconds, and must not make
// the verdict flap.
func (b *Backend) LocalReady() int { return b.view.Load().localReady }

// InFlight counts the exchanges and tunnels between Acquire and Release.
func (b *Backend) InFlight() int64 { return b.queue.taken.Load() }

// Copies returns the number of copies of requests that run because the backend is a mirror. Package
// proxy changes the number.
func (b *Backend) Copies() *atomic.Int64 { return &b.copies }

// unlock releases b.mu, and then runs the functions of later. These are callbacks, and
// closing connections, which may write.
func (b *Backend) unlock() {
	after := b.after
	b.after = nil
	b.mu.Unlock()
	for _, f := range after {
		f()
	}
}

func (b *Backend) later(f func()) { b.after = append(b.after, f) }

func (b *Backend) notify(ev Event) {
	if b.opts.Notify != nil {
		ev.Backend = b.name
		if b.cfg != nil {
			ev.Namespace = b.cfg.Namespace
		}
		b.later(func() { b.opts.Notify(ev) })
	}
}

// reconcile creates, updates and removes endpoints according to the configuration and the
// newest answers of name servers. The caller holds b.mu.
func (b *Backend) reconcile() {
	members := b.members()
	had := make(map[string]*Endpoint, len(b.endpoints))
	for _, e := range b.endpoints {
		had[e.address] = e
	}
	b.endpoints = make([]*Endpoint, 0, len(members))
	for _, m := range members {
		e := had[m.address]
		if e == nil {
			e = newEndpoint(b, m)
		}
		delete(had, m.address)
		e.adopt(m)
		b.endpoints = append(b.endpoints, e)
	}
	for _, e := range had {
		e.remove()
	}
	b.rebuild()
}

// relocate sets the zone of this node, unless the configuration sets it.
func (b *Backend) relocate(zone string) {
	b.mu.Lock()
	defer b.unlock()
	if b.locality.node.Zone != "" || b.locality.zone == zone {
		return
	}
	b.locality.zone = zone
	for _, e := range b.endpoints {
		e.locate()
	}
	b.rebuild()
}

// rebuild makes a new view of the endpoints that may be used. The caller holds b.mu.
func (b *Backend) rebuild() {
	if b.removed {
		return // the view of a removed backend does not change, see Backend
	}
	b.returnIfNoneLeft()
	b.returnBeyondHalf()
	b.ramp(time.Now())
	use := make([]*Endpoint, 0, len(b.endpoints))
	local, pending := 0, false
	for _, e := range b.endpoints {
		pending = pending || !e.judged
		if e.countsHere() {
			local++
		}
		if e.usable() {
			use = append(use, e)
		}
	}
	for _, n := range b.names {
		pending = pending || !n.tried
	}
	if len(use) == 0 && pending {
		use, local = b.predecessors()
	}
	v := newView(b.cfg, use, &b.turn)
	v.localReady, v.sticky = local, newStickyTable(b.sticky, use)
	b.view.Store(v)
	b.counted.Store(nil)
	for _, e := range b.endpoints {
		e.applyView(v)
	}
	b.judge()
}

// predecessors returns the removed endpoints that continue to serve. They do so if a reload
// has replaced all endpoints, until the new ones get their first verdict. That takes no
// longer than one check. Without the predecessors, such a reload would be an outage.
func (b *Backend) predecessors() (use []*Endpoint, local int) {
	for _, t := range b.view.Load().used() {
		for _, c := range t.members {
			if c.e.removed.Load() {
				use = append(use, c.e)
				if c.e.countsHere() {
					local++
				}
			}
		}
	}
	return use, local
}

// returnIfNoneLeft ends ejections that would leave no endpoint, or only terminating ones.
// The caller holds b.mu.
func (b *Backend) returnIfNoneLeft() {
	for _, terminating := range []bool{false, true} {
		left, ejected := false, false
		for _, e := range b.endpoints {
			if e.ready && e.cfg.Terminating == terminating {
				left = left || e.usable()
				ejected = ejected || !e.usable()
			}
		}
		if left {
			return
		}
		for _, e := range b.endpoints {
			if e.ready && e.cfg.Terminating == terminating {
				e.endEjection()
			}
		}
		if ejected {
			return
		}
	}
}

// remove retires the backend: it ends its idle connections, checks and look-ups.
func (b *Backend) remove() {
	b.mu.Lock()
	defer b.unlock()
	b.removed = true
	for _, n := range b.names {
		n.stop()
	}
	for _, e := range b.endpoints {
		e.remove()
	}
	b.names, b.endpoints = nil, nil
	b.opts.refusing.set(b, nil)
}
