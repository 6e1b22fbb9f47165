package listener

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

func TestArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := new(Tracker)
		one, two := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		f := func(what string, wantNew int, wantLast, wantQuiet time.Duration, wantFrom netip.Addr) {
			t.Helper()
			a := tr.Arrivals()
			if a.New != wantNew || a.Last != wantLast || a.Quiet() != wantQuiet || a.From != wantFrom {
				t.Errorf("%s: %d new ones, the last after %v from %v, quiet for %v; want %d, %v, %v, %v", what, a.New, a.Last, a.From, a.Quiet(), wantNew, wantLast, wantFrom, wantQuiet)
			}
		}
		tr.arrivals.note(one)
		if a := tr.Arrivals(); a != (Arrivals{}) {
			t.Errorf("without a drain there are %+v", a)
		}
		tr.WatchArrivals()
		time.Sleep(2 * time.Second)
		f("at first", 0, 0, 2*time.Second, netip.Addr{})
		tr.arrivals.note(one)
		tr.arrivals.note(two)
		time.Sleep(3 * time.Second)
		f("after two", 2, 2*time.Second, 3*time.Second, two)
		tr.WatchArrivals()
		f("after a second beginning", 2, 2*time.Second, 3*time.Second, two)
		tr.EndArrivals()
		tr.WatchArrivals()
		f("a new drain", 0, 0, 0, netip.Addr{})
		tr.arrivals.note(one)
		f("a connection in the first moment", 1, 1, -1, one)
	})
}
