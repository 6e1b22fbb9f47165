package config

// WeightedBackend is one of several backends of a route.
type WeightedBackend struct {
	Name string
	// Weight is the share of the requests or connections, relative to the other backends of
	// the route; 0: none.
	Weight int
	// Request changes the requests for this backend, after the changes of the route; nil: nothing.
	// Only objects of a cluster have it.
	Request *HeaderEdits
}

func (w WeightedBackend) equal(o WeightedBackend) bool {
	return w.Name == o.Name && w.Weight == o.Weight && w.Request.equal(o.Request)
}

// maxWeight limits the weight of a backend, so that the sum of the weights never overflows.
const maxWeight = 1_000_000

// FirstBackend returns the name of the only backend of the route, or of the first one; empty:
// the route has none. The backends of a route all serve requests, or all serve raw bytes.
func (r *Route) FirstBackend() string {
	if len(r.Backends) > 0 {
		return r.Backends[0].Name
	}
	return r.Backend
}

// BackendNames returns the names of all backends of the route, in the order of the file.
func (r *Route) BackendNames() (names []string) {
	if r.Backend != "" {
		names = append(names, r.Backend)
	}
	for i := range r.Backends {
		names = append(names, r.Backends[i].Name)
	}
	return names
}

func (w *WeightedBackend) section() section {
	return section{object: w, keys: []key{
		{"name", text(&w.Name).required("app"), "The name of the backend."},
		{"weight", number(&w.Weight, 0, maxWeight), "The backend's share of the requests or connections, relative to the other backends of the route. 0: none."},
	}}
}

// weightsKey is a list of backends with weights.
func (r *Route) weightsKey() value {
	all := inPlace(&r.Backends, func() WeightedBackend { return WeightedBackend{Weight: 1} }, (*WeightedBackend).section)
	read := all.read
	all.read = func(v *draft, n *Tree, p path) {
		v.mark(&r.Backends, n, p)
		read(v, n, p)
		first, some := map[string]bool{}, false
		for i := range r.Backends {
			one := &r.Backends[i]
			if one.Name != "" && first[one.Name] {
				v.failAt(v.places[&one.Name], "%s is given twice; keep one, with the sum of the weights", v.quote(&one.Name, one.Name))
			}
			first[one.Name] = true
			some = some || one.Weight > 0
		}
		if len(r.Backends) > 0 && !some {
			v.fail(n, p, "has no backend with a weight above 0, so no request could be forwarded; give one a weight, or use respond")
		}
	}
	return all
}

// backendKey returns the field that names the first backend of r, for the place of an error.
func (v *draft) backendKey(r *Route) any {
	if len(r.Backends) > 0 {
		return &r.Backends[0].Name
	}
	return &r.Backend
}

// firstBackend returns the only or first backend of r; nil: it does not exist.
func (v *draft) firstBackend(r *Route) *Backend { return v.backendNamed(r.FirstBackend()) }

// hasBackend returns true if the file gives r a backend, or several.
func (v *draft) hasBackend(r *Route) bool { return v.given(&r.Backend) || v.given(&r.Backends) }

// checkWeights reports weighted backends that do not exist, or that do not serve the same as the
// first one.
func (v *draft) checkWeights(r *Route) {
	if v.given(&r.Backend) && v.given(&r.Backends) {
		v.failAt(v.places[&r.Backends], "the route has backend as well; keep one of the two")
	}
	first := v.firstBackend(r)
	for i := range r.Backends {
		name := &r.Backends[i].Name
		b := v.backendNamed(*name)
		if b == nil {
			checkName(v, name, "backend", v.backends, (*Backend).name)
			continue
		}
		if first != nil && first.Protocol != "" && b.Protocol != "" && (b.Protocol == ProtocolTCP) != (first.Protocol == ProtocolTCP) {
			v.failAt(v.places[name], `backend %q speaks %s, but backend %q speaks %s; a route forwards either requests or raw connections, so make two routes`, b.Name, b.Protocol, first.Name, first.Protocol)
		}
	}
}
