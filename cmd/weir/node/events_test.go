package node

import (
	"fmt"
	"testing"
)

// A panic in a connection is logged once, with its stack, and counted.
func TestPanicsAreLogged(t *testing.T) {
	r := newRunning(t, web, "web", "app")
	r.proxy.Panicked("web", "a fault", []byte("a stack"))
	lines := r.lines.FilterMessage(panicLine).All()
	if len(lines) != 1 || lines[0].ContextMap()["panic"] != "a fault" || lines[0].ContextMap()["stack"] != "a stack" {
		t.Errorf("logged is %v", lines)
	}
	eventually(t, "it is counted", func() error {
		families, err := r.registry.Gather()
		for _, f := range families {
			if f.GetName() == "weir_panics_total" && f.GetMetric()[0].GetCounter().GetValue() == 1 {
				return err
			}
		}
		return fmt.Errorf("it is not: %v", err)
	})
}
