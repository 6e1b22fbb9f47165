// Package health finds out whether endpoints are well, says whether this node
// should get traffic, and answers load balancers that ask.
//
// It knows no backend: a Checker is given Targets, a Node is given a function
// that counts ready local endpoints, and a Port asks the Node.
package health

import (
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// State is all that the verdict depends on.
type State struct {
	Loaded   bool // a configuration is in effect
	Bound    bool // its listeners are bound
	Draining bool // from the first moment of a drain
	Synced   bool // all objects of the cluster that is served are known; true without one
	Cordoned bool // the node is taken out of service by hand
	// Leaving says in words why Kubernetes takes the node out of service.
	Leaving []string
	// RequireLocal are the backends that must have a ready endpoint on this node.
	RequireLocal []LocalBackend
}

// LocalBackend is a backend of require_local.
type LocalBackend struct {
	Name  string
	Ready int // endpoints on this node that are ready
}

// Verdict reports whether this node should get traffic.
type Verdict struct {
	Healthy bool `json:"healthy"`
	// Ready says that weir itself can serve: configured, bound, not draining.
	Ready bool `json:"ready"`
	// Reasons are sentences, empty when healthy.
	Reasons []string `json:"reasons,omitempty"`
	// LocalEndpoints are the ready endpoints on this node over RequireLocal.
	LocalEndpoints int `json:"local_endpoints"`
	// Weighted says that LocalEndpoints means something: RequireLocal is not empty.
	Weighted bool `json:"weighted"`
	// Cordoned says that the node is taken out of service, by whomever.
	Cordoned bool `json:"cordoned"`
}

// Evaluate is the verdict of a state.
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

// Node holds the state of this node. All methods may be called by anyone at
// any time; none takes a lock.
type Node struct {
	localReady func(backend string) int

	loaded, bound, synced, draining, cordoned atomic.Bool
	requireLocal, leaving                     atomic.Pointer[[]string]
}

// NewNode makes a node that is not ready yet. localReady counts the ready
// endpoints of a backend on this node; it must be quick and take no lock.
func NewNode(localReady func(backend string) int) *Node {
	n := &Node{localReady: localReady}
	n.requireLocal.Store(new([]string))
	n.leaving.Store(new([]string))
	n.synced.Store(true)
	return n
}

// SetLoaded reports whether a configuration is in effect.
func (n *Node) SetLoaded(yes bool) { n.loaded.Store(yes) }

// SetBound reports whether the listeners are bound.
func (n *Node) SetBound(yes bool) { n.bound.Store(yes) }

// SetSynced reports whether all objects of the cluster that is served are known.
// Without a cluster they are.
func (n *Node) SetSynced(yes bool) { n.synced.Store(yes) }

// SetLeaving says why Kubernetes takes the node out of service, in words for the
// verdict; none: it does not. The caller does not change the slice afterwards.
func (n *Node) SetLeaving(why []string) { n.leaving.Store(&why) }

// SetDraining begins or ends a drain.
func (n *Node) SetDraining(yes bool) { n.draining.Store(yes) }

// SetCordoned takes the node out of service by hand, or puts it back.
func (n *Node) SetCordoned(yes bool) { n.cordoned.Store(yes) }

// Draining reports whether a drain runs.
func (n *Node) Draining() bool { return n.draining.Load() }

// SetRequireLocal sets the backends that must have a ready endpoint on this
// node. The caller does not change the slice afterwards.
func (n *Node) SetRequireLocal(backends []string) { n.requireLocal.Store(&backends) }

// State is the state of this moment.
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

// Verdict is the verdict of this moment.
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
