package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Redirect answers a request with a redirect: to the same URL over https, or, if it Moves, to
// another URL.
type Redirect struct {
	To     Template // the whole new URL; empty: the fields below
	Scheme string   // http or https; empty: https if the redirect does not Move, otherwise the scheme of the request
	Host   string   // without port; empty: the request's
	Prefix string   // as Rewrite.Prefix; empty: the path stays
	Path   Template // as Rewrite.Path; empty: the path stays
	// Port is the port of the new URL. weir omits the default port of the scheme. 0: the
	// request's, or the default port of Scheme.
	Port   int
	Status int // 301, 302, 303, 307 or 308; 303 only from Kubernetes objects
	// Always means that Scheme, Host, Prefix, Path and Port describe the new URL even if only
	// Scheme or Port is set. Only redirects of the Gateway API have it.
	Always bool
	// DropQuery means that the new URL does not get the query of the request. Only redirects of
	// Kubernetes objects have it.
	DropQuery bool
}

// Moves reports whether the redirect leads to another URL than the URL of the request with https.
func (d *Redirect) Moves() bool {
	return d.To != "" || d.Host != "" || d.Prefix != "" || d.Path != "" || d.Always
}

// HSTS is the content of Strict-Transport-Security in responses over TLS (RFC 6797).
type HSTS struct {
	MaxAge            time.Duration // 0 ends an earlier promise
	IncludeSubdomains bool
	Preload           bool
}

const year = 365 * day

// redirectKey is "https", or a mapping.
func (r *Route) redirectKey() value {
	return optional(&r.Redirect, func() *Redirect { return &Redirect{Port: 443, Status: 308} }, func(d *Redirect) section {
		return section{object: &r.Redirect, short: shortRedirect.at(new(string)), check: d.check, rules: redirectRules, keys: []key{
			{"to", newURL.at(&d.To), "The whole new URL, with variables such as {uri}. Not together with the other keys, except status."},
			{"scheme", d.schemeValue().byDefault("https; with host, prefix or path, the request's"), "The scheme of the new URL."},
			{"host", redirectHost.at(&d.Host).byDefault("the request's"), "The host of the new URL, without port."},
			{"port", number(&d.Port, 1, 65535).shownIf(d.Port != 0).byDefault("the public_port of the tls listener with the same host, or 443; with host, prefix or path, the request's, or the default of scheme"), "The port of the new URL. weir leaves the default port of the scheme out."},
			{"prefix", newPath.at(&d.Prefix).byDefault("the path stays"), "Replaces the part of the path that the route matched, as in rewrite."},
			{"path", pathTemplate.at(&d.Path).byDefault("the path stays"), "Replaces the whole path, as in rewrite. The query stays."},
			{"status", redirectStatus(&d.Status), "The status of the redirect. Permanent: 308 keeps the method, 301 works with very old clients. Temporary: 307 keeps the method, 302 is the old form."},
		}}
	})
}

// shortRedirect is the form of a redirect without other settings.
var shortRedirect = kind[string]{what: "https, or a mapping", words: []string{"https"}, format: same[string], parse: func(s string) (string, error) {
	if s != "https" {
		return "", errors.New(`is not known here; write https for the same URL with https, or a mapping such as {to: 'https://www.example.org{uri}'}`)
	}
	return s, nil
}}

var redirectScheme = oneOf("http", "https")

// schemeValue prints https for redirects that do not move.
func (d *Redirect) schemeValue() value {
	x := redirectScheme.at(&d.Scheme)
	x.print = func(*shower) *Tree {
		if d.Scheme == "" && !d.Moves() {
			return textTree("https")
		}
		return textUnlessEmpty(d.Scheme)
	}
	return x
}

// check reports keys that contradict each other, and removes defaults of the other form.
func (d *Redirect) check(v *draft, there keySet, n *Tree, p path) {
	moves := false
	for _, k := range []string{"to", "host", "prefix", "path"} {
		moves = moves || there.has(k)
	}
	if !moves {
		if d.Scheme == "http" {
			v.failAt(v.places[&d.Scheme], "without to, host, prefix or path the redirect leads to the request's own URL by https; write https, or one of these keys")
		}
		d.Scheme = ""
		return
	}
	if !there.has("port") {
		d.Port = 0
	}
	for _, k := range []string{"scheme", "host", "port", "prefix", "path"} {
		if there.has("to") && there.has(k) {
			v.fail(n, p, "to is the whole new URL; write %s there, or take to out", k)
			return
		}
	}
	if there.has("prefix") && there.has("path") {
		v.fail(n, p, "prefix replaces a part of the path, and path the whole path; take one of them out")
	}
}

// redirectHost is a host without port.
var redirectHost = kind[string]{what: "a host without port", format: same[string], pattern: hostField.pattern,
	parse: func(s string) (string, error) {
		if strings.LastIndexByte(s, ':') > strings.LastIndexByte(s, ']') {
			return "", fmt.Errorf("has a port; write it under port")
		}
		return parseHostField(s)
	}}

// newURL is a whole URL with variables. Its host is fixed, or the host of the request, so that
// clients cannot choose it.
var newURL = kind[Template]{what: `a URL such as "https://www.example.org{uri}"`, format: same[Template], pattern: `(https?|\{scheme\})://[^ /].*`,
	parse: func(s string) (Template, error) {
		if _, err := parseTemplate(s); err != nil {
			return "", err
		}
		scheme, rest, whole := strings.Cut(s, "://")
		if !whole || scheme != "http" && scheme != "https" && scheme != "{scheme}" {
			return "", fmt.Errorf(`is not a whole URL; write one such as "https://www.example.org{uri}"`)
		}
		end := len(rest)
		for _, after := range []string{"/", "?", "{uri}", "{path}"} {
			if i := strings.Index(rest, after); i >= 0 {
				end = min(end, i)
			}
		}
		host, path := strings.Replace(rest[:end], "{host}", "host", 1), rest[end:]
		if _, err := parseHostField(host); err != nil || strings.ContainsAny(host, "{}?#") {
			return "", fmt.Errorf("has no valid host; write a host or {host}, and then a path, {uri} or {path}")
		}
		path, _, _ = strings.Cut(path, "?")
		if path != "" && path[0] == '/' {
			if err := checkNewPath(path); err != nil {
				return "", err
			}
		}
		if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > 0x7e || r == '#' || r == '\\' }) {
			return "", fmt.Errorf("has spaces, a fragment, a backslash or letters beyond ASCII; percent-encode them")
		}
		return Template(s), nil
	}}

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
	if !r.Redirect.Moves() && !v.given(&r.Redirect.Port) {
		r.Redirect.Port = v.portForHTTPS(r)
	}
	if r.Redirect.Moves() && v.hasBackend(r) {
		v.failAt(at, "the redirect answers all requests (to, host, prefix or path), so none reaches a backend; take redirect or backend out")
		return
	}
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
		if l.Protocol != ProtocolTLS || r.Redirect.Moves() {
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

// portForHTTPS is the public_port of the tls listeners to which a redirect of r leads: those of
// routes that have a host of r, or else all. It is 443 if they have none, or different ones.
func (v *draft) portForHTTPS(r *Route) int {
	ports := map[int]bool{}
	for _, onlyOfHosts := range []bool{true, false} {
		for _, l := range v.listeners {
			has := func(host string) bool { return v.groups[hostOn{l.Name, host}] != nil }
			if l.Protocol == ProtocolTLS && (!onlyOfHosts || slices.ContainsFunc(v.hostsOf(r), has)) {
				ports[l.PublicPort] = true
			}
		}
		if len(ports) > 0 {
			break
		}
	}
	for port := range ports {
		if len(ports) == 1 && port != 0 {
			return port
		}
	}
	return 443
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
