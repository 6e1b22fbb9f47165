package pressure

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
)

// unknown makes a house in which connections of network 1 hold more than the accounts know: each has one of running.
func unknown(t *testing.T, full int64, running ...int) (h *house, theirs []*conn.Conn) {
	h = &house{t: t, full: full, each: 1, reserve: full / 9, ends: true, left: 5, running: map[*conn.Conn]int{}, got: map[*conn.Conn]int64{}}
	for i, n := range running {
		c := h.from(1, conn.Active, -1)
		h.running[c], h.got[c] = n, int64(i)
		theirs = append(theirs, c)
	}
	return h, theirs
}

// If memory is short although the accounts know less than half of it, weir closes the connections with the most
// exchanges, and of these with the most received bytes, until about half is free.
func TestCutBusiest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, theirs := unknown(t, 1100, 90, 200, 200, 200, 20, 9, 8, 300, 10)
		h.start(0.9, 0.8)
		h.want("at the first look", "shed begins", "cut begins", "share begins")
		after(2 * time.Second)
		for i, want := range []bool{false, false, false, true, false, false, false, true, false} {
			if theirs[i].WasCut() != want {
				t.Errorf("connection %d with %d exchanges was cut is %t", i, h.running[theirs[i]], theirs[i].WasCut())
			}
		}
		if h.allowance() != memory.NoRation {
			t.Errorf("when memory suffices, exchanges are allowed for %v", h.allowance())
		}
		after(2 * calmTime)
		h.want("a while later", "shed begins", "cut begins", "share begins", "cut ends", "share ends", "shed ends")
	})
}

// If no connection stands out, those of the largest network end.
func TestCutLargestNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		few := make([]int, 120)
		for i := range few {
			few[i] = memory.Few
		}
		h, theirs := unknown(t, 1000, few...)
		other := h.from(2, conn.Active, -1)
		h.running[other] = memory.Few
		h.start(0.9, 0.8)
		after(2 * time.Second)
		if n := len(cutOf(theirs)); n < 50 || n > 70 || other.WasCut() {
			t.Errorf("%d of 120 were cut, and the one of another network is %t", n, other.WasCut())
		}
	})
}

// What the accounts know is left to them, until nearly everything is used.
func TestCutLeavesWhatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, theirs := unknown(t, 1000, 500, 480)
		h.known = 600
		h.start(0.9, 0.8)
		after(time.Minute)
		if h.want("the accounts know most", "shed begins"); len(cutOf(theirs)) > 0 {
			t.Error("a connection was cut")
		}
		h.set(func() { h.base = 100 })
		after(time.Second)
		if len(cutOf(theirs)) == 0 {
			t.Error("at the end of the reserve none was cut")
		}
	})
}

// If something else holds the memory, not all connections have to go at once.
func TestCutInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running := make([]int, 40)
		for i := range running {
			running[i] = 10
		}
		h, theirs := unknown(t, 10_000, running...)
		h.base = 12_000
		h.start(0.9, 0.8)
		after(calmTime / 2)
		if n := len(cutOf(theirs)); n == 0 || n > 39 {
			t.Errorf("%d of %d were cut", n, len(theirs))
		}
	})
}

// With garbage, the process takes more than it ever should, and how much of it is in use is not known yet. Connections
// with many exchanges wait, and none is closed, unless the end is near.
func TestBeyond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, theirs := unknown(t, 1000, 200, 200)
		h.stale, h.peak = true, peakSoon
		h.start(0.9, 0.8)
		if h.allowance() != watched {
			t.Errorf("exchanges are allowed for %v until the next look", h.allowance())
		}
		h.set(func() { h.peak = peakBeyond })
		after(time.Second)
		if h.allowance() >= 0 || h.admitted() != 0 || len(cutOf(theirs)) > 0 {
			t.Errorf("exchanges are allowed for %v, %d may come, %d were cut", h.allowance(), h.admitted(), len(cutOf(theirs)))
		}
		h.set(func() { h.peak = peakUrgent })
		after(time.Second)
		if len(cutOf(theirs)) == 0 {
			t.Error("none was cut")
		}
	})
}

// After most connections were cut, their memory may not be free yet. New clients are served nevertheless, unless they
// come with many connections.
func TestCutServesNewClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := unknown(t, 1000, 2, 2)
		h.base, h.stale, h.left = 1100, true, -1
		h.start(0.9, 0.8)
		after(time.Second)
		served := 0
		for h.lets(network(2)) {
			h.from(2, conn.Active, -1)
			synctest.Wait()
			if served++; served > 100 {
				t.Fatal("there is no end to it")
			}
		}
		if served < 10 || h.admitted() != 0 {
			t.Errorf("%d connections of a new client are served, and %d of all", served, h.admitted())
		}
	})
}
