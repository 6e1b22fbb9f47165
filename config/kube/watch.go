package kube

import (
	"context"
	"iter"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/weirproxy/weir/config"
)

const (
	// debounce is the time without changes of routes after which Source reports
	// them: the objects of one application arrive together.
	debounce = 50 * time.Millisecond
	// maxDebounce limits that time while objects change all the time.
	maxDebounce = 150 * time.Millisecond
	// The same for endpoints and the node, which are cheap to convert and urgent:
	// requests still go to Pods that are gone.
	quickDebounce    = 10 * time.Millisecond
	maxQuickDebounce = 25 * time.Millisecond
	// share is how many times as long as they take conversions count. So they use at most a
	// fifth of a core in the long run.
	share = 5
	// burst is how far ahead of time conversions may be, so that a few changes in a row are
	// served at once: two seconds of conversions.
	burst = share * 2 * time.Second
	// controllerPatience is the time between two reports that weir waits for the ConfigMap of
	// ingress-nginx.
	controllerPatience = 10 * time.Second
	// endPatience is how long Run waits for its goroutines after its context has ended.
	endPatience = time.Second
)

// Change is a change of a cluster's objects since the last Change.
type Change struct {
	Routing *Routing // nil: unchanged
	// Backends are Routing's backends with their endpoints, in the same order; nil: there is no
	// Routing, or the endpoints are not known yet. It shares the backends that have not changed
	// with the last Change.
	Backends []*config.Backend
	// Endpoints are the endpoints of the backends whose endpoints changed, by their names.
	Endpoints map[string][]config.Endpoint
	Node      *Node // nil: unchanged
	// Since is when weir saw the first of these changes.
	Since time.Time
}

// Options are what a Source needs from its surroundings.
type Options struct {
	// File is the configuration of the file, with the section kubernetes.
	File *config.Config
	// List returns how the objects of a kind are listed and watched, for example
	// Client.List.
	List func(Kind, Selection) *cache.ListWatch
	// Served returns which kinds of the Gateway API the cluster serves: the version of each
	// resource. nil: none.
	Served func(context.Context) (map[string]string, error)
	// Changed is called with each change. The first one has everything. Changes of routes come one after the
	// other, and so do changes of endpoints and the node. Both may come at the same time, because endpoints do not wait
	// for routes: the callee puts a change of routes into effect with the endpoints of Source.WithNewest.
	Changed func(Change)
	// Trouble is called with the error when objects cannot be listed or watched, and
	// again while the error lasts. The known objects stay in effect.
	Trouble func(Kind, error)
	// Answered is called each time objects were listed, or a watch began.
	Answered func(Kind)
	// Panicked is called after a panic in a conversion, which is a bug of weir. The
	// previous result stays in effect. nil: a panic ends the process.
	Panicked func(value any, stack []byte)
}

// Source watches a cluster. If the API server does not answer, the known objects stay in
// effect. When it answers again, Source finds out what changed.
type Source struct {
	opts      Options
	informers map[Kind][]informer
	optional  *optional // the kinds that the cluster need not serve
	named     *named    // the ConfigMaps that annotations name
	synced    atomic.Bool
	published atomic.Pointer[published] // for metrics
	serves    atomic.Pointer[func(namespace string) bool]

	mu        sync.Mutex
	dirty     dirt
	arrived   map[Kind]map[config.ObjectName]arrival // the objects that are not in held yet
	paidUntil time.Time                              // when the conversions so far will have used a fifth of the time
	wake      chan struct{}                          // of changes of routes; has room for one
	wakeQuick chan struct{}                          // of the other changes; has room for one

	converting sync.Mutex // held during a conversion, and until its result is in effect; guards the fields below
	held       *Objects   // in the order of names
	converter  Converter
	// controller is the last known ConfigMap of ingress-nginx. It stays in effect after the ConfigMap
	// was deleted: otherwise paths that it protects would open.
	controller *corev1.ConfigMap

	// work is held during a change of endpoints or the node, and until it is in effect. It is locked after converting,
	// and never for long. It guards the fields below; known.routing changes only while both locks are held.
	work sync.Mutex
	known
	// served is what took effect last. While known is not in effect yet, or cannot take effect, weir needs the
	// endpoints of both.
	served known
	node   Node
}

// known is the result of the last conversion, with the newest endpoints.
type known struct {
	routing  *Routing
	backends []*config.Backend // routing's backends with their endpoints; replaced, never changed
}

// dirt is the changes that were seen, and are not converted yet.
type dirt struct {
	routes   span                       // objects that routes depend on
	objects  map[config.ObjectName]bool // of routes: the Services that changed themselves
	quick    span                       // node, or services
	node     bool
	services map[config.ObjectName]bool // by their endpoints
}

// span is the times of the first and the last change; zero: there was none.
type span struct{ first, last time.Time }

func (s *span) touch() {
	s.last = time.Now()
	if s.first.IsZero() {
		s.first = s.last
	}
}

// due is when the changes of the span are reported.
func (s span) due(debounce, maxDebounce time.Duration) time.Time {
	if at := s.last.Add(debounce); at.Before(s.first.Add(maxDebounce)) {
		return at
	}
	return s.first.Add(maxDebounce)
}

// NewSource makes a Source that watches nothing yet.
func NewSource(opts Options) (*Source, error) {
	s := &Source{opts: opts, wake: make(chan struct{}, 1), wakeQuick: make(chan struct{}, 1), dirty: dirt{objects: map[config.ObjectName]bool{}}, arrived: map[Kind]map[config.ObjectName]arrival{}, held: &Objects{inOrder: true}}
	s.converter.File = opts.File
	s.optional, s.named = newOptional(s), newNamed(s)
	return s, s.makeInformers()
}

// HasSynced reports whether all objects were listed, and Changed has returned from its first call.
func (s *Source) HasSynced() bool { return s.synced.Load() }

// Fits reports whether the Source watches the objects that a configuration of the file
// needs. If not, the configuration needs another Source.
func (s *Source) Fits(file *config.Config) bool {
	k := file.Kubernetes
	return k != nil && k.Kubeconfig == s.opts.File.Kubernetes.Kubeconfig && replicasOf(k) == replicasOf(s.opts.File.Kubernetes) && reflect.DeepEqual(selections(file), selections(s.opts.File))
}

// Try converts the objects under another configuration of the file, and calls use with
// the whole result; until all objects are known, with the result of Pending. If use
// returns an error, nothing changes. Otherwise the Source uses the file from then on.
// Changed is not called during use.
func (s *Source) Try(file *config.Config, use func(Change) error) error {
	s.converting.Lock()
	defer s.converting.Unlock()
	fileBefore := s.converter.File
	s.converter.File = file
	synced, routing := s.synced.Load(), s.routing
	if synced {
		routing = s.converted(nil)
	}
	differ := s.differTo(routing)
	s.work.Lock()
	defer s.work.Unlock()
	before, c := s.known, Change{Since: time.Now()}
	if synced {
		s.adopt(&c, routing, &differ, nil)
	}
	if err := use(s.whole()); err != nil {
		s.known, s.converter.File = before, fileBefore
		return err
	}
	s.served = s.known
	if s.routing != nil {
		s.show()
	}
	return nil
}

// Again calls use with everything that is known, as Changed is called with a change of routes.
func (s *Source) Again(use func(Change)) {
	s.converting.Lock()
	defer s.converting.Unlock()
	s.work.Lock()
	c := s.whole()
	s.work.Unlock()
	use(c)
}

// WithNewest calls use with the backends of the last Change of routes, which have the newest endpoints. Changed is
// not called with changes of endpoints meanwhile. The caller is in Changed, because of routes, or in the function of Again.
// Until use has returned nil, the Source also reports the endpoints of the backends that were in effect before.
func (s *Source) WithNewest(use func(backends []*config.Backend) error) error {
	s.work.Lock()
	defer s.work.Unlock()
	err := use(s.backends)
	if err == nil {
		s.served = s.known
	}
	return err
}

// whole is a Change of everything that is known. Both locks are held.
func (s *Source) whole() Change {
	if s.routing == nil {
		return Change{Routing: Pending(s.converter.File), Since: time.Now()}
	}
	node := s.node
	return Change{Routing: s.routing, Backends: s.backends, Node: &node, Since: time.Now()}
}

// Run watches until ctx ends. It returns when all its goroutines have ended, or
// after endPatience: while the API server refuses connections, informers sleep
// for up to a minute, even if ctx ends meanwhile.
func (s *Source) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer func() {
		cancel()
		ended := make(chan struct{})
		go func() { defer close(ended); running.Wait(); s.named.ended.Wait() }()
		select {
		case <-ended:
		case <-time.After(endPatience):
		}
	}()
	var synced []cache.DoneChecker
	for _, all := range s.informers {
		for _, i := range all {
			running.Go(func() { i.RunWithContext(ctx) })
			synced = append(synced, i.handlers.HasSyncedChecker())
		}
	}
	if !s.optional.start(ctx) {
		return
	}
	running.Go(func() { s.optional.run(ctx) })
	for _, done := range synced {
		select {
		case <-ctx.Done():
			return
		case <-done.Done():
		}
	}
	if !s.awaitController(ctx) {
		return
	}
	s.note(func(d *dirt) { d.routes.touch(); d.quick.touch(); d.node = true })
	s.flushRoutes(ctx, true)
	running.Go(func() { loop(ctx, s.wakeQuick, s.quickDue, s.flushQuick) })
	loop(ctx, s.wake, s.routesDue, func() { s.flushRoutes(ctx, false) })
}

// awaitController waits until the ConfigMap of ingress-nginx exists: what it sets may restrict access. It reports
// whether ctx goes on.
func (s *Source) awaitController(ctx context.Context) bool {
	n, waited := s.opts.File.Kubernetes.IngressNginx, false
	for n != nil && get[*corev1.ConfigMap](s, ConfigMaps, n.ConfigMap) == nil {
		waited = true
		s.trouble(ConfigMaps, missingController(n.ConfigMap))
		select {
		case <-ctx.Done():
			return false
		case <-s.wake:
		case <-time.After(controllerPatience):
		}
	}
	if waited {
		s.answered(ConfigMaps)
	}
	return true
}

// loop waits until changes are due, and reports them with flush.
func loop(ctx context.Context, wake <-chan struct{}, due func() (at time.Time, any bool), flush func()) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-timer.C:
		}
		at, any := due()
		if any && !time.Now().Before(at) {
			flush()
			at, any = due()
		}
		if any {
			timer.Reset(time.Until(at))
		}
	}
}

// quickDue is when the next report of endpoints or the node is due, if they have changed.
func (s *Source) quickDue() (at time.Time, any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dirty.quick.due(quickDebounce, maxQuickDebounce), !s.dirty.quick.last.IsZero()
}

// routesDue is when the next conversion may begin, if routes have changed.
func (s *Source) routesDue() (at time.Time, any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at = s.dirty.routes.due(debounce, maxDebounce)
	if allowed := s.paidUntil.Add(-burst); at.Before(allowed) {
		at = allowed
	}
	return at, !s.dirty.routes.last.IsZero()
}

// note records a change.
func (s *Source) note(what func(*dirt)) {
	s.mu.Lock()
	what(&s.dirty)
	s.mu.Unlock()
	for _, wake := range []chan struct{}{s.wake, s.wakeQuick} {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// takeQuick returns the changes of endpoints and the node.
func (s *Source) takeQuick() (d dirt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.quick, d.node, d.services = s.dirty.quick, s.dirty.node, s.dirty.services
	s.dirty.quick, s.dirty.node, s.dirty.services = span{}, false, nil
	return d
}

// takeRoutes returns the changes of routes.
func (s *Source) takeRoutes() (d dirt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.routes, d.objects = s.dirty.routes, s.dirty.objects
	s.dirty.routes, s.dirty.objects = span{}, map[config.ObjectName]bool{}
	return d
}

// spent notes a conversion that began at this time and has ended now.
func (s *Source) spent(begun time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paidUntil.Before(begun) {
		s.paidUntil = begun
	}
	s.paidUntil = s.paidUntil.Add(share * time.Since(begun))
}

// flushQuick reports the changes of endpoints and the node.
func (s *Source) flushQuick() {
	s.work.Lock()
	defer s.work.Unlock()
	s.tellQuick()
}

// tellQuick is flushQuick with work held.
func (s *Source) tellQuick() {
	d := s.takeQuick()
	c := Change{Since: d.quick.first}
	s.update(&c, d.services)
	s.updateServed(&c, d.services)
	if d.node {
		s.lookAtNode(&c)
	}
	if c.Endpoints != nil || c.Node != nil {
		s.opts.Changed(c)
	}
}

// flushRoutes converts the objects, and reports the result. The first report also has the endpoints and the node.
func (s *Source) flushRoutes(ctx context.Context, first bool) {
	s.converting.Lock()
	defer s.converting.Unlock()
	begun, d := time.Now(), s.takeRoutes()
	c := Change{Since: d.routes.first}
	routing := s.converted(func(maps []config.ObjectName) bool { return s.named.follow(ctx, maps) })
	if s.take(&c, routing, &d, first); c.Routing != nil || c.Node != nil {
		s.opts.Changed(c)
	}
	if first {
		s.synced.Store(true)
	}
	s.spent(begun) // includes the time to put the routes into effect
	if c.Routing != nil {
		s.show()
	}
}

// take takes the result of a conversion over. If only endpoints have changed, it reports them.
func (s *Source) take(c *Change, routing *Routing, d *dirt, first bool) {
	differ := s.differTo(routing)
	s.work.Lock()
	defer s.work.Unlock()
	if first {
		s.takeQuick() // before the look at the endpoints, which may change meanwhile
	} else {
		s.tellQuick() // otherwise the endpoints of changed backends would wait until the routes are in effect
	}
	s.adopt(c, routing, &differ, d.objects)
	switch {
	case first:
		s.lookAtNode(c)
		c.Node = new(s.node)
	case c.Routing == nil && c.Endpoints != nil:
		s.opts.Changed(*c)
	}
}

// converted converts the objects. After a panic it returns the last result. follow watches the ConfigMaps that
// annotations name, and reports whether more of them are known; nil: the next conversion does it.
func (s *Source) converted(follow func([]config.ObjectName) bool) *Routing {
	routing := s.routing
	s.safely(func() { routing = s.converter.Convert(s.objects()) })
	if maps, ok := s.converter.wantedMaps(); ok && follow != nil && follow(maps) {
		s.safely(func() { routing = s.converter.Convert(s.objects()) })
	}
	if k := s.converter.known; k != nil { // nil after a panic
		serves := k.chosen
		s.serves.Store(&serves)
	}
	return routing
}

// differTo returns the differences between the backends of the last Routing and of the next one; both may be nil. It pauses, so
// only converting is held.
func (s *Source) differTo(next *Routing) config.Differences {
	of := func(r *Routing) []*Backend {
		if r == nil {
			return nil
		}
		return r.Backends
	}
	return config.Differ(of(s.routing), of(next), func(b *Backend) string { return b.Name })
}

// adopt takes a Routing over, and finds the endpoints of new backends and of the backends of these Services; nil: of
// all backends. differ is the result of differTo. Both locks are held.
func (s *Source) adopt(c *Change, routing *Routing, differ *config.Differences, services map[config.ObjectName]bool) {
	if routing == nil { // no conversion has succeeded so far
		return
	}
	if routing != s.routing {
		before := s.known
		if s.served.routing == before.routing {
			s.served = before // with the newest endpoints
		}
		s.routing, c.Routing = routing, routing
		s.backends = s.takeOver(c, before, differ)
	}
	if services == nil {
		s.refresh(c, &s.known, slices.Values(indexes(routing.Backends)))
	} else {
		s.update(c, services)
	}
	if c.Routing != nil {
		c.Backends = s.backends
	}
}

func indexes[T any](list []T) []int {
	all := make([]int, len(list))
	for i := range all {
		all[i] = i
	}
	return all
}

// takeOver returns the backends of a new routing. It looks only at those that have changed.
func (s *Source) takeOver(c *Change, before known, differ *config.Differences) []*config.Backend {
	all := make([]*config.Backend, len(s.routing.Backends))
	var old []*Backend
	if before.routing != nil {
		old = before.routing.Backends
	}
	for _, run := range differ.Kept {
		copy(all[run.After:], before.backends[run.Before:run.Before+run.Length])
	}
	for _, j := range differ.Added {
		b := s.routing.Backends[j]
		var was *config.Backend // the name has the Service and the port
		if i, known := slices.BinarySearchFunc(old, b.Name, func(b *Backend, name string) int { return strings.Compare(b.Name, name) }); known {
			was = before.backends[i]
		}
		all[j] = s.complete(c, b, was)
	}
	return all
}

// complete returns a backend with its current endpoints. was is the previous result, or nil; complete
// returns was if nothing has changed.
func (s *Source) complete(c *Change, b *Backend, was *config.Backend) *config.Backend {
	if b.Source == (config.ObjectName{}) { // it has its own endpoints, or none
		return b.with(nil, was)
	}
	var before []config.Endpoint
	if was != nil {
		before = was.Endpoints
	}
	now := s.endpointsOf(b, before)
	if slices.Equal(now, before) {
		return b.with(before, was)
	}
	if c.Endpoints == nil {
		c.Endpoints = map[string][]config.Endpoint{}
	}
	c.Endpoints[b.Name] = now
	return b.with(now, was)
}

// update finds the endpoints of some Services again.
func (s *Source) update(c *Change, services map[config.ObjectName]bool) {
	for name := range services {
		s.refresh(c, &s.known, s.routing.of(name))
	}
}

// updateServed is update for served, if that is not known.
func (s *Source) updateServed(c *Change, services map[config.ObjectName]bool) {
	if s.served.routing == s.routing {
		return
	}
	for name := range services {
		s.refresh(c, &s.served, s.served.routing.of(name))
	}
}

// refresh finds the endpoints of some backends of k again.
func (s *Source) refresh(c *Change, k *known, at iter.Seq[int]) {
	copied := false
	for i := range at {
		now := s.complete(c, k.routing.Backends[i], k.backends[i])
		if now == k.backends[i] {
			continue
		}
		if !copied {
			k.backends, copied = slices.Clone(k.backends), true
		}
		k.backends[i] = now
	}
}

// of returns the places of the backends of a Service; r may be nil. The names of backends begin
// with the Service, and r has them in order.
func (r *Routing) of(service config.ObjectName) iter.Seq[int] {
	return func(yield func(int) bool) {
		if r == nil || service == (config.ObjectName{}) {
			return
		}
		prefix := service.String()
		i, _ := slices.BinarySearchFunc(r.Backends, prefix, func(b *Backend, name string) int { return strings.Compare(b.Name, name) })
		for ; i < len(r.Backends) && strings.HasPrefix(r.Backends[i].Name, prefix); i++ {
			if r.Backends[i].Source == service && !yield(i) {
				return
			}
		}
	}
}

// safely calls a function that converts objects of arbitrary authors. After a panic,
// which is a bug of weir, nothing has changed.
func (s *Source) safely(what func()) {
	if s.opts.Panicked != nil {
		defer func() {
			if value := recover(); value != nil {
				s.opts.Panicked(value, debug.Stack())
			}
		}()
	}
	what()
}

// endpointsOf returns the current endpoints of b; before are the previous ones.
func (s *Source) endpointsOf(b *Backend, before []config.Endpoint) []config.Endpoint {
	now := before
	s.safely(func() { now = s.findEndpoints(b) })
	return now
}

func (s *Source) findEndpoints(b *Backend) []config.Endpoint {
	if b.Source == (config.ObjectName{}) {
		return nil
	}
	service := get[*corev1.Service](s, Services, b.Source)
	var of []*discoveryv1.EndpointSlice
	for _, i := range s.informers[EndpointSlices] {
		found, _ := i.GetIndexer().ByIndex(byService, b.Source.String())
		for _, o := range found {
			of = append(of, o.(*discoveryv1.EndpointSlice))
		}
	}
	return Endpoints(b, service, of)
}

// lookAtNode reports this node if it has changed.
func (s *Source) lookAtNode(c *Change) {
	nodes := all[*corev1.Node](s, Nodes)
	if len(nodes) == 0 {
		return
	}
	if now := NodeOf(nodes[0]); !reflect.DeepEqual(now, s.node) {
		s.node, c.Node = now, &now
	}
}
