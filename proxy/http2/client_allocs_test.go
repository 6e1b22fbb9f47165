//go:build !race

package http2

import "testing"

// The driver allocates nothing for a call.
func TestCallsAllocateNothing(t *testing.T) {
	c := newCaller(newTrunk(t, serveAll(t)))
	for range 100 {
		if err := c.call(); err != nil {
			t.Fatal(err)
		}
	}
	n := testing.AllocsPerRun(1000, func() {
		if err := c.call(); err != nil {
			t.Fatal(err)
		}
	})
	if n > 0 {
		t.Errorf("%v allocations a call", n)
	}
}
