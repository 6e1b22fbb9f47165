package kube

import (
	"slices"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/claim"
)

// seen is what the file configures for hosts on its listeners.
type seen struct {
	routes map[matchOn]string // the name of the route with the match
	hosts  map[hostOn]bool
	whole  map[hostOn]bool    // the hosts of which the file serves every path
	tls    map[hostOn]hostTLS // on tls listeners
}

type matchOn struct {
	listener string
	claim.Match
}

type hostOn struct{ listener, host string } // the host "" is every host

// hostTLS is how the file treats the TLS of a host on a listener.
type hostTLS struct {
	policy      string
	passthrough bool
	tunnel      bool // weir decrypts it for a tcp backend
}

// raw reports whether weir sees no requests of the host.
func (t *hostTLS) raw() bool { return t.passthrough || t.tunnel }

func look(file *config.Config) seen {
	s := seen{map[matchOn]string{}, map[hostOn]bool{}, map[hostOn]bool{}, map[hostOn]hostTLS{}}
	secure := map[string]bool{}
	for _, l := range file.Listeners {
		secure[l.Name] = l.Protocol == config.ProtocolTLS
	}
	tcp := tcpBackends(file)
	for i := range file.Routes {
		r := file.Routes[i]
		if r.FirstBytes != "" {
			continue
		}
		for _, l := range r.Listeners {
			for _, host := range hostsOf(r) {
				s.hosts[hostOn{l, host}] = true
				if secure[l] {
					s.tls[hostOn{l, host}] = hostTLS{policy: r.TLSPolicy, passthrough: r.TLS == config.TLSPassthrough, tunnel: tcp[r.FirstBackend()]}
				}
				if r.Match != nil {
					continue // requests that fail its conditions are free for objects
				}
				for _, p := range pathsOf(r) {
					s.routes[matchOn{l, claim.Match{Host: host, Path: p}}] = r.Name
					if p == everyPath && !r.OnlyRedirects() {
						s.whole[hostOn{l, host}] = true
					}
				}
			}
		}
	}
	return s
}

// tcpBackends are the names of the file's tcp backends.
func tcpBackends(file *config.Config) map[string]bool {
	tcp := map[string]bool{}
	for i := range file.Backends {
		if b := file.Backends[i]; b.Protocol == config.ProtocolTCP {
			tcp[b.Name] = true
		}
	}
	return tcp
}

func hostsOf(r *config.Route) []string {
	if len(r.Hosts) == 0 {
		return []string{""}
	}
	return r.Hosts
}

func pathsOf(r *config.Route) []config.Path {
	if len(r.Paths) == 0 {
		return []config.Path{everyPath}
	}
	return r.Paths
}

// everyPath is the path of a route without paths.
var everyPath = config.Path{Value: "/"}

// on is how the file treats the TLS of the host on the listener: by the host itself,
// its wildcards, or routes without hosts. So no object can change the policy that the
// file sets for a host.
func (s seen) on(listener, host string) (t hostTLS, itself bool) {
	if t, ok := s.tls[hostOn{listener, host}]; ok {
		return t, true
	}
	for _, above := range config.LessSpecific(host) {
		if t, ok := s.tls[hostOn{listener, above}]; ok {
			return t, false
		}
	}
	return hostTLS{policy: config.DefaultTLSPolicy}, false
}

// asksForCertificates reports whether the policy requests client certificates, after `from`.
func (v *conversion) asksForCertificates(name string) bool {
	p := v.policy(name)
	if p != nil && len(p.From) > 0 {
		p = v.policy(config.DefaultTLSPolicy)
	}
	return p != nil && p.ClientAuth != config.ClientAuthNone
}

func (v *conversion) policy(name string) *config.TLSPolicy {
	for i := range v.file.TLSPolicies {
		if v.file.TLSPolicies[i].Name == name {
			return &v.file.TLSPolicies[i]
		}
	}
	return nil
}

// tlsOn returns how weir treats the TLS of an object's host on a listener. If a host requires client
// certificates on one listener, it requires them on all others, unless the file sets something else.
func (v *conversion) tlsOn(listener, host string) (t hostTLS, itself bool) {
	t, itself = v.seen.on(listener, host)
	if p := v.protection(host); p.policy != "" && !itself {
		t.policy = p.policy
	}
	if h := v.certsOf(host); h.asks() && !t.raw() && !itself {
		t.policy = v.certPolicy(h, t.policy)
	}
	return t, itself
}

// protection is how client certificates protect a host.
type protection struct {
	policy string // the policy with client certificates; empty: none
	below  bool   // the host requires client certificates, or a wildcard covers a host that does
}

// protection looks at the file and at annotations. weir serves nothing of a protected host
// without TLS, where clients have no certificate.
func (v *conversion) protection(host string) protection {
	p := v.fileProtection(host)
	p.below = p.below || v.certsOf(host).requires()
	return p
}

// fileProtection looks at all tls listeners of the file.
func (v *conversion) fileProtection(host string) protection {
	p, known := v.protected[host]
	if known || !v.clientCerts {
		return p
	}
	for _, l := range v.file.Listeners {
		if l.Protocol != config.ProtocolTLS {
			continue
		}
		if t, _ := v.seen.on(l.Name, host); p.policy == "" && !t.raw() && v.asksForCertificates(t.policy) {
			p = protection{t.policy, true}
		}
	}
	for on, t := range v.seen.tls {
		within := host == "" || on.host == host || slices.Contains(config.LessSpecific(on.host), host)
		p.below = p.below || within && !t.raw() && v.asksForCertificates(t.policy)
	}
	v.protected[host] = p
	return p
}

// requestsClientCerts reports whether any policy of the file requests client certificates.
func requestsClientCerts(file *config.Config) bool {
	return slices.ContainsFunc(file.TLSPolicies, func(p config.TLSPolicy) bool { return p.ClientAuth != config.ClientAuthNone })
}
