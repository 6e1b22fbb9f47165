package backend

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/overlay"
)

// Options are the callbacks and dependencies of a Set. Every field may be left out. A
// callback must not block for long: Update and the checks wait for it.
type Options struct {
	// Lookup resolves a host name; nil: the system's resolver. Its context has a deadline.
	// The Set does not call it for address literals.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// InterfaceAddrs lists this host's addresses; nil: ask the kernel.
	InterfaceAddrs func() []netip.Addr
	// StartCheck begins the active check of an endpoint, and returns a function that ends
	// it. It must not block, and must not call c.SetReady before it returns.
	StartCheck func(c *Check) (stop func())
	// Gone gets the tunnels of an endpoint that was removed (see Endpoint.Track), so that it
	// can drain them.
	Gone func(e *Endpoint, tunnels []conn.Cuttable)
	// Notify gets the events that belong into the log.
	Notify func(Event)
	// RefusalsChanged is called when the result of Refusals has changed. It must not block.
	RefusalsChanged func()
	// OnThisHost returns true if an address belongs to this host; nil: ask the kernel's
	// routing table.
	OnThisHost func(netip.Addr) (bool, error)

	stickyKey *stickyKey
	own       *own
	refusing  *refusing
	awake     *awake
	waiting   *atomic.Int64 // dials that wait for a descriptor
}

// EventKind is the kind of an event.
type EventKind string

// The kinds of events.
const (
	EndpointReady    EventKind = "endpoint ready"
	EndpointNotReady EventKind = "endpoint not ready"
	EndpointEjected  EventKind = "endpoint ejected"
	EndpointReturned EventKind = "endpoint returned"
	// BackendDown: the backend lost its last working endpoint. Err is the last error.
	BackendDown EventKind = "a backend has no working endpoint"
	// BackendRecovered follows BackendDown. weir reports at most one outage of a backend per
	// minute.
	BackendRecovered EventKind = "a backend has a working endpoint again"
	// EndpointClosesIdle: the endpoint closes idle connections before weir does.
	EndpointClosesIdle EventKind = "an endpoint closes idle connections before weir"
	LookupFailed       EventKind = "lookup failed"    // reported once; the old addresses stay
	LookupRecovered    EventKind = "lookup recovered" // after LookupFailed
	// AddressRefused: an object contains an address that it must not use, or its name
	// resolves to such an address. Reported when the refused addresses have changed.
	AddressRefused EventKind = "address refused"
)

// Event is one change of an endpoint's health or of name resolution.
type Event struct {
	Kind      EventKind
	Backend   string
	Namespace string // of the object from which the backend was made; empty: none
	Endpoint  string // address; empty for look-ups
	Host      string // the name of the look-up
	Reason    string // why not ready, how long ejected, or what to do
	Err       error  // the error of a look-up, the refused address, or why a backend is down
}

// NodeInfo describes this node.
type NodeInfo struct {
	Name string
	// Explicit means that the configuration names the node.
	Explicit bool
	// Zone is the zone of the node; empty: the zone of SetZone.
	Zone string
}

// Set contains all backends. It outlives reloads. Close ends it.
type Set struct {
	opts  Options
	state atomic.Pointer[inEffect] // never nil

	mu     sync.Mutex // one change at a time
	closed bool
	zone   string          // from SetZone
	life   context.Context // ends with Close; look-ups end with it
	stop   context.CancelFunc
	done   chan struct{}
}

// inEffect is the backends of a Set. A Plan replaces it as a whole.
type inEffect struct {
	byName *overlay.Map[*Backend]
	list   []*config.Backend // the settings with which the Plan made them; UpdateEndpoints does not change them
	where  locality
}

// all returns the backends in effect, in no order.
func (s *Set) all() iter.Seq[*Backend] {
	return func(yield func(*Backend) bool) {
		for _, b := range s.state.Load().byName.All() {
			if !yield(b) {
				return
			}
		}
	}
}

// NewSet makes an empty set and starts its clock.
func NewSet(opts Options) *Set {
	if opts.Lookup == nil {
		opts.Lookup = SystemLookup
	}
	if opts.InterfaceAddrs == nil {
		opts.InterfaceAddrs = interfaceAddrs
	}
	if opts.OnThisHost == nil {
		opts.OnThisHost = onThisHost
	}
	opts.own, opts.refusing, opts.waiting = newOwn(opts.OnThisHost), new(refusing), new(atomic.Int64)
	opts.stickyKey, opts.awake = new(stickyKey), new(awake)
	ctx, stop := context.WithCancel(context.Background())
	s := &Set{opts: opts, life: ctx, stop: stop, done: make(chan struct{})}
	s.state.Store(&inEffect{})
	go s.run(ctx)
	return s
}

func (s *Set) run(ctx context.Context) {
	defer close(s.done)
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.opts.awake.tick()
		}
	}
}

// Backend returns the backend of this name, or nil.
func (s *Set) Backend(name string) *Backend {
	b, _ := s.state.Load().byName.Get(name)
	return b
}

// WaitingDials counts the connections to endpoints that wait because the process has no free
// descriptor.
func (s *Set) WaitingDials() int { return int(s.opts.waiting.Load()) }

// LocalReady returns Backend.LocalReady of the backend of this name; 0 if there is none. It
// takes no lock.
func (s *Set) LocalReady(name string) int {
	if b := s.Backend(name); b != nil {
		return b.LocalReady()
	}
	return 0
}

// Update gives the set the backends of a new configuration, and returns them by name. The
// caller must not change the configuration afterwards. Backends with the same name, and
// endpoints with the same address, keep their state. If Update returns an error, nothing has
// changed; the error names every invalid backend. Update resolves new names, and waits for
// them for up to FilePatience.
func (s *Set) Update(backends []*config.Backend, node NodeInfo) (*overlay.Map[*Backend], error) {
	p, err := s.Plan(backends, node, s.Resolve(backends, FilePatience, nil))
	if err == nil {
		err = p.Commit()
	}
	if err != nil {
		return nil, err
	}
	return p.Backends(), nil
}

// UpdateEndpoints gives one backend other endpoints. It changes nothing else.
//   - Endpoints whose address stays keep their state and connections.
//   - Removed endpoints get no new exchanges. Running exchanges end as usual, and weir
//     drains the tunnels.
//   - A concurrent Commit of a Plan happens completely before or after it. The caller
//     ensures that the Plan does not bring older endpoints (see Plan.Renew).
//   - UpdateEndpoints does not wait for new names. If no other endpoint is left, the old
//     endpoints serve until the names are answered.
//
// The caller must not change endpoints afterwards.
func (s *Set) UpdateEndpoints(name string, endpoints []config.Endpoint) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.Backend(name)
	if b == nil {
		return fmt.Errorf("updating the endpoints of backend %q: the backend does not exist", name)
	}
	cfg := *b.Settings() // the settings of the last install
	cfg.Endpoints = endpoints
	p := &change{b: b, cfg: &cfg}
	err := checkAddresses(&cfg)
	if err == nil {
		p.dial, err = b.dialSettings().withHosts(&cfg)
	}
	if err != nil {
		return fmt.Errorf("updating the endpoints of backend %q: %w", name, err)
	}
	b.planNames(p, nil)
	b.install(p, b.locality)
	return nil
}

// SetZone sets the zone of this node. It applies if the NodeInfo of Update has no zone.
func (s *Set) SetZone(zone string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zone = zone
	for b := range s.all() {
		b.relocate(zone)
	}
}

// install applies a change.
func (b *Backend) install(p *change, where locality) {
	b.mu.Lock()
	defer b.unlock()
	for address, n := range b.names {
		if p.names[address] != n {
			n.stop()
		}
	}
	stays := b.keeps(p, &where)
	b.cfg, b.dial, b.names, b.locality = p.cfg, p.dial, p.names, where
	for _, n := range b.names {
		n.interval.Store(int64(p.cfg.ResolveInterval))
	}
	b.adoptSticky()
	b.budget.share.Store(int64(math.Ceil(p.cfg.Retries.Share * budgetUnit)))
	if stays {
		b.rebuild()
	} else {
		b.reconcile()
	}
	b.queue.setLimit(p.cfg.MaxConnections)
}

// has reports whether the backend was installed with these settings.
func (b *Backend) has(cfg *config.Backend, where *locality) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cfg != nil && b.cfg.Equal(cfg) && b.locality.equal(where)
}

// equal reports whether endpoints have the same place, seen from both.
func (l *locality) equal(o *locality) bool {
	return l.node == o.node && l.zone == o.zone && slices.Equal(l.addrs, o.addrs)
}

// keeps reports whether a change leaves every endpoint as it is. When the objects of a cluster
// change, that is so for nearly all backends. The caller holds b.mu.
func (b *Backend) keeps(p *change, where *locality) bool {
	return b.cfg != nil && b.dial == p.dial && slices.Equal(b.cfg.Endpoints, p.cfg.Endpoints) && maps.Equal(b.names, p.names) &&
		b.locality.equal(where) && b.cfg.Ejection.Equal(&p.cfg.Ejection) &&
		(b.cfg.HealthCheck == nil) == (p.cfg.HealthCheck == nil) && (p.cfg.HealthCheck == nil || sameCheck(b.cfg.HealthCheck, p.cfg.HealthCheck))
}

// Close ends the checks, look-ups and idle connections of all backends. It does not end
// running exchanges and tunnels.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.stop()
	<-s.done
	for b := range s.all() {
		b.remove()
	}
	s.state.Store(&inEffect{})
}
