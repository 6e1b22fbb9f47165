package status

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/proxy/tally"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// An hour and a half with 2 requests a second and one error a second: the history keeps an hour.
func TestHistory(t *testing.T) {
	var h History
	var all tally.Tally
	counts := func() (c tally.Counts) { all.AddTo(&c); return c }
	if got := h.Traffic(start, counts()); got.Now.Seconds != 0 || len(got.Past) != 0 {
		t.Errorf("without a sample: %+v", got)
	}
	now := start
	h.Add(now, counts(), 7)
	if got := h.Traffic(now, counts()); got.Now.Seconds != 0 {
		t.Errorf("without time: %+v", got.Now)
	}
	for i := range 540 {
		for range 10 {
			all.Count(200, time.Millisecond)
			all.Count(503, 3*time.Millisecond)
		}
		now = now.Add(Every)
		h.Add(now, counts(), i)
	}
	got := h.Traffic(now.Add(time.Second), counts())
	if !near(got.Hour.Seconds, 3601) || math.Abs(got.Hour.Requests-2) > 0.01 || math.Abs(got.Hour.Errors-1) > 0.01 {
		t.Errorf("the last hour: %+v", got.Hour)
	}
	if !near(got.Now.Seconds, 11) { // the newest sample is too young
		t.Errorf("now covers %v s, want 11", got.Now.Seconds)
	}
	if len(got.Past) < 45 || len(got.Past) > mostPoints {
		t.Errorf("%d points", len(got.Past))
	}
	if last := got.Past[len(got.Past)-1]; last.At != now || last.Connections != 539 || !near(last.Requests, 2) || !near(last.Errors, 1) || last.P99 < 0.002 || last.P50 > 0.002 {
		t.Errorf("the last point: %+v", last)
	}
	if got.Total != 10800 {
		t.Errorf("total %d", got.Total)
	}
}

func TestQueryOf(t *testing.T) {
	f := func(query string, want Query) {
		t.Helper()
		v, _ := url.ParseQuery(query)
		if got := QueryOf(v, "routes"); got != want {
			t.Errorf("%s: %+v, want %+v", query, got, want)
		}
	}
	f("", Query{Page: 1, Rows: rowsByDefault})
	f("routes=+Shop+&routes_sort=p99&routes_page=3&rows=10", Query{Search: "shop", Sort: "p99", Page: 3, Rows: 10})
	f("rows=100&routes_rows=3", Query{Page: 1, Rows: 3})
	f("rows=100&routes_rows=x&backends_rows=3", Query{Page: 1, Rows: 100})
	f("routes_page=-1&rows=100000", Query{Page: 1, Rows: mostRows})
	f("routes_page=x&rows=x", Query{Page: 1, Rows: rowsByDefault})
	f("routes_page=99999999999999999999", Query{Page: 1, Rows: rowsByDefault})
}

func names(l List[Route]) string {
	var all []string
	for _, r := range l.Rows {
		all = append(all, r.Name)
	}
	return strings.Join(all, " ")
}

func TestPages(t *testing.T) {
	var all []Route
	for i := range 30 {
		all = append(all, Route{Name: fmt.Sprintf("r%02d", i), Hosts: []string{fmt.Sprintf("h%02d.Test", 29-i)}, Now: Rates{Requests: float64(i % 7)}, Failed: uint64(i % 2)})
	}
	f := func(q Query, want string, matching, page, pages int) {
		t.Helper()
		l := PageOfRoutes(all, q)
		if names(l) != want || l.All != 30 || l.Matching != matching || l.Page != page || l.Pages != pages {
			t.Errorf("%+v: %q, %d of %d, page %d of %d", q, names(l), l.Matching, l.All, l.Page, l.Pages)
		}
	}
	f(Query{Page: 1, Rows: 3}, "r06 r13 r20", 30, 1, 10)
	f(Query{Page: 10, Rows: 3, Sort: "name"}, "r27 r28 r29", 30, 10, 10)
	f(Query{Page: 11, Rows: 3, Sort: "name"}, "r27 r28 r29", 30, 10, 10)
	f(Query{Page: 1, Rows: 2, Sort: "errors"}, "r01 r03", 30, 1, 15)
	f(Query{Page: 1, Rows: 5, Search: "h07.test"}, "r22", 1, 1, 1)
	f(Query{Page: 4, Rows: 5, Search: "nothing"}, "", 0, 1, 1)
}

func TestPagesShowProblemsFirst(t *testing.T) {
	b := PageOfBackends([]Backend{{Name: "a", Working: 1}, {Name: "b", Working: 1, Down: 1}, {Name: "c"}}, Query{Page: 1, Rows: 9})
	if b.Bad != 2 || b.Rows[0].Name != "c" || b.Rows[1].Name != "b" {
		t.Errorf("%+v", b)
	}
	c := PageOfCertificates([]Certificate{
		{Names: []string{"late"}, NotAfter: start.AddDate(0, 0, 90)},
		{Names: []string{"early"}, NotAfter: start.AddDate(0, 0, 60)},
		{Names: []string{"soon"}, NotAfter: start.AddDate(0, 0, 3), Soon: true},
		{Names: []string{"none"}, Error: "refused"},
	}, Query{Page: 1, Rows: 9})
	var order []string
	for _, r := range c.Rows {
		order = append(order, r.Names[0])
	}
	if c.Bad != 2 || !slices.Equal(order, []string{"none", "soon", "early", "late"}) {
		t.Errorf("%d of %v", c.Bad, order)
	}
}

// Rates need two observations. A Watch forgets observations after a minute.
func TestWatch(t *testing.T) {
	var w Watch
	a, b := &tally.Series{Route: "a"}, &tally.Series{}
	a.Tunnels.Add(2)
	infos := []RouteInfo{{Name: "a", Hosts: []string{}}, {Name: "idle", Hosts: []string{}}}
	observe := func(at time.Duration) (rows []Route) {
		rows = slices.Clone(w.Observe(start.Add(at), infos, []*tally.Series{a, b}))
		slices.SortFunc(rows, func(a, b Route) int { return strings.Compare(a.Name, b.Name) })
		return rows
	}
	hit := func(n int) {
		for range n {
			a.Count(500, time.Second)
			b.Count(404, time.Second)
		}
	}
	hit(5)
	rows := observe(0)
	if len(rows) != 3 || rows[1].Total != 5 || rows[1].Failed != 5 || rows[1].Tunnels != 2 || rows[1].Now.Seconds != 0 || rows[2].Total != 0 {
		t.Fatalf("first observation: %+v", rows)
	}
	hit(4)
	rows = observe(2 * time.Second)
	if !near(rows[1].Now.Requests, 2) || !near(rows[1].Now.Errors, 2) || !near(rows[0].Now.Refused, 2) || !near(rows[2].Now.Seconds, 2) {
		t.Errorf("second observation: %+v", rows)
	}
	hit(8)
	if rows = observe(6 * time.Second); !near(rows[1].Now.Requests, 2) {
		t.Errorf("third observation: %+v", rows[1].Now)
	}
	hit(6)
	if rows = observe(8 * time.Second); !near(rows[1].Now.Seconds, 8) || !near(rows[1].Now.Requests, 18.0/8) {
		t.Errorf("fourth observation: %+v", rows[1].Now) // since the observation before the last
	}
	if rows = observe(12 * time.Second); !near(rows[1].Now.Seconds, 6) {
		t.Errorf("fifth observation: %+v", rows[1].Now)
	}
	w.forget(start.Add(30 * time.Second))
	if w.rows == nil {
		t.Error("forgotten after 18 s")
	}
	w.forget(start.Add(2 * time.Minute))
	if w.rows != nil || !w.last.IsZero() {
		t.Error("not forgotten after 2 minutes")
	}
	if rows = observe(3 * time.Minute); rows[1].Now.Seconds != 0 || rows[1].Total != 23 {
		t.Errorf("after a pause: %+v", rows[1])
	}
}

// Routes are added and removed between two observations. The rates of all other routes stay right.
func TestWatchFollowsChanges(t *testing.T) {
	var w Watch
	one, two, other := &tally.Series{Route: "shop"}, &tally.Series{Route: "shop"}, &tally.Series{Route: "blog"}
	infos := []RouteInfo{{Name: "shop", Hosts: []string{}}, {Name: "blog", Hosts: []string{}}}
	hit := func(s *tally.Series, n int) {
		for range n {
			s.Count(200, time.Millisecond)
		}
	}
	step := func(at int, infos []RouteInfo, all []*tally.Series, want string) {
		t.Helper()
		var got []string
		for _, r := range w.Observe(start.Add(time.Duration(at)*time.Second), infos, all) {
			got = append(got, fmt.Sprintf("%s %d %.1f", r.Name, r.Total, r.Now.Requests))
		}
		slices.Sort(got)
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("after %d s: %s, want %s", at, text, want)
		}
	}
	hit(one, 10)
	step(0, infos, []*tally.Series{one}, "blog 0 0.0, shop 10 0.0")
	hit(one, 10)
	step(10, infos, []*tally.Series{one}, "blog 0 0.0, shop 20 1.0")
	hit(two, 20)
	hit(other, 30)
	step(20, infos, []*tally.Series{one, two, other}, "blog 30 3.0, shop 40 2.0") // new series come last
	hit(other, 10)
	step(30, infos, []*tally.Series{other, two}, "blog 40 1.0, shop 20 0.0") // the series one was removed, and the series other took its place
	step(40, infos[:1], []*tally.Series{other, two}, "blog 40 0.0, shop 20 0.0")
	hit(two, 10)
	step(50, slices.Clone(infos), []*tally.Series{two}, "blog 0 0.0, shop 30 1.0") // a reload
	step(60, infos, nil, "blog 0 0.0, shop 0 0.0")
}

// The selection of a first page and the sort for a later page have the same order.
func TestPagesAreThoseOfASort(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var all []Backend
		for i := range random.IntN(700) {
			all = append(all, Backend{Name: fmt.Sprint(random.IntN(300)), Working: random.IntN(2), Count: i})
		}
		q := Query{Page: 1 + random.IntN(4), Rows: 1 + random.IntN(200)}
		sorted := slices.Clone(all)
		slices.SortStableFunc(sorted, func(a, b Backend) int {
			return cmp.Or(cmp.Compare(a.Working, b.Working), strings.Compare(a.Name, b.Name))
		})
		got := PageOfBackends(all, q)
		from := (got.Page - 1) * q.Rows
		want := sorted[from:min(from+q.Rows, len(sorted))]
		if len(got.Rows) != len(want) || got.Matching != len(all) || got.Page > got.Pages {
			t.Fatalf("%+v of %d rows: %d rows, page %d of %d", q, len(all), len(got.Rows), got.Page, got.Pages)
		}
		for i := range want {
			if got.Rows[i].Count != want[i].Count {
				t.Fatalf("%+v of %d rows: row %d is %+v, want %+v", q, len(all), i, got.Rows[i], want[i])
			}
		}
	}
}

func TestRefusalsAreBounded(t *testing.T) {
	var r Refusals
	asked := 0
	detail := func() (string, string) { asked++; return "192.0.2.1:1234", "why" }
	for i := range 1000 {
		r.Count(start.Add(time.Duration(i)*time.Millisecond), "web", "header_missing", detail)
	}
	if asked != 1 {
		t.Errorf("the detail of one second was made %d times", asked)
	}
	for i := range 1000 {
		r.Count(start.Add(time.Hour), fmt.Sprint(i), "late", detail)
	}
	r.CountRequests(start.Add(2*time.Hour), map[string]RefusedRequests{"no_endpoint": {5, "shop"}}) // there is no room
	list := r.List()
	if len(list) != mostRefusals {
		t.Errorf("%d kinds", len(list))
	}
	if last := list[len(list)-1]; last.Count != 1000 || last.Client != "192.0.2.1:1234" || last.Detail != "why" || last.Where != "web" {
		t.Errorf("%+v", last)
	}
}

// The count of a reason becomes smaller when a route is removed. That is no new refusal, and the sum since
// the start stays.
func TestRefusedRequests(t *testing.T) {
	var r Refusals
	for i, step := range []struct {
		all      map[string]RefusedRequests
		count    uint64
		route    string
		lastStep int
	}{
		{map[string]RefusedRequests{"no_endpoint": {5, "shop"}}, 5, "shop", 0},
		{map[string]RefusedRequests{"no_endpoint": {5, "blog"}}, 5, "shop", 0}, // no new refusal
		{map[string]RefusedRequests{"no_endpoint": {3, "blog"}}, 5, "shop", 0}, // a route was removed
		{map[string]RefusedRequests{"no_endpoint": {4, "blog"}}, 6, "blog", 3},
		{nil, 6, "blog", 3}, // all routes were removed
		{map[string]RefusedRequests{"no_endpoint": {2, "new"}}, 8, "new", 5},
	} {
		r.CountRequests(start.Add(time.Duration(i)*time.Minute), step.all)
		want := Refusal{What: "request", Where: step.route, Reason: "no_endpoint", Count: step.count, Last: start.Add(time.Duration(step.lastStep) * time.Minute)}
		if list := r.List(); len(list) != 1 || list[0] != want {
			t.Errorf("step %d: %+v, want %+v", i, list, want)
		}
	}
}

func TestEventsAreBounded(t *testing.T) {
	var e Events
	if e.List() == nil {
		t.Error("no list without events")
	}
	for i := range 500 {
		e.Add(start.Add(time.Duration(i)*time.Second), false, fmt.Sprint(i/2))
	}
	list := e.List()
	if len(list) != mostEvents || list[0].Text != "249" || list[0].Times != 2 || list[0].At != start.Add(499*time.Second) {
		t.Errorf("%d events, the last one %+v", len(list), list[0])
	}
}
