package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The values of row.among. They are also the keys of the rows.
const (
	amongPaths = "paths"
	amongHosts = "hosts"
	edited     = "edited"  // three header changes, a rate limit and two weighted backends
	guarded    = "guarded" // basic authentication
	traced     = "traced"  // one of a hundred requests is traced
)

// credentials is the HTTP header with ada's password. users is the file with its hash.
const (
	credentials = "Authorization: Basic YWRhOmxvdmVsYWNl"
	users       = "ada:$2y$05$62GnASmUeEnEtklo/83B9eeYGQb7ecWDnesrIWDZijW7Bg0nSCboO\n"
)

// manyRoutes is the number of routes.
const manyRoutes = 10000

// singleRoute follows the name of a proxy in the results that have one route for all requests.
const singleRoute = ", single route"

// amongRow returns a row with many routes.
func amongRow(key, name string) row {
	return row{Key: key, Name: name, among: key, Budget: 1.05, Against: "weir" + singleRoute,
		port: func(s setup) int { return s.HTTPPort }, load: wrkAmong}
}

// filterRow returns a row of weir with filters on the route.
func filterRow(key, name string) row {
	return row{Key: key, Name: name, among: key, Budget: 1.1, Against: "weir" + singleRoute,
		port: func(s setup) int { return s.HTTPPort }, load: wrk}
}

// tracedRow returns a row of weir with traces.
func tracedRow(key, name string) row {
	r := filterRow(key, name)
	r.Budget = 1.05
	return r
}

// variants returns the loads that a round of r compares, in changing order. A row with many routes or with
// filters is compared with the same load on a single route without filters.
func variants(r row, round int) []row {
	if r.among == "" {
		return []row{r}
	}
	single := r
	single.Name, single.suffix = r.Name+singleRoute, singleRoute
	if round%2 == 0 {
		return []row{r, single}
	}
	return []row{single, r}
}

// routeName returns the path or the host of route i.
func routeName(among string, i int) string {
	if among == amongPaths {
		return fmt.Sprintf("/tenants/%d/application-%04d", i%100, i)
	}
	return fmt.Sprintf("application-%04d.tenant-%d.example.org", i, i%100)
}

// addRoutes gives s the filters or the many routes of r, if r has any. It writes a map of many routes for HAProxy.
func (s *setup) addRoutes(r row) error {
	if r.among == "" || r.suffix != "" {
		return nil
	}
	if s.Traced = r.among == traced; s.Traced {
		return nil
	}
	if r.among == edited || r.among == guarded {
		s.Filters = r.among
		return os.WriteFile(filepath.Join(s.Dir, "users.htpasswd"), []byte(users), 0o644)
	}
	names := make([]string, manyRoutes)
	for i := range names {
		names[i] = routeName(r.among, i)
	}
	if r.among == amongPaths {
		s.Paths = names
	} else {
		s.Hosts = names
	}
	return os.WriteFile(filepath.Join(s.Dir, "routes.map"), []byte(strings.Join(names, " app\n")+" app\n"), 0o644)
}

// wrkAmong is wrk, which requests one of the routes. Any other host or path gets an answer
// other than 200, which fails the run.
func wrkAmong(s setup, r row, d time.Duration) []string {
	name := routeName(r.among, manyRoutes/2)
	if r.among == amongPaths {
		r.file = name + "/index"
		return wrk(s, r, d)
	}
	args := wrk(s, r, d)
	return append(args, "-H", "Host: "+name)
}

// singleRatios returns, for each proxy, how the result with many routes compares with that of
// a single route in the same round.
func singleRatios(samples map[string][]sample) map[string]spread {
	all := map[string]spread{}
	for name, many := range samples {
		if single := samples[name+singleRoute]; single != nil {
			all[name] = spreadOf(ratios(many, single))
		}
	}
	return all
}

// against returns the ratio to which the row's budget applies.
func (r result) against() (s spread, ok bool) {
	switch {
	case r.Single != nil:
		s, ok = r.Single["weir"]
	case r.Against == anyHAProxy:
		for _, name := range []string{"haproxy", "haproxy3"} {
			if one := r.Ratios[name]; one.Median > s.Median {
				s, ok = one, true
			}
		}
	default:
		s, ok = r.Ratios[r.Against]
	}
	return s, ok
}

// amongRows writes the table of the rows with many routes or with filters. Without such rows it writes nothing.
func (r report) amongRows(t *strings.Builder) {
	head := "\nMany routes or filters, and the same load on a single route without filters:\n\n" +
		"| | weir | single route | ratio | HAProxy | single route | ratio | must reach | |\n|---|---|---|---|---|---|---|---|---|\n"
	for _, row := range r.Rows {
		if row.Single == nil {
			continue
		}
		t.WriteString(head)
		head = ""
		fmt.Fprintf(t, "| %s |", row.Name)
		for _, name := range []string{"weir", "haproxy"} {
			fmt.Fprintf(t, " %s | %s | %s |", cell(row.Micros, name, 1), cell(row.Micros, name+singleRoute, 1), cell(row.Single, name, 2))
		}
		fmt.Fprintf(t, " <= %.3g x %s | %s |\n", row.Budget, row.Against, verdict(row.Met))
	}
}
