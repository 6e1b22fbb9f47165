package proxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
)

// Responses that weir generates are counted by route and reason, in a limited number of
// series, which are removed together with the route.
func TestGeneratedResponsesAreCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	m.SetLimit(config.ObjectMetrics{Series: 1e6, Routes: 1})
	p := &Proxy{Metrics: m}
	table := objectTable(t, m, map[string]int{"tenant": 3})
	p.Swap(table)
	answer := func(reason string) {
		x := &exchange{clientSide: clientSide{proxy: p}}
		x.generate(reason)
		table.each(func(r *Route) {
			x.route = r
			x.generate(reason)
		})
	}
	answer("no_endpoint_ready")
	answer("no_endpoint_ready")
	answer("redirect")
	text := exposed(t, reg)
	for _, want := range []string{
		`weir_http_generated_responses_total{no_endpoint_ready} 2`,
		`weir_http_generated_responses_total{tenant no_endpoint_ready tenant/other} 4`,
		`weir_http_generated_responses_total{tenant redirect tenant/other} 2`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if n := strings.Count(text, "weir_http_generated_responses_total{app"); n != 2 { // the route that has series of its own
		t.Errorf("%d series of the first route, want 2:\n%s", n, text)
	}
	if n := testing.AllocsPerRun(100, func() { m.none.get().generated("redirect").Inc() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	for i := range 100 {
		answer(fmt.Sprintf("reason_%d", i))
	}
	if n := strings.Count(exposed(t, reg), "weir_http_generated_responses_total{"); n != 3*(mostCounters+1) {
		t.Errorf("%d series, want %d", n, 3*(mostCounters+1))
	}
	p.Swap(objectTable(t, m, map[string]int{"shop": 1}))
	answer("late")
	if text := exposed(t, reg); strings.Contains(text, "tenant") || strings.Count(text, "weir_http_generated_responses_total{") != mostCounters+1 {
		t.Errorf("series of routes that are gone:\n%s", text)
	}
}

// The decisions of guards are counted by guard and result.
func TestGuardsAreCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	p := &Proxy{Metrics: m}
	table := objectTable(t, m, map[string]int{"shop": 1})
	p.Swap(table)
	table.each(func(r *Route) {
		x := &exchange{clientSide: clientSide{proxy: p}}
		x.route = r
		x.CountGuard("max_body", false)
		x.CountGuard("max_body", false)
		x.reason = "body_too_large"
		x.CountGuard("max_body", true)
		r.metrics.get().guardFailed("auth", "auth_unavailable").Inc()
	})
	text := exposed(t, reg)
	for _, want := range []string{"allowed", "body_too_large", "weir_guard_failures_total{", "auth_unavailable"} {
		if !strings.Contains(text, "weir_guard_requests_total{") || !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	p.Swap(objectTable(t, m, map[string]int{"other": 1}))
	if text := exposed(t, reg); strings.Contains(text, "weir_guard_requests_total{") || strings.Contains(text, "weir_guard_failures_total{") {
		t.Errorf("series of a route that is gone:\n%s", text)
	}
}
