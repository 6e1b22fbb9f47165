package health

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestEvaluate(t *testing.T) {
	serving := State{Loaded: true, Bound: true, Synced: true}
	f := func(change func(*State), ready bool, local int, reasons ...string) {
		t.Helper()
		s := serving
		change(&s)
		v := Evaluate(s)
		if v.Ready != ready || v.LocalEndpoints != local || v.Weighted != (len(s.RequireLocal) > 0) ||
			v.Healthy != (len(reasons) == 0) || !slices.Equal(v.Reasons, reasons) {
			t.Errorf("%+v: %+v", s, v)
		}
	}
	f(func(s *State) {}, true, 0)
	f(func(s *State) { s.Loaded = false }, false, 0, "no configuration is loaded yet")
	f(func(s *State) { s.Bound = false }, false, 0, "the listeners are not bound yet")
	f(func(s *State) { s.Draining = true }, false, 0, "weir is draining")
	f(func(s *State) { s.Cordoned = true }, true, 0, "the node is cordoned through the admin port")
	f(func(s *State) { s.Leaving = []string{"the node is cordoned (spec.unschedulable)", "it rains"} }, true, 0, "the node is cordoned (spec.unschedulable)", "it rains")
	f(func(s *State) { s.Synced = false }, false, 0, "the Kubernetes objects are not loaded yet")
	f(func(s *State) { s.RequireLocal = []LocalBackend{{"app", 2}, {"ssh", 1}} }, true, 3)
	f(func(s *State) { s.RequireLocal = []LocalBackend{{"app", 2}, {"ssh", 0}} }, true, 2,
		`backend "ssh" has no ready endpoint on this node (require_local)`)
	f(func(s *State) { *s = State{Draining: true, Cordoned: true, RequireLocal: []LocalBackend{{"app", 0}}} }, false, 0,
		"no configuration is loaded yet", "the listeners are not bound yet", "the Kubernetes objects are not loaded yet", "weir is draining", "the node is cordoned through the admin port",
		`backend "app" has no ready endpoint on this node (require_local)`)
}

func TestNodeGauge(t *testing.T) {
	n := NewNode(func(string) int { return 1 })
	reg := prometheus.NewPedanticRegistry()
	NewMetrics(reg, n)
	f := func(want float64) {
		t.Helper()
		families, err := reg.Gather()
		if err != nil || len(families) != 1 || families[0].GetName() != "weir_node_healthy" {
			t.Fatal(families, err)
		}
		if got := families[0].Metric[0].GetGauge().GetValue(); got != want {
			t.Errorf("weir_node_healthy %v, want %v", got, want)
		}
	}
	f(0)
	n.SetLoaded(true)
	n.SetBound(true)
	n.SetRequireLocal([]string{"app"})
	f(1)
	n.SetDraining(true)
	f(0)
}
