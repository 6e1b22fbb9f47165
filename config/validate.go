package config

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"os"
	"slices"
)

// validate is what one value alone cannot tell. It works on what could be
// decoded, so that every error comes at once.
func (v *draft) validate() {
	v.addDefaultPolicy()
	for _, l := range v.listeners {
		checkName(v, &l.HeaderPolicy, "proxy_protocol policy", v.headers, func(h *HeaderPolicy) string { return h.Name })
		if l.Protocol == ProtocolTCP && v.given(&l.TrustForwarded) {
			v.failAt(v.places[&l.TrustForwarded], "a tcp listener has no requests with fields; take this out")
		}
		v.checkHTTP2(l)
	}
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
	v.checkCertificates()
	v.checkAddresses()
}

// checkHTTP2 reports ways to HTTP/2 that a listener's protocol does not have,
// and takes out the defaults of those.
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
			first[*from] = v.places[from].Line
		}
	}
}

func (v *draft) checkPolicy(t *TLSPolicy) {
	switch {
	case t.MinVersion <= t.MaxVersion:
		v.checkSuites(t)
		v.checkCurves(t)
		v.checkSHA1(t)
	case v.given(&t.MaxVersion):
		v.failAt(v.places[&t.MaxVersion], "is below min_version, which is %q%s; raise it or lower min_version", versionName(t.MinVersion), v.byDefault(&t.MinVersion))
	default:
		v.failAt(v.places[&t.MinVersion], "is above max_version, which is %q by default; lower it or raise max_version", versionName(t.MaxVersion))
	}
	switch {
	case v.given(&t.From) && t.Name == DefaultTLSPolicy:
		v.failAt(v.places[&t.From], "the policy default is for everybody who gets no other; take from out, or give the policy another name")
	case v.given(&t.From) && v.given(&t.ClientAuth):
		v.failAt(v.places[&t.From], "from and client_auth do not go together: clients from elsewhere would get default and need no certificate; take one of them out")
	}
}

// checkSHA1 reports where no client could make use of it: TLS 1.0 and 1.1 sign
// with SHA-1 anyway, and TLS 1.3 never does.
func (v *draft) checkSHA1(t *TLSPolicy) {
	if t.SHA1 && (t.MinVersion > tls.VersionTLS12 || t.MaxVersion < tls.VersionTLS12) {
		v.failAt(v.places[&t.SHA1], "is about signatures in TLS 1.2, which the policy does not have; take it out, or let the versions include \"1.2\"")
	}
}

func (v *draft) byDefault(dst any) string {
	if v.given(dst) {
		return ""
	}
	return " by default"
}

// checkSuites reports suites that no version of the policy can use, and
// versions that no suite works with.
func (v *draft) checkSuites(t *TLSPolicy) {
	if !v.given(&t.CipherSuites) || slices.Contains(t.CipherSuites, 0) || len(t.CipherSuites) == 0 {
		return // Go's own fit, and broken ones were reported
	}
	if t.MinVersion == tls.VersionTLS13 {
		v.failAt(v.places[&t.CipherSuites], `suites are chosen up to TLS 1.2, and min_version is "1.3"; take them out, or lower min_version`)
		return
	}
	top := min(t.MaxVersion, tls.VersionTLS12)
	for i, id := range t.CipherSuites {
		if s := suiteByID(id); !worksWith(s, top) {
			v.failAt(v.places[&t.CipherSuites[i]], "%s works with TLS 1.2 alone, and max_version is %q; take it out, or raise max_version",
				v.quote(&t.CipherSuites[i], s.Name), versionName(t.MaxVersion))
			return
		}
	}
	for version := t.MinVersion; version <= top; version++ {
		works := func(id uint16) bool { return worksWith(suiteByID(id), version) }
		if !slices.ContainsFunc(t.CipherSuites, works) {
			v.failAt(v.places[&t.CipherSuites], "none of the suites works with TLS %s, which min_version allows; add one such as TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, or raise min_version", versionName(version))
			return
		}
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
		v.failAt(v.places[&b.TLS], `the backend speaks %s, without TLS of weir's; write "protocol: https" (or "grpc"), or take tls out`, b.Protocol)
	}
	if v.given(&b.HTTP2) && b.Protocol != ProtocolHTTPS {
		v.failAt(v.places[&b.HTTP2], `only https endpoints can choose; for HTTP/2 without TLS write "protocol: h2c", and take http2 out`)
	}
	if v.given(&b.Host) && b.Protocol == ProtocolTCP {
		v.failAt(v.places[&b.Host], "a tcp backend is sent no requests whose Host could be set; take this out")
	}
}

// checkCertificates reports tls listeners that open TLS and have nothing to open it with.
func (v *draft) checkCertificates() {
	if len(v.certificates) > 0 {
		return
	}
	for _, l := range v.listeners {
		if l.Protocol == ProtocolTLS && v.opensTLS(l) && !v.servesIngress(l) {
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

// checkAddresses reports two sockets that cannot listen at once.
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
			if s.at.Line == 0 { // a default that collides with something written
				v.failAt(other.at, "is where %s is by default; use another address here, or set admin.address", s.what)
			} else {
				v.failAt(s.at, "is taken by %s (line %d); use another address", other.what, other.at.Line)
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
	add(socket{what: "the admin port", network: v.admin.Network, address: v.admin.Address, at: v.places[&v.admin.Address]})
}

// config is the configuration as its consumers see it.
func (v *draft) config() *Config {
	c := &Config{
		Node: v.node, NodeExplicit: v.node != "", Zone: v.zone,
		Listeners: values(v.listeners), HeaderPolicies: values(v.headers),
		Certificates: values(v.certificates), TLSPolicies: values(v.policies),
		Backends: values(v.backends), Health: v.health, Admin: *v.admin,
		Drain: v.drain, Log: v.log, AccessLog: v.accessLog, Limits: v.limits,
		ECHKeys: values(v.echKeys), Storage: v.shared, Kubernetes: v.kubernetes,
	}
	c.Limits.HeadBytes = int(v.headSize)
	for _, r := range v.routes {
		c.Routes = append(c.Routes, v.split(r)...)
	}
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
