package config

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"os"
	"slices"
)

// validate checks everything that a single value does not show. It uses the values that
// could be decoded, so that weir reports all errors at once.
func (v *draft) validate() {
	v.addDefaultPolicy()
	for _, l := range v.listeners {
		checkName(v, &l.HeaderPolicy, "proxy_protocol policy", v.headers, func(h *HeaderPolicy) string { return h.Name })
		v.checkForwarded(l)
		v.checkHTTP2(l)
		v.checkNameless(l)
	}
	v.checkClientLimits()
	for _, h := range v.headers {
		v.checkRules(h)
	}
	v.checkHosts()
	v.checkACME()
	for _, t := range v.policies {
		v.checkPolicy(t)
	}
	v.checkRoutes()
	for _, b := range v.backends {
		v.checkBackendKeys(b)
	}
	if v.health != nil {
		for i := range v.health.RequireLocal {
			checkName(v, &v.health.RequireLocal[i], "backend", v.backends, func(b *Backend) string { return b.Name })
		}
	}
	v.checkKubernetes()
	v.checkAdmin()
	v.checkCertificates()
	v.checkAddresses()
}

// checkHTTP2 reports HTTP/2 settings that the listener's protocol does not support, and
// clears their defaults.
func (v *draft) checkHTTP2(l *Listener) {
	h := &l.HTTP2
	switch l.Protocol {
	case ProtocolTCP:
		if v.given(h) {
			v.failAt(v.places[h], "a tcp listener has no requests; take this out")
		}
		*h = ListenerHTTP2{}
	case ProtocolHTTP:
		if h.Offer {
			v.failAt(v.places[&h.Offer], "HTTP/2 is offered within TLS; on an http listener, clients may begin with it under prior_knowledge")
		}
		h.Offer = false
	case ProtocolTLS:
		h.Offer = h.Offer || !v.given(&h.Offer)
		if h.PriorKnowledge {
			v.failAt(v.places[&h.PriorKnowledge], "is for http listeners; within TLS, clients are offered HTTP/2 (offer)")
		}
		h.PriorKnowledge = false
	}
}

func (v *draft) addDefaultPolicy() {
	if v.policyNamed(DefaultTLSPolicy) == nil {
		v.policies = append(v.policies, &TLSPolicy{Name: DefaultTLSPolicy, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13})
	}
	for _, t := range v.policies {
		if !v.given(&t.CipherSuites) {
			t.CipherSuites = secureSuites()
		}
	}
}

// checkRules reports networks that two rules of a policy name.
func (v *draft) checkRules(h *HeaderPolicy) {
	first := map[netip.Prefix]int{}
	for i := range h.Rules {
		for j := range h.Rules[i].From {
			from := &h.Rules[i].From[j]
			line, twice := first[*from]
			if twice && from.IsValid() {
				v.failAt(v.places[from], "%s has a rule already on line %d; keep one", v.quote(from, from.String()), line)
			}
			first[*from] = v.position(v.places[from]).Line
		}
	}
}

func (v *draft) checkPolicy(t *TLSPolicy) {
	if v.checkOffer(t.offer()) {
		v.checkCurves(t)
	}
	switch {
	case v.given(&t.From) && t.Name == DefaultTLSPolicy:
		v.failAt(v.places[&t.From], "the policy default applies to all clients without another policy; take from out, or give the policy another name")
	case v.given(&t.From) && v.given(&t.ClientAuth):
		v.failAt(v.places[&t.From], "from and client_auth cannot be combined: clients from other networks would get the policy default and need no certificate; take one of them out")
	}
}

func (v *draft) checkCurves(t *TLSPolicy) {
	if !v.given(&t.Curves) || len(t.Curves) == 0 || slices.Contains(t.Curves, 0) || t.MinVersion == tls.VersionTLS13 {
		return
	}
	for _, c := range curves {
		if !c.only13 && slices.Contains(t.Curves, uint16(c.id)) {
			return
		}
	}
	v.failAt(v.places[&t.Curves], `none of the curves works below TLS 1.3; add one such as X25519, or set min_version: "1.3"`)
}

func (v *draft) checkBackendKeys(b *Backend) {
	if b.Protocol == "" {
		return
	}
	if v.given(&b.TLS) && !b.UsesTLS() {
		v.failAt(v.places[&b.TLS], `weir uses no TLS to backends with protocol %s; write "protocol: https" (or "grpc" or "tcp"), or take tls out`, b.Protocol)
	}
	if b.UsesTLS() {
		v.checkBackendOffer(b)
	}
	if v.given(&b.TLS.ALPN) && b.Protocol != ProtocolTCP && b.UsesTLS() {
		v.failAt(v.places[&b.TLS.ALPN], "is for tcp backends; for the protocol %s weir sets ALPN itself; take this out", b.Protocol)
	}
	if v.given(&b.HTTP2) && b.Protocol != ProtocolHTTPS {
		v.failAt(v.places[&b.HTTP2], `only https endpoints can negotiate HTTP/2; for HTTP/2 without TLS write "protocol: h2c", and take http2 out`)
	}
	if v.given(&b.Lenient) && b.Protocol != ProtocolHTTP && b.Protocol != ProtocolHTTPS {
		v.failAt(v.places[&b.Lenient], "is for HTTP/1.1 responses, and the protocol of the backend is %s; take this out", b.Protocol)
	}
	if v.given(&b.MaxInterim) && b.Protocol == ProtocolTCP {
		v.failAt(v.places[&b.MaxInterim], "weir reads no HTTP responses from a tcp backend; take this out")
	}
	v.checkSticky(b)
	if v.given(&b.Host) && b.Protocol == ProtocolTCP {
		v.failAt(v.places[&b.Host], "weir sends no HTTP requests to a tcp backend, so it cannot set Host; take this out")
	}
}

// checkCertificates reports tls listeners that open TLS but have no certificate.
func (v *draft) checkCertificates() {
	if len(v.certificates) > 0 {
		return
	}
	for _, l := range v.listeners {
		if l.Protocol == ProtocolTLS && v.opensTLS(l) && !v.servesObjects(l) {
			v.failAt(v.places[&l.Protocol], `a tls listener needs certificates unless all its routes pass TLS through; give some, such as "certificates: [{self_signed: {hosts: [app.example.org]}}]"`)
		}
	}
}

func (v *draft) opensTLS(l *Listener) bool {
	passed := false
	for on, g := range v.groups {
		if on.listener == l.Name {
			if _, mode := g.effective(); mode == TLSTerminate {
				return true
			}
			passed = true
		}
	}
	return !passed
}

// checkAddresses reports two sockets that cannot both listen.
func (v *draft) checkAddresses() {
	type socket struct {
		what, network, address string
		at                     place
	}
	var taken []socket
	add := func(s socket) {
		for _, other := range taken {
			if !sameAddress(s.network, s.address, other.network, other.address) {
				continue
			}
			if s.at.n == nil { // a default that collides with an address in the file
				v.failAt(other.at, "is the default address of %s; use another address here, or set admin.address", s.what)
			} else {
				v.failAt(s.at, "is taken by %s (%s); use another address", other.what, v.line(v.position(other.at)))
			}
			return
		}
		taken = append(taken, s)
	}
	for _, l := range v.listeners {
		add(socket{what: fmt.Sprintf("listener %q", l.Name), network: l.Network, address: l.Address, at: v.places[&l.Address]})
	}
	if h := v.health; h != nil {
		add(socket{what: "the health port", network: h.Network, address: h.Address, at: v.places[&h.Address]})
	}
	if m := v.metrics; m != nil && m.Address != "" {
		add(socket{what: "the metrics port", network: m.Network, address: m.Address, at: v.places[&m.Address]})
	}
	add(socket{what: "the admin port", network: v.admin.Network, address: v.admin.Address, at: v.places[&v.admin.Address]})
}

// config returns the finished configuration.
func (v *draft) config() *Config {
	c := &Config{
		Node: v.node, NodeExplicit: v.node != "", Zone: v.zone, User: v.user, Landlock: v.landlock, Seccomp: v.seccomp, PIDFile: v.pidFile, UpgradeTimeout: v.upgradeTimeout, Reload: v.reload,
		Listeners: values(v.listeners), HeaderPolicies: values(v.headers),
		Certificates: values(v.certificates), TLSPolicies: values(v.policies),
		RateLimits: values(v.rateLimits), Auth: values(v.auth), Backends: v.backends, Health: v.health, Admin: *v.admin, Metrics: v.metrics,
		Drain: v.drain, Log: v.log, AccessLog: v.accessLog, Traces: v.traces, Limits: v.limits,
		ECHKeys: values(v.echKeys), Storage: v.shared, Kubernetes: v.kubernetes,
	}
	c.Routes = v.splitRoutes()
	if c.Node == "" {
		c.Node, _ = os.Hostname()
	}
	if c.Node == "" {
		c.Node = defaultNode
	}
	return c
}

func values[T any](pointers []*T) (all []T) {
	for _, p := range pointers {
		all = append(all, *p)
	}
	return all
}
