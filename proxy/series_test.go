package proxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/tls/policy"
)

// objectTable makes a table with this many routes of each namespace.
func objectTable(t *testing.T, m *Metrics, routes map[string]int) *Table {
	t.Helper()
	var all []*config.Route
	for namespace, n := range routes {
		for i := range n {
			r := &config.Route{Name: fmt.Sprintf("%s/ingress/host/%d", namespace, i), Hosts: []string{fmt.Sprintf("h%d.%s.example", i, namespace)}}
			if namespace != "" {
				r.Namespace, r.Ingress, r.IngressHost = namespace, "ingress", r.Hosts[0]
			}
			all = append(all, r)
		}
	}
	return tableWith(t, m, all)
}

// tableWith makes a table with these routes, on the listener web and with the backend app.
func tableWith(t *testing.T, m *Metrics, routes []*config.Route) *Table {
	t.Helper()
	set := backend.NewSet(backend.Options{})
	t.Cleanup(set.Close)
	cfg := &config.Config{Listeners: []config.Listener{{Name: "web", Protocol: config.ProtocolHTTP}}, Backends: []*config.Backend{new(config.NewBackend("app"))}, Routes: routes}
	for i := range routes {
		routes[i].Listeners, routes[i].Backend = []string{"web"}, "app"
	}
	backends, err := set.Update(cfg.Backends, backend.NodeInfo{Name: "n"})
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable(cfg, Parts{Backends: backends, Policies: map[string]*policy.Policy{}, Metrics: m})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// seriesOf counts the series by the namespace of the route.
func seriesOf(t *testing.T, reg *prometheus.Registry) (all int, of map[string]int) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	of = map[string]int{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			all += 1 + len(m.GetHistogram().GetBucket())
			for _, l := range m.GetLabel() {
				if l.GetName() == "route" {
					namespace, _, _ := strings.Cut(l.GetValue(), "/")
					of[namespace]++
				}
			}
		}
	}
	return all, of
}

// A tenant cannot choose the size of /metrics: the first request of a route creates its
// series, and each namespace has a limited number.
func TestRoutesOfObjectsHaveFewSeries(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	m.SetLimit(config.ObjectMetrics{Series: 1e6, Routes: 10})
	p := &Proxy{Metrics: m}
	table := objectTable(t, m, map[string]int{"tenant": 6000, "shop": 3, "": 50})
	p.Swap(table)
	if all, _ := seriesOf(t, reg); all != 0 {
		t.Errorf("%d series before the first request", all)
	}
	use := func() {
		table.each(func(r *Route) {
			r.metrics.exchange(200, time.Millisecond, 1, 1, nil)
			m.tunnelEnded(r.name, "eof")
		})
	}
	use()
	_, of := seriesOf(t, reg)
	each := 1 + 1 + 2 + 1 // requests, duration, bytes, ended tunnels
	if of["tenant"] != 11*each || of["shop"] != 3*each {
		t.Errorf("series by namespace: %v", of)
	}
	before := of
	use()
	if _, of := seriesOf(t, reg); of["tenant"] != before["tenant"] {
		t.Errorf("more requests make more series: %v", of)
	}
	want := func(line string) {
		t.Helper()
		if text := exposed(t, reg); !strings.Contains(text, line) {
			t.Errorf("no %s", line)
		}
	}
	want(`weir_http_requests_total{200 tenant tenant/other} 11980`)
	want(`weir_tunnels_ended_total{tenant eof tenant/other} 11980`)
	want(`weir_metrics_folded_routes{tenant} 5990`)

	// When a route is removed, its series disappear, and another route can have series of
	// its own.
	table = objectTable(t, m, map[string]int{"tenant": 5, "shop": 3, "new": 20})
	p.Swap(table)
	use()
	if _, of := seriesOf(t, reg); of["new"] != 11*each || of["shop"] != 3*each {
		t.Errorf("series by namespace after a change: %v", of)
	}
	table = objectTable(t, m, map[string]int{"shop": 1})
	p.Swap(table)
	if _, of := seriesOf(t, reg); of["tenant"] != 0 || of["new"] != 0 || of["shop"] != each {
		t.Errorf("series of namespaces that are gone: %v", of)
	}
	if len(m.opened) != 1 || m.openedAll != 1 || len(m.others) != 0 || len(m.routes) != 2 {
		t.Errorf("kept: %v, %d, %d, %d", m.opened, m.openedAll, len(m.others), len(m.routes))
	}
}

// The routes of all namespaces together have a limited number of series. A histogram has a series for each
// bucket.
func TestRoutesOfAllNamespacesAreBounded(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	m.SetLimit(config.ObjectMetrics{Series: 1000, Routes: 100})
	p := &Proxy{Metrics: m}
	routes := map[string]int{"": 5}
	for i := range 10 {
		routes[fmt.Sprint("tenant-", i)] = 20
	}
	table := objectTable(t, m, routes)
	p.Swap(table)
	table.each(func(r *Route) { r.metrics.exchange(200, time.Millisecond, 1, 1, nil) })
	if m.openedAll != 750/(3*18+6) || len(m.others) == 0 {
		t.Errorf("%d routes have series of their own, and %d namespaces share some", m.openedAll, len(m.others))
	}
	if _, of := seriesOf(t, reg); of[""] == 0 {
		t.Errorf("the routes of the file have no series: %v", of)
	}
}

// labelsOf returns the label sets that the series of a route have, by metric, without labels
// that differ between series of one metric. Empty labels are left out, as in Prometheus.
func labelsOf(t *testing.T, reg *prometheus.Registry, route string) map[string][]string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["route"] != route {
				continue
			}
			var set []string
			for _, name := range []string{"namespace", "ingress", "host"} {
				if labels[name] != "" {
					set = append(set, name+"="+labels[name])
				}
			}
			if text := strings.Join(set, " "); !slices.Contains(found[f.GetName()], text) {
				found[f.GetName()] = append(found[f.GetName()], text)
			}
		}
	}
	return found
}

// Each series of an Ingress's route has the namespace, the name and the host of the Ingress. The
// host is not that of a request, nor that of a more specific host which inherited the route. A
// route of the file has only its name, even if that is the name of another route.
func TestSeriesHaveTheLabelsOfTheIngress(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	m.SetLimit(config.ObjectMetrics{Series: 1e6, Routes: 2})
	p := &Proxy{Metrics: m}
	of := func(ingress, pattern string, hosts ...string) *config.Route {
		return &config.Route{Name: "shop/" + ingress + "/" + pattern + "/", Namespace: "shop", Ingress: ingress, IngressHost: pattern, Hosts: hosts}
	}
	use := func(routes ...*config.Route) {
		table := tableWith(t, m, routes)
		p.Swap(table)
		for _, r := range table.routes {
			r.metrics.exchange(200, time.Millisecond, 1, 1, nil)
			r.metrics.get().generated("redirect").Inc()
			r.metrics.get().openTunnels().Inc()
			m.tunnelEnded(r.name, "eof")
		}
	}
	want := func(route string, labels ...string) {
		t.Helper()
		got := labelsOf(t, reg, route)
		for _, name := range []string{"weir_http_requests_total", "weir_http_request_duration_seconds", "weir_bytes_total",
			"weir_tunnels_open", "weir_tunnels_ended_total", "weir_http_generated_responses_total"} {
			if !slices.Equal(got[name], labels) {
				t.Errorf("%s of route %s has the labels %q, want %q", name, route, got[name], labels)
			}
		}
	}
	use(of("web", "*.shop.example", "*.shop.example"), of("web", "*.shop.example", "a.shop.example"), of("all", "*"),
		&config.Route{Name: "file", Hosts: []string{"b.example"}}, &config.Route{Name: "shop/other", Hosts: []string{"c.example"}})
	want("shop/web/*.shop.example/", "namespace=shop ingress=web host=*.shop.example")
	want("shop/all/*/", "namespace=shop ingress=all host=*")
	want("file", "")
	want("shop/other", "")

	use(of("web", "*.shop.example", "*.shop.example"), of("more", "d.example", "d.example"), of("most", "e.example", "e.example"),
		&config.Route{Name: "shop/all/*/", Hosts: []string{"f.example"}})
	want("shop/other", "namespace=shop")
	want("shop/all/*/", "") // the series of the Ingress are gone
	use(&config.Route{Name: "file"})
	want("shop/other")
	want("shop/all/*/")
	if len(m.reasons) != 1 {
		t.Errorf("reasons are kept for %v", m.reasons)
	}
}

// The last exchange of a removed route does not create its series again.
func TestSeriesOfGoneRoutesStayAway(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	p := &Proxy{Metrics: m}
	table := objectTable(t, m, map[string]int{"tenant": 1})
	p.Swap(table)
	p.Swap(objectTable(t, m, map[string]int{"shop": 1}))
	table.each(func(r *Route) {
		r.metrics.exchange(200, time.Millisecond, 1, 1, nil)
		r.metrics.get().openTunnels().Inc()
		m.tunnelEnded(r.name, "eof")
	})
	if all, of := seriesOf(t, reg); all != 0 {
		t.Errorf("series: %v", of)
	}
}

// Endpoints choose the status codes, but not the number of series.
func TestCodesAreBounded(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	p := &Proxy{Metrics: m}
	table := objectTable(t, m, map[string]int{"tenant": 1})
	p.Swap(table)
	table.each(func(r *Route) {
		for code := range 700 {
			r.metrics.exchange(code, time.Millisecond, 0, 0, nil)
		}
	})
	if n := strings.Count(exposed(t, reg), "weir_http_requests_total{"); n != mostCodes+1 && n != mostCodes {
		t.Errorf("%d codes", n)
	}
}

// The first exchange allocates, and later ones do not.
func TestSeriesAreFoundWithoutAllocating(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry())
	r := m.route(routeKey{routeLabels{"r", "tenant", "ingress", "host"}, "b"})
	r.exchange(200, time.Millisecond, 1, 1, nil)
	if n := testing.AllocsPerRun(100, func() { r.exchange(200, time.Millisecond, 1, 1, nil) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// exposed returns each series as name{values of labels} value.
func exposed(t *testing.T, reg *prometheus.Registry) string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				if l.GetValue() != "" {
					values = append(values, l.GetValue())
				}
			}
			fmt.Fprintf(&b, "%s{%s} %v\n", f.GetName(), strings.Join(values, " "), m.GetCounter().GetValue()+m.GetGauge().GetValue())
		}
	}
	return b.String()
}
