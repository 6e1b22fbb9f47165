package kube

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/informer"
)

// This file watches the ConfigMaps that annotations, and keys of ingress-nginx's ConfigMap, name. weir watches each of them by its name, so it needs no
// right for others, and keeps no others in memory.

// namedMaps is the kind of these ConfigMaps.
const namedMaps Kind = "configmaps of annotations"

const (
	// mostNamed is the maximum number of ConfigMaps that weir watches by their names.
	mostNamed = 200
	// namedPatience is how long new routes wait for ConfigMaps that were not named before.
	namedPatience = 2 * time.Second
)

// Reasons why weir does not read a ConfigMap.
const (
	noRight   = "weir may not list and watch it; grant both rights for configmaps in its namespace"
	manyNamed = "Ingresses name more than 200 such ConfigMaps, and weir reads those of the oldest Ingresses; let Ingresses share ConfigMaps"
)

// named are the informers of ConfigMaps that annotations name.
type named struct {
	source *Source

	mu      sync.Mutex
	running map[config.ObjectName]*namedInformer
	surplus map[config.ObjectName]bool // named, and not watched
	ended   sync.WaitGroup             // the goroutines
}

// namedInformer is the informer of one ConfigMap.
type namedInformer struct {
	*informer.Informer
	lost    *lost
	cancel  context.CancelFunc
	ended   chan struct{} // is closed when it has ended
	refused chan struct{} // is closed when weir has no right to read the ConfigMap
	once    sync.Once     // closes refused
	last    *corev1.ConfigMap
}

func newNamed(s *Source) *named {
	return &named{source: s, running: map[config.ObjectName]*namedInformer{}}
}

// follow watches these ConfigMaps, of which the most important come first, and no others. It waits until new
// ones are known, but not long. It reports whether known returns something else than before.
func (n *named) follow(ctx context.Context, wanted []config.ObjectName) (changed bool) {
	added, changed := n.change(ctx, wanted)
	patience := time.NewTimer(namedPatience)
	defer patience.Stop()
	for _, i := range added {
		select {
		case <-i.Known():
		case <-i.refused:
		case <-patience.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
	return changed
}

// change starts and ends informers. It returns the new ones.
func (n *named) change(ctx context.Context, wanted []config.ObjectName) (added []*namedInformer, changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	surplus := map[config.ObjectName]bool{}
	for _, name := range wanted[min(len(wanted), mostNamed):] {
		surplus[name] = true
	}
	wanted = wanted[:min(len(wanted), mostNamed)]
	for name, i := range n.running {
		if !slices.Contains(wanted, name) {
			i.cancel()
			delete(n.running, name)
			n.ended.Go(func() { <-i.ended; i.lost.over() }) // a failed watch of it is no trouble any more
		}
	}
	for _, name := range wanted {
		if n.running[name] != nil {
			continue
		}
		i := n.start(ctx, name)
		n.running[name] = i
		added = append(added, i)
	}
	changed = len(added) > 0 || !maps.Equal(surplus, n.surplus)
	n.surplus = surplus
	return added, changed
}

// start runs the informer of a ConfigMap. n.mu is held.
func (n *named) start(ctx context.Context, name config.ObjectName) *namedInformer {
	i := &namedInformer{refused: make(chan struct{}), ended: make(chan struct{})}
	changed := func() { n.source.note(func(d *dirt) { d.routes.touch() }) }
	i.Informer, i.lost = n.source.newInformer(namedMaps, n.source.opts.List(namedMaps, selectionOf(name)), example[namedMaps], func(l *lost, kind Kind, err error) {
		if !apierrors.IsForbidden(err) {
			n.source.trouble(l, kind, err)
			return
		}
		l.over()
		i.once.Do(func() { close(i.refused); changed() }) // an event on the Ingress says so
	})
	ctx, i.cancel = context.WithCancel(ctx)
	n.ended.Go(func() { defer close(i.ended); i.Run(ctx) })
	n.ended.Go(func() {
		select {
		case <-i.Known():
			changed() // also if there is no such ConfigMap
		case <-ctx.Done():
		}
	})
	return i
}

// known returns the last known states of all ConfigMaps that were named.
func (n *named) known() map[config.ObjectName]NamedMap {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make(map[config.ObjectName]NamedMap, len(n.running)+len(n.surplus))
	for name := range n.surplus {
		all[name] = NamedMap{Unread: manyNamed}
	}
	for name, i := range n.running {
		all[name] = i.known(name)
	}
	return all
}

// known returns the last known state. named.mu is held.
func (i *namedInformer) known(name config.ObjectName) NamedMap {
	if i.IsKnown() {
		o, _, _ := i.Items.GetByKey(name.String())
		m, _ := o.(*corev1.ConfigMap)
		if m != nil {
			i.last = m
		}
		return NamedMap{Map: m, Last: i.last}
	}
	select {
	case <-i.refused:
		return NamedMap{Unread: noRight}
	default:
		return NamedMap{Unread: notYet}
	}
}

// wantedMaps returns the ConfigMaps that the last conversion asked for: those of the oldest objects first. It
// returns false if the conversion failed.
func (c *Converter) wantedMaps() (names []config.ObjectName, ok bool) {
	if c.known == nil {
		return nil, false
	}
	users := c.known.users.maps
	oldest := make(map[config.ObjectName]time.Time, len(users))
	for name, parts := range users {
		oldest[name] = slices.MinFunc(parts, func(a, b *part) int { return a.maps[name].Compare(b.maps[name]) }).maps[name]
	}
	return slices.SortedFunc(maps.Keys(users), func(a, b config.ObjectName) int {
		return cmp.Or(oldest[a].Compare(oldest[b]), compareNames(a, b))
	}), true
}
