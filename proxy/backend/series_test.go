package backend

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
)

// A backend without requests has one series, however many endpoints it has that are up.
func TestIdleBackendsHaveOneSeries(t *testing.T) {
	w := newWorld(t, Options{})
	reg := prometheus.NewRegistry()
	NewMetrics(reg, w.set)
	var all []config.Backend
	for i := range 1000 {
		b := settings(fmt.Sprintf("team-%d/app-%d:80", i%100, i), "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80")
		b.Namespace = fmt.Sprintf("team-%d", i%100)
		all = append(all, b)
	}
	w.update(all...)
	if n := len(gather(t, reg)); n != len(all) {
		t.Errorf("%d series of %d backends", n, len(all))
	}
}

// The backends of all namespaces together have a limited number of series, no namespace displaces another, and a
// scrape changes nothing. Endpoints get what the backends leave.
func TestSeriesOfAllNamespacesAreBounded(t *testing.T) {
	w := newWorld(t, Options{})
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg, w.set)
	m.SetPerEndpoint(true)
	const room = 100
	m.SetLimit(config.ObjectMetrics{Series: 5 * room, Backends: 1000, Endpoints: 1000})
	var all []config.Backend
	of := func(namespace string, n int) {
		for i := range n {
			b := settings(fmt.Sprintf("%s/app-%d:80", namespace, i), "10.0.0.1:80")
			b.Namespace = namespace
			all = append(all, b)
		}
	}
	of("large", 500)
	of("small", 20)
	w.update(all...)
	count := func() map[string]int {
		n := map[string]int{}
		for _, line := range gather(t, reg) {
			name, rest, _ := strings.Cut(line, "{")
			namespace, app, _ := strings.Cut(rest, "/")
			if strings.HasPrefix(app, "app-") {
				n[name+" "+namespace]++
			}
		}
		return n
	}
	for range 2 {
		want := map[string]int{"weir_backend_endpoints_ready small": 20, "weir_backend_endpoints_ready large": room - 20}
		if got := count(); !maps.Equal(got, want) {
			t.Errorf("series %v, want %v", got, want)
		}
	}
	text := strings.Join(gather(t, reg), "\n")
	for _, want := range []string{"weir_backend_endpoints_ready{large/other} 420\n", "weir_metrics_folded_backends{large} 420\n", "weir_metrics_folded_endpoints{large} 500\n", "weir_metrics_folded_endpoints{small} 20"} {
		if !strings.Contains(text+"\n", want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	all = all[480:] // 20 of each namespace
	w.update(all...)
	want := map[string]int{"weir_backend_endpoints_ready small": 20, "weir_backend_endpoints_ready large": 20, "weir_backend_endpoint_up small": 20, "weir_backend_endpoint_up large": 20}
	if got := count(); !maps.Equal(got, want) {
		t.Errorf("series %v, want %v", got, want)
	}
}
