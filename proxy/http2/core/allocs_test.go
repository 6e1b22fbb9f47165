//go:build !race

package core

import "testing"

// The core allocates nothing for an exchange. Only hpack.Decoder allocates: it returns
// literals as strings. A request whose fields are all in the table has no literals.
func TestRequestsAllocateNothing(t *testing.T) {
	for _, post := range []int{0, 30000} {
		r := newRequests(t, post)
		if n := testing.AllocsPerRun(1000, func() { r.next(t) }); n != 0 {
			t.Errorf("with a body of %d bytes: %v allocations a request", post, n)
		}
	}
}
