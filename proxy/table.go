package proxy

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/overlay"
	"github.com/weirproxy/weir/pause"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/filter"
	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/proxy/route"
	"github.com/weirproxy/weir/tls/policy"
)

// Table determines the handling of every connection and request. It is immutable: a reload
// builds a new table, and Proxy.Swap puts it in place.
type Table struct {
	edges    map[string]*edge
	routes   []*Route           // in the order of the configuration
	named    func() namedRoutes // made on demand
	ech      []tls.EncryptedClientHelloKey
	cfg      *config.Config
	backends *overlay.Map[*backend.Backend]
	unusual  map[string]*config.Backend // backends for raw connections, and missing ones
	asserted []string                   // see config.AssertedHeaders
	policies map[string]*policy.Policy

	compiled int // the hosts that NewTable compiled, for tests
}

// Route is the compiled form of a route of the configuration.
type Route struct {
	name    string
	backend *backend.Backend // nil: weir answers all requests of the route, or it is weighted
	config  *config.Route
	tunnel  bool // the backend is for raw connections
	metrics *routeMetrics
	filters *filter.Chain // nil: none
	closed  *closed       // nil: weir forwards the requests
	pages   []errorPage
	mirrors []*mirror

	weighted *weighted    // nil: there is at most one backend
	limits   *tryLimits   // of timeouts and retries; nil: those of the backend
	fallback *Route       // with another backend, while that of the route has no endpoint; nil: none
	report   *errorReport // what the backend of a fallback learns of the route; nil: it is no fallback
	whole    *Route       // the weighted route of which this is a destination; nil: none
}

// edge is the part of the table that belongs to one listener.
type edge struct {
	name       string
	protocol   config.Protocol
	timeouts   config.ListenerTimeouts
	forwarding *filter.Forwarding

	http2          bool // the listener offers HTTP/2 to TLS clients
	priorKnowledge bool // clients without TLS may begin with HTTP/2
	lenient        http1.Lenient
	streams        int // limit of concurrent HTTP/2 streams on one connection

	raw         *Route // of a tcp listener
	ssh         *Route // for connections that begin with SSH
	passthrough bool   // some host has tls: passthrough, so weir must read the ClientHello first
	tunnels     bool   // weir terminates the TLS of some host for a tcp backend
	http        bool   // some host, or the route without hosts, serves requests

	hosts    *route.Hosts[*host]
	kinds    hostKinds
	any      *host          // of routes without hosts
	fallback *policy.Policy // of hosts without a policy
	nameless *policy.Policy // of clients without SNI, for the handshake and for requests to any

	handshakes *atomic.Pointer[prometheus.Observer] // their times; nil: there was none yet
}

// hostKinds counts the hosts of an edge by what they have. A host may count several times.
type hostKinds struct{ passthrough, tunnel, http int }

// add counts a host n times; h may be nil.
func (k *hostKinds) add(h *host, n int) {
	if h == nil {
		return
	}
	if h.passthrough != nil {
		k.passthrough += n
	}
	if h.tunnel != nil {
		k.tunnel += n
	}
	if h.http {
		k.http += n
	}
}

// host is the part of an edge that belongs to one host.
type host struct {
	name        string         // as in the routes; "*" for routes without hosts
	policy      *policy.Policy // nil: the fallback
	passthrough *Route
	tunnel      *Route // the route for the decrypted bytes, if the host is a tunnel; nil: it is not
	http        bool   // it has routes for requests
	paths       *route.Paths[*Route]
	routes      []*Route                 // from which the host was made
	respelled   *route.Respelled[*Route] // nil: no route of the host has a guard
	cors        bool                     // some route of the host answers preflights
}

// Parts are the objects, beside the configuration, from which a table is built.
type Parts struct {
	Backends *overlay.Map[*backend.Backend]
	Policies map[string]*policy.Policy
	Metrics  *Metrics
	Shared   *filter.SharedPlan            // nil: no route names shared state
	ECH      []tls.EncryptedClientHelloKey // policy.ParseECH makes them
	// Before is the table in effect, if it was built with the same Policies and Metrics.
	// NewTable uses the routes and hosts of it that have not changed. nil: none.
	Before *Table
}

// NewTable builds the table of a valid configuration. The backends need not be in effect
// yet.
func NewTable(cfg *config.Config, parts Parts) (*Table, error) {
	t := &Table{edges: make(map[string]*edge), routes: make([]*Route, 0, len(cfg.Routes)), ech: parts.ECH, cfg: cfg, backends: parts.Backends, asserted: cfg.AssertedHeaders(), policies: parts.Policies}
	t.named = sync.OnceValue(t.nameRoutes)
	if done, err := t.change(&parts); done || err != nil {
		return t, err
	}
	unfinished := make(map[string]*unfinishedEdge)
	for i := range cfg.Listeners {
		e := newEdge(&cfg.Listeners[i], parts.Policies, t.asserted)
		t.edges[e.name], unfinished[e.name] = e, parts.Before.unfinished(e)
	}
	t.unusual = unusualBackends(cfg)
	known := parts.Before.reusable()
	for _, c := range cfg.Routes {
		pause.IfDue()
		r, err := parts.route(c, t.unusual, known)
		if err != nil {
			return nil, err
		}
		t.routes = append(t.routes, r)
		for _, name := range r.config.Listeners {
			e := unfinished[name]
			if e == nil {
				return nil, noListener(r, name)
			}
			if err := e.add(r, parts.Policies); err != nil {
				return nil, err
			}
		}
	}
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		if err := unfinished[l.Name].finish(); err != nil {
			return nil, err
		}
		t.compiled += unfinished[l.Name].compiled
		if l.TLSPolicy != "" && parts.Policies[l.TLSPolicy] == nil {
			return nil, fmt.Errorf("building the table: listener %s names the TLS policy %s, which does not exist", l.Name, l.TLSPolicy)
		}
		if l.Protocol == config.ProtocolTLS {
			t.edges[l.Name].chooseNameless(parts.Policies[l.TLSPolicy])
		}
	}
	return t, nil
}

func noListener(r *Route, name string) error {
	return fmt.Errorf("building the table: route %s names the listener %s, which does not exist", r.name, name)
}

// isUnusual reports whether the routes to a backend depend on more than its name.
func isUnusual(b *config.Backend) bool { return b.Protocol == config.ProtocolTCP || b.Missing }

func isMissing(b *config.Backend) bool { return b != nil && b.Missing }

// unusualBackends are the backends for raw connections, and those that are missing.
func unusualBackends(cfg *config.Config) map[string]*config.Backend {
	unusual := map[string]*config.Backend{}
	for _, b := range cfg.Backends {
		if isUnusual(b) {
			unusual[b.Name] = b
		}
	}
	return unusual
}

// namedRoutes are the routes by name. Those of the file come first, and have any order. Those of
// objects follow in the order of their names, unless a test makes a configuration of its own.
type namedRoutes struct {
	ofFile  map[string][]*Route
	objects []*Route
}

func (t *Table) nameRoutes() namedRoutes {
	n := namedRoutes{ofFile: map[string][]*Route{}}
	for i, r := range t.routes {
		if r.config.Namespace != "" && slices.IsSortedFunc(t.routes[i:], func(a, b *Route) int { return strings.Compare(a.name, b.name) }) {
			n.objects = t.routes[i:]
			break
		}
		n.ofFile[r.name] = append(n.ofFile[r.name], r)
	}
	return n
}

// find returns the routes of a name.
func (t *Table) find(name string) (found []*Route) {
	all := t.named()
	if found := all.ofFile[name]; len(found) > 0 {
		return found
	}
	from, known := slices.BinarySearchFunc(all.objects, name, func(r *Route, name string) int { return strings.Compare(r.name, name) })
	if !known {
		return nil
	}
	for from < len(all.objects) && all.objects[from].name == name {
		found, from = append(found, all.objects[from]), from+1
	}
	return found
}

// has returns true if the table has the route on the listener.
func (t *Table) has(on routeOn) bool {
	return slices.ContainsFunc(t.find(on.route), func(r *Route) bool { return slices.Contains(r.config.Listeners, on.listener) })
}

func newEdge(l *config.Listener, policies map[string]*policy.Policy, asserted []string) *edge {
	return &edge{
		name: l.Name, handshakes: new(atomic.Pointer[prometheus.Observer]), protocol: l.Protocol, timeouts: l.Timeouts, forwarding: filter.NewForwarding(l, asserted...),
		http2: l.HTTP2.Offer, priorKnowledge: l.HTTP2.PriorKnowledge, streams: l.HTTP2.MaxStreams, lenient: backend.LenientOf(l.Lenient),
		fallback: policies[cmp.Or(l.UnknownPolicy, config.DefaultTLSPolicy)],
	}
}

// reusable are the routes of a table that the next table may use. It follows the order of the
// next configuration, which is that of the table's apart from a few changes.
type reusable struct {
	routes []*Route
	at     int // the first one that was not passed
}

// reusable returns the routes of t; t may be nil.
func (t *Table) reusable() *reusable {
	if t == nil {
		return &reusable{}
	}
	return &reusable{routes: t.routes}
}

// find returns the route of these settings, backends and kind; nil: there is none. The routes
// of objects are in the order of their names. Those of the file are the same in both tables.
func (u *reusable) find(r *config.Route, backends *overlay.Map[*backend.Backend], tunnel bool) *Route {
	for u.at < len(u.routes) && u.routes[u.at].config != r && u.routes[u.at].name < r.Name {
		u.at++
	}
	rest := u.routes[u.at:]
	if len(rest) > 0 && rest[0].config == r {
		u.at++
	}
	for _, known := range rest {
		if known.name != r.Name {
			break
		}
		if known.tunnel == tunnel && known.leadsTo(backends) && known.asks(backends) && (known.config == r || known.config.Equal(r)) {
			return known
		}
	}
	return nil
}

// route returns the compiled form of a route: that of the table before if it is the same.
func (parts *Parts) route(r *config.Route, unusual map[string]*config.Backend, before *reusable) (*Route, error) {
	first := unusual[r.FirstBackend()]
	raw := first != nil && first.Protocol == config.ProtocolTCP
	if known := before.find(r, parts.Backends, raw); known != nil {
		return known, nil
	}
	names := r.BackendNames()
	if len(names) == 0 && !r.Answers() && r.Closure == nil {
		return nil, fmt.Errorf("building the table: route %s names no backend", r.Name)
	}
	if f := r.Fallback; f != nil {
		names = append(names, f.Backend)
	}
	for _, name := range names {
		if parts.backend(name) == nil {
			return nil, fmt.Errorf("building the table: route %s names the backend %s, which does not exist", r.Name, name)
		}
	}
	made := &Route{name: r.Name, backend: parts.backend(r.Backend), config: r, tunnel: raw,
		metrics: parts.metrics(r, r.Backend), filters: filter.Compile(r, parts.Shared), closed: newClosed(r.Closure).orMissing(isMissing(unusual[r.Backend])), pages: newErrorPages(r.Errors, parts.Backends), mirrors: newMirrors(r.Mirror, parts.Backends),
		limits: newTryLimits(r)}
	if len(r.Backends) > 0 {
		made.weighted = parts.weighted(made, unusual)
	}
	made.fallback = parts.newFallback(made)
	return made, nil
}

// backend returns the backend of a name, or nil.
func (parts *Parts) backend(name string) *backend.Backend {
	b, _ := parts.Backends.Get(name)
	return b
}

// metrics returns the metrics of a route with one of its backends; empty: without a backend.
func (parts *Parts) metrics(r *config.Route, backend string) *routeMetrics {
	return parts.Metrics.route(routeKey{routeLabels{r.Name, r.Namespace, r.Ingress, r.IngressHost}, backend})
}

// weighted returns the destinations of a route.
func (parts *Parts) weighted(whole *Route, unusual map[string]*config.Backend) *weighted {
	var all []*backend.Backend
	var routes []*Route
	var weights []uint64
	for _, one := range whole.config.Backends {
		b := parts.backend(one.Name)
		all = append(all, b)
		if one.Weight == 0 && whole.config.Canary == nil {
			continue
		}
		d := *whole
		d.whole, d.backend, d.metrics, d.closed = whole, b, parts.metrics(whole.config, one.Name), whole.closed.orMissing(isMissing(unusual[one.Name]))
		d.filters = whole.filters.ForBackend(one.Request)
		routes, weights = append(routes, &d), append(weights, uint64(one.Weight))
	}
	w := newWeighted(routes, weights)
	w.all, w.canary = all, newCanary(whole.config.Canary)
	return w
}

// asks reports whether the inquiries of the route go to these backends.
func (r *Route) asks(backends *overlay.Map[*backend.Backend]) bool {
	isOther := func(b *backend.Backend) bool {
		now, _ := backends.Get(b.Name())
		return now != b
	}
	return (r.fallback == nil || !isOther(r.fallback.backend)) &&
		!slices.ContainsFunc(r.pages, func(p errorPage) bool { return isOther(p.backend) }) &&
		!slices.ContainsFunc(r.mirrors, func(m *mirror) bool { return isOther(m.backend) })
}

// unfinishedEdge is an edge while routes are added to it.
type unfinishedEdge struct {
	*edge
	before   *edge            // of the table before; nil: none
	byName   map[string]*host // without compiled paths; anyHost for routes without hosts
	compiled int              // hosts
}

// unfinished returns an edge without routes. t, which may be nil, is the table before.
func (t *Table) unfinished(e *edge) *unfinishedEdge {
	u := &unfinishedEdge{edge: e}
	if t != nil {
		u.before = t.edges[e.name]
	}
	most := 0
	if u.before != nil && u.before.hosts != nil {
		most = u.before.hosts.Len() + 1
	}
	u.byName = make(map[string]*host, most)
	return u
}

func (e *unfinishedEdge) add(r *Route, policies map[string]*policy.Policy) error {
	switch {
	case e.protocol == config.ProtocolTCP:
		e.raw = r
		return nil
	case r.config.FirstBytes != "":
		e.ssh = r
		return nil
	}
	for name := range r.hostNames() {
		if err := e.host(name).add(e.edge, r, policies); err != nil {
			return err
		}
	}
	return nil
}

// hostNames are the names of the hosts of a route.
func (r *Route) hostNames() iter.Seq[string] {
	if len(r.config.Hosts) == 0 {
		return func(yield func(string) bool) { yield(anyHost) }
	}
	return slices.Values(r.config.Hosts)
}

// anyHost is the name of the host of routes without hosts. No route can name it.
const anyHost = "*"

func (e *unfinishedEdge) host(name string) *host {
	h := e.byName[name]
	if h == nil {
		h = &host{name: name}
		e.byName[name] = h
	}
	return h
}

// add adds a route to a host.
func (h *host) add(e *edge, r *Route, policies map[string]*policy.Policy) error {
	h.policy = policies[r.config.TLSPolicy]
	if h.policy == nil && e.protocol == config.ProtocolTLS {
		return fmt.Errorf("building the table: route %s names the TLS policy %s, which does not exist", r.name, r.config.TLSPolicy)
	}
	h.routes = append(h.routes, r)
	switch {
	case r.config.TLS == config.TLSPassthrough && e.protocol == config.ProtocolTLS:
		h.passthrough = r
	case r.tunnel:
		h.tunnel = r
	default:
		h.http = true
	}
	return nil
}

// matches returns the matches of the host's routes for requests.
func (h *host) matches(e *edge) (all []route.Entry[*Route]) {
	for _, r := range inOrder(h.routes) {
		pause.IfDue()
		if r.config.TLS == config.TLSPassthrough && e.protocol == config.ProtocolTLS || r.tunnel {
			continue
		}
		m := matchOf(r.config.Match)
		if len(r.config.Paths) == 0 {
			m.Path = route.Path{Text: "/"}
			all = append(all, route.Entry[*Route]{Match: m, Route: r})
		}
		for _, p := range r.config.Paths {
			m.Path = pathOf(p)
			all = append(all, route.Entry[*Route]{Match: m, Route: r})
		}
	}
	return all
}

// inOrder returns routes in the order in which equal matches get requests.
func inOrder(routes []*Route) []*Route {
	if !slices.ContainsFunc(routes, func(r *Route) bool { return r.config.Order != nil }) {
		return routes
	}
	routes = slices.Clone(routes)
	slices.SortStableFunc(routes, func(a, b *Route) int { return a.config.Order.Compare(b.config.Order) })
	return routes
}

// matchOf returns the conditions of a route in the terms of package route, without a path.
func matchOf(m *config.Match) route.Match {
	if m == nil {
		return route.Match{}
	}
	return route.Match{Methods: m.Methods, Headers: conditionsOf(m.Headers), Query: conditionsOf(m.Query),
		Cookies: conditionsOf(m.Cookies), Clients: m.Clients}
}

func conditionsOf(all []config.Condition) (out []route.Condition) {
	kinds := [...]route.ValueKind{config.ConditionEqual: route.Equal, config.ConditionLike: route.Like, config.ConditionPresent: route.Present}
	for _, c := range all {
		out = append(out, route.Condition{Name: c.Name, Kind: kinds[c.Kind], Value: c.Value})
	}
	return out
}

// pathOf returns a path of the configuration in the terms of package route. A closed path is
// closed in every spelling.
func pathOf(p config.Path) route.Path {
	kind := route.Prefix
	switch {
	case p.Expression:
		kind = route.Expression
	case p.Exact:
		kind = route.Exact
	case p.Begins:
		kind = route.Begins
	}
	return route.Path{Kind: kind, Text: p.Value, FoldCase: p.Decoded, Decoded: p.Decoded, AnySpelling: p.Closed && !p.Expression, Among: p.Among}
}

// finish compiles the hosts. It uses the hosts of the edge before whose routes and policy are
// the same.
func (e *unfinishedEdge) finish() error {
	named := make(map[string]*host, len(e.byName))
	for name, u := range e.byName {
		pause.IfDue()
		h, compiled, err := e.compile(u, e.before)
		if err != nil {
			return err
		}
		e.compiled += compiled
		e.kinds.add(h, 1)
		if name == anyHost {
			e.any = h
		} else {
			named[name] = h
		}
	}
	e.hosts = route.NewHosts(named)
	e.adoptKinds()
	return nil
}

// adoptKinds sets what depends on the kinds of the hosts.
func (e *edge) adoptKinds() {
	e.passthrough, e.tunnels, e.http = e.kinds.passthrough > 0, e.kinds.tunnel > 0, e.kinds.http > 0
}

// compile returns a host with its compiled paths: that of the edge before if it is the same.
// compiled is 0 then, and else 1.
func (e *edge) compile(u *host, before *edge) (h *host, compiled int, err error) {
	if known := before.host(u.name); known != nil && known.policy == u.policy && slices.Equal(known.routes, u.routes) && before.protocol == e.protocol {
		return known, 0, nil
	}
	h = u
	h.routes = slices.Clip(h.routes)
	matches := u.matches(e)
	if h.paths, err = route.Compile(matches); err == nil && slices.ContainsFunc(matches, func(m route.Entry[*Route]) bool { return m.Route.config.Guarded() }) {
		h.respelled, err = route.CompileRespelled(matches, h.paths)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("building the table: listener %s, host %s: %w", e.name, u.name, err)
	}
	h.cors = slices.ContainsFunc(matches, func(m route.Entry[*Route]) bool { return m.Route.config.CORS != nil })
	return h, 1, nil
}

// host returns the host with the name of a route; nil: there is none. e may be nil.
func (e *edge) host(name string) *host {
	switch {
	case e == nil:
		return nil
	case name == anyHost:
		return e.any
	}
	return e.hosts.Named(name)
}

// isRaw returns true if the host's connections are tunnels, so that it has no requests.
func (h *host) isRaw() bool { return h.passthrough != nil || h.tunnel != nil }

// chooseNameless finds the policy of clients without SNI. listeners is the policy that the
// listener names for such clients, or nil.
func (e *edge) chooseNameless(listeners *policy.Policy) {
	h := e.opened()
	switch {
	case h != nil && h.policy != e.fallback:
		e.nameless = h.policy
	case listeners == nil, h != nil && e.fallback.ClientAuth != config.ClientAuthNone:
		// A client cannot avoid the client_auth of the route without hosts by sending no SNI.
		e.nameless = e.fallback
	default:
		e.nameless = listeners
	}
}

// opened returns the host for clients without SNI; nil if the listener does not terminate
// their TLS.
func (e *edge) opened() *host {
	if e.any == nil || e.any.passthrough != nil {
		return nil
	}
	return e.any
}
