package kube

import (
	"iter"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weirproxy/weir/config"
)

// This file keeps the last conversion, and completes it with the newest endpoints.

// known is the result of the last conversion, with the newest endpoints, and the node.
type known struct {
	routing  *Routing
	backends []*config.Backend // routing's backends with their endpoints; replaced, never changed
	node     Node
	taints   []string // see nodeTaints
}

// differTo returns the differences between the backends of the last Routing and of the next one; both may be nil. It pauses, so
// only converting is held.
func (s *Source) differTo(next *Routing) config.Differences {
	if next == s.routing {
		return config.Differences{} // adopt needs none
	}
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
		found, _ := i.Items.ByIndex(byService, b.Source.String())
		for _, o := range found {
			of = append(of, o.(*discoveryv1.EndpointSlice))
		}
	}
	return Endpoints(b, service, of)
}

// lookAtNode reports this node if it has changed.
func (s *Source) lookAtNode(c *Change) {
	now := s.node.withoutObject()
	if nodes := all[*corev1.Node](s, Nodes); len(nodes) > 0 {
		now = nodeOf(nodes[0], s.taints)
	}
	if !reflect.DeepEqual(now, s.node) {
		s.node, c.Node = now, &now
	}
}
