// Package health checks endpoints, decides whether this node should get traffic, and
// answers load balancers that ask for this verdict.
//
// The package does not know backends: a Checker gets Targets, a Node gets a function that
// counts ready local endpoints, and a Port asks the Node.
package health

import (
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// State is everything on which the verdict depends.
type State struct {
	Loaded   bool // a configuration is in effect
	Bound    bool // its listeners are bound
	Draining bool // from the first moment of a drain
	Synced   bool // all objects of the watched cluster are known; true without a cluster
	Cordoned bool // an operator has taken the node out of service
	// Leaving holds the reasons, in words, why Kubernetes takes the node out of service.
	Leaving []string
	// RequireLocal are the backends that must have a ready endpoint on this node.
	RequireLocal []LocalBackend
}

// LocalBackend is a backend in require_local.
type LocalBackend struct {
	Name  string
	Ready int // endpoints on this node that are ready
}

// Verdict reports whether this node should get traffic.
type Verdict struct {
	Healthy bool `json:"healthy"`
	// Ready means that weir itself can serve: configured, bound, not draining.
	Ready bool `json:"ready"`
	// Reasons are sentences; empty if Healthy.
	Reasons []string `json:"reasons,omitempty"`
	// LocalEndpoints is the number of ready endpoints on this node, summed over
	// RequireLocal.
	LocalEndpoints int `json:"local_endpoints"`
	// Weighted means that LocalEndpoints is meaningful: RequireLocal is not empty.
	Weighted bool `json:"weighted"`
	// Cordoned means that an operator or Kubernetes has taken the node out of service.
	Cordoned bool `json:"cordoned"`
}

// Evaluate returns the verdict of a state.
func Evaluate(s State) Verdict {
	v := Verdict{Weighted: len(s.RequireLocal) > 0, Cordoned: s.Cordoned || len(s.Leaving) > 0}
	because := func(bad bool, why string) {
		if bad {
			v.Reasons = append(v.Reasons, why)
		}
	}
	because(!s.Loaded, "no configuration is loaded yet")
	because(!s.Bound, "the listeners are not bound yet")
	because(!s.Synced, "the Kubernetes objects are not loaded yet")
	because(s.Draining, "weir is draining")
	v.Ready = len(v.Reasons) == 0
	because(s.Cordoned, "the node is cordoned through the admin port")
	v.Reasons = append(v.Reasons, s.Leaving...)
	for _, b := range s.RequireLocal {
		v.LocalEndpoints += b.Ready
		because(b.Ready == 0, fmt.Sprintf("backend %q has no ready endpoint on this node (require_local)", b.Name))
	}
	v.Healthy = len(v.Reasons) == 0
	return v
}

// Node holds the state of this node. Any goroutine may call its methods at any time. No
// method takes a lock.
type Node struct {
	localReady func(backend string) int

	loaded, bound, synced, draining, cordoned atomic.Bool
	requireLocal, leaving                     atomic.Pointer[[]string]
}

// NewNode makes a node that is not ready yet. localReady returns the number of ready
// endpoints of a backend on this node. It must be fast and take no lock.
func NewNode(localReady func(backend string) int) *Node {
	n := &Node{localReady: localReady}
	n.requireLocal.Store(new([]string))
	n.leaving.Store(new([]string))
	n.synced.Store(true)
	return n
}

// SetLoaded records whether a configuration is in effect.
func (n *Node) SetLoaded(yes bool) { n.loaded.Store(yes) }

// SetBound records whether the listeners are bound.
func (n *Node) SetBound(yes bool) { n.bound.Store(yes) }

// SetSynced records whether all objects of the watched cluster are known. Without a
// cluster this is always true.
func (n *Node) SetSynced(yes bool) { n.synced.Store(yes) }

// SetLeaving sets the reasons, in words for the verdict, why Kubernetes takes the node
// out of service; none: it does not. The caller must not change the slice afterwards.
func (n *Node) SetLeaving(why []string) { n.leaving.Store(&why) }

// SetDraining begins or ends a drain.
func (n *Node) SetDraining(yes bool) { n.draining.Store(yes) }

// SetCordoned takes the node out of service for an operator, or puts it back.
func (n *Node) SetCordoned(yes bool) { n.cordoned.Store(yes) }

// Draining reports whether weir is draining.
func (n *Node) Draining() bool { return n.draining.Load() }

// SetRequireLocal sets the backends that must have a ready endpoint on this node. The
// caller must not change the slice afterwards.
func (n *Node) SetRequireLocal(backends []string) { n.requireLocal.Store(&backends) }

// State returns the current state.
func (n *Node) State() State {
	s := State{
		Loaded: n.loaded.Load(), Bound: n.bound.Load(),
		Synced: n.synced.Load(), Draining: n.draining.Load(), Cordoned: n.cordoned.Load(), Leaving: *n.leaving.Load(),
	}
	for _, name := range *n.requireLocal.Load() {
		s.RequireLocal = append(s.RequireLocal, LocalBackend{Name: name, Ready: n.localReady(name)})
	}
	return s
}

// Verdict returns the current verdict.
func (n *Node) Verdict() Verdict { return Evaluate(n.State()) }

// Metrics are the series of a node.
type Metrics struct{ healthy prometheus.GaugeFunc }

// NewMetrics registers the metrics of n with reg.
func NewMetrics(reg prometheus.Registerer, n *Node) *Metrics {
	m := &Metrics{healthy: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_node_healthy",
		Help: "1 if the health port answers 200, 0 if it answers 503.",
	}, func() float64 {
		if n.Verdict().Healthy {
			return 1
		}
		return 0
	})}
	reg.MustRegister(m.healthy)
	return m
}
