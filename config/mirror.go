package config

// Mirror sends copies of requests to another backend.
type Mirror struct {
	Backend string
	Percent int // of the requests, 1 to 100; with Of: 1 to Of
	// Of is the number of requests of which Percent are copied; 0: 100. Only objects of a cluster
	// have it.
	Of int
	// Path is the path and query of copies; empty: the path and query of the request. With KeepQuery,
	// the query of the request follows Path. Only objects of a cluster have Path and the fields below.
	Path      Template
	KeepQuery bool
	Host      string // the Host header; empty: the client's, or that of the backend
	NoBody    bool   // copies have no body
}

func (r *Route) mirrorKey() value {
	return marked(&r.Mirror, inPlace(&r.Mirror, func() Mirror { return Mirror{Percent: 100} }, func(m *Mirror) section {
		return section{object: m, keys: []key{
			{"backend", text(&m.Backend).required("next"), "The backend that gets the copies."},
			{"percent", number(&m.Percent, 1, 100), "The share of the requests that weir copies."},
		}}
	}))
}

// checkMirror reports backends of mirrors that do not exist, or that get no requests, and mirrors
// of routes that forward nothing.
func (v *draft) checkMirror(r *Route) {
	for i := range r.Mirror {
		v.checkRequests(&r.Mirror[i].Backend, "copies")
	}
	if v.given(&r.Mirror) && r.Answers() {
		v.failAt(v.places[&r.Mirror], "no endpoint gets the requests of this route, so there is nothing to copy; take this out")
	}
}
