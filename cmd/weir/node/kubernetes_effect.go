package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/event"
	"github.com/weirproxy/weir/proxy/backend"
)

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
}

// tellEffect reports the objects in effect, and their faults. The caller holds s.change.
func (c *cluster) tellEffect(file *config.Config) {
	r := c.adopted.inEffect(c.s.backends.Refusals(), c.withoutEndpoints())
	c.faults.Store(&r.Events)
	if c.control != nil && c.adopted.known() {
		c.control.InEffect(file, c.withOrders(r))
	}
}

// retellAfter is how long weir waits for more changes before it reports the objects in effect
// again.
const retellAfter = 100 * time.Millisecond

// tellSoon is called when the faults of objects in effect have changed: the refused addresses of
// backends, backends without endpoints, or orders of certificates.
func (s *server) tellSoon() {
	if !s.retelling.Swap(true) {
		time.AfterFunc(retellAfter, s.tellAgain)
	}
}

func (s *server) tellAgain() {
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
