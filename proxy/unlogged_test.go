package proxy

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/proxy/accesslog"
)

func TestRouteWithoutAccessLog(t *testing.T) {
	for _, unlogged := range []bool{false, true} {
		for kind, r := range map[string]*accesslog.Record{"tunnel": {Kind: "tunnel"}, "upgrade": {Kind: "upgrade", Status: 101}} {
			lines, p := 0, &Proxy{Metrics: NewMetrics(prometheus.NewRegistry())}
			p.SetLog(func(*accesslog.Record) { lines++ })
			r.Unlogged = unlogged
			if p.tunnelEnded(r); lines == 0 != unlogged {
				t.Errorf("a %s of a route with access_log: %t has %d lines", kind, !unlogged, lines)
			}
		}
	}
}
