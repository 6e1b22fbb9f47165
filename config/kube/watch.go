package kube

import (
	"context"
	"reflect"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/informer"
)

const (
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
	// Answered is called when, after Trouble, all objects can be watched again. It must not call the Source.
	Answered func()
	// Panicked is called after a panic in a conversion, which is a bug of weir. The
	// previous result stays in effect. nil: a panic ends the process.
	Panicked func(value any, stack []byte)
}

// Source watches a cluster. If the API server does not answer, the known objects stay in
// effect. When it answers again, Source finds out what changed.
type Source struct {
	opts      Options
	informers map[Kind][]*informer.Informer
	retry     *informer.Retry // of all informers
	outage    outage
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
}

// NewSource makes a Source that watches nothing yet.
func NewSource(opts Options) (*Source, error) {
	s := &Source{opts: opts, retry: informer.NewRetry(), outage: outage{answered: opts.Answered}, wake: make(chan struct{}, 1), wakeQuick: make(chan struct{}, 1), dirty: dirt{objects: map[config.ObjectName]bool{}}, arrived: map[Kind]map[config.ObjectName]arrival{}, held: &Objects{inOrder: true}}
	s.converter.File, s.taints = opts.File, nodeTaints(opts.File)
	s.optional, s.named = newOptional(s), newNamed(s)
	s.makeInformers()
	return s, nil
}

// Retry decides when the requests of the Source are repeated.
func (s *Source) Retry() *informer.Retry { return s.retry }

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
	s.taints = nodeTaints(file)
	if synced {
		s.adopt(&c, routing, &differ, nil)
		s.lookAtNode(&c)
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
// after endPatience: a request to the API server may last longer.
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
	var synced []<-chan struct{}
	for _, all := range s.informers {
		for _, i := range all {
			running.Go(func() { i.Run(ctx) })
			synced = append(synced, i.Known())
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
		case <-done:
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
	n, entry := s.opts.File.Kubernetes.IngressNginx, &lost{outage: &s.outage}
	for n != nil && get[*corev1.ConfigMap](s, ConfigMaps, n.ConfigMap) == nil {
		s.trouble(entry, ConfigMaps, missingController(n.ConfigMap))
		select {
		case <-ctx.Done():
			return false
		case <-s.wake:
		case <-time.After(controllerPatience):
		}
	}
	entry.over()
	return true
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
