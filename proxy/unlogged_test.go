package proxy

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestRouteWithoutAccessLog(t *testing.T) {
	for _, unlogged := range []bool{false, true} {
		for kind, r := range map[string]*Record{"tunnel": {Kind: "tunnel"}, "upgrade": {Kind: "upgrade", Status: 101}} {
			lines, p := 0, &Proxy{Metrics: NewMetrics(prometheus.NewRegistry())}
			p.SetLog(func(*Record) { lines++ })
			r.unlogged = unlogged
			if p.tunnelEnded(r); lines == 0 != unlogged {
				t.Errorf("a %s of a route with access_log: %t has %d lines", kind, !unlogged, lines)
			}
		}
	}
}

func TestGoodRecords(t *testing.T) {
	f := func(r Record, want bool) {
		t.Helper()
		if r.Good() != want {
			t.Errorf("%+v is good: %t", r, !want)
		}
	}
	f(Record{Kind: "http", Status: 200}, true)
	f(Record{Kind: "http", Status: 304}, true)
	f(Record{Kind: "http", Status: 399}, true)
	f(Record{Kind: "http", Status: 400}, false)
	f(Record{Kind: "http", Status: 200, Reason: "client_gone"}, false)
	f(Record{Kind: "tunnel"}, false)
	f(Record{Kind: "upgrade", Status: 101}, false)
}
