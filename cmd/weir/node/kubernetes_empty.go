package node

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/event"
)

// emptyAfter is how long a backend must have no endpoint until its Ingresses get an event.
// An application that starts, or restarts its only Pod, has none for a short time.
const emptyAfter = 10 * time.Second

// withoutEndpoints returns the events of backends whose Services have no ready endpoint.
// For backends that have just become empty, it starts a timer. The caller holds s.change.
func (c *cluster) withoutEndpoints() (events []event.Event) {
	now, empty := time.Now(), map[string]time.Time{}
	young := false
	for _, name := range slices.Sorted(maps.Keys(c.bare)) {
		b := c.bare[name]
		since, known := c.empty[b.Name]
		if !known {
			since = now
		}
		empty[b.Name] = since
		if now.Sub(since) < c.s.emptyAfter {
			young = true
			continue
		}
		events = append(events, b.NoEndpoints()...)
	}
	c.empty = empty
	if young && !c.awaiting {
		c.awaiting = true
		time.AfterFunc(c.s.emptyAfter, func() { c.retell() })
	}
	return events
}

// findBare finds the backends without endpoints after a change of routes. It looks only at those
// that before, which may be nil, does not share. s.change is held.
func (c *cluster) findBare(before *objects) {
	now := c.adopted
	if before == nil {
		before, c.bare = &objects{routing: &kube.Routing{}}, map[string]*kube.Backend{}
	}
	changed := map[string]bool{}
	settings := config.Differ(before.backends, now.backends, func(b *config.Backend) string { return b.Name })
	for _, i := range settings.Gone {
		changed[before.backends[i].Name] = true
	}
	for _, j := range settings.Added {
		changed[now.backends[j].Name] = true
	}
	of := config.Differ(before.routing.Backends, now.routing.Backends, func(b *kube.Backend) string { return b.Name })
	for _, i := range of.Gone {
		changed[before.routing.Backends[i].Name] = true
	}
	for _, j := range of.Added {
		changed[now.routing.Backends[j].Name] = true
	}
	for name := range changed {
		c.noteBare(name)
	}
}

// noteBare notes whether a backend has no endpoint. s.change is held.
func (c *cluster) noteBare(name string) {
	all := c.adopted.routing.Backends
	at, known := slices.BinarySearchFunc(all, name, func(b *kube.Backend, name string) int { return strings.Compare(b.Name, name) })
	if known && len(all[at].Users) > 0 && c.isEmpty(name) {
		c.bare[name] = all[at]
	} else {
		delete(c.bare, name)
	}
}

// isEmpty returns true if the backend in effect has no endpoint.
func (c *cluster) isEmpty(backend string) bool {
	b := c.s.backends.Backend(backend)
	return b != nil && len(b.Settings().Endpoints) == 0
}

// retell computes the events of backends without endpoints again.
func (c *cluster) retell() {
	c.s.change.Lock()
	c.awaiting = false
	c.s.change.Unlock()
	c.s.tellSoon()
}

// noticeEmpty is called after the endpoints of a backend changed. It updates the events if
// the backend has lost its last endpoint, or has one again. s.change is held.
func (c *cluster) noticeEmpty(backend string) {
	c.noteBare(backend)
	if _, was := c.empty[backend]; was != c.isEmpty(backend) {
		c.s.tellSoon()
	}
}
