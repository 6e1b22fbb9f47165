package config

import (
	"net"
	"net/netip"
	"slices"
	"strings"
)

// warn collects what is allowed and probably not meant.
func (v *draft) warn() {
	v.warnUnused()
	for _, l := range v.listeners {
		v.warnListener(l)
	}
	for _, b := range v.backends {
		if v.given(&b.Queue) && b.MaxConnections == 0 {
			v.warnAt(v.places[&b.Queue], "nothing ever waits here, as max_connections is not set")
		}
		if b.PreferLocal && v.zone == "" && slices.ContainsFunc(b.Endpoints, func(e Endpoint) bool { return e.Zone != "" }) {
			v.warnAt(v.places[&b.PreferLocal], "the endpoints' zones mean nothing here, as the top level says no zone of this machine's")
		}
		if b.TLS.InsecureSkipVerify {
			v.warnAt(v.places[&b.TLS.InsecureSkipVerify], "whoever answers in an endpoint's place can read and change everything")
		}
	}
	for _, r := range v.routes {
		v.warnRoute(r)
	}
	for _, c := range v.certificates {
		if c.ACME != nil {
			v.warnACME(c.ACME)
			v.warnStorage(&c.ACME.Storage)
		}
	}
	v.warnStorage(&v.shared)
	v.warnKubernetes()
	if t := v.policyNamed(DefaultTLSPolicy); t.SHA1 {
		v.warnAt(v.places[&t.SHA1], "this is the policy of all hosts that name no other, so every client may then be shown SHA-1 signatures by offering nothing better; give those who need it a policy of their own")
	}
	if a := &v.admin.Address; v.admin.Network == "tcp" && v.given(a) && !isLoopback(*a) {
		v.warnAt(v.places[a], "whoever reaches the admin port can drain this node and read its memory; keep it on loopback, or behind a firewall")
	}
}

// warnStorage warns of keys that go over a network in the clear.
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
		unused(h, "policy", v.kubernetes.uses(h) || slices.ContainsFunc(v.listeners, func(l *Listener) bool { return l.HeaderPolicy == h.Name }))
	}
	for _, t := range v.policies {
		used := slices.ContainsFunc(v.routes, func(r *Route) bool { return r.TLSPolicy == t.Name })
		unused(t, "policy", used || t.Name == DefaultTLSPolicy)
	}
	for _, b := range v.backends {
		unused(b, "backend", slices.ContainsFunc(v.routes, func(r *Route) bool { return r.Backend == b.Name }))
	}
}

func (v *draft) warnListener(l *Listener) {
	if !slices.ContainsFunc(v.routes, func(r *Route) bool { return slices.Contains(r.Listeners, l.Name) }) && !v.servesIngress(l) {
		v.warnAt(v.places[l], "no route names this listener, so it answers everything with 404")
	}
	if l.Protocol != ProtocolTCP {
		return
	}
	for _, h := range v.headers {
		if h.Name != l.HeaderPolicy {
			continue
		}
		for i := range h.Rules {
			if mode := &h.Rules[i].Mode; *mode == HeaderOptional {
				v.warnAt(v.places[mode], "on the tcp listener %q clients that send no header have to speak first; a server that speaks first, such as SSH, is not heard before they do",
					l.Name)
			}
		}
	}
}

func (v *draft) warnRoute(r *Route) {
	for i, p := range r.Paths {
		if strings.Contains(p.Value, "*") {
			v.warnAt(v.places[&r.Paths[i]], "the star stands for itself; a prefix matches everything below it without one")
		}
	}
	for i, h := range r.Hosts {
		if v.isOpened(r, h) && !v.isCertified(h) && !v.isOnDemand(h) {
			v.warnAt(v.places[&r.Hosts[i]], "no certificate names this host, so its clients are shown the first one")
		}
	}
}

// isOpened says whether r opens TLS for host.
func (v *draft) isOpened(r *Route, host string) bool {
	return slices.ContainsFunc(v.listenersOf(r), func(l *Listener) bool {
		_, mode := v.groups[hostOn{l.Name, host}].effective()
		return l.Protocol == ProtocolTLS && mode == TLSTerminate
	})
}

// isCertified says whether a certificate is for host; one for *.example.org is for each of its labels.
func (v *draft) isCertified(host string) bool {
	_, rest, _ := strings.Cut(host, ".")
	return v.names[host] || v.names["*."+rest]
}

// isOnDemand says whether a certificate for host may be got when it is asked for.
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
