package config

// Guarded reports whether the route has a guard: a setting by which it refuses requests.
func (r *Route) Guarded() bool { return r.MaxBody != 0 || r.Clients != nil || r.Auth != "" }

// LessGuarded reports whether r forwards requests that a guard of another route refuses. The
// guards of the other route then do not protect its endpoints from requests that reach them by r.
func (r *Route) LessGuarded(than *Route) bool {
	if r.Closure != nil || r.Answers() {
		return false // r forwards nothing
	}
	if than.Auth != "" && r.Auth != than.Auth {
		return true // even if r has another one: its users are others
	}
	return than.MaxBody != 0 && (r.MaxBody == 0 || r.MaxBody > than.MaxBody) ||
		!r.Clients.covers(than.Clients)
}

// checkGuards reports guards of a route that redirects all requests. weir redirects before it
// asks them.
func (v *draft) checkGuards(r *Route) {
	if !r.OnlyRedirects() {
		return
	}
	for _, dst := range []any{&r.Clients} {
		if v.given(dst) {
			v.failAt(v.places[dst], "the route redirects all requests before this could refuse any, so it has no effect; take this out")
		}
	}
}
