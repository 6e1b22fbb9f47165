package kube

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// Converter converts Objects into a Routing. It keeps the result of each group of Ingresses,
// and uses it again while the inputs of the group are the same objects. Informers replace
// objects and never change them. Only one goroutine may use a Converter.
type Converter struct {
	// File is the configuration of the file, with the section kubernetes. It takes
	// precedence over all objects.
	File *config.Config

	gateways gatewayConverter

	traits map[*networkingv1.Ingress]*traits
	pairs  map[*corev1.Secret]pair
	last   *conversionResult // nil: none

	controller *asController

	// For tests: the Ingresses that the last Convert converted; all Ingresses are one group.
	converted         int
	convertedGateways int
	together          bool
}

// conversionResult is the result of a Convert, and the parts that it consists of.
type conversionResult struct {
	file    *config.Config
	routing *Routing
	secret  *corev1.Secret                  // with the default certificate
	shared  *part                           // what no group has
	of      map[*networkingv1.Ingress]*part // the part of each Ingress
	parts   map[*part]bool

	// In the order of Routing.
	routes, backends, ingresses []item
}

// part is the result of one group. It never changes.
type part struct {
	ingresses []*networkingv1.Ingress // its inputs, like services and secrets
	services  []lookedUp[*corev1.Service]
	secrets   []lookedUp[*corev1.Secret]

	names    []config.ObjectName // of the Ingresses
	routes   []*config.Route
	backends []*Backend
	uses     [][]useOrder   // of the Users of each backend
	auth     []*config.Auth // that its routes name
	served   []namedSecret
	used     map[config.ObjectName]string // see conversion.used
	events   event.Set
	gateway  *gatewayPart // nil: it is not the part of a Gateway
}

// lookedUp is an object that a conversion asked for; nil: it does not exist.
type lookedUp[T any] struct {
	name   config.ObjectName
	object T
}

// lookups has the Services and Secrets that a conversion asked for.
type lookups struct {
	services map[config.ObjectName]*corev1.Service
	secrets  map[config.ObjectName]*corev1.Secret
}

// useOrder orders the objects that use a backend: first those with a claim that is not
// implicit, then the oldest.
type useOrder struct {
	implicit bool
	created  time.Time
}

// item is a route, a backend or an Ingress of a part, by its index.
type item struct {
	*part
	at int
}

// service is the Service of this name, or nil.
func (v *conversion) service(name config.ObjectName) *corev1.Service {
	s := v.services[name]
	if v.looked != nil {
		v.looked.services[name] = s
	}
	return s
}

// secret is the Secret of this name, or nil.
func (v *conversion) secret(name config.ObjectName) *corev1.Secret {
	s := v.secrets[name]
	if v.looked != nil {
		v.looked.secrets[name] = s
	}
	return s
}

// Convert converts o into a Routing. If nothing has changed since the last call, it returns
// the same Routing.
func (c *Converter) Convert(o *Objects) *Routing {
	c.forget(o)
	v := newConversion(c.File, o)
	v.pairs = c.pairs
	c.controller = c.controller.of(c.File, o)
	v.controller = c.controller.settings
	v.defaultCertificate()
	v.configured = v.findConfigured()
	n := c.change(v, c.groups(v))
	c.changeGateways(v, n)
	n.shared = v.shareOf(n)
	c.last = n.finish(v)
	return c.last.routing
}

// groups returns the groups of the Ingresses that weir serves.
func (c *Converter) groups(v *conversion) [][]*networkingv1.Ingress {
	ours := c.controller.all(v.ours())
	if c.together && len(ours) > 0 {
		return [][]*networkingv1.Ingress{ours}
	}
	return groups(ours, c.traitsOf, v.settings.HostOwnership == config.OwnedByNamespace)
}

// forget drops the results of objects that are gone.
func (c *Converter) forget(o *Objects) {
	if c.last != nil && c.last.file != c.File {
		c.last = nil
	}
	if c.pairs == nil {
		c.pairs, c.traits = map[*corev1.Secret]pair{}, map[*networkingv1.Ingress]*traits{}
	}
	if len(c.pairs) > len(o.Secrets) {
		c.pairs = only(c.pairs, o.Secrets)
	}
	const spare = 100 // otherwise each change would copy the map
	if len(c.traits) > len(o.Ingresses)+spare {
		c.traits = only(c.traits, o.Ingresses)
	}
}

// only returns the entries of these keys.
func only[K comparable, V any](all map[K]V, keys []K) map[K]V {
	kept := make(map[K]V, len(keys))
	for _, k := range keys {
		if v, known := all[k]; known {
			kept[k] = v
		}
	}
	return kept
}

func (c *Converter) traitsOf(o *networkingv1.Ingress) *traits {
	t := c.traits[o]
	if t == nil {
		t = traitsOf(o)
		c.traits[o] = t
	}
	return t
}

// next is the next conversionResult while it is made.
type next struct {
	conversionResult
	before  *conversionResult
	added   []*part
	dropped map[*part]bool
	classes *gateway.Status // of the classes of Gateways; nil: weir serves no Gateways
}

// change converts the groups that are new or have other inputs.
func (c *Converter) change(v *conversion, all [][]*networkingv1.Ingress) *next {
	n := &next{before: c.last, dropped: map[*part]bool{}}
	if n.before == nil || !n.before.sameDefault(v) {
		n.before = &conversionResult{}
	}
	kept := make(map[*part]bool, len(all))
	c.converted = 0
	for _, group := range all {
		if p := n.before.of[group[0]]; p != nil && p.isOf(group) && p.isCurrent(v) {
			kept[p] = true
			continue
		}
		p := v.group(group)
		n.added = append(n.added, p)
		kept[p] = true
		c.converted += len(group)
	}
	for p := range n.before.parts {
		if !kept[p] {
			n.dropped[p] = true
		}
	}
	n.file, n.secret, n.parts = v.file, v.secrets[v.settings.DefaultCertificate], kept
	return n
}

// sameDefault reports whether the default certificate is the same, on which all groups depend.
func (r *conversionResult) sameDefault(v *conversion) bool {
	return r.secret == v.secrets[v.settings.DefaultCertificate]
}

// isOf reports whether the part is that of these Ingresses.
func (p *part) isOf(group []*networkingv1.Ingress) bool {
	if len(group) != len(p.ingresses) {
		return false
	}
	if len(group) == 1 {
		return group[0] == p.ingresses[0]
	}
	mine := make(map[*networkingv1.Ingress]bool, len(group))
	for _, i := range p.ingresses {
		mine[i] = true
	}
	return !slices.ContainsFunc(group, func(i *networkingv1.Ingress) bool { return !mine[i] })
}

// isCurrent reports whether the objects that the part looked up are the same.
func (p *part) isCurrent(v *conversion) bool {
	for _, s := range p.services {
		if v.services[s.name] != s.object {
			return false
		}
	}
	for _, s := range p.secrets {
		if v.secrets[s.name] != s.object {
			return false
		}
	}
	return true
}

// listed returns a map as a list.
func listed[T any](all map[config.ObjectName]T) []lookedUp[T] {
	list := make([]lookedUp[T], 0, len(all))
	for name, o := range all {
		list = append(list, lookedUp[T]{name, o})
	}
	return list
}

// group converts one group.
func (v *conversion) group(all []*networkingv1.Ingress) *part {
	g := v.fork()
	g.looked = &lookups{map[config.ObjectName]*corev1.Service{}, map[config.ObjectName]*corev1.Secret{}}
	g.decide(all)
	g.uncover()
	p := g.part()
	p.ingresses = all
	for name, hosts := range g.award() {
		p.served = append(p.served, namedSecret{name, servedSecret{g.secret(name), hosts}})
	}
	g.used(p.used)
	for _, o := range g.decision.Owners {
		if o.Kind == ingressKind {
			p.names = append(p.names, o.Name)
		}
	}
	p.names = append(p.names, g.canaryNames()...)
	slices.SortFunc(p.names, compareNames)
	p.services, p.secrets = listed(g.looked.services), listed(g.looked.secrets)
	return p
}

// fork returns a conversion with the same objects and settings, and without results.
func (v *conversion) fork() *conversion {
	g := *v
	g.guards, g.shut, g.backends, g.uses = map[config.ObjectName]*claim.Guards{}, map[claim.Match]bool{}, map[string]*Backend{}, map[string][]useOrder{}
	g.asked, g.routes, g.events = map[*claim.Owner]annotation.Settings{}, nil, event.Set{}
	g.priorities = map[*claim.Owner]int{}
	g.auth, g.entries = map[*claim.Owner]*wantedAuth{}, map[string]*config.Auth{}
	g.moves = map[*claim.Claim]*config.Redirect{}
	return &g
}

// part returns the routes, backends and events so far.
func (v *conversion) part() *part {
	p := &part{routes: slices.Clip(v.routes), used: map[config.ObjectName]string{}, events: v.events}
	for _, a := range v.entries {
		p.auth = append(p.auth, a)
	}
	slices.SortFunc(p.auth, compareAuth)
	slices.SortStableFunc(p.routes, func(a, b *config.Route) int { return strings.Compare(a.Name, b.Name) })
	for _, name := range slices.Sorted(maps.Keys(v.backends)) {
		p.backends, p.uses = append(p.backends, v.backends[name]), append(p.uses, v.uses[name])
	}
	return p
}

// shareOf converts what belongs to no group: the ports for raw TCP, the Services that must
// have an endpoint on this node, and the default certificate.
func (v *conversion) shareOf(n *next) *part {
	v.tcp()
	v.tellController()
	used := map[config.ObjectName]string{}
	v.used(used)
	for p := range n.parts {
		for name, backend := range p.used {
			addUsed(used, name, backend)
		}
	}
	v.requireLocal(used)
	return v.part()
}

// finish makes the Routing of all parts. v has the results that belong to no group.
func (n *next) finish(v *conversion) *conversionResult {
	before := n.before.routing
	if before != nil && n.sameParts() && n.sameShared(v) && n.sameClasses() {
		n.routing = before
	}
	n.finishLists()
	if n.routing == nil {
		n.routing = n.join(v)
	}
	n.register()
	r := n.conversionResult // a copy, because n also has the previous result, which would stay in memory
	return &r
}

// register finds the part of each Ingress. It changes the map of the last result in place,
// because the last result is not used again.
func (n *next) register() {
	n.of = n.before.of
	if n.of == nil {
		n.of = make(map[*networkingv1.Ingress]*part, len(n.parts))
	}
	for p := range n.dropped {
		for _, i := range p.ingresses {
			delete(n.of, i)
		}
	}
	for _, p := range n.added {
		for _, i := range p.ingresses {
			n.of[i] = p
		}
	}
}

// finishLists makes the sorted lists of all parts.
func (n *next) finishLists() {
	n.routes = n.merged(n.before.routes, func(p *part) int { return len(p.routes) }, func(a, b item) int {
		return strings.Compare(a.part.routes[a.at].Name, b.part.routes[b.at].Name)
	})
	n.backends = n.merged(n.before.backends, func(p *part) int { return len(p.backends) }, func(a, b item) int {
		return strings.Compare(a.part.backends[a.at].Name, b.part.backends[b.at].Name)
	})
	n.ingresses = n.merged(n.before.ingresses, func(p *part) int { return len(p.names) }, func(a, b item) int {
		return compareNames(a.names[a.at], b.names[b.at])
	})
}

// merged removes the items of dropped parts from a sorted list, and adds those of new parts.
func (n *next) merged(before []item, count func(*part) int, compare func(a, b item) int) []item {
	if len(n.dropped)+len(n.added) == 0 {
		return before
	}
	var more []item
	for _, p := range n.added {
		for at := range count(p) {
			more = append(more, item{p, at})
		}
	}
	slices.SortStableFunc(more, compare)
	all := make([]item, 0, len(before)+len(more))
	for _, one := range before {
		if n.dropped[one.part] {
			continue
		}
		for len(more) > 0 && compare(more[0], one) < 0 {
			all, more = append(all, more[0]), more[1:]
		}
		all = append(all, one)
	}
	return append(all, more...)
}

// join makes the Routing.
func (n *next) join(v *conversion) *Routing {
	r := v.out
	r.Routes = n.joinRoutes()
	r.Backends = n.joinBackends()
	for _, i := range n.ingresses {
		r.Ingresses = append(r.Ingresses, i.names[i.at])
	}
	r.Events = n.joinEvents()
	r.Gateways = n.joinGateways()
	n.joinAuth(v, &r)
	v.out = r
	n.serve(v)
	r = v.out
	return &r
}

func compareAuth(a, b *config.Auth) int { return strings.Compare(a.Name, b.Name) }

// joinAuth joins the entries of auth, or takes those of the last Routing again.
func (n *next) joinAuth(v *conversion, r *Routing) {
	if before := n.before.routing; before != nil && before.authOf == v.file && reflect.DeepEqual(authOf(maps.Keys(n.dropped)), authOf(slices.Values(n.added))) {
		r.Auth, r.allAuth, r.authOf = before.Auth, before.allAuth, before.authOf
		return
	}
	all := authOf(maps.Keys(n.parts))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		r.Auth = append(r.Auth, *all[name])
	}
	r.allAuth, r.authOf = joined(v.file.Auth, r.Auth), v.file
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

func (n *next) joinRoutes() []*config.Route {
	all := make([]*config.Route, 0, len(n.routes)+len(n.shared.routes))
	last := n.shared.routes
	for _, i := range n.routes {
		r := i.part.routes[i.at]
		for len(last) > 0 && last[0].Name < r.Name {
			all, last = append(all, last[0]), last[1:]
		}
		all = append(all, r)
	}
	if all = append(all, last...); len(all) == 0 {
		return nil
	}
	return all
}

// joinBackends also joins the users of backends that several groups use.
func (n *next) joinBackends() (all []*Backend) {
	items := slices.Grow([]item(nil), len(n.backends)+len(n.shared.backends))
	items = append(items, n.backends...)
	for at := range n.shared.backends {
		items = append(items, item{n.shared, at})
	}
	name := func(i item) string { return i.part.backends[i.at].Name }
	if len(n.shared.backends) > 0 {
		slices.SortStableFunc(items, func(a, b item) int { return strings.Compare(name(a), name(b)) })
	}
	all = slices.Grow(all, len(items))
	for i := 0; i < len(items); {
		j := i + 1
		for j < len(items) && name(items[j]) == name(items[i]) {
			j++
		}
		all = append(all, joinUsers(items[i:j]))
		i = j
	}
	return all
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

// joinEvents takes the events of the last Routing again if they are the same.
func (n *next) joinEvents() []event.Event {
	before := n.before
	if before.routing != nil && maps.Equal(n.shared.events, before.shared.events) && maps.Equal(eventsOf(maps.Keys(n.dropped)), eventsOf(slices.Values(n.added))) {
		return before.routing.Events
	}
	return eventsOf(func(yield func(*part) bool) {
		for p := range n.parts {
			if !yield(p) {
				return
			}
		}
		yield(n.shared)
	}).Sorted()
}

// eventsOf joins the events of parts.
func eventsOf(parts func(yield func(*part) bool)) event.Set {
	all := event.Set{}
	for p := range parts {
		maps.Copy(all, p.events)
	}
	return all
}

// serve makes the certificates, or takes those of the last Routing again.
func (n *next) serve(v *conversion) {
	before := n.before
	if before.routing != nil && reflect.DeepEqual(secretsOf(maps.Keys(n.dropped)), secretsOf(slices.Values(n.added))) {
		v.out.Default, v.out.Certificates = before.routing.Default, before.routing.Certificates
		return
	}
	all := secretsOf(maps.Keys(n.parts))
	for _, name := range slices.SortedFunc(maps.Keys(all), compareNames) {
		v.serve(name, all[name].hosts)
	}
}

// servedSecret is a Secret and its hosts, in order.
type servedSecret struct {
	secret *corev1.Secret
	hosts  []string
}

// namedSecret is an element of part.served. Most parts have one, for which a map is too big.
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

// sameParts reports whether the new parts have the same results as those that they replace.
func (n *next) sameParts() bool {
	if len(n.dropped)+len(n.added) == 0 {
		return true
	}
	results := func(parts func(yield func(*part) bool)) any {
		m := next{}
		for p := range parts {
			m.added = append(m.added, p)
		}
		m.before, m.shared = &conversionResult{}, &part{}
		m.finishLists()
		var names []config.ObjectName
		for _, i := range m.ingresses {
			names = append(names, i.names[i.at])
		}
		var uses [][]useOrder
		for _, i := range m.backends {
			uses = append(uses, i.uses[i.at])
		}
		return []any{m.joinRoutes(), m.joinBackends(), uses, names, eventsOf(slices.Values(m.added)), secretsOf(slices.Values(m.added)), authOf(slices.Values(m.added)), gatewayResults(slices.Values(m.added))}
	}
	return reflect.DeepEqual(results(maps.Keys(n.dropped)), results(slices.Values(n.added)))
}

// sameShared reports whether the results that belong to no group are the same.
func (n *next) sameShared(v *conversion) bool {
	before := n.before
	r := before.routing
	return reflect.DeepEqual(before.shared.routes, n.shared.routes) && reflect.DeepEqual(before.shared.backends, n.shared.backends) &&
		maps.Equal(before.shared.events, n.shared.events) && reflect.DeepEqual(r.Listeners, v.out.Listeners) && r.Ports == v.out.Ports &&
		reflect.DeepEqual(r.HeaderPolicies, v.out.HeaderPolicies) && slices.Equal(r.RequireLocal, v.out.RequireLocal)
}
