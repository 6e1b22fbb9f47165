package status

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/pause"
	"github.com/weirproxy/weir/proxy/tally"
)

// RouteInfo is what the configuration says of a route.
type RouteInfo struct {
	Name     string
	Hosts    []string
	Position string
	Backend  string
}

// RouteCounts is what a route has done.
type RouteCounts struct {
	tally.Counts
	Tunnels int // open now
}

// forgetAfter is the time after which nobody looks at routes any more.
const forgetAfter = time.Minute

// Watch computes the rates of routes between two looks. It needs memory only while somebody
// looks. The zero value is ready for use.
type Watch struct {
	mu          sync.Mutex
	older, last look
}

// look has the counts of all routes at a moment.
type look struct {
	at     time.Time
	counts map[string]*RouteCounts // by the name of the route
}

// Look notes the counts of a moment, and returns the rows of all routes. The caller must not change
// counts afterwards. Rates have 0 seconds in the first look.
func (w *Watch) Look(now time.Time, routes []RouteInfo, counts map[string]*RouteCounts) []Route {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(w.last.at) > forgetAfter {
		w.older, w.last = look{}, look{}
	}
	if w.last.counts == nil || now.Sub(w.last.at) >= leastWindow {
		w.older, w.last = w.last, look{now, counts}
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

// Forget gives the memory back if nobody looks any more.
func (w *Watch) Forget(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(w.last.at) > forgetAfter {
		w.older, w.last = look{}, look{}
	}
}

func rowOf(info RouteInfo, now time.Time, c *RouteCounts, before look) Route {
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

// PageOfBackends returns one page of the backends: those with a problem first.
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

// PageOfCertificates returns one page of the certificates: those with a problem first, then those
// that end first.
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
