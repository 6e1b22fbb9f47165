package proxy

import (
	"fmt"
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
	set := backend.NewSet(backend.Options{})
	t.Cleanup(set.Close)
	cfg := &config.Config{Listeners: []config.Listener{{Name: "web", Protocol: config.ProtocolHTTP}}, Backends: []config.Backend{config.NewBackend("app")}}
	for namespace, n := range routes {
		for i := range n {
			cfg.Routes = append(cfg.Routes, config.Route{Name: fmt.Sprintf("%s/ingress/host/%d", namespace, i), Namespace: namespace,
				Listeners: []string{"web"}, Hosts: []string{fmt.Sprintf("h%d.%s.example", i, namespace)}, Backend: "app"})
		}
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
	m.SetLimit(10)
	p := &Proxy{Metrics: m}
	table := objectTable(t, m, map[string]int{"tenant": 6000, "shop": 3, "": 50})
	p.Swap(table)
	if all, _ := seriesOf(t, reg); all != 0 {
		t.Errorf("%d series before the first request", all)
	}
	use := func() {
		table.each(func(r *Route) {
			r.metrics.exchange(200, time.Millisecond, 1, 1)
			m.tunnelEnded(r.name, "eof")
		})
	}
	use()
	_, of := seriesOf(t, reg)
	each := 1 + 1 + 2 + 1 + 1 // requests, duration, bytes, open and ended tunnels
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
	want(`weir_http_requests_total{200 tenant/other} 11980`)
	want(`weir_tunnels_ended_total{eof tenant/other} 11980`)
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

// The last exchange of a removed route does not create its series again.
func TestSeriesOfGoneRoutesStayAway(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	p := &Proxy{Metrics: m}
	table := objectTable(t, m, map[string]int{"tenant": 1})
	p.Swap(table)
	p.Swap(objectTable(t, m, map[string]int{"shop": 1}))
	table.each(func(r *Route) {
		r.metrics.exchange(200, time.Millisecond, 1, 1)
		r.metrics.get().tunnels.Inc()
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
			r.metrics.exchange(code, time.Millisecond, 0, 0)
		}
	})
	if n := strings.Count(exposed(t, reg), "weir_http_requests_total{"); n != mostCodes+1 && n != mostCodes {
		t.Errorf("%d codes", n)
	}
}

// The first exchange allocates, and later ones do not.
func TestSeriesAreFoundWithoutAllocating(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry())
	r := m.route("r", "b", "tenant")
	r.exchange(200, time.Millisecond, 1, 1)
	if n := testing.AllocsPerRun(100, func() { r.exchange(200, time.Millisecond, 1, 1) }); n != 0 {
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
