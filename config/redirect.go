package config

import (
	"cmp"
	"strconv"
	"time"
)

const year = 365 * day

// redirectKey is "https", or a mapping.
func (r *Route) redirectKey() value {
	return optional(&r.Redirect, func() *Redirect { return &Redirect{Port: 443, Status: 308} }, func(d *Redirect) section {
		scheme := "https" // redirects have no other scheme
		https := oneOf("https").at(&scheme)
		return section{object: &r.Redirect, short: https, keys: []key{
			{"scheme", https, "The scheme of the new URL; https is the only value."},
			{"port", number(&d.Port, 1, 65535), "The port of the new URL; weir leaves 443 out."},
			{"status", redirectStatus(&d.Status), "The status of the redirect. Permanent: 308 keeps the method, 301 works with very old clients. Temporary: 307 keeps the method, 302 is the old form."},
		}}
	})
}

func redirectStatus(dst *int) value {
	x := number(dst, 301, 308)
	x.read = func(v *draft, n *Tree, p path) {
		s, ok := v.scalar(dst, n, p, "a number", ShapeInteger)
		if !ok {
			return
		}
		switch s {
		case "301", "302", "307", "308":
			*dst, _ = strconv.Atoi(s)
		default:
			v.fail(n, p, "%s is not a redirect status; write 308 or 301 (permanent), or 307 or 302 (temporary)", v.quoteNode(n))
		}
	}
	x.schema = func() *schema { return orVariable(&schema{Enum: []any{301, 302, 307, 308}}) }
	return x
}

// hstsKey is a duration, or a mapping.
func (r *Route) hstsKey() value {
	return optional(&r.HSTS, func() *HSTS { return &HSTS{} }, func(h *HSTS) section {
		maxAge := duration(&h.MaxAge, 0, 10*year)
		return section{object: &r.HSTS, short: maxAge, rules: hstsRules, keys: []key{
			{"max_age", maxAge.required(`"8760h"`), "How long browsers remember the setting, in whole seconds. 0s tells them to forget it."},
			{"include_subdomains", truth(&h.IncludeSubdomains), "Whether the setting also applies to all subdomains."},
			{"preload", truth(&h.Preload), "Asks for an entry in the preload list of browsers. Leaving that list is slow. Needs include_subdomains and a max_age of 8760h or more."},
		}}
	})
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
