package config

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirproxy/weir/pause"
)

// warn collects settings that are allowed but probably not intended.
func (v *draft) warn() {
	if len(v.errs) == 0 { // a line with an error may use it
		v.warnUnused()
	}
	for _, l := range v.listeners {
		v.warnListener(l)
		v.warnNameless(l)
		v.warnNamelessKeys(l)
	}
	for _, b := range v.backends {
		if v.given(&b.Queue) && b.MaxConnections == 0 {
			v.warnAt(v.places[&b.Queue], "the queue is never used, because max_connections is not set")
		}
		if b.PreferLocal && v.zone == "" && slices.ContainsFunc(b.Endpoints, func(e Endpoint) bool { return e.Zone != "" }) {
			v.warnAt(v.places[&b.PreferLocal], "the zones of the endpoints have no effect, because zone is not set at the top level")
		}
		v.warnSticky(b)
		if b.TLS.InsecureSkipVerify {
			v.warnAt(v.places[&b.TLS.InsecureSkipVerify], "an attacker who impersonates the endpoint can read and change everything")
		}
	}
	for _, r := range v.routes {
		pause.IfDue()
		v.warnRoute(r)
	}
	v.warnRewrites()
	v.warnMethods()
	for _, c := range v.certificates {
		if c.ACME != nil {
			v.warnACME(c.ACME)
			v.warnStorage(&c.ACME.Storage)
		}
	}
	if v.drain.UntilQuiet > 0 && v.drain.UntilQuiet >= v.drain.LameDuck {
		v.warnAt(v.places[&v.drain.UntilQuiet], "has no effect, because lame_duck (%v) is not longer; make it shorter than lame_duck", v.drain.LameDuck)
	}
	v.warnStorage(&v.shared)
	v.warnKubernetes()
	if t := v.policyNamed(DefaultTLSPolicy); t.SHA1 {
		v.warnAt(v.places[&t.SHA1], "this policy applies to all hosts without another, so weir uses SHA-1 signatures with every client that offers nothing better; give the hosts that need SHA-1 a policy of their own")
	}
	v.warnAdmin()
	v.warnRedact()
	v.warnDiscard()
	v.warnRequireLocal()
}

// warnStorage warns of keys that cross a network without encryption.
func (v *draft) warnStorage(storage *Secret) {
	if v.given(storage) && storage.isOpenToNetwork() {
		v.warnAt(v.places[storage], "private keys go to this storage over the network unencrypted; use rediss:// unless the network is yours alone")
	}
}

func (v *draft) warnUnused() {
	unused := func(dst any, what string, used bool) {
		if !used && v.given(dst) {
			v.warnAt(v.places[dst], "nothing uses this %s", what)
		}
	}
	for _, h := range v.headers {
		unused(h, "policy", v.kubernetes.uses(h) || v.kubernetes.offersHeaderPolicies() || slices.ContainsFunc(v.listeners, func(l *Listener) bool { return l.HeaderPolicy == h.Name }))
	}
	for _, t := range v.policies {
		used := slices.ContainsFunc(v.routes, func(r *Route) bool { return r.TLSPolicy == t.Name }) ||
			slices.ContainsFunc(v.listeners, func(l *Listener) bool { return l.TLSPolicy == t.Name })
		unused(t, "policy", used || t.Name == DefaultTLSPolicy || v.kubernetes.servesGateways())
	}
	backends, auth, rateLimits := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, r := range v.routes {
		pause.IfDue()
		for _, name := range r.BackendNames() {
			backends[name] = true
		}
		for i := range r.Errors {
			backends[r.Errors[i].Backend] = true
		}
		for i := range r.Mirror {
			backends[r.Mirror[i].Backend] = true
		}
		auth[r.Auth], rateLimits[r.RateLimit] = true, true
	}
	for _, b := range v.backends {
		unused(b, "backend", backends[b.Name])
	}
	for _, a := range v.auth {
		v.warnUnusedGuard(a, "auth", a.Name, auth[a.Name])
	}
	for _, l := range v.rateLimits {
		v.warnUnusedGuard(l, "rate_limit", l.Name, rateLimits[l.Name])
	}
}

// warnUnusedGuard warns of a guard without a route. Somebody probably forgot the key in a route, which is
// then open.
func (v *draft) warnUnusedGuard(dst any, key, name string, used bool) {
	if !used && v.given(dst) {
		v.warnAt(v.places[dst], "no route names this, so it guards nothing; write \"%s: %s\" in the routes that it is for, or take it out", key, name)
	}
}

// warnSilence warns of silent_after behind a policy that closes silent clients before.
func (v *draft) warnSilence(r *Route) {
	for _, h := range v.headers {
		optional := slices.ContainsFunc(h.Rules, func(r HeaderRule) bool { return r.Mode == HeaderOptional })
		if optional && slices.ContainsFunc(v.listenersOf(r), func(l *Listener) bool { return l.HeaderPolicy == h.Name }) {
			v.warnAt(v.places[&r.SilentAfter], "where proxy_protocol.%s has \"header: optional\", a client without a PROXY header must send first, so weir closes one that waits for the banner; use another listener for such clients", h.Name)
		}
	}
}

// warnDiscard warns if the PROXY headers of a load balancer are discarded, so that all its
// clients count as one client network, and the file does not set the limit for a network.
func (v *draft) warnDiscard() {
	if v.given(&v.limits.PendingPerSource) {
		return
	}
	for _, h := range v.headers {
		for i := range h.Rules {
			if mode := &h.Rules[i].Mode; *mode == HeaderDiscard {
				v.warnAt(v.places[mode], "all clients behind such a sender count as one client network now, so at most %d of their connections may be pending; "+
					"set limits.pending_per_source to what the sender needs, or to %d to confirm this", v.limits.PendingPerSource, v.limits.PendingPerSource)
				return
			}
		}
	}
}

func (v *draft) warnListener(l *Listener) {
	if len(v.errs) == 0 && !slices.ContainsFunc(v.routes, func(r *Route) bool { return slices.Contains(r.Listeners, l.Name) }) && !v.servesObjects(l) {
		v.warnAt(v.places[l], "no route names this listener, so it answers everything with 404")
	}
	if l.Protocol != ProtocolTCP {
		v.warnForwarded(l)
		return
	}
	for _, h := range v.headers {
		if h.Name != l.HeaderPolicy {
			continue
		}
		for i := range h.Rules {
			if mode := &h.Rules[i].Mode; *mode == HeaderOptional {
				v.warnAt(v.places[mode], "on the tcp listener %q, clients without a PROXY header must send the first bytes; a server that sends first, such as SSH, gets no connection before that",
					l.Name)
			}
		}
	}
}

func (v *draft) warnRoute(r *Route) {
	v.warnTLSWithinTLS(r)
	if r.SilentAfter > 0 {
		v.warnSilence(r)
	}
	for i, p := range r.Paths {
		if strings.Contains(p.Value, "*") && !p.Expression {
			v.warnAt(v.places[&r.Paths[i]], "the star is an ordinary character here; a prefix matches everything below it without a star")
		}
	}
	for i, h := range r.Hosts {
		if !v.unread && h != "" && v.isOpened(r, h) && !v.isCertified(h) && !v.isOnDemand(h) {
			v.warnAt(v.places[&r.Hosts[i]], "no certificate names this host, so its clients get the first certificate")
		}
	}
}

// warnRedact warns of stars in the names of query parameters. A parameter may have one in its
// name, such as filter[*].
func (v *draft) warnRedact() {
	if v.accessLog == nil {
		return
	}
	for i, name := range v.accessLog.Redact {
		if strings.Contains(name, "*") {
			v.warnAt(v.places[&v.accessLog.Redact[i]], "the star is an ordinary character here, so the values of other parameters stay visible; write each name out")
		}
	}
}

// isOpened reports whether r opens TLS for host.
func (v *draft) isOpened(r *Route, host string) bool {
	return slices.ContainsFunc(v.listenersOf(r), func(l *Listener) bool {
		_, mode := v.groups[hostOn{l.Name, host}].effective()
		return l.Protocol == ProtocolTLS && mode == TLSTerminate
	})
}

// isCertified reports whether there is a certificate for host; *.example.org covers each
// name one label below it.
func (v *draft) isCertified(host string) bool {
	_, rest, _ := strings.Cut(host, ".")
	return v.names[host] || v.names["*."+rest]
}

// isOnDemand reports whether weir may get a certificate for host on demand.
func (v *draft) isOnDemand(host string) bool {
	return slices.ContainsFunc(v.certificates, func(c *Certificate) bool {
		if c.ACME == nil || c.ACME.OnDemand == nil {
			return false
		}
		_, rest, _ := strings.Cut(host, ".")
		allowed := c.ACME.OnDemand.Hosts
		return len(allowed) == 0 || slices.Contains(allowed, host) || slices.Contains(allowed, "*."+rest)
	})
}

func isLoopback(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// warnRequireLocal warns of a backend in require_local without a health check: the node
// would stay healthy when all its endpoints fail. It also warns of a backend that has no
// endpoint on this node: the node would never be healthy.
func (v *draft) warnRequireLocal() {
	if v.health == nil {
		return
	}
	for i := range v.health.RequireLocal {
		name := &v.health.RequireLocal[i]
		b := v.backendNamed(*name)
		if b == nil {
			continue
		}
		if v.isNeverLocal(b) {
			v.warnAt(v.places[name], "no endpoint of backend %q is on this node (node: %s), so the health port always answers 503; set the node of the endpoint that is on this node, or take the backend out", *name, v.quote(&v.node, v.node))
		}
		if b.HealthCheck == nil && !v.isNeverLocal(b) {
			v.warnAt(v.places[name], "backend %q has no health_check, so its endpoints count as ready even if they fail, and the health port keeps answering 200; give the backend a health_check", *name)
		}
	}
}

// isNeverLocal reports whether no endpoint of b can be on this node. If the file names the
// node, the names of nodes decide this alone, and no address does.
func (v *draft) isNeverLocal(b *Backend) bool {
	return v.node != "" && len(b.Endpoints) > 0 && !slices.ContainsFunc(b.Endpoints, func(e Endpoint) bool { return e.Node == v.node })
}
