//go:build !race

package http1

import "testing"

func TestExchangeAllocatesNothing(t *testing.T) {
	for name, make := range exchanges {
		x := make()
		allocs := testing.AllocsPerRun(500, func() {
			if err := x.exchange(); err != nil {
				t.Fatal(err)
			}
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations an exchange", name, allocs)
		}
	}
	x := newExchanger(browserRequest, plainAnswer)
	if err := x.exchange(); err != nil || x.client.writes != 1 || x.endpoint.writes != 1 {
		t.Errorf("%d writes to the client, %d to the endpoint, %v", x.client.writes, x.endpoint.writes, err)
	}
}
