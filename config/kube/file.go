package kube

import (
	"slices"
	"strings"

	"github.com/weirproxy/weir/config"
)

// seen is what the file's configuration says of hosts on its listeners.
type seen struct {
	claims map[fileClaim]string // the name of the route that has it
	hosts  map[hostOn]bool
	tls    map[hostOn]hostTLS // on tls listeners
}

type fileClaim struct {
	listener string
	claim
}

type hostOn struct{ listener, host string } // the host "" is every host

// hostTLS is what becomes of a host's TLS on a listener.
type hostTLS struct {
	policy      string
	passthrough bool
}

func look(file *config.Config) seen {
	s := seen{map[fileClaim]string{}, map[hostOn]bool{}, map[hostOn]hostTLS{}}
	secure := map[string]bool{}
	for _, l := range file.Listeners {
		secure[l.Name] = l.Protocol == config.ProtocolTLS
	}
	for i := range file.Routes {
		r := &file.Routes[i]
		if r.FirstBytes != "" {
			continue
		}
		for _, l := range r.Listeners {
			for _, host := range hostsOf(r) {
				s.hosts[hostOn{l, host}] = true
				if secure[l] {
					s.tls[hostOn{l, host}] = hostTLS{r.TLSPolicy, r.TLS == config.TLSPassthrough}
				}
				for _, p := range pathsOf(r) {
					s.claims[fileClaim{l, claim{host, p}}] = r.Name
				}
			}
		}
	}
	return s
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

// everyPath is what a route without paths matches.
var everyPath = config.Path{Value: "/"}

// on is what the file says of the host's TLS on the listener: by the host, its
// wildcard, or routes without hosts. So no Ingress gets a host out of the
// policy that the file has for it.
func (s seen) on(listener, host string) (t hostTLS, itself bool) {
	if t, ok := s.tls[hostOn{listener, host}]; ok {
		return t, true
	}
	for _, above := range []string{wildcardOf(host), ""} {
		if t, ok := s.tls[hostOn{listener, above}]; ok {
			return t, false
		}
	}
	return hostTLS{policy: config.DefaultTLSPolicy}, false
}

// wildcardOf is the wildcard that a host falls under; "" where it is one itself.
func wildcardOf(host string) string {
	_, rest, ok := strings.Cut(host, ".")
	if !ok || strings.HasPrefix(host, "*.") {
		return ""
	}
	return "*." + rest
}

// asksForCertificates says whether the policy wants client certificates, after `from`.
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

// tlsOn is what becomes of a host's TLS on a listener, if it is an Ingress's. A
// host that is behind client certificates on one listener is so on all where
// the file says nothing else of it.
func (v *conversion) tlsOn(listener, host string) (t hostTLS, itself bool) {
	t, itself = v.seen.on(listener, host)
	if p := v.protection(host); p.policy != "" && !itself {
		t.policy = p.policy
	}
	return t, itself
}

// protection is how client certificates protect a host.
type protection struct {
	policy string // that the host has by this; empty: none
	below  bool   // a host below it has one, or it itself
}

// protection looks at all tls listeners. Nothing of a protected host is served
// without TLS, where nobody can show a certificate.
func (v *conversion) protection(host string) protection {
	p, known := v.protected[host]
	if known || !v.asking {
		return p
	}
	for _, l := range v.file.Listeners {
		if l.Protocol != config.ProtocolTLS {
			continue
		}
		if t, _ := v.seen.on(l.Name, host); p.policy == "" && !t.passthrough && v.asksForCertificates(t.policy) {
			p = protection{t.policy, true}
		}
	}
	for on, t := range v.seen.tls {
		within := host == "" || on.host == host || wildcardOf(on.host) == host
		p.below = p.below || within && !t.passthrough && v.asksForCertificates(t.policy)
	}
	v.protected[host] = p
	return p
}

// asks says whether any policy of the file asks for client certificates.
func asks(file *config.Config) bool {
	return slices.ContainsFunc(file.TLSPolicies, func(p config.TLSPolicy) bool { return p.ClientAuth != config.ClientAuthNone })
}
