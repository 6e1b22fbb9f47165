package config

// InFlight limits the requests and tunnels of a route that are open at the same time.
type InFlight struct {
	Most   int     // at least 1
	Per    PerWhat // PerClient or PerRoute
	Status int     // of the refusal, 400 to 599
}

func (r *Route) inFlightKey() value {
	return optional(&r.InFlight, func() *InFlight { return &InFlight{Per: PerClient, Status: 503} }, func(f *InFlight) section {
		return section{object: &r.InFlight, keys: []key{
			{"most", number(&f.Most, 1, maxRate).required("10"), "How many requests, or tunnels, may be open at the same time."},
			{"per", oneOf(PerClient, PerRoute).at(&f.Per), "client: each client network counts on its own (see limits.clients.prefix). route: all clients count together."},
			{"status", number(&f.Status, 400, 599), "The status of the response to further requests."},
		}}
	})
}

// covers reports whether f refuses whatever o refuses; each may be nil.
func (f *InFlight) covers(o *InFlight) bool {
	return o == nil || f != nil && f.Per == o.Per && f.Most <= o.Most
}
