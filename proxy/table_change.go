package proxy

import (
	"maps"
	"reflect"
	"slices"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/overlay"
	"github.com/weirproxy/weir/proxy/backend"
)

// In a cluster with thousands of Ingresses, nearly all routes are the same after a change. Then a
// table is the one before, with other routes of a few hosts. It shares all other hosts.

// mostChanges is the number of changed routes from which on a whole table is built.
const mostChanges = 300

// tableChange makes a table from the one before.
type tableChange struct {
	*Table
	parts  *Parts
	before *Table
	hosts  map[hostOf]hostChange
	places map[*Route][]int // of the changed routes, in the routes of the table
}

// hostOf is a host of a listener.
type hostOf struct{ listener, host string }

// hostChange is the routes of a host that change: they are gone, or new, or in another place.
type hostChange map[*Route]bool

// change makes t from the table before. done is false if only a whole table is right; then t is as
// it was.
func (t *Table) change(parts *Parts) (done bool, err error) {
	before := parts.Before
	if before == nil || !before.hasShapeOf(t) {
		return false, nil
	}
	d := config.Differ(before.cfg.Routes, t.cfg.Routes, func(r *config.Route) string { return r.Name })
	if len(d.Gone)+len(d.Added) > mostChanges {
		return false, nil
	}
	c := &tableChange{Table: t, parts: parts, before: before, hosts: map[hostOf]hostChange{}}
	routes, err := c.makeRoutes(&d)
	if err != nil || !c.findHosts(&d, routes) {
		return false, err
	}
	c.findPlaces(&d, routes)
	t.routes, t.unusual, t.edges = routes, before.unusual, maps.Clone(before.edges)
	return true, c.changeHosts()
}

// hasShapeOf reports whether another table has the same listeners, policies and kinds of backends.
func (t *Table) hasShapeOf(other *Table) bool {
	if !reflect.DeepEqual(t.cfg.Listeners, other.cfg.Listeners) || !slices.Equal(t.asserted, other.asserted) || !maps.Equal(t.policies, other.policies) {
		return false
	}
	if replaced, known := t.backends.Replaced(other.backends, func(a, b *backend.Backend) bool { return a == b }); !known || len(replaced) > 0 {
		return false
	}
	d := config.Differ(t.cfg.Backends, other.cfg.Backends, func(b *config.Backend) string { return b.Name })
	return !slices.ContainsFunc(d.Gone, func(i int) bool { return isUnusual(t.cfg.Backends[i]) }) &&
		!slices.ContainsFunc(d.Added, func(j int) bool { return isUnusual(other.cfg.Backends[j]) })
}

// makeRoutes returns the routes of the new table. It compiles only new routes.
func (c *tableChange) makeRoutes(d *config.Differences) ([]*Route, error) {
	routes := make([]*Route, len(c.cfg.Routes))
	for _, run := range d.Kept {
		copy(routes[run.After:], c.before.routes[run.Before:run.Before+run.Length])
	}
	old := map[string][]*Route{}
	for _, i := range d.Gone {
		r := c.before.routes[i]
		old[r.name] = append(old[r.name], r)
	}
	for _, j := range d.Added {
		r, err := c.parts.route(c.cfg.Routes[j], c.before.unusual, &reusable{routes: old[c.cfg.Routes[j].Name]})
		if err != nil {
			return nil, err
		}
		routes[j] = r
	}
	return routes, nil
}

// findHosts finds the hosts that change. It returns false if a listener has no hosts for a changed
// route.
func (c *tableChange) findHosts(d *config.Differences, routes []*Route) bool {
	return !slices.ContainsFunc(d.Gone, func(i int) bool { return !c.note(c.before.routes[i]) }) &&
		!slices.ContainsFunc(d.Added, func(j int) bool { return !c.note(routes[j]) })
}

// note notes a changed route for its hosts.
func (c *tableChange) note(r *Route) bool {
	for _, listener := range r.config.Listeners {
		e := c.before.edges[listener]
		if e == nil || e.protocol == config.ProtocolTCP || r.config.FirstBytes != "" {
			return false
		}
		for name := range r.hostNames() {
			at := hostOf{listener, name}
			if c.hosts[at] == nil {
				c.hosts[at] = hostChange{}
			}
			c.hosts[at][r] = true
		}
	}
	return true
}

// findPlaces finds the places of the changed routes. A route that is gone in one place may be in
// another one.
func (c *tableChange) findPlaces(d *config.Differences, routes []*Route) {
	c.places = make(map[*Route][]int, len(d.Gone)+len(d.Added))
	for _, i := range d.Gone {
		c.places[c.before.routes[i]] = nil
	}
	for _, j := range d.Added {
		c.places[routes[j]] = nil
	}
	for at, r := range routes {
		if places, changed := c.places[r]; changed {
			c.places[r] = append(places, at)
		}
	}
}

// changeHosts makes the hosts that change, and their edges.
func (c *tableChange) changeHosts() error {
	changes := map[*edge][]overlay.Change[*host]{}
	for at, h := range c.hosts {
		e := c.edges[at.listener]
		if e == c.before.edges[at.listener] { // edges are shared until one of their hosts changes
			e = new(*e)
			c.edges[at.listener] = e
		}
		was, now := e.host(at.host), (*host)(nil)
		if routes := c.routesOf(was, h); len(routes) > 0 {
			var err error
			if now, err = c.makeHost(e, at.host, routes); err != nil {
				return err
			}
		}
		e.kinds.add(was, -1)
		e.kinds.add(now, 1)
		if at.host == anyHost {
			e.any = now
		} else if now != was {
			changes[e] = append(changes[e], overlay.Change[*host]{Key: at.host, Value: now, Gone: now == nil})
		}
	}
	for i := range c.cfg.Listeners {
		l := &c.cfg.Listeners[i]
		e := c.edges[l.Name]
		if e == c.before.edges[l.Name] {
			continue
		}
		e.hosts = e.hosts.With(changes[e]...)
		if e.adoptKinds(); l.Protocol == config.ProtocolTLS {
			e.chooseNameless(c.parts.Policies[l.TLSPolicy])
		}
	}
	return nil
}

// routesOf returns the routes of a host after its change, in the order of the configuration; was
// may be nil.
func (c *tableChange) routesOf(was *host, h hostChange) (routes []*Route) {
	var places []int // of the changed ones
	for r := range h {
		places = append(places, c.places[r]...)
	}
	slices.Sort(places)
	at := 0
	if was != nil {
		for _, r := range was.routes {
			if h[r] {
				continue
			}
			for ; c.routes[at] != r; at++ { // the kept routes are in the order of c.routes
			}
			for ; len(places) > 0 && places[0] < at; places = places[1:] {
				routes = append(routes, c.routes[places[0]])
			}
			routes = append(routes, r)
			at++
		}
	}
	for _, place := range places {
		routes = append(routes, c.routes[place])
	}
	return routes
}

// makeHost returns a host with these routes: that of the table before if it is the same.
func (c *tableChange) makeHost(e *edge, name string, routes []*Route) (*host, error) {
	h := &host{name: name}
	for _, r := range routes {
		if err := h.add(e, r, c.parts.Policies); err != nil {
			return nil, err
		}
	}
	h, compiled, err := e.compile(h, c.before.edges[e.name])
	c.compiled += compiled
	return h, err
}
