package status

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/pause"
	"github.com/weirproxy/weir/proxy/tally"
)

// RouteInfo are the parts of a route in the configuration that a row shows.
type RouteInfo struct {
	Name     string
	Hosts    []string
	Position string
	Backend  string
}

// RouteCounts are the counts of the requests of a route, and its open tunnels.
type RouteCounts struct {
	tally.Counts
	Tunnels int // open now
}

// forgetAfter is the time after the last observation until a Watch forgets it.
const forgetAfter = time.Minute

// Watch computes the rates of routes between two observations. A minute after the last observation, the
// Watch needs no memory. The zero value is ready for use.
type Watch struct {
	mu          sync.Mutex
	older, last observation
}

// observation has the counts of all routes at a moment.
type observation struct {
	at     time.Time
	counts map[string]*RouteCounts // by the name of the route
}

// Observe records the counts of a moment, and returns the rows of all routes. The caller must not change
// counts afterwards. After the first observation, all rates have 0 seconds.
func (w *Watch) Observe(now time.Time, routes []RouteInfo, counts map[string]*RouteCounts) []Route {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgetOld(now)
	if w.last.counts == nil || now.Sub(w.last.at) >= leastWindow {
		w.older, w.last = w.last, observation{now, counts}
	}
	before := w.older
	if before.counts == nil && now.After(w.last.at) {
		before = w.last
	}
	rows := make([]Route, 0, len(routes)+1)
	known := make(map[string]bool, len(routes))
	for _, info := range routes {
		pause.IfDue()
		known[info.Name] = true
		rows = append(rows, rowOf(info, now, counts[info.Name], before))
	}
	for name, c := range counts { // requests without a route, and routes that share their counts
		if !known[name] {
			rows = append(rows, rowOf(RouteInfo{Name: name, Hosts: []string{}}, now, c, before))
		}
	}
	return rows
}

// Forget frees the memory of observations that are older than a minute.
func (w *Watch) Forget(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgetOld(now)
}

// forgetOld is Forget. The caller holds w.mu.
func (w *Watch) forgetOld(now time.Time) {
	if now.Sub(w.last.at) > forgetAfter {
		w.older, w.last = observation{}, observation{}
	}
}

// rowOf returns the row of a route. c are the counts of now; nil: the route has had no traffic.
func rowOf(info RouteInfo, now time.Time, c *RouteCounts, before observation) Route {
	r := Route{Name: info.Name, Hosts: info.Hosts, Position: info.Position, Backend: info.Backend}
	if c == nil {
		if before.counts != nil {
			r.Now.Seconds = now.Sub(before.at).Seconds()
		}
		return r
	}
	r.Total, r.Failed, r.Tunnels = c.Total(), c.Classes[5], c.Tunnels
	if before.counts == nil {
		return r
	}
	var then tally.Counts
	if b := before.counts[info.Name]; b != nil {
		then = b.Counts
	}
	r.Now = ratesOf(c.Minus(&then), now.Sub(before.at))
	return r
}

// PageOfRoutes returns one page of the routes. They are ordered by requests per second (the
// default), errors per second, p99 or name.
func PageOfRoutes(all []Route, q Query) List[Route] {
	return pageOf(all, q,
		func(r *Route) bool { return q.matches(r.Hosts, r.Name, r.Backend) },
		func(r *Route) bool { return r.Now.Errors > 0 },
		func(a, b *Route) int {
			by := 0
			switch q.Sort {
			case "errors":
				by = cmp.Or(cmp.Compare(b.Now.Errors, a.Now.Errors), cmp.Compare(b.Failed, a.Failed))
			case "p99":
				by = cmp.Compare(b.Now.P99, a.Now.P99)
			case "name":
			default:
				by = cmp.Or(cmp.Compare(b.Now.Requests, a.Now.Requests), cmp.Compare(b.Tunnels, a.Tunnels), cmp.Compare(b.Total, a.Total))
			}
			return cmp.Or(by, cmp.Compare(a.Name, b.Name))
		})
}

// PageOfBackends returns one page of the backends. Backends with a problem come first.
func PageOfBackends(all []Backend, q Query) List[Backend] {
	bad := func(b *Backend) bool { return b.Down > 0 || b.Working == 0 }
	return pageOf(all, q,
		func(b *Backend) bool { return q.matches(nil, b.Name) },
		bad,
		func(a, b *Backend) int {
			if q.Sort == "name" {
				return cmp.Compare(a.Name, b.Name)
			}
			return cmp.Or(badFirst(a.Working == 0, b.Working == 0), badFirst(bad(a), bad(b)), cmp.Compare(a.Name, b.Name))
		})
}

// PageOfCertificates returns one page of the certificates. Certificates with a problem come first. The
// others are ordered by their end.
func PageOfCertificates(all []Certificate, q Query) List[Certificate] {
	bad := func(c *Certificate) bool { return c.Soon || c.NotAfter.IsZero() || c.Error != "" }
	return pageOf(all, q,
		func(c *Certificate) bool { return q.matches(c.Names, c.Source) },
		bad,
		func(a, b *Certificate) int {
			return cmp.Or(badFirst(bad(a), bad(b)), a.NotAfter.Compare(b.NotAfter), slices.Compare(a.Names, b.Names))
		})
}

// PageOfFaults returns one page of the faults of objects.
func PageOfFaults(all []Fault, q Query) List[Fault] {
	return pageOf(all, q,
		func(f *Fault) bool { return q.matches(nil, f.Kind, f.Object, f.Reason, f.Message) },
		func(*Fault) bool { return true },
		func(a, b *Fault) int { return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Kind, b.Kind)) })
}
