package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/api"
	"github.com/weirproxy/weir/config/kube/event"
	"github.com/weirproxy/weir/pause"
)

// The files kubernetes*.go add a cluster's objects to the file. A kube.Source reports changes. A change
// of routes makes a new table, as a reload does, but weir does not read files again. A
// change of endpoints updates only their backend. kubernetes_reload.go puts a new file into effect
// with the objects, kubernetes_change.go changed objects with the file that is in effect.
//
// The order of locks is: loading, the two locks of the Source, change. The Source holds the first one during
// changes of routes, and the second one during changes of endpoints. A reload has both. So a change from the
// Source and a reload cannot overtake each other, and endpoints do not wait for routes.

// clusterPatience limits how long a reload waits for a cluster that weir did not serve before.
const clusterPatience = 10 * time.Second

// cluster is a cluster whose objects weir serves, or is about to serve.
type cluster struct {
	s        *server
	source   *kube.Source
	control  control                  // nil: weir writes nothing to the cluster; guarded by s.change
	adopted  *objects                 // the objects in effect; guarded by s.change
	bare     map[string]*kube.Backend // the backends of adopted without endpoints that objects use; guarded by s.change
	empty    map[string]time.Time     // when each of them lost its last endpoint; guarded by s.change
	awaiting bool                     // a timer will call retell; guarded by s.change
	ordered  ordered                  // certificates for Gateways; guarded by s.change
	known    chan struct{}
	faults   atomic.Pointer[[]event.Event]     // of the objects in effect
	wanted   atomic.Pointer[[]config.Listener] // listeners that could not be bound; nil: more than listeners is not in effect
	end      func()                            // ends the source, and waits until it has ended
	trouble  troubles

	once        sync.Once // of giveUp
	stopLeaving context.CancelCauseFunc
	wrote       chan struct{} // has an element if a write has succeeded since giveUp
	gone        chan struct{}

	// Used only under the Source's lock for routes.
	objects  *objects             // the last objects from the Source
	retrying bool                 // tryLater was called
	told     bool                 // tellKnown has logged its line
	unbound  map[string]string    // ports that were logged, and the errors
	faulty   map[event.Event]bool // faults that were logged

	node   atomic.Pointer[kube.Node] // nil: not known yet
	tidied atomic.Int64              // when tidy last began, in nanoseconds of Unix time
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
			pause.Tidy(pause.LeftGarbage)
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

func (c *cluster) troubled(kind kube.Kind, err error) {
	c.s.objects.Trouble(kind)
	c.trouble.begin(kind, withPlace(kind, err), c.source.HasSynced())
}

// withPlace says where the right to read a ConfigMap must be, if it is missing.
func withPlace(kind kube.Kind, err error) error {
	if kind == kube.ConfigMaps && api.IsDenied(err) {
		return fmt.Errorf("%w; the right must be in the namespace of the ConfigMap, and a kustomization with a namespace of its own moves Roles and bindings into that namespace", err)
	}
	return err
}

// current returns the cluster whose objects weir serves; nil: none.
func (s *server) current() *cluster {
	s.change.Lock()
	defer s.change.Unlock()
	return s.cluster
}
