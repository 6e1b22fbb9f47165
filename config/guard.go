package config

import (
	"strings"

	"github.com/weirproxy/weir/pause"
)

// Guarded reports whether the route has a guard: a setting by which it refuses requests.
func (r *Route) Guarded() bool {
	return r.MaxBody != 0 || r.Clients != nil || r.Auth != "" || r.RateLimit != "" || r.InFlight != nil || r.Limits != nil || r.Script.mayRefuse() || r.ClientCert.mayRefuse()
}

// DropGuards removes the guards of a route that answers all requests before its guards would decide.
// The script and the client certificates stay, because they come first.
func (r *Route) DropGuards() {
	r.MaxBody, r.Clients, r.Auth, r.Satisfy, r.RateLimit, r.InFlight, r.Limits = 0, nil, "", "", "", nil, nil
}

// LessGuarded reports whether r forwards requests that a guard of another route refuses. The
// guards of the other route then do not protect its endpoints from requests that reach them by r.
func (r *Route) LessGuarded(than *Route) bool {
	if r.Closure != nil || r.Answers() {
		return false // r forwards nothing
	}
	return than.MaxBody != 0 && (r.MaxBody == 0 || r.MaxBody > than.MaxBody) ||
		r.admitsMore(than) ||
		than.RateLimit != "" && r.RateLimit != than.RateLimit ||
		!r.InFlight.covers(than.InFlight) || !r.Limits.covers(than.Limits) ||
		!r.Script.covers(than.Script) ||
		than.ClientCert.mayRefuse() && !equal(r.ClientCert, than.ClientCert)
}

// admitsMore reports whether r may admit a sender that clients and auth of another route refuse. Two
// different entries of auth have different users.
func (r *Route) admitsMore(than *Route) bool {
	covers, same := r.Clients.covers(than.Clients), r.Auth == than.Auth
	switch {
	case than.Clients == nil && than.Auth == "":
		return false
	case than.Satisfy == SatisfyAny:
		return !covers || r.Satisfy == SatisfyAny && !same
	}
	return !covers || than.Auth != "" && !same || r.Satisfy == SatisfyAny
}

// checkGuards reports guards of a route that redirects all requests. weir redirects before it
// asks them.
func (v *draft) checkGuards(r *Route) {
	if !r.OnlyRedirects() {
		return
	}
	for _, dst := range []any{&r.Clients, &r.Auth, &r.Satisfy, &r.RateLimit, &r.InFlight} {
		if v.given(dst) {
			v.failAt(v.places[dst], "the route redirects all requests before this could refuse any, so it has no effect; take this out")
		}
	}
}

// warnMethods warns if clients or auth of a route protect only some methods of a path, and a route
// without conditions sends requests with all other methods to the same backend. If the second route
// lists its methods too, the author has chosen them on purpose, so there is no warning.
func (v *draft) warnMethods() {
	var byPath map[pathOn]*Route
	for _, r := range v.routes {
		pause.IfDue()
		if r.Match == nil || len(r.Match.Methods) == 0 || r.Clients == nil && r.Auth == "" {
			continue
		}
		if byPath == nil {
			byPath = v.routesByPath()
		}
		if other := v.routeOfOtherMethods(byPath, r); other != nil {
			v.warnAt(v.places[&r.Match.Methods], "requests with other methods than %s get route %q, which leads to the same backend without %s of this route; list all methods here, or give that route methods too",
				strings.Join(r.Match.Methods, ", "), other.Name, strings.Join(r.accessGuards(), " and "))
		}
	}
}

// accessGuards names the guards of r that decide who may send requests.
func (r *Route) accessGuards() (keys []string) {
	if r.Clients != nil {
		keys = append(keys, "clients")
	}
	if r.Auth != "" {
		keys = append(keys, "auth")
	}
	return keys
}

// routeOfOtherMethods returns a route without conditions that gets the requests with other methods for a
// path of r, sends them to the same backend, and admits clients that r refuses. nil: there is no such
// route.
func (v *draft) routeOfOtherMethods(byPath map[pathOn]*Route, r *Route) *Route {
	paths := r.Paths
	if len(paths) == 0 {
		paths = []Path{{Value: "/"}}
	}
	for _, l := range r.Listeners {
		for _, h := range v.hostsOf(r) {
			for _, p := range paths {
				other := guardOf(byPath, pathOn{hostOn{l, h}, p.Value})
				if p.Expression || other == nil {
					other = byPath[pathOn{hostOn{l, h}, "/"}]
				}
				if other != nil && !other.Answers() && other.admitsMore(r) && other.sharesBackend(r) {
					return other
				}
			}
		}
	}
	return nil
}
