package config

import (
	"crypto/tls"
	"fmt"
	"slices"

	"github.com/weirproxy/weir/pause"
)

// Clients without SNI (RFC 6066) name no host before the handshake. So a listener has one
// policy for all of them: the policy of the route without hosts, or the policy of the
// listener.

// checkNameless reports a listener's policy for clients without SNI if the policy is impossible.
func (v *draft) checkNameless(l *Listener) {
	switch {
	case !v.given(&l.TLSPolicy), l.Protocol == "":
	case l.Protocol != ProtocolTLS:
		v.failAt(v.places[&l.TLSPolicy], "is the policy of clients without SNI, and an http or tcp listener has no TLS; take this out")
	case l.TLSPolicy != DefaultTLSPolicy:
		checkName(v, &l.TLSPolicy, "TLS policy", v.policies, func(t *TLSPolicy) string { return t.Name })
	}
}

// warnNameless warns if clients without SNI do not get the policy that the listener names
// for them, or a policy that such clients probably need.
func (v *draft) warnNameless(l *Listener) {
	if l.Protocol != ProtocolTLS {
		return
	}
	g := v.groups[hostOn{l.Name, ""}]
	policy, mode := g.effective()
	if mode == TLSPassthrough {
		if v.given(&l.TLSPolicy) {
			v.warnAt(v.places[&l.TLSPolicy], "no client gets this policy: %s has no hosts and passes TLS through unopened, that of clients without SNI too; take this out", v.lineOf(g.modeBy))
		}
		return
	}
	switch {
	case !v.given(&l.TLSPolicy):
		v.warnUnreachable(l, g, policy)
	case g == nil, policy == l.TLSPolicy:
	case policy != DefaultTLSPolicy:
		v.warnAt(v.places[&l.TLSPolicy], "no client gets this policy: clients without SNI have that of %s, which has no hosts; take this out, or tls_policy out of the route", v.lineOf(g.policyBy))
	case v.given(&v.policyNamed(DefaultTLSPolicy).ClientAuth):
		v.warnAt(v.places[&l.TLSPolicy], "no client gets this policy: a route without hosts has the policy default, whose client_auth clients could get around by sending no SNI; name another tls_policy in that route, or take this out")
	}
}

// warnUnreachable warns of policies for old clients, because these clients usually send
// no SNI. It warns if clients without SNI have another policy, and the listener does not
// set that policy explicitly.
func (v *draft) warnUnreachable(l *Listener, g *group, policy string) {
	warned := []string{policy}
	for _, r := range v.routes {
		pause.IfDue()
		if r.TLSPolicy == "" || len(r.Hosts) == 0 || !slices.Contains(r.Listeners, l.Name) || slices.Contains(warned, r.TLSPolicy) {
			continue
		}
		if t := v.policyNamed(r.TLSPolicy); t == nil || t.MinVersion >= tls.VersionTLS12 && !t.SHA1 {
			continue
		}
		warned = append(warned, r.TLSPolicy)
		have, to := "the policy default", fmt.Sprintf("listeners.%s.tls_policy", l.Name)
		if policy != DefaultTLSPolicy {
			have, to = "that of "+v.lineOf(g.policyBy), "tls_policy of that route"
		}
		v.warnAt(v.places[&r.TLSPolicy], "clients without SNI never get this policy on listener %q: they have %s, and get 421 for these hosts. Many old clients send no SNI; to serve them, set %s to this policy. "+
			"If all clients of these hosts send SNI, confirm it by setting listeners.%s.tls_policy to the policy that clients without SNI have now", l.Name, have, to, l.Name)
	}
}

// warnNamelessKeys warns if old clients without SNI get a certificate that most of them
// cannot use: they know no ECDSA.
func (v *draft) warnNamelessKeys(l *Listener) {
	if l.Protocol != ProtocolTLS || v.unread || v.kubernetes != nil {
		return // a cluster may have another certificate for these clients
	}
	policy, mode := v.groups[hostOn{l.Name, ""}].effective()
	if policy == DefaultTLSPolicy && l.TLSPolicy != "" {
		policy = l.TLSPolicy
	}
	t := v.policyNamed(policy)
	if mode == TLSPassthrough || t == nil || t.MinVersion >= tls.VersionTLS12 {
		return
	}
	if !slices.ContainsFunc(t.CipherSuites, func(id uint16) bool { return suiteKind(id) == "rsa" }) {
		return // no client with RSA alone is wanted
	}
	if kinds := v.firstKinds(); len(kinds) > 0 && !slices.Contains(kinds, "rsa") {
		v.warnAt(v.places[&t.MinVersion], "clients without SNI have this policy on listener %q and get the first certificate, which has an ECDSA key, and most clients with TLS 1.0 or 1.1 need an RSA key; "+
			"write an entry with an RSA key and the same names below the first certificate", l.Name)
	}
}

// firstKinds returns the kinds of keys of the certificates for clients without SNI; none if
// the names of a certificate are not known.
func (v *draft) firstKinds() (kinds []string) {
	all := v.keyed()
	if len(all) == 0 || len(all) < len(v.certificates) {
		return nil
	}
	for _, c := range all {
		if slices.Equal(c.names, all[0].names) {
			kinds = append(kinds, c.kinds...)
		}
	}
	return kinds
}
