package kube

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/event"
	"github.com/weirproxy/weir/pause"
)

// results are the results of all groups, and the Routing that was made of them. A change of a part
// changes only the places of the lists that belong to this part.
type results struct {
	routing *Routing // nil: none yet
	shared  *part    // what no group has; nil: none yet

	parts   map[*part]bool // of all groups
	telling map[*part]bool // with events, shared as well
	using   map[*part]bool // with used
	events  event.Set      // of all of them

	// In the order of names. The lists are replaced, never changed.
	routes   []*config.Route
	items    []item
	backends []*Backend // of the items; items of the same name are joined
	names    []config.ObjectName
}

// item is a backend of a part, by its index.
type item struct {
	*part
	at int
}

func (i item) name() string { return i.part.backends[i.at].Name }

func newResults() results {
	return results{parts: map[*part]bool{}, telling: map[*part]bool{}, using: map[*part]bool{}}
}

// finish makes the Routing of all parts.
func (u *updating) finish() *Routing {
	r := &u.results
	for p := range u.dropped {
		r.remove(p)
		u.users.remove(p)
	}
	for _, p := range u.added {
		r.add(p)
		u.users.add(p)
	}
	shared, out := u.shareOf()
	u.share(shared)
	u.keepEqual()
	u.edit()
	u.complete(out)
	if r.routing == nil || !r.routing.isSame(out) {
		r.routing = out
	}
	return r.routing
}

func (r *results) add(p *part) {
	r.parts[p] = true
	if len(p.events) > 0 {
		r.telling[p] = true
	}
	if len(p.used) > 0 {
		r.using[p] = true
	}
}

func (r *results) remove(p *part) {
	delete(r.parts, p)
	delete(r.telling, p)
	delete(r.using, p)
}

func (u *users) add(p *part) {
	for i, name := range p.services {
		pause.InLoop(i)
		u.services[name] = append(u.services[name], p)
	}
	for _, name := range p.secrets {
		u.secrets[name] = append(u.secrets[name], p)
	}
	for name := range p.maps {
		u.maps[name] = append(u.maps[name], p)
	}
}

func (u *users) remove(p *part) {
	for i, name := range p.services {
		pause.InLoop(i)
		removeUser(u.services, name, p)
	}
	for _, name := range p.secrets {
		removeUser(u.secrets, name, p)
	}
	for name := range p.maps {
		removeUser(u.maps, name, p)
	}
}

func removeUser(of map[config.ObjectName][]*part, name config.ObjectName, p *part) {
	if of[name] = slices.DeleteFunc(of[name], func(other *part) bool { return other == p }); len(of[name]) == 0 {
		delete(of, name)
	}
}

// share takes the part that belongs to no group, if it differs from the last such part.
func (u *updating) share(p *part) {
	r := &u.results
	if old := r.shared; old != nil {
		if reflect.DeepEqual(old, p) {
			return
		}
		delete(r.telling, old)
		u.dropped[old] = true
	}
	if r.shared = p; len(p.events) > 0 {
		r.telling[p] = true
	}
	u.added = append(u.added, p)
}

// keepEqual gives new parts the routes and backends of dropped parts that are equal. So the
// table and the backends need not look at them.
func (u *updating) keepEqual() {
	routes, backends := map[string][]*config.Route{}, map[string][]*Backend{}
	for p := range u.dropped {
		pause.IfDue()
		for _, r := range p.routes {
			routes[r.Name] = append(routes[r.Name], r)
		}
		for _, b := range p.backends {
			backends[b.Name] = append(backends[b.Name], b)
		}
	}
	for _, p := range u.added {
		for i, r := range p.routes {
			pause.IfDue()
			if n := slices.IndexFunc(routes[r.Name], r.Equal); n >= 0 {
				p.routes[i] = routes[r.Name][n]
			}
		}
		for i, b := range p.backends {
			pause.IfDue()
			if n := slices.IndexFunc(backends[b.Name], func(old *Backend) bool { return reflect.DeepEqual(old, b) }); n >= 0 {
				p.backends[i] = backends[b.Name][n]
			}
		}
	}
}

// edit puts the results of the new parts into the lists, in place of those of the dropped parts.
func (u *updating) edit() {
	r := &u.results
	routes, names, items := edits[*config.Route, routePlace]{}, edits[config.ObjectName, config.ObjectName]{}, edits[item, string]{}
	for p := range u.dropped {
		pause.IfDue()
		routes.remove(p.routes)
		names.remove(p.names)
		items.remove(itemsOf(p))
	}
	for _, p := range u.added {
		pause.IfDue()
		routes.added = append(routes.added, p.routes...)
		names.added = append(names.added, p.names...)
		items.added = append(items.added, itemsOf(p)...)
	}
	r.routes, _ = routes.apply(r.routes, placeOf, routePlace.compare)
	r.names, _ = names.apply(r.names, func(name config.ObjectName) config.ObjectName { return name }, compareNames)
	var changed []string
	r.items, changed = items.apply(r.items, item.name, strings.Compare)
	r.joinBackends(changed)
}

// routePlace is the place of a route in the list. A route of several Gateways has a route of the same
// name for each, and their order must not depend on which of them changed last. On shared listeners these
// have different hosts.
type routePlace struct{ name, gateway string }

func placeOf(r *config.Route) routePlace {
	p := routePlace{name: r.Name}
	if len(r.Listeners) == 0 || !strings.HasPrefix(r.Listeners[0], "gateway/") {
		if r.Namespace != "" && r.Ingress == "" {
			p.gateway = hostsOf(r)[0]
		}
		return p
	}
	p.gateway = r.Listeners[0]
	for i, slashes := 0, 0; i < len(p.gateway); i++ {
		if p.gateway[i] == '/' {
			slashes++
		}
		if slashes == 3 { // the namespace and the name are over
			p.gateway = p.gateway[:i]
		}
	}
	return p
}

func (p routePlace) compare(o routePlace) int {
	return cmp.Or(strings.Compare(p.name, o.name), strings.Compare(p.gateway, o.gateway))
}

func itemsOf(p *part) (all []item) {
	for at := range p.backends {
		all = append(all, item{p, at})
	}
	return all
}

// joinBackends makes the backends of these names again. It joins the users of backends that
// several groups use.
func (r *results) joinBackends(names []string) {
	var all edits[*Backend, string]
	for _, name := range names {
		pause.IfDue()
		old := find(r.backends, name, func(b *Backend) string { return b.Name })
		items := find(r.items, name, item.name)
		all.remove(old)
		if len(items) == 0 {
			continue
		}
		now := joinUsers(items)
		if len(old) > 0 && reflect.DeepEqual(old[0], now) {
			now = old[0]
		}
		all.added = append(all.added, now)
	}
	r.backends, _ = all.apply(r.backends, func(b *Backend) string { return b.Name }, strings.Compare)
}

// find returns the elements of a name in a list in the order of names.
func find[T any](list []T, name string, nameOf func(T) string) []T {
	compare := func(e T, name string) int { return strings.Compare(nameOf(e), name) }
	from, _ := slices.BinarySearchFunc(list, name, compare)
	n := 0
	for from+n < len(list) && nameOf(list[from+n]) == name {
		n++
	}
	return list[from : from+n]
}

// joinUsers joins backends with the same name.
func joinUsers(items []item) *Backend {
	first := items[0].part.backends[items[0].at]
	if len(items) == 1 {
		return first
	}
	b := *first
	type user struct {
		useOrder
		corev1.ObjectReference
	}
	var users []user
	for _, i := range items {
		for at, o := range i.part.backends[i.at].Users {
			users = append(users, user{i.uses[i.at][at], o})
		}
	}
	slices.SortStableFunc(users, func(a, b user) int {
		return cmp.Or(compareBools(a.implicit, b.implicit), a.created.Compare(b.created), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	b.Users = nil
	for _, u := range users {
		if len(b.Users) < maxUsers && !slices.Contains(b.Users, u.ObjectReference) {
			b.Users = append(b.Users, u.ObjectReference)
		}
	}
	return &b
}

// edits are changes of a list in the order of keys.
type edits[T comparable, K any] struct {
	gone  map[T]bool
	added []T
}

func (e *edits[T, K]) remove(all []T) {
	if e.gone == nil {
		e.gone = make(map[T]bool, len(all))
	}
	for _, one := range all {
		e.gone[one] = true
	}
}

// apply returns the changed list, and the keys at which it may have changed. If nothing has
// changed, it is the same list.
func (e *edits[T, K]) apply(list []T, key func(T) K, compare func(a, b K) int) (next []T, keys []K) {
	for one := range e.gone {
		keys = append(keys, key(one))
	}
	for _, one := range e.added {
		keys = append(keys, key(one))
	}
	slices.SortFunc(keys, compare)
	keys = slices.CompactFunc(keys, func(a, b K) bool { return compare(a, b) == 0 })
	slices.SortStableFunc(e.added, func(a, b T) int { return compare(key(a), key(b)) })
	if len(keys) == 0 {
		return list, nil
	}
	next = make([]T, 0, len(list)+len(e.added))
	rest, added := list, e.added
	for _, k := range keys {
		at, _ := slices.BinarySearchFunc(rest, k, func(one T, k K) int { return compare(key(one), k) })
		next, rest = append(next, rest[:at]...), rest[at:]
		for ; len(rest) > 0 && compare(key(rest[0]), k) == 0; rest = rest[1:] {
			if !e.gone[rest[0]] {
				next = append(next, rest[0])
			}
		}
		for ; len(added) > 0 && compare(key(added[0]), k) == 0; added = added[1:] {
			next = append(next, added[0])
		}
	}
	next = append(next, rest...)
	switch {
	case slices.Equal(next, list):
		return list, keys
	case len(next) == 0:
		return nil, keys
	}
	return next, keys
}

// complete adds the lists and everything else to the Routing.
func (u *updating) complete(out *Routing) {
	r, before := &u.results, u.results.routing
	out.Routes, out.Backends, out.Ingresses = r.routes, r.backends, r.names
	if before != nil {
		keep(&out.Listeners, before.Listeners)
		keep(&out.HeaderPolicies, before.HeaderPolicies)
		keep(&out.RequireLocal, before.RequireLocal)
	}
	u.joinEvents(out)
	u.joinGateways(out)
	u.joinAuth(out)
	u.joinPolicies(out)
	u.joinCertificates(out)
}

// keep takes a list of the last Routing if it is equal.
func keep[T any](now *[]T, before []T) {
	if reflect.DeepEqual(*now, before) {
		*now = before
	}
}

// joinEvents joins the events of all parts. If they have not changed, it takes the events of the last
// Routing again.
func (u *updating) joinEvents(out *Routing) {
	r := &u.results
	if r.routing == nil || u.reclassed || u.touched(func(p *part) bool { return len(p.events) > 0 }) {
		all := event.Set{}
		for p := range r.telling {
			maps.Copy(all, p.events)
		}
		for m := range u.unclear {
			maps.Copy(all, m.events)
		}
		if r.routing == nil || !maps.Equal(all, r.events) {
			r.events, out.Events = all, all.Sorted()
			return
		}
	}
	out.Events = r.routing.Events
}

func compareAuth(a, b *config.Auth) int { return strings.Compare(a.Name, b.Name) }

// joinAuth joins the entries of auth. If they are equal to those of the last Routing, it takes
// these again.
func (u *updating) joinAuth(out *Routing) {
	before := u.results.routing
	if before != nil && !u.touched(func(p *part) bool { return len(p.auth) > 0 }) {
		out.Auth, out.allAuth, out.authOf = before.Auth, before.allAuth, before.authOf
		return
	}
	all := authOf(maps.Keys(u.results.parts))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out.Auth = append(out.Auth, *all[name])
	}
	if before != nil && reflect.DeepEqual(out.Auth, before.Auth) {
		out.Auth, out.allAuth, out.authOf = before.Auth, before.allAuth, before.authOf
		return
	}
	out.allAuth, out.authOf = joined(u.file.Auth, out.Auth), u.file
}

// joinPolicies joins the TLS policies of all parts. If they are equal to those of the last Routing, it
// takes these again.
func (u *updating) joinPolicies(out *Routing) {
	before := u.results.routing
	if before != nil && !u.touched(func(p *part) bool { return len(p.policies) > 0 }) {
		out.Policies = before.Policies
		return
	}
	all := map[string]config.TLSPolicy{}
	for p := range u.results.parts {
		for _, one := range p.policies {
			all[one.Name] = one
		}
	}
	out.Policies = slices.SortedFunc(maps.Values(all), comparePolicies)
	if before != nil {
		keep(&out.Policies, before.Policies)
	}
}

// touched reports whether is returns true for a dropped or an added part.
func (u *updating) touched(is func(*part) bool) bool {
	for p := range u.dropped {
		if is(p) {
			return true
		}
	}
	return slices.ContainsFunc(u.added, is)
}

// authOf joins the entries of auth of parts, by their names.
func authOf(parts func(yield func(*part) bool)) map[string]*config.Auth {
	all := map[string]*config.Auth{}
	for p := range parts {
		for _, a := range p.auth {
			all[a.Name] = a
		}
	}
	return all
}

// joinCertificates makes the certificates, or takes those of the last Routing again.
func (u *updating) joinCertificates(out *Routing) {
	before := u.results.routing
	if before != nil && u.results.sameDefault(out) && reflect.DeepEqual(secretsOf(maps.Keys(u.dropped)), secretsOf(slices.Values(u.added))) {
		out.Default, out.Certificates = before.Default, before.Certificates
		return
	}
	v := u.fork()
	v.out.Default = out.Default
	all := secretsOf(maps.Keys(u.results.parts))
	for _, name := range slices.SortedFunc(maps.Keys(all), compareNames) {
		v.serve(name, all[name].hosts)
	}
	out.Certificates = v.out.Certificates
}

// sameDefault reports whether the default certificate is that of the last Routing.
func (r *results) sameDefault(now *Routing) bool {
	a, b := r.routing.Default, now.Default
	return a == b || a != nil && b != nil && a.Pair.Name == b.Pair.Name && slices.Equal(a.Pair.CertPEM, b.Pair.CertPEM) && a.Pair.KeyPEM == b.Pair.KeyPEM
}

// servedSecret is a Secret and its hosts, in order.
type servedSecret struct {
	secret *corev1.Secret
	hosts  []string
}

// namedSecret is an element of part.served. Most parts have one Secret, for which a map is too big.
type namedSecret struct {
	name config.ObjectName
	servedSecret
}

// secretsOf joins the served Secrets of parts.
func secretsOf(parts func(yield func(*part) bool)) map[config.ObjectName]servedSecret {
	all := map[config.ObjectName]servedSecret{}
	for p := range parts {
		for _, s := range p.served {
			all[s.name] = servedSecret{s.secret, append(all[s.name].hosts, s.hosts...)}
		}
	}
	for _, s := range all {
		slices.Sort(s.hosts)
	}
	return all
}

// isSame reports whether a Routing shares everything with r.
func (r *Routing) isSame(o *Routing) bool {
	return sameList(r.Listeners, o.Listeners) && r.Ports == o.Ports && sameList(r.HeaderPolicies, o.HeaderPolicies) && sameList(r.Routes, o.Routes) &&
		sameList(r.Backends, o.Backends) && sameList(r.Certificates, o.Certificates) && sameList(r.Auth, o.Auth) && sameList(r.Policies, o.Policies) && r.Default == o.Default &&
		r.Gateways == o.Gateways && sameList(r.RequireLocal, o.RequireLocal) && sameList(r.Ingresses, o.Ingresses) && sameList(r.Events, o.Events)
}

// SameCertificates reports whether a Routing shares its certificates with r, because no conversion
// has changed them.
func (r *Routing) SameCertificates(o *Routing) bool {
	return sameList(r.Certificates, o.Certificates) && r.Default == o.Default && sameList(r.Gateways.certificates(), o.Gateways.certificates())
}

// sameList reports whether two lists are the same piece of memory.
func sameList[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }
