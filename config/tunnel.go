package config

import (
	"fmt"
	"strings"
)

// A route of a tls listener whose backend is tcp is a tunnel: weir terminates TLS and
// passes on the decrypted bytes without reading them. Settings for requests have no meaning
// there.

// protocolName is a protocol as ALPN has it (RFC 7301).
var protocolName = kind[string]{what: `the name of a protocol such as "postgresql"`, format: same[string], pattern: `[!-~]{1,255}`,
	parse: func(s string) (string, error) {
		if s == "" || len(s) > 255 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > 0x7e }) {
			return "", fmt.Errorf(`is not the name of a protocol; write one such as "postgresql", in ASCII and without spaces`)
		}
		if s == "acme-tls/1" {
			return "", fmt.Errorf("is for the challenges of certificate authorities, which weir answers by itself; take it out")
		}
		return s, nil
	},
}

// opensTunnel returns true if r terminates TLS of host on l and leads to a tcp backend.
func (v *draft) opensTunnel(r *Route, l *Listener, host string) bool {
	b := v.firstBackend(r)
	return b != nil && b.Protocol == ProtocolTCP && l.Protocol == ProtocolTLS && v.isTunnel(r, l, host) == ""
}

// checkOpenedTunnel reports settings that do not work with a tunnel whose TLS weir
// terminates.
func (v *draft) checkOpenedTunnel(r *Route) {
	var opened bool
	for _, l := range v.listenersOf(r) {
		for _, h := range v.hostsOf(r) {
			if !v.opensTunnel(r, l, h) {
				continue
			}
			opened = true
			if other := v.groups[hostOn{l.Name, h}].http; other != nil && (v.given(&other.Paths) || v.given(&other.Match)) { // otherwise checkDuplicates reports it
				v.failAt(v.places[v.backendKey(r)], `backend %q has "protocol: tcp", but %s carries HTTP for the same host on listener %q (%s); give one of the two another host or listener`,
					r.FirstBackend(), v.lineOf(other), l.Name, v.describeHost(r, h))
				return
			}
		}
	}
	if !opened {
		if b := v.firstBackend(r); v.given(&r.ALPN) && (b != nil && b.Protocol != "" || r.FirstBackend() == "") {
			v.failAt(v.places[&r.ALPN], `is for routes of a tls listener that terminate TLS for a backend with "protocol: tcp"; take this out`)
		}
		return
	}
	for _, dst := range append(r.requestSettings(), &r.Paths, &r.Match, &r.HSTS) {
		if v.given(dst) {
			v.failAt(v.places[dst], `backend %q has "protocol: tcp", so weir forwards the decrypted bytes without reading them, and sees no requests; take this out, or use a backend that speaks http, https, h2c or grpc`, r.FirstBackend())
		}
	}
}

// warnTLSWithinTLS warns of routes whose endpoints would get TLS within TLS.
func (v *draft) warnTLSWithinTLS(r *Route) {
	b := v.firstBackend(r)
	if b == nil || b.Protocol != ProtocolTCP || !b.Secure || r.FirstBytes != "" {
		return
	}
	for _, l := range v.listenersOf(r) {
		for _, h := range v.hostsOf(r) {
			if _, mode := v.groups[hostOn{l.Name, h}].effective(); l.Protocol == ProtocolTLS && mode == TLSPassthrough {
				v.warnAt(v.places[v.backendKey(r)], "the route passes the client's TLS through, and backend %q has tls, so its endpoints get TLS within TLS; take tls out of one of the two unless they expect that", b.Name)
				return
			}
		}
	}
}
