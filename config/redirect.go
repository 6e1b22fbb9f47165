package config

import (
	"cmp"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

const year = 365 * day

// redirect decodes "https", or a mapping.
func (v *draft) redirect(r *Route) setter {
	return func(n *yaml.Node, p path) {
		v.mark(&r.Redirect, n, p)
		r.Redirect = &Redirect{Port: 443, Status: 308}
		var scheme string // redirects have no other scheme than https
		https := choice(v.decoder, &scheme, "https")
		if n.Kind == yaml.ScalarNode {
			https(n, p)
			return
		}
		v.section(n, p, []field{
			{"scheme", https},
			{"port", v.number(&r.Redirect.Port, 1, 65535)},
			{"status", v.redirectStatus(&r.Redirect.Status)},
		}...)
	}
}

func (d *decoder) redirectStatus(dst *int) setter {
	return func(n *yaml.Node, p path) {
		s, ok := d.scalar(dst, n, p, "a number", "!!int")
		if !ok {
			return
		}
		switch s {
		case "301", "302", "307", "308":
			*dst, _ = strconv.Atoi(s)
		default:
			d.fail(n, p, "%s is not a redirect status; write 308 or 301 (permanent), or 307 or 302 (temporary)", d.quoteNode(n))
		}
	}
}

// hsts decodes a duration, or a mapping.
func (v *draft) hsts(r *Route) setter {
	return func(n *yaml.Node, p path) {
		v.mark(&r.HSTS, n, p)
		r.HSTS = &HSTS{}
		maxAge := v.duration(&r.HSTS.MaxAge, 0, 10*year)
		if n.Kind == yaml.ScalarNode {
			maxAge(n, p)
			return
		}
		there := v.section(n, p, []field{
			{"max_age", maxAge},
			{"include_subdomains", v.truth(&r.HSTS.IncludeSubdomains)},
			{"preload", v.truth(&r.HSTS.Preload)},
		}...)
		v.require(there, n, p, "max_age", `"8760h"`)
	}
}

// checkRedirect reports settings that contradict a redirect.
func (v *draft) checkRedirect(r *Route) {
	if r.Redirect == nil {
		return
	}
	for _, dst := range []any{&r.MaxBody, &r.MaxLifetime, &r.TunnelIdle} {
		if v.given(dst) && r.OnlyRedirects() {
			v.failAt(v.places[dst], "the route redirects, so it carries no request bodies and no tunnels; take this out")
		}
	}
	at := v.places[&r.Redirect]
	for _, l := range v.listenersOf(r) {
		for _, h := range v.hostsOf(r) {
			if tunnel := v.isTunnel(r, l, h); tunnel != "" {
				v.failAt(at, "the route carries raw connections (%s), and only requests can be redirected; take redirect out, and give a backend", tunnel)
				return
			}
		}
		if !r.OnlyRedirects() && (l.Protocol != ProtocolHTTP || !l.HearsOfHTTPS()) {
			v.failAt(at, "a route with redirect and backend needs http listeners with trust_forwarded (and proto in trust) or proxy_protocol, from which weir learns that a client used https; listener %q has neither, so keep only redirect or only backend", l.Name)
			return
		}
		if l.Protocol != ProtocolTLS {
			continue
		}
		if l.Network == "unix" {
			v.failAt(at, "listener %q terminates TLS on a Unix socket, and weir does not know its public port, so the redirect could lead back to it; take the listener out of the route", l.Name)
			return
		}
		if cmp.Or(l.PublicPort, portOfAddress(l.Address)) == r.Redirect.Port {
			v.failAt(at, "listener %q terminates TLS on port %d, so the redirect would lead back to it; take the listener out of the route, or redirect to another port", l.Name, r.Redirect.Port)
			return
		}
	}
}

// checkHSTS reports values of HSTS that browsers ignore, or that weir never sends.
func (v *draft) checkHSTS(r *Route) {
	h := r.HSTS
	if h == nil {
		return
	}
	at := v.places[&r.HSTS]
	if known := v.listenersOf(r); len(known) == len(r.Listeners) && len(known) > 0 && !v.opensAny(r) {
		v.failAt(at, "browsers ignore it over plain HTTP, and no listener of the route terminates TLS; remove it, or name a tls listener")
	}
	if v.given(&h.MaxAge) && h.MaxAge%time.Second != 0 {
		v.failAt(v.places[&h.MaxAge], "is sent in whole seconds; write a whole number of seconds")
	}
	if h.Preload && (!h.IncludeSubdomains || h.MaxAge < year) {
		v.failAt(v.places[&h.Preload], "the preload lists of browsers accept only hosts with include_subdomains: true and a max_age of 8760h or more; set both, or take preload out")
	}
}

// opensAny reports whether r opens TLS for any of its hosts.
func (v *draft) opensAny(r *Route) bool {
	if r.FirstBytes != "" {
		return false
	}
	for _, h := range v.hostsOf(r) {
		if v.isOpened(r, h) {
			return true
		}
	}
	return false
}
