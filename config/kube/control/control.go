// Package control writes to a cluster: events on objects with errors, and the
// addresses in the status of Ingresses. Only one replica writes, the leader, which
// holds a Lease. Each replica that serves also holds a Lease of its own, so that the
// last one to leave knows that it is the last.
//
// Package control compares the wanted state with the state in the cluster, and does not
// follow single changes. So it catches up after an outage, and writes nothing twice.
package control

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api"
	"github.com/weirproxy/weir/config/kube/gateway"
	"github.com/weirproxy/weir/config/kube/informer"
)

// Options are what a Control needs from its surroundings.
type Options struct {
	Client *api.Client
	Retry  *informer.Retry // of the watches
	// Lease is the Lease of the leader.
	Lease config.ObjectName
	// Formerly are the Leases that this replica used before. Addresses that were
	// written under them stay, and are removed at the end like all others.
	Formerly []config.ObjectName
	// Holder identifies this process. No other process ever has the same Holder.
	Holder string
	// Ingresses returns all known Ingresses of all classes. None is changed.
	Ingresses func() []*networkingv1.Ingress
	// Gateways are the known objects of the Gateway API; nil: none.
	Gateways GatewayObjects
	// Leading is called when this replica becomes the leader, or stops being the leader.
	Leading func(bool)
	// Trouble is called once with the error when something fails, and with nil when it works again.
	Trouble func(what string, err error)
	Metrics *Metrics
}

// Wanted is the wanted state of the cluster.
type Wanted struct {
	Publish   config.Publish
	Node      string              // the node of this replica; empty: not known
	Ingresses []config.ObjectName // that must have the published addresses
	Events    []Event             // that must exist
	// Gateways is what weir says about objects of the Gateway API; nil: it serves none.
	// Controller is the name of weir's controller there.
	Gateways   []*gateway.Status
	Controller string
	// Replicas are the EndpointSlices of the Pods of weir, to which the Services of Gateways lead; nil:
	// these lead to addresses of Gateways.
	Replicas []*discoveryv1.EndpointSlice
}

// Event reports an error of an object.
type Event struct {
	Object  corev1.ObjectReference
	Reason  string
	Message string
	Served  bool // weir serves the object all the same: the event is not a fault of an Ingress
}

// Control writes the wanted state to a cluster, from New to Leave.
type Control struct {
	opts    Options
	leases  *api.Leases
	manager string // the field manager of the statuses that weir writes

	mu       sync.Mutex
	wanted   *Wanted                         // nil: Want was not called yet
	troubled map[string]map[string]time.Time // what fails, in which namespaces, and when it failed last
	denied   map[string]time.Time            // no attempt before this time, because a right is missing
	faults   map[corev1.ObjectReference]*fault
	refusals map[gateway.Key]gateway.Problem // of Services of Gateways, see noteRefusal
	shown    publishedAddresses              // see notePublished

	events, statuses, presence, gatewayWork, services chan struct{} // wake the goroutines that write them

	started, left     bool
	electing, present background
	leading           background // guarded by term.mu
}

// New makes a Control that writes nothing before the first Want.
func New(o Options) *Control {
	return &Control{opts: o, leases: api.NewLeases(o.Client, o.Lease.Namespace), manager: managerOf(o.Lease),
		troubled: make(map[string]map[string]time.Time), denied: make(map[string]time.Time), faults: make(map[corev1.ObjectReference]*fault),
		refusals: make(map[gateway.Key]gateway.Problem),
		events:   make(chan struct{}, 1), statuses: make(chan struct{}, 1), presence: make(chan struct{}, 1), gatewayWork: make(chan struct{}, 1),
		services: make(chan struct{}, 1)}
}

// managerOf is the name of the field manager, by which the API server knows the writer of a field.
func managerOf(lease config.ObjectName) string {
	manager := "weir/" + lease.String()
	if len(manager) > 128 { // the maximum of the API server
		return "weir/" + hashOf(manager)
	}
	return manager
}

func hashOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return fmt.Sprintf("%x", sum[:8])
}

// Want sets the wanted state. After the first Want this replica competes for the
// Lease. Want does not wait.
func (c *Control) Want(w Wanted) {
	c.mu.Lock()
	before := c.wanted
	c.wanted = &w
	c.noteFaults(w.Events, time.Now())
	if !c.started && !c.left {
		c.started = true
		c.electing.start(context.Background(), c.elect)
		c.present.start(context.Background(), c.bePresent)
	}
	c.mu.Unlock()
	switch {
	case before == nil || !reflect.DeepEqual(before.Publish, w.Publish) || before.Node != w.Node:
		wake(c.presence)
		wake(c.statuses)
	case !slices.Equal(before.Ingresses, w.Ingresses):
		wake(c.statuses)
	}
	if before == nil || before.Controller != w.Controller || !slices.Equal(before.Gateways, w.Gateways) {
		wake(c.gatewayWork)
		wake(c.services)
	}
	if before != nil && !slices.Equal(before.Replicas, w.Replicas) {
		wake(c.services)
	}
	if before == nil || !slices.Equal(before.Events, w.Events) {
		wake(c.events)
	}
}

// want is the wanted state, if it is known.
func (c *Control) want() (w Wanted, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wanted == nil {
		return Wanted{}, false
	}
	return *c.wanted, true
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// pause waits for d or for sooner. It returns false if ctx has ended.
func pause(ctx context.Context, d time.Duration, sooner <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-sooner:
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// troubleFor is how long a trouble lasts without another failure. weir tries again sooner, so the object is gone, or
// its namespace: no success would end the trouble, and it would hide all later ones.
const troubleFor = 10 * time.Minute

// outcome reports a trouble when it begins and when it is over. A trouble in many
// namespaces is reported once, and is over when it is over in all of them. While a trouble
// lasts, its further errors are not reported. So each error that an operator corrects in
// another way needs a name of its own in what.
func (c *Control) outcome(what, namespace string, err error) {
	c.mu.Lock()
	all := c.troubled[what]
	if all == nil {
		all = map[string]time.Time{}
		c.troubled[what] = all
	}
	before := len(all) > 0
	maps.DeleteFunc(all, func(_ string, at time.Time) bool { return time.Since(at) > troubleFor })
	var report bool
	if err == nil {
		delete(all, namespace)
		report = before && len(all) == 0
	} else {
		report = len(all) == 0
		all[namespace] = time.Now()
	}
	c.mu.Unlock()
	if report && c.opts.Trouble != nil {
		c.opts.Trouble(what, err)
	}
}

// deniedFor is the time without attempts after a right was missing.
const deniedFor = time.Minute

// mayTry reports whether no right was missing within the last deniedFor.
func (c *Control) mayTry(what, namespace string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().After(c.denied[what+"\x00"+namespace])
}

// deny prevents attempts for deniedFor if a right is missing.
func (c *Control) deny(what, namespace string, err error) bool {
	if !api.IsDenied(err) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.denied, func(_ string, until time.Time) bool { return time.Now().After(until) })
	c.denied[what+"\x00"+namespace] = time.Now().Add(deniedFor)
	return true
}

// Leave gives up both Leases of this replica. The last replica removes the published
// addresses first, and calls withdrawn after each Ingress. Leave returns when ctx ends, or
// leaveGrace later. The cause of ctx explains why addresses are left.
func (c *Control) Leave(ctx context.Context, withdrawn func()) { c.end(ctx, nil, false, withdrawn) }

// Release is Leave when another process of the same machine takes over: all objects keep their
// addresses, also if that process has not announced itself to the cluster yet.
func (c *Control) Release(ctx context.Context) { c.end(ctx, nil, true, func() {}) }

// HandOver is Leave when another Control takes over the Ingresses in kept: they keep
// their addresses. The other Control would not write the addresses again soon,
// because it has seen them as they must be.
func (c *Control) HandOver(ctx context.Context, kept []config.ObjectName) {
	c.end(ctx, kept, false, func() {})
}

// leaveGrace is the time in which Leave reports which addresses are left, after ctx has ended.
const leaveGrace = 2 * lastAnswers

func (c *Control) end(ctx context.Context, kept []config.ObjectName, keepAll bool, withdrawn func()) {
	c.mu.Lock()
	started := c.started && !c.left
	c.left = true
	c.mu.Unlock()
	if !started {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.electing.stop()
		c.present.stop() // it drops its Lease
		w, known := c.want()
		if known && w.Publish.Any() && !w.Publish.Keep && !keepAll {
			c.outcome("remove published addresses", "", c.withdrawAsLast(ctx, kept, withdrawn))
		}
		c.leases.Drop(ctx, c.bid()) // a Lease that is not dropped expires
	}()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	select {
	case <-done:
	case <-time.After(leaveGrace):
	}
}

// background is a goroutine that can be stopped.
type background struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (w *background) start(ctx context.Context, f func(context.Context)) {
	ctx, w.cancel = context.WithCancel(ctx)
	done := make(chan struct{})
	w.done = done
	go func() { defer close(done); f(ctx) }()
}

// stop ends the goroutine and waits for its end. It may be stopped already.
func (w *background) stop() {
	if w.cancel != nil {
		w.cancel()
		<-w.done
	}
}
