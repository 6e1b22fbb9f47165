package health

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestAskers(t *testing.T) {
	one, two := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	f := func(name string, do func(a *askers), want ...netip.Addr) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := new(askers)
				do(a)
				if got := a.untold(); !slices.Equal(got, want) {
					t.Errorf("untold: %v, want %v", got, want)
				}
			})
		})
	}
	ask := func(a *askers, healthy bool, peers ...netip.Addr) {
		for _, p := range peers {
			a.note(p, healthy)
		}
		time.Sleep(10 * time.Second)
	}
	f("nobody asks", func(*askers) {})
	f("healthy checks", func(a *askers) { ask(a, true, one); ask(a, true, one) }, one)
	f("one of them has seen one 503", func(a *askers) {
		ask(a, true, one, two)
		ask(a, false, one, two)
		ask(a, false, one)
	}, two)
	f("neither of them has seen one", func(a *askers) { ask(a, true, two, one); ask(a, true, two, one) }, one, two)
	f("both have seen two", func(a *askers) {
		ask(a, true, one, two)
		ask(a, false, one, two)
		ask(a, false, two, one)
	})
	f("healthy again", func(a *askers) { ask(a, false, one); ask(a, false, one); ask(a, true, one) }, one)
	f("one check only", func(a *askers) { ask(a, true, one) }, one)
	f("one check before the drain, and one in it", func(a *askers) { ask(a, true, one); ask(a, false, one) }, one)
	f("never healthy", func(a *askers) { ask(a, false, one) })
	f("a load balancer that has gone", func(a *askers) {
		ask(a, true, one)
		ask(a, true, one)
		time.Sleep(askedWithin)
	})
	f("a load balancer that comes back", func(a *askers) {
		ask(a, true, one)
		time.Sleep(askedWithin)
		ask(a, false, one)
	})
	f("from another process", func(a *askers) {
		former := new(askers)
		ask(former, true, one, two)
		ask(former, false, two)
		ask(a, false, two)
		a.adopt(former.list())
		if got := a.untold(); !slices.Equal(got, []netip.Addr{one, two}) {
			t.Errorf("untold: %v", got)
		}
		ask(a, false, two)
	}, one)
	f("from another process, long ago", func(a *askers) {
		former := new(askers)
		ask(former, true, one)
		a.adopt(former.list())
		time.Sleep(askedWithin)
	})
	f("many addresses", func(a *askers) {
		ask(a, true, one)
		ask(a, true, one)
		for i := range 2 * maxAskers {
			a.note(netip.AddrFrom4([4]byte{10, 0, byte(i / 256), byte(i)}), false)
			time.Sleep(time.Millisecond)
		}
		if len(a.all) != maxAskers || a.all[one] != nil {
			t.Errorf("%d addresses are remembered", len(a.all))
		}
	})
}
