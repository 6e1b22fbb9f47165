package config

// Guarded reports whether the route has a guard: a setting by which it refuses requests.
func (r *Route) Guarded() bool {
	return r.MaxBody != 0 || r.Clients != nil || r.Auth != "" || r.RateLimit != "" || r.InFlight != nil || r.Limits != nil
}

// DropGuards removes the guards of a route that answers all requests before they are asked.
func (r *Route) DropGuards() {
	r.MaxBody, r.Clients, r.Auth, r.Satisfy, r.RateLimit, r.InFlight = 0, nil, "", "", "", nil
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
		!r.InFlight.covers(than.InFlight) || !r.Limits.covers(than.Limits)
}

// admitsMore reports whether r may admit a sender that clients and auth of another route refuse. Another
// auth is no equivalent: its users are others.
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
