// Package control is what weir writes to a cluster: events on objects that are
// wrong, and the addresses in the status of Ingresses. One of all replicas does,
// which has a Lease for it; each that serves has one more, so that the last to
// leave knows that it is.
//
// Everything here goes by what is wanted and what is there, and not by what
// changed: what was missed is caught up with, and nothing is written twice.
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
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api"
)

// Options are what a Control needs from its surroundings.
type Options struct {
	Client *api.Client
	// Lease is what replicas agree by on who writes.
	Lease config.ObjectName
	// Formerly are the Leases that this replica went by before. Addresses that
	// were written then stay as they are, and are withdrawn all the same.
	Formerly []config.ObjectName
	// Holder names this process, and no other at any time.
	Holder string
	// Ingresses returns all that are known, whoever's they are. None is changed.
	Ingresses func() []*networkingv1.Ingress
	// Leading is told that this replica writes from now on, or no more.
	Leading func(bool)
	// Trouble is told once what cannot be done, in a sentence, and with nil that it can be again.
	Trouble func(what string, err error)
	Metrics *Metrics
}

// Wanted is what has to be true in the cluster.
type Wanted struct {
	Publish   config.Publish
	Node      string              // that this replica is on; empty: not known
	Ingresses []config.ObjectName // that have the published addresses
	Events    []Event             // that have to be there
}

// Event says what is wrong with an object.
type Event struct {
	Object  corev1.ObjectReference
	Reason  string
	Message string
}

// Control writes what is wanted to a cluster, from New to Leave.
type Control struct {
	opts    Options
	leases  *api.Leases
	manager string // of the fields that are written

	mu       sync.Mutex
	wanted   *Wanted                    // nil: nothing is known yet
	troubled map[string]map[string]bool // what cannot be done, and in which namespaces
	denied   map[string]time.Time       // until then there is no use in trying

	events, statuses, presence chan struct{} // wake who writes those

	started, left     bool
	electing, present worker
	leading           worker // guarded by what electing does
}

// New makes a Control that writes nothing before it is told what is wanted.
func New(o Options) *Control {
	return &Control{opts: o, leases: api.NewLeases(o.Client, o.Lease.Namespace), manager: managerOf(o.Lease),
		troubled: make(map[string]map[string]bool), denied: make(map[string]time.Time),
		events: make(chan struct{}, 1), statuses: make(chan struct{}, 1), presence: make(chan struct{}, 1)}
}

// managerOf names who owns fields in the eyes of the API server.
func managerOf(lease config.ObjectName) string {
	manager := "weir/" + lease.String()
	if len(manager) > 128 { // is what it takes
		return "weir/" + hashOf(manager)
	}
	return manager
}

func hashOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return fmt.Sprintf("%x", sum[:8])
}

// Want says what has to be true from now on. With the first Want this replica
// begins to compete for the Lease. It does not wait.
func (c *Control) Want(w Wanted) {
	c.mu.Lock()
	before := c.wanted
	c.wanted = &w
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
	if before == nil || !slices.Equal(before.Events, w.Events) {
		wake(c.events)
	}
}

// want is what is wanted; before that is known, nothing.
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

// pause waits, and says whether ctx goes on.
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

// outcome tells of a trouble that begins, or that is over. One that there is in
// many namespaces is told once, and is over when it is in all.
func (c *Control) outcome(what, namespace string, err error) {
	c.mu.Lock()
	before := len(c.troubled[what]) > 0
	switch {
	case err == nil:
		delete(c.troubled[what], namespace)
	case c.troubled[what] == nil:
		c.troubled[what] = map[string]bool{namespace: true}
	default:
		c.troubled[what][namespace] = true
	}
	now := len(c.troubled[what]) > 0
	c.mu.Unlock()
	if before != now && c.opts.Trouble != nil {
		c.opts.Trouble(what, err)
	}
}

// deniedFor is how long a right that is missing is not tried for.
const deniedFor = time.Minute

// mayTry says whether a right was not missing lately.
func (c *Control) mayTry(what, namespace string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().After(c.denied[what+"\x00"+namespace])
}

// deny keeps everybody from trying for a while if a right is missing.
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

// Leave gives up the Lease and what says that this replica is there. The last
// one withdraws the addresses first. It returns when ctx ends at the latest.
func (c *Control) Leave(ctx context.Context) { c.HandOver(ctx, nil) }

// HandOver is Leave where another Control goes on with these Ingresses: they keep
// their addresses. That one finds them as they have to be, and would not write
// them again before long.
func (c *Control) HandOver(ctx context.Context, kept []config.ObjectName) {
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
		c.present.stop() // gives its Lease back
		w, known := c.want()
		if known && w.Publish.Any() && !w.Publish.Keep {
			c.outcome("withdraw", "", c.withdrawAsLast(ctx, kept))
		}
		c.leases.Drop(ctx, c.claim()) // what is not given back ends by itself
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// withdrawAsLast takes the addresses out of all other Ingresses if no other replica is there.
func (c *Control) withdrawAsLast(ctx context.Context, kept []config.ObjectName) error {
	others, err := c.leases.Alive(ctx, c.replicas())
	if err != nil || len(others) > 0 {
		return err
	}
	// Who has the Lease is leaving as well, and thought that others stay, or
	// withdraws the addresses itself.
	for deadline := time.Now().Add(leavePatience); time.Now().Before(deadline); {
		mine, err := c.leases.Take(ctx, c.claim())
		if err != nil {
			return err
		}
		if mine {
			return c.withdraw(ctx, kept)
		}
		if !pause(ctx, leavePause, nil) {
			break
		}
	}
	return nil
}

// How long who leaves waits for the Lease of another who does.
const (
	leavePatience = 5 * time.Second
	leavePause    = 200 * time.Millisecond
)

// worker is a goroutine that can be ended.
type worker struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (w *worker) start(ctx context.Context, f func(context.Context)) {
	ctx, w.cancel = context.WithCancel(ctx)
	done := make(chan struct{})
	w.done = done
	go func() { defer close(done); f(ctx) }()
}

// stop ends it, and waits for that. It may be stopped already.
func (w *worker) stop() {
	if w.cancel != nil {
		w.cancel()
		<-w.done
	}
}
