package proxy

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/tally"
)

// The status page sees what each route has done. The total stays when routes are removed.
func TestCountsForTheStatusPage(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry())
	m.SetLimit(config.ObjectMetrics{Series: 1e6, Routes: 10})
	p := &Proxy{Metrics: m}
	use := func(table *Table) {
		table.each(func(r *Route) {
			r.metrics.exchange(200, time.Millisecond, 1, 1, nil)
			r.metrics.exchange(503, time.Second, 1, 1, nil)
			r.metrics.get().generated("no_endpoint").Inc()
			r.metrics.get().generated("redirect").Inc()
		})
	}
	routes := func() (n int, sum tally.Counts) {
		for _, s := range m.Traffic() {
			n++
			s.AddTo(&sum)
			if tunnels := s.Tunnels.Load(); tunnels != 0 {
				t.Errorf("%d tunnels", tunnels)
			}
		}
		return n, sum
	}
	first := objectTable(t, m, map[string]int{"tenant": 30, "shop": 3})
	p.Swap(first)
	if n, _ := routes(); n != 0 {
		t.Errorf("%d routes before the first request", n)
	}
	use(first)
	if n, sum := routes(); n != 14 || sum.Classes[2] != 33 || sum.Classes[5] != 33 { // 10 of the tenant, one that the others share, and the shop
		t.Errorf("%d routes with %v", n, sum.Classes)
	}
	refusals := map[string]uint64{}
	m.EachRefusal(func(route, reason string, n uint64) { refusals[route+" "+reason] += n })
	if refusals["tenant/other no_endpoint"] != 20 || refusals["tenant/other redirect"] != 0 {
		t.Errorf("refusals %v", refusals)
	}
	for _, left := range []map[string]int{{"tenant": 2, "new": 5}, {"shop": 1}, {}} {
		before := m.Total()
		table := objectTable(t, m, left)
		p.Swap(table)
		if after := m.Total(); after != before {
			t.Errorf("the total was %v, and is %v", before.Classes, after.Classes)
		}
		use(table)
		for i, s := range m.series {
			if s.place != i || s.gone {
				t.Errorf("the series %d of %s has the place %d, and gone is %v", i, s.labels.route, s.place, s.gone)
			}
		}
	}
	if n, _ := routes(); n != 0 {
		t.Errorf("%d routes without a table", n)
	}
	if total := m.Total(); total.Classes[2] != 33+7+1 {
		t.Errorf("total %v", total.Classes)
	}
}
