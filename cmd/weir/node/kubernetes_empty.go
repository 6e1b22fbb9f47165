package node

import (
	"time"

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
	for i := range c.adopted.routing.Backends {
		b := c.adopted.routing.Backends[i]
		if len(b.Users) == 0 || !c.isEmpty(b.Name) {
			continue
		}
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
	c.s.refusalsChanged()
}

// noticeEmpty is called after the endpoints of a backend changed. It updates the events if
// the backend has lost its last endpoint, or has one again. s.change is held.
func (c *cluster) noticeEmpty(backend string) {
	if _, was := c.empty[backend]; was != c.isEmpty(backend) {
		c.s.refusalsChanged()
	}
}
