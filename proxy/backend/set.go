package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

// Options are what a Set needs from its surroundings. Every field may be left out.
// No callback may call back into the Set while it runs for long: Update and the
// checks wait for it.
type Options struct {
	// Lookup resolves a host name; nil: the system's resolver. It is called
	// under a deadline and never for an address literal.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// InterfaceAddrs lists this host's addresses; nil: what the kernel says.
	InterfaceAddrs func() []netip.Addr
	// StartCheck begins the active check of an endpoint and returns what ends
	// it. It must not block and not call c.SetReady before it returned.
	StartCheck func(c *Check) (stop func())
	// Gone is told of the tunnels to an endpoint that is no more (see
	// Endpoint.Track), so that they can be drained.
	Gone func(e *Endpoint, tunnels []conn.Linked)
	// Notify is told what an operator wants to see in a log.
	Notify func(Event)
	// RefusalsChanged is called when the result of Refusals has changed. It must not block.
	RefusalsChanged func()
	// OnThisHost returns true if an address belongs to this host; nil: ask the kernel's
	// routing table.
	OnThisHost func(netip.Addr) (bool, error)

	own     *own
	waiting *atomic.Int64 // dials that wait for a descriptor
}

// EventKind says what happened.
type EventKind string

// The kinds of events.
const (
	EndpointReady    EventKind = "endpoint ready"
	EndpointNotReady EventKind = "endpoint not ready"
	EndpointEjected  EventKind = "endpoint ejected"
	EndpointReturned EventKind = "endpoint returned"
	// BackendDown: the backend lost its last working endpoint. Err is the last error.
	BackendDown EventKind = "a backend has no working endpoint"
	// BackendRecovered follows BackendDown. For a backend that often goes up and down, at
	// most one outage a minute is reported.
	BackendRecovered EventKind = "a backend has a working endpoint again"
	// EndpointClosesIdle: the endpoint closes idle connections before weir does.
	EndpointClosesIdle EventKind = "an endpoint closes idle connections before weir"
	LookupFailed       EventKind = "lookup failed"    // told once; the old addresses stay
	LookupRecovered    EventKind = "lookup recovered" // after LookupFailed
	// AddressRefused: an object has, or its name resolves to, an address that it must not
	// lead to. Reported when the addresses have changed.
	AddressRefused EventKind = "address refused"
)

// Event is one change of an endpoint's health or of name resolution.
type Event struct {
	Kind      EventKind
	Backend   string
	Namespace string // of the object that the backend was made from; empty: none
	Endpoint  string // address; empty for look-ups
	Host      string // the name that was looked up
	Reason    string // why not ready, how long ejected, or what to do
	Err       error  // the error of a look-up, the refused address, or why a backend is down
}

// NodeInfo says which node this is.
type NodeInfo struct {
	Name string
	// Explicit says that the configuration named the node.
	Explicit bool
	// Zone is where the node is; empty: what SetZone said.
	Zone string
}

// Set is all backends. It lives across reloads. Close ends it.
type Set struct {
	opts     Options
	backends atomic.Pointer[map[string]*Backend]

	mu     sync.Mutex // one Update at a time
	closed bool
	zone   string          // what SetZone said
	life   context.Context // ends with Close; look-ups end with it
	stop   context.CancelFunc
	done   chan struct{}
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
	opts.own, opts.waiting = newOwn(opts.OnThisHost), new(atomic.Int64)
	ctx, stop := context.WithCancel(context.Background())
	s := &Set{opts: opts, life: ctx, stop: stop, done: make(chan struct{})}
	s.backends.Store(&map[string]*Backend{})
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
			n := 0
			for _, b := range *s.backends.Load() {
				b.tick()
				if n++; n%256 == 0 {
					runtime.Gosched() // ten thousand of them take milliseconds, and exchanges wait for less
				}
			}
		}
	}
}

// Backend returns the backend of that name, or nil.
func (s *Set) Backend(name string) *Backend { return (*s.backends.Load())[name] }

// WaitingDials counts the connections to endpoints that are not made yet because the process
// has no descriptor for them.
func (s *Set) WaitingDials() int { return int(s.opts.waiting.Load()) }

// LocalReady is that of the backend of that name, 0 where there is none. It takes no lock.
func (s *Set) LocalReady(name string) int {
	if b := s.Backend(name); b != nil {
		return b.LocalReady()
	}
	return 0
}

// Update makes the set that of a new configuration, in which nothing changes
// any more, and returns its backends by name. What stays by name and address
// keeps its state. With an error, which names every backend that cannot be,
// nothing has changed. It resolves names that are new, for up to FilePatience.
func (s *Set) Update(backends []config.Backend, node NodeInfo) (map[string]*Backend, error) {
	return s.UpdateResolved(backends, node, s.Resolve(backends, FilePatience, nil))
}

// UpdateResolved is Update with the result of Resolve. It waits for no name server. A name
// without an answer gets its addresses later.
func (s *Set) UpdateResolved(backends []config.Backend, node NodeInfo, answers *Answers) (map[string]*Backend, error) {
	return s.update(backends, node, answers, newDialSettings)
}

// UpdateObjects is UpdateResolved after changes in a cluster: it does not read the files of
// backends again if their TLS settings are unchanged.
func (s *Set) UpdateObjects(backends []config.Backend, node NodeInfo, answers *Answers) (map[string]*Backend, error) {
	old := *s.backends.Load()
	return s.update(backends, node, answers, func(cfg *config.Backend, before *dialSettings) (*dialSettings, error) {
		t := cfg.TLS
		if b := old[cfg.Name]; before != nil && b != nil && reflect.DeepEqual(b.Settings().TLS, t) && t.CAFile+t.CertFile+t.KeyFile != "" && before.tls != nil {
			return before.withHosts(cfg)
		}
		return newDialSettings(cfg, before)
	})
}

// dialling makes what connecting to the endpoints of a backend needs.
type dialling func(cfg *config.Backend, before *dialSettings) (*dialSettings, error)

func (s *Set) update(backends []config.Backend, node NodeInfo, answers *Answers, dial dialling) (map[string]*Backend, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("updating the backends: the set is closed")
	}
	old := *s.backends.Load()
	plans, err := s.plan(backends, old, answers, dial)
	if err != nil {
		return nil, err
	}
	awaitAnswered(plans)

	where := locality{node: node, addrs: s.opts.InterfaceAddrs(), zone: cmp.Or(node.Zone, s.zone)}
	next := make(map[string]*Backend, len(plans))
	for _, p := range plans {
		p.b.install(p, where)
		next[p.cfg.Name] = p.b
	}
	s.backends.Store(&next)
	for name, b := range old {
		if next[name] == nil {
			b.remove()
		}
	}
	return next, nil
}

// UpdateEndpoints gives one backend other endpoints, and changes nothing else of
// it or of others. What stays by address keeps its state and its connections;
// to what goes no new exchange goes, those that run end, and its tunnels are
// drained. Beside an Update it takes effect before or after it, as a whole: the
// caller sees to it that an Update does not bring older endpoints, and changes
// nothing in what it gave. Names that are new are not waited for; what served
// before serves until they are answered.
func (s *Set) UpdateEndpoints(name string, endpoints []config.Endpoint) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.Backend(name)
	if b == nil {
		return fmt.Errorf("updating the endpoints of backend %q: the backend does not exist", name)
	}
	cfg := *b.Settings() // what install was given last
	cfg.Endpoints = endpoints
	p := &plan{b: b, cfg: &cfg}
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

// SetZone says in which zone this node is, for an Update that does not.
func (s *Set) SetZone(zone string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zone = zone
	for _, b := range *s.backends.Load() {
		b.relocate(zone)
	}
}

// plan is what Update will do to one backend, with all that can fail done.
type plan struct {
	b     *Backend
	cfg   *config.Backend
	dial  *dialSettings
	names map[string]*name
	fresh []*name // new names whose first look-up has ended
}

func (s *Set) plan(backends []config.Backend, old map[string]*Backend, answers *Answers, dial dialling) ([]*plan, error) {
	plans := make([]*plan, 0, len(backends))
	var problems []error
	for i := range backends {
		cfg := backends[i] // a copy: the caller's stays the caller's
		p := &plan{b: old[cfg.Name], cfg: &cfg}
		var before *dialSettings
		if p.b != nil {
			before = p.b.dialSettings()
		} else {
			p.b = newBackend(cfg.Name, &s.opts)
		}
		err := checkAddresses(&cfg)
		if err == nil {
			p.dial, err = dial(&cfg, before)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("backend %q: %w", cfg.Name, err))
		}
		plans = append(plans, p)
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	for _, p := range plans {
		p.b.planNames(p, answers)
	}
	return plans, nil
}

// awaitAnswered waits until the answers that exist have reached their backends. No name
// server is waited for.
func awaitAnswered(plans []*plan) {
	for _, p := range plans {
		for _, n := range p.fresh {
			<-n.first
		}
	}
}

// install puts a plan into effect.
func (b *Backend) install(p *plan, where locality) {
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
	b.budget.share.Store(int64(math.Ceil(p.cfg.Retries.Share * budgetUnit)))
	if stays {
		b.rebuild()
	} else {
		b.reconcile()
	}
	b.queue.setLimit(p.cfg.MaxConnections)
}

// keeps reports whether a plan leaves every endpoint as it is, as it does with
// nearly all backends when the objects of a cluster change. b.mu is held.
func (b *Backend) keeps(p *plan, where *locality) bool {
	return b.cfg != nil && b.dial == p.dial && slices.Equal(b.cfg.Endpoints, p.cfg.Endpoints) && maps.Equal(b.names, p.names) &&
		b.locality.node == where.node && b.locality.zone == where.zone && slices.Equal(b.locality.addrs, where.addrs) &&
		(b.cfg.HealthCheck == nil) == (p.cfg.HealthCheck == nil) && (p.cfg.HealthCheck == nil || sameCheck(b.cfg.HealthCheck, p.cfg.HealthCheck))
}

// Close ends the checks, look-ups and idle connections of all backends.
// Exchanges and tunnels that run are left alone.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.stop()
	<-s.done
	for _, b := range *s.backends.Load() {
		b.remove()
	}
	s.backends.Store(&map[string]*Backend{})
}
