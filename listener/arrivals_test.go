package listener

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := new(Tracker)
		f := func(what string, wantNew int, wantLast, wantQuiet time.Duration) {
			t.Helper()
			a := tr.Arrivals()
			if a.New != wantNew || a.Last != wantLast || a.Quiet() != wantQuiet {
				t.Errorf("%s: %d new ones, the last after %v, quiet for %v; want %d, %v, %v", what, a.New, a.Last, a.Quiet(), wantNew, wantLast, wantQuiet)
			}
		}
		tr.arrivals.note()
		if a := tr.Arrivals(); a != (Arrivals{}) {
			t.Errorf("without a drain there are %+v", a)
		}
		tr.WatchArrivals()
		time.Sleep(2 * time.Second)
		f("at first", 0, 0, 2*time.Second)
		tr.arrivals.note()
		tr.arrivals.note()
		time.Sleep(3 * time.Second)
		f("after two", 2, 2*time.Second, 3*time.Second)
		tr.WatchArrivals()
		f("after a second beginning", 2, 2*time.Second, 3*time.Second)
		tr.EndArrivals()
		tr.WatchArrivals()
		f("a new drain", 0, 0, 0)
		tr.arrivals.note()
		f("a connection in the first moment", 1, 1, -1)
	})
}
