package status

import (
	"cmp"
	"slices"
	"strings"
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

// ForgetAfter is how long a Watch keeps its rows after the last observation.
const ForgetAfter = time.Minute

// Watch has the rows of all routes, with the rates between two observations. It keeps them between two
// calls, because most of ten thousand routes have no new requests. The zero value is ready for use, by
// one goroutine at a time.
type Watch struct {
	older, last time.Time // of the observations; zero: none
	infos       []RouteInfo
	series      []*tally.Series // of the last call of Observe
	rows        []Route
	index       map[string]int // of rows, by the name of the route
	watched     []watchedRoute
	traffic     []int // for each row, its index in watched or noTraffic
}

const noTraffic = -1

// watchedRoute is a route that has had traffic.
type watchedRoute struct {
	row   int // its index
	parts []watchedSeries
}

// watchedSeries has the counts of a series at the last two observations.
type watchedSeries struct {
	*tally.Series
	older, last tally.Counts
}

// Observe records the counts of a moment, and returns the rows of all routes. They are valid until the
// next call. The caller must not change routes and all afterwards. After the first observation, all rates
// have 0 seconds.
func (w *Watch) Observe(now time.Time, routes []RouteInfo, all []*tally.Series) []Route {
	w.forget(now)
	w.follow(routes, all)
	// Rates of a short time jump. So rates are since the last observation if that is long ago, and otherwise
	// since the observation before it.
	next := w.last.IsZero() || now.Sub(w.last) >= leastWindow
	sinceLast := next || w.older.IsZero()
	before := w.older
	if sinceLast {
		before = w.last
	}
	var window time.Duration
	if !before.IsZero() {
		window = now.Sub(before)
	}
	idle := Rates{Seconds: window.Seconds()}
	for i := range w.rows {
		w.rows[i].Now = idle
	}
	for i := range w.watched {
		pause.InLoop(i)
		r := &w.watched[i]
		row := &w.rows[r.row]
		if since := r.count(row, sinceLast, next); since.Total() > 0 {
			row.Now = ratesOf(since, window)
		}
	}
	if next {
		w.older, w.last = w.last, now
	}
	return w.rows
}

// count sets the counts of a row. It returns the requests since the last observation, or without sinceLast
// since the observation before it. With next, count keeps the counts as those of a new observation.
func (r *watchedRoute) count(row *Route, sinceLast, next bool) (since tally.Counts) {
	row.Total, row.Failed, row.Tunnels = 0, 0, 0
	for i := range r.parts {
		p := &r.parts[i]
		now := p.last
		if p.Total() != now.Total() {
			now = tally.Counts{}
			p.AddTo(&now)
		}
		row.Total += now.Total()
		row.Failed += now.Classes[5]
		row.Tunnels += int(p.Tunnels.Load())
		before := &p.older
		if sinceLast {
			before = &p.last
		}
		if now.Total() != before.Total() {
			d := now.Minus(before)
			since.Add(&d)
		}
		if next {
			p.older, p.last = p.last, now
		}
	}
	return since
}

// follow adapts the rows to the routes, and adds the series that the last call of Observe did not have.
func (w *Watch) follow(routes []RouteInfo, all []*tally.Series) {
	var known map[*tally.Series]*watchedSeries
	if !w.knows(routes, all) {
		known = w.begin(routes)
	}
	for _, s := range all[len(w.series):] {
		if before := known[s]; before != nil {
			w.add(*before)
		} else {
			w.add(watchedSeries{Series: s})
		}
	}
	w.series = all
}

// knows reports whether the rows are those of routes, and all has the series of the last call, and
// perhaps more after them.
func (w *Watch) knows(routes []RouteInfo, all []*tally.Series) bool {
	same := len(routes) == len(w.infos) && (len(routes) == 0 || &routes[0] == &w.infos[0])
	return w.index != nil && same && len(all) >= len(w.series) && (len(w.series) == 0 || &all[0] == &w.series[0] || slices.Equal(all[:len(w.series)], w.series))
}

// begin makes new rows for routes, without series. It returns the counts of the series of the former rows.
func (w *Watch) begin(routes []RouteInfo) (known map[*tally.Series]*watchedSeries) {
	known = make(map[*tally.Series]*watchedSeries, len(w.series))
	for i := range w.watched {
		parts := w.watched[i].parts
		for k := range parts {
			known[parts[k].Series] = &parts[k]
		}
	}
	w.infos, w.series, w.watched = routes, nil, nil
	w.rows, w.traffic = make([]Route, 0, len(routes)+1), make([]int, 0, len(routes)+1)
	w.index = make(map[string]int, len(routes)+1)
	for i := range routes {
		w.addRow(&routes[i])
	}
	return known
}

func (w *Watch) addRow(info *RouteInfo) int {
	row := len(w.rows)
	w.index[info.Name] = row
	w.rows = append(w.rows, Route{Name: info.Name, Hosts: info.Hosts, Position: info.Position, Backend: info.Backend})
	w.traffic = append(w.traffic, noTraffic)
	return row
}

// add adds a series to the row of its route. There may be no row yet: for requests without a route, and for
// routes that share their counts.
func (w *Watch) add(s watchedSeries) {
	row, found := w.index[s.Route]
	if !found {
		row = w.addRow(&RouteInfo{Name: s.Route, Hosts: []string{}})
	}
	if w.traffic[row] == noTraffic {
		w.traffic[row] = len(w.watched)
		w.watched = append(w.watched, watchedRoute{row: row})
	}
	r := &w.watched[w.traffic[row]]
	r.parts = append(r.parts, s)
}

// forget drops rows that are too old for rates.
func (w *Watch) forget(now time.Time) {
	if now.Sub(w.last) > ForgetAfter {
		*w = Watch{}
	}
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
				if by = cmp.Compare(b.Now.Errors, a.Now.Errors); by == 0 {
					by = cmp.Compare(b.Failed, a.Failed)
				}
			case "p99":
				by = cmp.Compare(b.Now.P99, a.Now.P99)
			case "name":
			default:
				if by = cmp.Compare(b.Now.Requests, a.Now.Requests); by == 0 {
					by = cmp.Or(cmp.Compare(b.Tunnels, a.Tunnels), cmp.Compare(b.Total, a.Total))
				}
			}
			if by == 0 {
				by = strings.Compare(a.Name, b.Name)
			}
			return by
		})
}

// PageOfBackends returns one page of the backends. Backends with a problem come first.
func PageOfBackends(all []Backend, q Query) List[Backend] {
	bad := func(b *Backend) bool { return b.Down > 0 || b.Working == 0 }
	return pageOf(all, q,
		func(b *Backend) bool { return q.matches(nil, b.Name) },
		bad,
		func(a, b *Backend) int {
			if q.Sort != "name" {
				if by := cmp.Or(badFirst(a.Working == 0, b.Working == 0), badFirst(bad(a), bad(b))); by != 0 {
					return by
				}
			}
			return strings.Compare(a.Name, b.Name)
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
			if by := cmp.Or(badFirst(bad(a), bad(b)), a.NotAfter.Compare(b.NotAfter)); by != 0 {
				return by
			}
			return slices.Compare(a.Names, b.Names)
		})
}

// PageOfFaults returns one page of the faults of objects.
func PageOfFaults(all []Fault, q Query) List[Fault] {
	return pageOf(all, q,
		func(f *Fault) bool { return q.matches(nil, f.Kind, f.Object, f.Reason, f.Message) },
		func(*Fault) bool { return true },
		func(a, b *Fault) int { return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Kind, b.Kind)) })
}
