package config

import (
	"cmp"
	"slices"

	"github.com/weirproxy/weir/pause"
)

// hostOn is a host on a listener; the host "" is every host.
type hostOn struct{ listener, host string }

// group has the TLS settings that the routes of one host set on one tls listener; "": no
// route sets the value. policyBy and modeBy are the routes that set them. http is the
// first route of the host to a backend with HTTP, or without a backend; tunnel is the
// first route to a tcp backend.
type group struct {
	policy, mode     string
	policyBy, modeBy *Route
	http, tunnel     *Route
}

// effective returns the settings after the defaults are applied.
func (g *group) effective() (policy string, mode TLSMode) {
	policy, mode = DefaultTLSPolicy, TLSTerminate
	if g != nil && g.policy != "" {
		policy = g.policy
	}
	if g != nil && g.mode != "" {
		mode = TLSMode(g.mode)
	}
	return policy, mode
}

// group collects the TLS settings of the routes for each host, and reports
// contradictions.
func (v *draft) group() {
	v.groups = map[hostOn]*group{}
	for _, r := range v.routes {
		pause.IfDue()
		if r.FirstBytes != "" {
			continue
		}
		for _, l := range v.listenersOf(r) {
			if l.Protocol != ProtocolTLS {
				continue
			}
			for _, h := range v.hostsOf(r) {
				v.join(r, hostOn{l.Name, h})
			}
		}
	}
}

func (v *draft) join(r *Route, on hostOn) {
	g := v.groups[on]
	if g == nil {
		g = &group{}
		v.groups[on] = g
	}
	merge := func(dst *string, by **Route, value string, at place, key string) {
		switch {
		case value == "":
		case *dst == "":
			*dst, *by = value, r
		case *dst != value:
			v.failAt(at, "%s has another %s for the same host on listener %q; a host can have only one per listener, so make them equal, or take it out here",
				v.lineOf(*by), key, on.listener)
		}
	}
	merge(&g.policy, &g.policyBy, r.TLSPolicy, v.places[&r.TLSPolicy], "tls_policy")
	merge(&g.mode, &g.modeBy, string(r.TLS), v.places[&r.TLS], "tls")
	switch b := v.firstBackend(r); {
	case b != nil && b.Protocol == ProtocolTCP:
		g.tunnel = cmp.Or(g.tunnel, r)
	case b != nil && b.Protocol != "", r.Answers():
		g.http = cmp.Or(g.http, r)
	}
}

// lineOf names a route by its line: its name may contain values of the environment.
func (d *decoder) lineOf(r *Route) string {
	return "the route on " + d.line(r.Position)
}

// checkPassthrough reports hosts that have both passthrough and decrypted TLS.
func (v *draft) checkPassthrough(r *Route) {
	if r.FirstBytes != "" {
		return
	}
	for _, l := range v.listenersOf(r) {
		for _, h := range v.hostsOf(r) {
			g := v.groups[hostOn{l.Name, h}]
			if _, mode := g.effective(); mode != TLSPassthrough {
				continue
			}
			if v.given(&r.Paths) {
				v.failAt(v.places[&r.Paths], "%s passes TLS for this host through, so weir sees no paths; take paths out", v.lineOf(g.modeBy))
			}
			if v.given(&r.Match) {
				v.failAt(v.places[&r.Match], "%s passes TLS for this host through, so weir sees no requests; take match out", v.lineOf(g.modeBy))
			}
			for _, dst := range r.requestSettings() {
				if v.given(dst) {
					v.failAt(v.places[dst], "%s passes TLS for this host through, so weir sees no requests; take this out", v.lineOf(g.modeBy))
				}
			}
			if v.given(&r.TLSPolicy) {
				v.failAt(v.places[&r.TLSPolicy], "%s passes TLS for this host through, so the backend chooses its TLS settings; take this out", v.lineOf(g.modeBy))
			}
			return
		}
	}
}

// checkClientAuth reports hosts that require client certificates on a tls listener and
// that an http listener serves, where clients cannot send a certificate. A host is not
// served there if its requests are only redirected.
func (v *draft) checkClientAuth() {
	if !slices.ContainsFunc(v.policies, func(t *TLSPolicy) bool { return v.given(&t.ClientAuth) }) {
		return
	}
	plain := map[hostOn]*Route{}
	for _, r := range v.routes {
		pause.IfDue()
		for _, l := range v.listenersOf(r) {
			if l.Protocol == ProtocolHTTP && r.FirstBytes == "" {
				for _, h := range v.hostsOf(r) {
					if on := (hostOn{l.Name, h}); plain[on] == nil || plain[on].OnlyRedirects() {
						plain[on] = r
					}
				}
			}
		}
	}
	reported := map[*Route]bool{}
	for _, r := range v.routes {
		pause.IfDue()
		if r.FirstBytes != "" {
			continue // a tunnel; client certificates protect no tunnel on any listener
		}
		for _, l := range v.listenersOf(r) {
			for _, h := range v.hostsOf(r) {
				v.reportPlain(plain, reported, r, l, h)
			}
		}
	}
}

// reportPlain checks both directions, because either side may name the host more
// precisely. One error for each route without TLS is enough.
func (v *draft) reportPlain(plain map[hostOn]*Route, reported map[*Route]bool, r *Route, l *Listener, host string) {
	for _, other := range v.listeners {
		described := v.describeHost(r, host)
		r, plainListener, tlsListener := r, l, other
		g := find(v.groups, other.Name, host)
		if l.Protocol == ProtocolTLS {
			g = v.groups[hostOn{l.Name, host}]
			r, plainListener, tlsListener = find(plain, other.Name, host), other, l
		}
		if r == nil || reported[r] || r.OnlyRedirects() || g == nil || plainListener.Protocol != ProtocolHTTP || tlsListener.Protocol != ProtocolTLS {
			continue
		}
		if policy := v.asksForCertificates(g); policy != "" {
			reported[r] = true
			advice := ""
			if len(r.Hosts) == 0 && described != "every host" {
				advice = "set hosts of the route, "
			}
			v.failAt(v.places[r], "listener %q serves without TLS what policy %q on listener %q protects with client certificates (%s); %stake %q out of the route, or client_auth out of the policy",
				plainListener.Name, policy, tlsListener.Name, described, advice, plainListener.Name)
		}
	}
}

// asksForCertificates returns the name of the policy with client_auth that protects g, or
// "".
func (v *draft) asksForCertificates(g *group) string {
	name, mode := g.effective()
	if mode == TLSPassthrough || g.tunnel != nil {
		return "" // a tunnel does not serve plain HTTP
	}
	t := v.policyNamed(name)
	if t != nil && len(t.From) > 0 {
		t = v.policyNamed(DefaultTLSPolicy) // for all other clients
	}
	if t == nil || !v.given(&t.ClientAuth) {
		return ""
	}
	return t.Name
}

// find looks up a host in the order of a request: the host itself, its wildcards, every
// host.
func find[T any](all map[hostOn]*T, listener, host string) *T {
	if t := all[hostOn{listener, host}]; t != nil {
		return t
	}
	for _, above := range LessSpecific(host) {
		if t := all[hostOn{listener, above}]; t != nil {
			return t
		}
	}
	return nil
}

// splitRoutes splits all routes. No check after the first call changes a route.
func (v *draft) splitRoutes() []*Route {
	if v.parts == nil {
		v.parts = make([]*Route, 0, len(v.routes))
		for _, r := range v.routes {
			pause.IfDue()
			v.parts = append(v.parts, v.split(r)...)
		}
	}
	return v.parts
}

// split splits r into routes whose hosts all have one TLS policy and mode. http and tcp
// listeners belong to the first of these routes.
func (v *draft) split(r *Route) []*Route {
	type effect struct {
		policy string
		mode   TLSMode
	}
	var parts []*Route
	for _, l := range v.listenersOf(r) {
		byEffect := map[effect][]string{}
		var order []effect
		for _, h := range v.hostsOf(r) {
			var e effect
			e.policy, e.mode = v.groups[hostOn{l.Name, h}].effective()
			if byEffect[e] == nil {
				order = append(order, e)
			}
			byEffect[e] = append(byEffect[e], h)
		}
		for _, e := range order {
			hosts := byEffect[e]
			if hosts[0] == "" {
				hosts = nil
			}
			i := slices.IndexFunc(parts, func(p *Route) bool {
				return p.TLSPolicy == e.policy && p.TLS == e.mode && slices.Equal(p.Hosts, hosts)
			})
			if i < 0 {
				part := *r
				part.Listeners, part.Hosts, part.TLSPolicy, part.TLS = nil, hosts, e.policy, e.mode
				parts = append(parts, &part)
				i = len(parts) - 1
			}
			parts[i].Listeners = append(parts[i].Listeners, l.Name)
		}
	}
	return parts
}
