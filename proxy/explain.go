package proxy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/route"
	"github.com/weirproxy/weir/tls/policy"
)

// Question is a connection, and a request on it, for which Explain finds the way through a table.
type Question struct {
	Listener string
	SNI      string // of a client on a tls listener; empty: it sends none
	SSH      bool   // the connection begins as SSH does
	Client   netip.Addr
	// Request is the request; nil: only the connection matters. Explain changes it.
	Request *message.Request
}

// Explanation is what a table does with a connection and its request.
type Explanation struct {
	// Host is the host of the routes that may have the request; "*": the routes without hosts;
	// empty: none.
	Host string
	// Policy is the TLS policy of the connection; empty: weir terminates no TLS.
	Policy string
	// Client is the client of the request, which may differ from that of the connection.
	Client netip.Addr
	// Route is the route; nil: none, see Refusal.
	Route *config.Route
	// Filters are the keys of the route's filters in their order of effect.
	Filters []string
	// NewPath is the path and query that the endpoint gets, and NewHost the Host, if the route changes them;
	// Location is where a redirect leads. Empty: there is none.
	NewPath, NewHost, Location string
	// Guard is the route because of which a request is refused (guarded_path); nil: none.
	Guard *config.Route
	// Refusal is the answer of weir instead of that of an endpoint; nil: there is none before
	// the filters.
	Refusal *message.Refusal
	// Why is why the route is closed, such as the annotation of an object; clients do not learn it. Empty: it is not closed.
	Why string
	// Nearest are the routes that are nearest to the request, if none has it.
	Nearest []Miss
}

// Miss is a route that does not have a request, and the first condition that failed.
type Miss struct {
	Route     *config.Route
	Condition string // the key in the route, such as match.methods
	Wants     string // its value
	Has       string // what the request has instead; empty: not known
}

// Explain returns the way of a connection and its request, which the table finds as it does for
// clients. It returns false if the table does not have the listener.
func (t *Table) Explain(q Question) (x Explanation, known bool) {
	e := t.edges[q.Listener]
	if e == nil {
		return x, false
	}
	x.Client = q.Client
	var opened *host
	var under *policy.Policy
	if r, raw := e.connectionOf(q); raw {
		x.passTo(r)
		return x, true
	}
	if e.protocol == config.ProtocolTLS {
		opened = e.hostOf(q.SNI)
		under = e.policyFor(opened, q.SNI, q.Client)
		x.Policy = under.Name
		if opened != nil && opened.tunnel != nil {
			x.Host = opened.name
			x.passTo(opened.tunnel)
			return x, true
		}
	}
	if q.Request != nil {
		e.explainRequest(&x, q, opened, under)
		if x.Refusal == refuseNoRoute {
			x.Nearest = t.nearest(e, x, q.Request)
		}
	}
	return x, true
}

// connectionOf returns the route of a connection whose bytes weir forwards as they are, and
// whether the connection is one; the route is nil if no route has it.
func (e *edge) connectionOf(q Question) (*Route, bool) {
	switch {
	case e.protocol == config.ProtocolTCP:
		return e.raw, true
	case q.SSH:
		return e.ssh, true
	case e.passthrough:
		if h := e.lookup([]byte(q.SNI)); h != nil && h.passthrough != nil {
			return h.passthrough, true // weir does not see what is within
		}
	}
	return nil, false
}

// hostOf returns the host for which a TLS connection is opened; nil: none.
func (e *edge) hostOf(sni string) *host {
	if sni == "" {
		return e.opened()
	}
	return e.lookup([]byte(sni))
}

// passTo notes the route of a tunnel or of a request; nil: none.
func (x *Explanation) passTo(r *Route) {
	if r == nil {
		x.Refusal = refuseNoRoute
		return
	}
	x.Route, x.Filters = r.config, r.effects()
	if r.closed != nil {
		x.Refusal, x.Why = &r.closed.refusal, r.closed.why.Error()
	}
}

// beside are the keys of what a route does outside of its chain: after the chain has changed the
// request, and before it changes the response.
var beside = []string{"backends", "mirror", "timeouts", "retries", "errors", "compress"}

// effects returns the keys of what the route does to requests, in the order of effect.
func (r *Route) effects() []string {
	chain := r.filters.Names()
	at := slices.IndexFunc(chain, func(key string) bool { return key == "response" || key == "hsts" })
	if at < 0 {
		at = len(chain)
	}
	keys := slices.Clone(chain[:at])
	if r.config.Satisfy == config.SatisfyAny {
		keys = slices.Insert(keys, slices.Index(keys, "auth"), "satisfy") // it needs auth
	}
	for _, key := range beside {
		if r.config.Setting(key) != "" {
			keys = append(keys, key)
		}
	}
	return append(keys, chain[at:]...)
}

// explainRequest finds the route of a request as exchange.routeOf does.
func (e *edge) explainRequest(x *Explanation, q Question, opened *host, under *policy.Policy) {
	sender := netip.AddrPortFrom(q.Client, 1)
	x.Client = e.forwarding.FindClient(q.Request, sender, e.forwarding.Believes(q.Client)).Addr()
	h := e.lookup(q.Request.Bytes(q.Request.Host))
	if h == nil {
		x.Host, x.Refusal = "", refuseNoRoute
		return
	}
	x.Host = h.name
	if under != nil && !e.carries(h, opened, q.SNI, under, q.Client) {
		x.Refusal = refuseMisdirected
		return
	}
	asked := &route.Request{Head: q.Request, Client: x.Client}
	r, refusal := h.routeOf(asked)
	if refusal != nil {
		x.Refusal = refusal
		if refusal == refuseGuardedPath {
			x.guardedBy(h.guardOfSpelling(asked))
		}
		return
	}
	x.passTo(r)
	if r.closed == nil {
		e.explainFilters(x, r, asked, under != nil)
	}
}

// guardedBy notes a route that restricts the request; nil: none.
func (x *Explanation) guardedBy(guard *Route) {
	if guard != nil {
		x.Guard = guard.config
	}
}

// explainFilters finds what the route makes of the request's URL, and whether it is closed to the client.
func (e *edge) explainFilters(x *Explanation, r *Route, asked *route.Request, secure bool) {
	origin := conn.Origin{Client: netip.AddrPortFrom(x.Client, 1)}
	played := &playedExchange{exchange: exchange{clientSide: clientSide{edge: e, origin: &origin}}, secure: secure}
	played.req, played.client = *asked.Head, origin.Client
	answered := r.filters.Play(played)
	x.Refusal = played.refusal
	x.guardedBy(played.guard)
	if answered {
		x.Location = string(played.res.GetName("location"))
		return
	}
	if played.req.Rewritten.Len() > 0 {
		x.NewPath = string(played.req.EndpointTarget())
	}
	if r.config.Rewrite == nil {
		return
	}
	x.NewHost = r.config.Rewrite.Host
	if guard := e.guardOfRewrite(r, &route.Request{Head: &played.req, Client: x.Client}); guard != nil {
		x.Refusal = refuseGuardedRewrite
		x.guardedBy(guard)
	}
}

// playedExchange is an exchange without a client.
type playedExchange struct {
	exchange
	secure  bool
	refusal *message.Refusal
	guard   *Route // because of which RefusePath refuses
}

// RefusePath keeps the route for the explanation.
func (x *playedExchange) RefusePath(path []byte) *message.Refusal {
	if x.guard = x.guardOfPath(path); x.guard == nil {
		return nil
	}
	return refuseGuardedRedirect
}

// OrdersHTTP01 is false, because an explanation does not know the ACME entries.
func (x *playedExchange) OrdersHTTP01() bool { return false }

func (x *playedExchange) Secure() bool              { return x.secure }
func (x *playedExchange) Refuse(r *message.Refusal) { x.refusal = r }
func (x *playedExchange) Send(string)               {}

func (x *playedExchange) Begin(status int, reason string) *message.Response {
	if reason == "snippet" {
		x.refusal = &message.Refusal{Status: status, Reason: reason, Detail: "a snippet answers the request"}
	}
	x.res.Reset()
	x.res.Status = status
	return &x.res
}

// mostNearest is how many routes an explanation names that nearly have the request.
const mostNearest = 3

// nearest returns the routes of a listener for which the fewest conditions fail: first those of
// the host, then those with the path, then those with most of the other conditions.
func (t *Table) nearest(e *edge, x Explanation, req *message.Request) []Miss {
	type ranked struct {
		Miss
		rank [4]int
	}
	var all []ranked
	q := &route.Request{Head: req, Client: x.Client}
	for _, r := range t.routes {
		if r.tunnel || r.config.FirstBytes != "" || !slices.Contains(r.config.Listeners, e.name) {
			continue
		}
		checks := checksOf(r.config, x.Host, q)
		first := slices.IndexFunc(checks, func(c check) bool { return !c.holds })
		if first < 0 {
			continue // its path is only refused for its spelling
		}
		one := ranked{Miss: Miss{r.config, checks[first].key, checks[first].wants, checks[first].has}}
		for i, c := range checks {
			if !c.holds {
				one.rank[min(i, 2)]++
			}
		}
		one.rank[3] = -commonPath(r.config, string(req.Bytes(req.Path)))
		all = append(all, one)
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return slices.Compare(a.rank[:], b.rank[:]) })
	var nearest []Miss
	for _, one := range all[:min(len(all), mostNearest)] {
		nearest = append(nearest, one.Miss)
	}
	return nearest
}

// check is one condition of a route, and whether a request fulfils it.
type check struct {
	key, wants, has string
	holds           bool
}

// checksOf returns the conditions of a route: host, path, and those in match. Each is compiled
// alone by package route, which also decides about requests. host is the name of the host in
// the table.
func checksOf(r *config.Route, host string, q *route.Request) []check {
	req := q.Head
	text := func(s message.Span) string { return string(req.Bytes(s)) }
	path := route.Match{}
	paths := make([]route.Entry[bool], 0, len(r.Paths)+1)
	for _, p := range r.Paths {
		paths = append(paths, route.Entry[bool]{Match: route.Match{Path: pathOf(p)}, Route: true})
	}
	if len(r.Paths) == 0 {
		path.Path.Text = "/"
		paths = append(paths, route.Entry[bool]{Match: path, Route: true})
	}
	all := []check{
		{"hosts", cmp.Or(r.Setting("hosts"), "every host"), text(req.Host), len(r.Hosts) == 0 && host == anyHost || slices.Contains(r.Hosts, host)},
		{"paths", r.Setting("paths"), text(req.Path), accepts(paths, q)},
	}
	m := matchOf(r.Match)
	alone := func(key, wants, has string, m route.Match) {
		m.Path.Text = "/"
		all = append(all, check{key, wants, has, accepts([]route.Entry[bool]{{Match: m, Route: true}}, q)})
	}
	if len(m.Methods) > 0 {
		alone("match.methods", r.Setting("match.methods"), text(req.Method), route.Match{Methods: m.Methods})
	}
	for _, c := range m.Headers {
		alone("match.headers."+c.Name, valueOf(c), "", route.Match{Headers: []route.Condition{c}})
	}
	for _, c := range m.Query {
		alone("match.query."+c.Name, valueOf(c), "", route.Match{Query: []route.Condition{c}})
	}
	for _, c := range m.Cookies {
		alone("match.cookies."+c.Name, valueOf(c), "", route.Match{Cookies: []route.Condition{c}})
	}
	if len(m.Clients) > 0 {
		has := "an unknown client address"
		if q.Client.IsValid() {
			has = q.Client.String()
		}
		alone("match.clients", r.Setting("match.clients"), has, route.Match{Clients: m.Clients})
	}
	return all
}

// accepts returns true if one of the matches accepts the request.
func accepts(entries []route.Entry[bool], q *route.Request) bool {
	p, err := route.Compile(entries)
	if err != nil {
		return false // the table has compiled it, so there is none
	}
	_, found := p.Find(q)
	return found
}

// valueOf writes a condition as the configuration does.
func valueOf(c route.Condition) string {
	switch c.Kind {
	case route.Like:
		return "~" + c.Value
	case route.Present:
		return "*"
	}
	return c.Value
}

// commonPath returns how many bytes the path shares with the beginning of a path of the route.
func commonPath(r *config.Route, path string) (most int) {
	for _, p := range r.Paths {
		n := 0
		for n < min(len(p.Value), len(path)) && strings.EqualFold(p.Value[n:n+1], path[n:n+1]) {
			n++
		}
		most = max(most, n)
	}
	return most
}
