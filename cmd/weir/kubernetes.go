package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/tools/cache"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/lint"
	"github.com/weirproxy/weir/listener"
	"github.com/weirproxy/weir/proxy/backend"
)

// Here a cluster's objects join the file. A kube.Source tells of changes; those
// of routes become another table as a reload would make it, without a look at
// files, and those of endpoints go to their backend alone.
//
// Locks are taken in the order loading, the Source's own, change. So what the
// Source tells and what a reload tries never overtake each other.

const (
	// clusterPatience bounds what a reload waits for a cluster that was not served before.
	clusterPatience = 10 * time.Second
	// retryObjects is when what could not be put into effect is tried again.
	retryObjects = 10 * time.Second
	// leavePatience bounds what is waited for a cluster that is served no more.
	leavePatience = 5 * time.Second
)

// cluster is a cluster whose objects are served, or about to be.
type cluster struct {
	s        *server
	source   *kube.Source
	control  control              // nil: weir writes nothing to the cluster; guarded by s.change
	adopted  *objects             // the objects in effect; guarded by s.change
	empty    map[string]time.Time // since when each backend has had no endpoint; guarded by s.change
	awaiting bool                 // a timer will call retell; guarded by s.change
	known    chan struct{}
	faults   atomic.Pointer[[]kube.Event]      // of the objects in effect
	wanted   atomic.Pointer[[]config.Listener] // listeners that could not be bound; nil: more than that is not in effect
	end      func()                            // ends the source, and waits until it has ended
	trouble  troubles

	once        sync.Once // of giveUp
	stopLeaving func()
	gone        chan struct{}

	// Used under the Source's lock alone.
	objects  *objects // what the Source told last
	retrying bool     // tryLater was called
	node     kube.Node
	told     bool                // tellKnown has said it
	unbound  map[string]string   // ports that were told of, and why
	faulty   map[kube.Event]bool // what was told of
}

// objects are what a cluster has beside the file.
type objects struct {
	of        *cluster
	routing   *kube.Routing
	endpoints map[string][]config.Endpoint // nil: the objects are not known yet
	unbound   map[string]error             // listeners of routing that could not be bound
}

func (c *cluster) newObjects(ch kube.Change) *objects {
	return &objects{of: c, routing: ch.Routing, endpoints: ch.Endpoints, unbound: map[string]error{}}
}

// known reports whether o has the objects of the cluster. Before the first list of all
// kinds, o only takes their place.
func (o *objects) known() bool { return o == nil || o.endpoints != nil }

// has reports whether the listener is one of the cluster's.
func (o *objects) has(l string) bool {
	return o != nil && slices.ContainsFunc(o.routing.Listeners, func(of config.Listener) bool { return of.Name == l })
}

// listing is how objects of a kind are listed and watched.
type listing func(kube.Kind, kube.Selection) *cache.ListWatch

func connectKube(k *config.Kubernetes) (listing, error) {
	client, err := kube.Connect(k)
	if err != nil {
		return nil, err
	}
	return client.List, nil
}

// newCluster begins to watch the cluster that file names.
func (s *server) newCluster(file *config.Config) (*cluster, error) {
	fail := func(err error) (*cluster, error) {
		return nil, fmt.Errorf("%s: serving the cluster: %w", file.Kubernetes.Position, err)
	}
	list, err := s.connect(file.Kubernetes)
	if err != nil {
		return fail(err)
	}
	c := &cluster{s: s, known: make(chan struct{}), gone: make(chan struct{}), trouble: troubles{log: s.log}, unbound: map[string]string{}}
	c.source, err = kube.NewSource(kube.Options{File: file, Lint: lint.Undone, List: list, Changed: c.changed, Trouble: c.troubled, Answered: c.trouble.over, Panicked: s.objectsPanicked})
	if err != nil {
		return fail(err)
	}
	if c.control, err = s.begin(file); err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan struct{})
	c.end = func() { cancel(); <-ended }
	go func() { defer close(ended); c.source.Run(ctx) }()
	return c, nil
}

func (c *cluster) troubled(kind kube.Kind, err error) {
	c.s.objects.Trouble(kind)
	c.trouble.begin(kind, err, c.source.HasSynced())
}

// current is the cluster whose objects are served; nil: none.
func (s *server) current() *cluster {
	s.change.Lock()
	defer s.change.Unlock()
	return s.cluster
}

// applyBeside puts file into effect with the objects of the cluster that it
// names. Another cluster, or other objects of it, is waited for; only at the
// start weir serves without, and is not ready.
func (s *server) applyBeside(file *config.Config, a *ahead) error {
	c := s.current()
	if c != nil && c.source.Fits(file) {
		return c.try(file, a)
	}
	next, err := s.newCluster(file)
	if err != nil {
		return err
	}
	if s.fileInEffect() != nil {
		err = next.await()
	}
	if err == nil {
		err = next.try(file, a)
	}
	if err != nil {
		next.leave()
		return err
	}
	if c != nil {
		c.leave()
	}
	return nil
}

// await waits until all objects are known.
func (c *cluster) await() error {
	select {
	case <-c.known:
		return nil
	case <-c.s.waits.Done():
		return errEnded
	case <-time.After(c.s.patience):
		return fmt.Errorf("weir could not read the objects of the cluster within %v: %w",
			c.s.patience, cmp.Or(c.trouble.last(), errors.New("the API server does not answer; check that kubernetes.kubeconfig names the right one")))
	}
}

// try puts file into effect with the objects that the Source knows.
func (c *cluster) try(file *config.Config, a *ahead) error {
	return c.source.Try(file, func(ch kube.Change) error {
		o := c.newObjects(ch)
		if err := c.put(file, o, a); err != nil {
			return err
		}
		c.objects = o
		c.takeNode(ch.Node)
		c.tellKnown()
		return nil
	})
}

// put puts objects into effect beside file. If a is nil, file is already in effect.
func (c *cluster) put(file *config.Config, o *objects, a *ahead) error {
	p := &plan{file: file, cfg: o.routing.Merge(file, o.endpoints), objects: o, again: a == nil}
	if a != nil {
		p.ofFile, p.answers = a.ofFile, a.answers
	}
	p.answers = c.s.backends.Resolve(p.cfg.Backends, backend.ObjectPatience, p.answers)
	if err := c.s.put(p); err != nil {
		return err
	}
	c.tellUnbound(o)
	c.tellFaults(o.routing.Events)
	return nil
}

// changed is told of each change by the Source. While somebody else's objects
// are served it is no more than noted: who is to serve this one asks with try.
func (c *cluster) changed(ch kube.Change) {
	first := !c.source.HasSynced()
	if first {
		defer close(c.known)
	}
	if c.s.current() != c {
		return
	}
	c.takeNode(ch.Node)
	switch {
	case ch.Routing != nil:
		c.objects = c.newObjects(ch)
		if err := c.put(c.s.fileInEffect(), c.objects, nil); err != nil {
			c.failed(err)
			return
		}
		c.tellKnown()
		if first {
			return // the time since the first object was seen says nothing
		}
	case ch.Endpoints != nil:
		c.putEndpoints(ch.Endpoints)
	}
	c.s.objects.Applied(&ch)
	c.s.log.Debug("changes of the cluster's objects are in effect", zap.Bool("routes", ch.Routing != nil),
		zap.Int("backends", len(ch.Endpoints)), zap.Duration("after", time.Since(ch.Since)))
}

// failed tells that objects are not in effect, and sees to it that they are tried again.
func (c *cluster) failed(err error) {
	if errors.Is(err, errEnded) {
		return
	}
	c.s.log.Error("changes of the cluster's objects failed to take effect; the previous ones stay in effect", zap.Error(err))
	c.wanted.Store(nil) // it is more than ports
	c.tryLater()
}

// putEndpoints gives backends other endpoints, and touches nothing else.
func (c *cluster) putEndpoints(changed map[string][]config.Endpoint) {
	c.s.change.Lock() // or another cluster's could be served by now
	defer c.s.change.Unlock()
	if c.s.cluster != c {
		return
	}
	for name, endpoints := range changed {
		c.objects.endpoints[name] = endpoints
		if c.s.backends.Backend(name) == nil {
			continue // its routes are not in effect; it comes with them
		}
		if err := c.s.backends.UpdateEndpoints(name, endpoints); err != nil {
			c.s.log.Error("changes of the cluster's endpoints failed to take effect; the previous ones stay in effect", zap.Error(err))
		}
		c.noticeEmpty(name)
	}
}

// takeNode takes up what the cluster says of this node; nil: nothing new.
func (c *cluster) takeNode(n *kube.Node) {
	if n == nil {
		return
	}
	c.s.node.SetLeaving(n.Leaving)
	c.s.backends.SetZone(n.Zone)
	switch {
	case slices.Equal(n.Leaving, c.node.Leaving):
	case len(n.Leaving) > 0:
		c.s.log.Warn("the cluster takes this node out of service", zap.Strings("reasons", n.Leaving))
	default:
		c.s.log.Info("the cluster puts this node into service again")
	}
	c.node = *n
}

// tryLater tries everything once more, once. Where all that is missing are
// ports, that waits until one of them is free.
func (c *cluster) tryLater() {
	if !c.retrying {
		c.retrying = true
		c.waitToTry()
	}
}

func (c *cluster) waitToTry() {
	time.AfterFunc(c.s.retryAfter, func() {
		switch ports := c.wanted.Load(); {
		case c.s.current() != c:
		case ports != nil && !slices.ContainsFunc(*ports, canBind):
			c.waitToTry()
		default:
			c.tryAgain()
		}
	})
}

func canBind(l config.Listener) bool {
	ln, err := listener.Bind(l.Network, l.Address)
	if err == nil {
		ln.Close()
	}
	return err == nil
}

// tryAgain puts what is known into effect once more.
func (c *cluster) tryAgain() {
	c.s.loading.Lock() // or an older file could come back
	defer c.s.loading.Unlock()
	if c.s.current() != c {
		return
	}
	file := c.s.fileInEffect()
	c.source.Try(file, func(ch kube.Change) error {
		c.retrying = false
		o := c.newObjects(ch)
		if err := c.put(file, o, nil); err != nil {
			c.failed(err)
			return err
		}
		c.objects = o
		c.tellKnown()
		return nil
	})
}

// adoptObjects is the cluster's part of adopt.
func (s *server) adoptObjects(p *plan) {
	if p.objects == nil {
		s.cluster = nil
		s.objects.Show(nil)
		return
	}
	c := p.objects.of
	s.cluster, c.adopted = c, p.objects
	s.objects.Show(c.source)
	c.tellEffect(p.file)
}

// tellEffect reports the objects in effect, and their faults. s.change is held.
func (c *cluster) tellEffect(file *config.Config) {
	r := c.adopted.inEffect(c.s.backends.Refusals(), c.withoutEndpoints())
	c.faults.Store(&r.Events)
	if c.control != nil && c.adopted.known() {
		c.control.InEffect(file, r)
	}
}

// retellAfter is how long weir waits for more refused addresses before it writes events
// about them.
const retellAfter = 100 * time.Millisecond

// refusalsChanged is called by the backends when the refused addresses of objects have
// changed.
func (s *server) refusalsChanged() {
	if !s.retelling.Swap(true) {
		time.AfterFunc(retellAfter, s.tellRefusals)
	}
}

func (s *server) tellRefusals() {
	s.retelling.Store(false)
	s.change.Lock()
	defer s.change.Unlock()
	if c := s.cluster; c != nil && !s.ended {
		c.tellEffect(s.fileInEffect())
	}
}

// inEffect is the routing with what could not be put into effect among its events.
func (o *objects) inEffect(refusals []backend.Refusal, empty []kube.Event) *kube.Routing {
	if len(o.unbound) == 0 && len(refusals) == 0 && len(empty) == 0 {
		return o.routing
	}
	r := *o.routing
	r.Events = slices.Concat(o.refused(refusals), r.Events, empty)
	for _, name := range slices.Sorted(maps.Keys(o.unbound)) {
		r.Events = append(r.Events, r.Unavailable(name, o.unbound[name]))
	}
	return &r
}

// maxRefusalsTold limits the addresses in an event of one backend.
const maxRefusalsTold = 5

// refused makes one event for each backend that has refused addresses.
func (o *objects) refused(refusals []backend.Refusal) (events []kube.Event) {
	why := map[string][]string{}
	for _, r := range refusals {
		why[r.Backend] = append(why[r.Backend], r.Why())
	}
	told := map[kube.Event]bool{} // backends for several ports have the same Service
	for i := range o.routing.Backends {
		b := &o.routing.Backends[i]
		list := why[b.Name]
		if more := len(list) - maxRefusalsTold; more > 0 {
			list = append(slices.Clone(list[:maxRefusalsTold]), fmt.Sprintf("%d more", more))
		}
		if len(list) == 0 {
			continue
		}
		if e := b.Refused(strings.Join(list, "; ")); !told[e] {
			told[e] = true
			events = append(events, e)
		}
	}
	return events
}

// withoutListener takes a listener of the cluster's out, and its route with it.
func (p *plan) withoutListener(name string, err error) {
	p.objects.unbound[name] = err
	p.cfg.Listeners = slices.DeleteFunc(slices.Clone(p.cfg.Listeners), func(l config.Listener) bool { return l.Name == name })
	p.cfg.Routes = slices.DeleteFunc(slices.Clone(p.cfg.Routes), func(r config.Route) bool { return slices.Contains(r.Listeners, name) })
}

// leave ends everything of a cluster that is served no more.
func (c *cluster) leave() {
	c.end()
	c.giveUp()
	if c.s.current() == nil { // and not another one
		c.s.node.SetLeaving(nil)
		c.s.backends.SetZone("")
	}
	timeout := time.AfterFunc(leavePatience, c.stopLeaving)
	defer timeout.Stop()
	<-c.gone
}

// giveUp begins to end what this replica does in the cluster, and to give up
// what it holds there. Objects are served on. c.gone says when that is done.
func (c *cluster) giveUp() {
	c.once.Do(func() {
		c.s.change.Lock()
		control := c.control
		c.control = nil
		c.s.change.Unlock()
		ctx, cancel := context.WithCancel(context.Background())
		c.stopLeaving = cancel
		go func() {
			defer close(c.gone)
			defer cancel()
			if control != nil {
				control.Leave(ctx)
			}
		}()
	})
}
