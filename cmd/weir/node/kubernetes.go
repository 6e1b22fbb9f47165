package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/tools/cache"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/event"
	"github.com/weirproxy/weir/listener/sockets"
	"github.com/weirproxy/weir/pause"
	"github.com/weirproxy/weir/proxy/backend"
)

// This file adds a cluster's objects to the file. A kube.Source reports changes. A change
// of routes makes a new table, as a reload does, but weir does not read files again. A
// change of endpoints updates only their backend.
//
// The order of locks is: loading, the lock of the Source, change. So a change from the
// Source and a reload cannot overtake each other.

const (
	// clusterPatience limits how long a reload waits for a cluster that weir did not
	// serve before.
	clusterPatience = 10 * time.Second
	// retryObjects is the time until weir tries again to put objects into effect.
	retryObjects = 10 * time.Second
	// leavePatience limits how long weir waits for a cluster that it no longer serves. After
	// a drain, it limits the time without a successful write.
	leavePatience = 5 * time.Second
	// lastWrites is the time for the last writes after a drain that took all of its time. A
	// control then has a second more for its report.
	lastWrites = leavePatience - time.Second
)

// These errors explain why addresses are left in the status of Ingresses.
var (
	errSecondSignal = errors.New("a second signal ended weir at once")
	errDrainOver    = errors.New("the time of the drain is over: raise drain.timeout, and terminationGracePeriodSeconds with it")
	errNotServed    = fmt.Errorf("weir waits only %v for a cluster that it no longer serves", leavePatience)
	errNoWrites     = fmt.Errorf("no write to the cluster succeeded in the last %v", lastWrites)
)

// cluster is a cluster whose objects weir serves, or is about to serve.
type cluster struct {
	s        *server
	source   *kube.Source
	control  control                  // nil: weir writes nothing to the cluster; guarded by s.change
	adopted  *objects                 // the objects in effect; guarded by s.change
	bare     map[string]*kube.Backend // the backends of adopted without endpoints that objects use; guarded by s.change
	empty    map[string]time.Time     // when each of them lost its last endpoint; guarded by s.change
	awaiting bool                     // a timer will call retell; guarded by s.change
	known    chan struct{}
	faults   atomic.Pointer[[]event.Event]     // of the objects in effect
	wanted   atomic.Pointer[[]config.Listener] // listeners that could not be bound; nil: more than listeners is not in effect
	end      func()                            // ends the source, and waits until it has ended
	trouble  troubles

	once        sync.Once // of giveUp
	stopLeaving context.CancelCauseFunc
	wrote       chan struct{} // has an element if a write has succeeded since giveUp
	gone        chan struct{}

	// Used only under the Source's lock.
	objects  *objects // the last objects from the Source
	retrying bool     // tryLater was called
	node     kube.Node
	told     bool                 // tellKnown has logged its line
	unbound  map[string]string    // ports that were logged, and the errors
	faulty   map[event.Event]bool // faults that were logged
	tidied   time.Time            // when tidy last began
}

// objects are the routes and endpoints that a cluster adds to the file.
type objects struct {
	of       *cluster
	routing  *kube.Routing
	backends []*config.Backend // routing's backends with their endpoints; nil: the objects are not known yet
	unbound  map[string]error  // listeners of routing that could not be bound
}

func (c *cluster) newObjects(ch kube.Change) *objects {
	return &objects{of: c, routing: ch.Routing, backends: ch.Backends, unbound: map[string]error{}}
}

// known reports whether o contains the objects of the cluster. Before all kinds are
// listed for the first time, o is only a placeholder.
func (o *objects) known() bool { return o == nil || o.backends != nil }

// has reports whether the cluster configures the listener.
func (o *objects) has(l string) bool {
	return o != nil && slices.ContainsFunc(o.routing.AllListeners(), func(of config.Listener) bool { return of.Name == l })
}

// reader is how objects of a cluster are read.
type reader struct {
	list   func(kube.Kind, kube.Selection) *cache.ListWatch // how objects of a kind are listed and watched
	served func(context.Context) (map[string]string, error) // see kube.Options; nil: no kind of the Gateway API
}

func connectKube(k *config.Kubernetes) (reader, error) {
	client, err := kube.Connect(k)
	if err != nil {
		return reader{}, err
	}
	return reader{client.List, client.Served}, nil
}

// newCluster starts to watch the cluster that file names.
func (s *server) newCluster(file *config.Config) (*cluster, error) {
	fail := func(err error) (*cluster, error) {
		return nil, fmt.Errorf("%s: serving the cluster: %w", file.Kubernetes.Position, err)
	}
	from, err := s.connect(file.Kubernetes)
	if err != nil {
		return fail(err)
	}
	c := &cluster{s: s, known: make(chan struct{}), wrote: make(chan struct{}, 1), gone: make(chan struct{}), trouble: troubles{log: s.log}, unbound: map[string]string{}}
	c.source, err = kube.NewSource(kube.Options{File: file, List: from.list, Served: from.served, Changed: c.changed, Trouble: c.troubled, Answered: c.trouble.over, Panicked: s.objectsPanicked})
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
	if s.fileInEffect() == nil {
		end := pause.Spare()
		go func() {
			c.awaitFirst(ended)
			end()
			pause.Tidy()
		}()
	}
	return c, nil
}

// sparing is the time for which weir saves memory at the start of the process at most.
const sparing = time.Minute

// awaitFirst waits until all objects are known and in effect, but not for long.
func (c *cluster) awaitFirst(ended <-chan struct{}) {
	select {
	case <-c.known:
	case <-ended:
	case <-time.After(sparing):
	}
}

// tidyEvery is the time between two collections of the garbage that changes of objects leave.
const tidyEvery = 2 * time.Second

// tidy collects the garbage of a change of objects. The next change does not wait for it.
func (c *cluster) tidy() {
	if now := time.Now(); now.Sub(c.tidied) >= tidyEvery {
		c.tidied = now
		go pause.Tidy()
	}
}

func (c *cluster) troubled(kind kube.Kind, err error) {
	c.s.objects.Trouble(kind)
	c.trouble.begin(kind, err, c.source.HasSynced())
}

// current returns the cluster whose objects weir serves; nil: none.
func (s *server) current() *cluster {
	s.change.Lock()
	defer s.change.Unlock()
	return s.cluster
}

// applyBeside puts file into effect with the objects of the cluster that it names. It
// waits for a new cluster, or for other objects of the same cluster. At the start of
// the process it does not wait: weir then serves without these objects, and is not ready.
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
		next.close()
		return err
	}
	if c != nil {
		c.close()
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

// plansAside is how often try plans without the Source's lock. If the objects change each
// time, it then plans under this lock.
const plansAside = 3

// try puts file into effect with the objects that the Source knows. It plans without the
// Source's lock, because changes of endpoints need this lock. Then it commits under it,
// with the newest endpoints, so that no change of the objects overtakes another.
func (c *cluster) try(file *config.Config, a *ahead) error {
	for range plansAside {
		if err := c.tryAside(file, a); err != errOvertaken {
			return err
		}
	}
	return c.source.Try(file, func(ch kube.Change) error {
		p := a.plan(file)
		p.objects = c.newObjects(ch)
		if err := c.s.put(p); err != nil {
			return err
		}
		c.took(p.objects)
		c.takeNode(ch.Node)
		c.tellKnown()
		return nil
	})
}

// tryAside is one attempt of try. It returns errOvertaken if other routes took effect, or
// the objects changed, after it began to plan.
func (c *cluster) tryAside(file *config.Config, a *ahead) error {
	p := a.plan(file)
	p.objects = c.newObjects(c.convert(file))
	if err := c.s.prepare(p); err != nil {
		return err
	}
	return c.source.Try(file, func(ch kube.Change) error {
		if !p.objects.are(ch) {
			c.s.abandon(p)
			return errOvertaken
		}
		p.renew(ch.Backends)
		if err := c.s.commit(p); err != nil {
			return err
		}
		c.took(p.objects)
		c.takeNode(ch.Node)
		c.tellKnown()
		return nil
	})
}

// errOnlyConverted ends a Try without an effect.
var errOnlyConverted = errors.New("only the objects were wanted")

// convert returns the objects that the Source knows, under another file.
func (c *cluster) convert(file *config.Config) (now kube.Change) {
	c.source.Try(file, func(ch kube.Change) error {
		now = ch
		return errOnlyConverted
	})
	return now
}

// are reports whether o is what the Source knows now, apart from the endpoints.
func (o *objects) are(now kube.Change) bool {
	return o.known() == (now.Backends != nil) && reflect.DeepEqual(o.routing, now.Routing)
}

// took records that objects have taken effect.
func (c *cluster) took(o *objects) {
	c.tellUnbound(o)
	c.tellFaults(o.routing.Events)
	c.objects = o
}

// put puts objects into effect together with the file that is already in effect.
func (c *cluster) put(o *objects) error {
	if err := c.s.put(&plan{file: c.s.fileInEffect(), again: true, objects: o}); err != nil {
		return err
	}
	c.took(o)
	return nil
}

// changed is called by the Source for each change. While weir serves the objects of
// another cluster, changed only records the change; try later uses it.
func (c *cluster) changed(ch kube.Change) {
	first := !c.source.HasSynced()
	if first {
		defer close(c.known)
	}
	defer c.tidy()
	if c.s.current() != c {
		return
	}
	c.takeNode(ch.Node)
	switch {
	case ch.Routing != nil:
		c.objects = c.newObjects(ch)
		if err := c.put(c.objects); err != nil {
			c.failed(err)
			return
		}
		c.tellKnown()
		if first {
			return // the time since the first object was seen has no meaning
		}
	case ch.Endpoints != nil:
		c.putEndpoints(ch.Endpoints)
	}
	c.s.objects.Applied(&ch)
	c.s.log.Debug("changes of the cluster's objects are in effect", zap.Bool("routes", ch.Routing != nil),
		zap.Int("backends", len(ch.Endpoints)), zap.Duration("after", time.Since(ch.Since)))
}

// failed logs that objects are not in effect, and schedules another try.
func (c *cluster) failed(err error) {
	if errors.Is(err, errEnded) {
		return
	}
	c.s.log.Error("changes of the cluster's objects failed to take effect; the previous ones stay in effect", zap.Error(err))
	c.wanted.Store(nil) // the failure is not limited to ports
	c.tryLater()
}

// putEndpoints sets the endpoints of backends, and changes nothing else.
func (c *cluster) putEndpoints(changed map[string][]config.Endpoint) {
	c.s.change.Lock() // otherwise weir could serve another cluster by now
	defer c.s.change.Unlock()
	if c.s.cluster != c {
		return
	}
	for name, endpoints := range changed {
		if c.s.backends.Backend(name) == nil {
			continue // its routes are not in effect; the backend comes with them
		}
		if err := c.s.backends.UpdateEndpoints(name, endpoints); err != nil {
			c.s.log.Error("changes of the cluster's endpoints failed to take effect; the previous ones stay in effect", zap.Error(err))
		}
		c.noticeEmpty(name)
	}
}

// takeNode applies what the cluster reports about this node; nil: no change.
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

// tryLater schedules one more try. If only ports are missing, the try waits until one of
// them is free.
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

func canBind(l config.Listener) bool { return sockets.Available(l.Network, l.Address) }

// tryAgain tries again to put the known objects into effect.
func (c *cluster) tryAgain() {
	c.s.loading.Lock() // otherwise an older file could take effect again
	defer c.s.loading.Unlock()
	if c.s.current() != c {
		return
	}
	c.source.Try(c.s.fileInEffect(), func(ch kube.Change) error {
		c.retrying = false
		if err := c.put(c.newObjects(ch)); err != nil {
			c.failed(err)
			return err
		}
		c.tellKnown()
		return nil
	})
}

// adoptObjects is the part of adopt that concerns the cluster.
func (s *server) adoptObjects(p *plan) {
	if p.objects == nil {
		s.cluster = nil
		s.objects.Show(nil)
		return
	}
	c := p.objects.of
	before := c.adopted
	s.cluster, c.adopted = c, p.objects
	c.findBare(before)
	s.objects.Show(c.source)
	c.tellEffect(p.file)
}

// tellEffect reports the objects in effect, and their faults. The caller holds s.change.
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

// inEffect returns the routing. Its events, and the status of its Gateways, also report the parts
// that could not be put into effect.
func (o *objects) inEffect(refusals []backend.Refusal, empty []event.Event) *kube.Routing {
	if len(o.unbound) == 0 && len(refusals) == 0 && len(empty) == 0 {
		return o.routing
	}
	r := *o.routing
	r.Events = slices.Concat(o.refused(refusals), r.Events, empty)
	if len(o.unbound) == 0 {
		return &r
	}
	why := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(o.unbound)) {
		e := r.Unavailable(name, o.unbound[name])
		r.Events, why[name] = append(r.Events, e), e.Message
	}
	r.Gateways = r.Gateways.WithUnbound(why)
	return &r
}

// maxRefusalsTold limits the addresses in an event of one backend.
const maxRefusalsTold = 5

// refused makes one event for each backend that has refused addresses.
func (o *objects) refused(refusals []backend.Refusal) (events []event.Event) {
	why := map[string][]string{}
	for _, r := range refusals {
		why[r.Backend] = append(why[r.Backend], r.Why())
	}
	told := map[event.Event]bool{} // several backends may have the same Service
	for i := range o.routing.Backends {
		b := o.routing.Backends[i]
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

// withoutListener removes a listener of the cluster. Routes that have other listeners stay on those:
// a Gateway has a listener for each of its addresses.
func (p *plan) withoutListener(name string, err error) {
	p.objects.unbound[name] = err
	p.cfg.Listeners = slices.DeleteFunc(slices.Clone(p.cfg.Listeners), func(l config.Listener) bool { return l.Name == name })
	kept := make([]*config.Route, 0, len(p.cfg.Routes))
	for _, r := range p.cfg.Routes {
		if !slices.Contains(r.Listeners, name) {
			kept = append(kept, r)
			continue
		}
		one := *r // routes are shared
		one.Listeners = slices.DeleteFunc(slices.Clone(r.Listeners), func(l string) bool { return l == name })
		if len(one.Listeners) > 0 {
			kept = append(kept, &one)
		}
	}
	p.cfg.Routes = kept
}

// close ends everything of a cluster that weir no longer serves.
func (c *cluster) close() { c.closeBy(time.Now(), errNotServed) }

// closeBy is close with more time for the last writes to the cluster: at least lastWrites,
// and until ends if some write succeeds in each leavePatience. why is the reason if the
// writes do not end in that time.
func (c *cluster) closeBy(ends time.Time, why error) {
	c.end()
	c.giveUp()
	if c.s.current() == nil { // weir serves no other cluster
		c.s.node.SetLeaving(nil)
		c.s.backends.SetZone("")
	}
	c.stopLeaving(c.awaitGone(ends, why))
	<-c.gone
}

// awaitGone waits until the work in the cluster is done, or the time for it is over. It
// returns the reason why the work must end: why, or errNoWrites.
func (c *cluster) awaitGone(ends time.Time, why error) error {
	if earliest := time.Now().Add(lastWrites); ends.Before(earliest) {
		ends = earliest
	}
	timer := time.NewTimer(min(leavePatience, time.Until(ends)))
	defer timer.Stop()
	for last := (time.Time{}); ; {
		select {
		case <-c.gone:
			return nil
		case <-c.wrote:
			last = time.Now()
			timer.Reset(min(leavePatience, time.Until(ends)))
		case <-timer.C:
			if time.Since(last) < leavePatience {
				return why
			}
			return errNoWrites
		}
	}
}

// noteWrite tells awaitGone of a write.
func (c *cluster) noteWrite() {
	select {
	case c.wrote <- struct{}{}:
	default:
	}
}

// giveUp starts to end the work of this replica in the cluster, and to give up its
// Leases. weir still serves the objects. c.gone is closed when that is done.
func (c *cluster) giveUp() {
	c.once.Do(func() {
		c.s.change.Lock()
		control := c.control
		c.control = nil
		c.s.change.Unlock()
		ctx, cancel := context.WithCancelCause(context.Background())
		c.stopLeaving = cancel
		go func() {
			defer close(c.gone)
			defer cancel(nil)
			if control != nil {
				control.Leave(ctx, c.noteWrite)
			}
		}()
	})
}
