package pressure

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

func network(i int) conn.Network {
	return conn.NetworkOf(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1}), conn.DefaultPrefixes)
}

// hold makes holdings. Network i holds all[i], by connections that hold one unit each.
func hold(all ...int64) *holdings {
	h := new(holdings)
	h.take(func(add func(conn.Network, int64)) {
		for i, held := range all {
			for range held {
				add(network(i), 1)
			}
		}
	})
	return h
}

func many(n int, held int64) (all []int64) {
	for range n {
		all = append(all, held)
	}
	return all
}

func TestFairShare(t *testing.T) {
	f := func(what string, want int64, all ...int64) {
		t.Helper()
		if got := hold(all...).fair(0).whole; got != want {
			t.Errorf("%s: the fair share is %d, want %d", what, got, want)
		}
	}
	f("nobody is there", 0)
	f("one has everything", 165, 330)
	f("three have the same", 82, 110, 110, 110)
	f("one of three has most", 100, 200, 80, 80)
	f("all have little", 1, many(160, 2)...)
	f("one has more than all others", 10, append(many(150, 2), 20)...)
}

func TestExcess(t *testing.T) {
	f := func(what string, amount int64, want []int64, all ...int64) {
		t.Helper()
		over := hold(all...).excess(amount, fairShares{})
		for i := range all {
			if got := over[network(i)]; got != want[i] {
				t.Errorf("%s: network %d has to give %d, want %d", what, i, got, want[i])
			}
		}
	}
	f("the largest alone", 20, []int64{20, 0, 0}, 100, 50, 3)
	f("until it is as large as the next", 50, []int64{50, 0, 0}, 100, 50, 3)
	f("then both", 70, []int64{60, 10, 0}, 100, 50, 3)
	f("all alike", 30, []int64{10, 10, 10}, 50, 50, 50)
	f("more than there is", 500, []int64{10, 5}, 10, 5)
	f("nothing", 0, []int64{0, 0}, 10, 5)
}

// With any number of networks, only a limited number is counted separately: always the
// largest ones, and exactly.
func TestHoldingsAreBounded(t *testing.T) {
	type one struct {
		n    conn.Network
		held int64
	}
	var all []one
	for i := range 50_000 {
		all = append(all, one{network(i + 10), 1 + int64(i%2)})
	}
	for range 600 {
		all = append(all, one{network(1), 2})
	}
	for range 300 {
		all = append(all, one{network(2), 1})
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	h := new(holdings)
	h.take(func(add func(conn.Network, int64)) {
		for _, c := range all {
			add(c.n, c.held)
		}
	})
	if len(h.of) > conn.MaxLevels*maxNetworks || len(h.groups) != len(h.of)+1 {
		t.Errorf("%d networks are counted by name", len(h.of))
	}
	if h.total != 76_500 || h.of[network(1)] != 1200 || h.of[network(2)] != 300 || h.largest() != network(1) {
		t.Errorf("total %d, the largest %d and %d, want 76500, 1200, 300", h.total, h.of[network(1)], h.of[network(2)])
	}
}

// from makes a connection of network n with this state and age.
func (h *house) from(n int, s conn.State, age time.Duration) *conn.Conn {
	c := h.add(s, age)
	c.Client = netip.AddrPortFrom(network(n).Prefix().Addr(), 1)
	c.Identify(conn.DefaultPrefixes)
	c.Accepted = time.Now()
	return c
}

// full makes a house in which connections of network 1 use the whole resource.
func full(t *testing.T) (h *house, theirs []*conn.Conn) {
	h = &house{t: t, full: 100, each: 1, reserve: 40, left: 5}
	for range 100 {
		theirs = append(theirs, h.from(1, conn.Active, -1))
		time.Sleep(time.Millisecond)
	}
	h.start(0.9, 0.8)
	return h, theirs
}

// waitFrom sets the networks whose connections wait.
func (h *house) waitFrom(waits ...int) {
	h.set(func() {
		h.left = -1
		h.waits = nil
		for _, n := range waits {
			h.waits = append(h.waits, network(n))
		}
	})
}

func cutOf(all []*conn.Conn) (cut []int) {
	for i, c := range all {
		if c.WasCut() {
			cut = append(cut, i)
		}
	}
	return cut
}

// One network uses the whole resource. Nothing happens until another client comes. Then weir closes the
// network's newest connections and refuses its new ones, as far as other clients need the room.
func TestSharedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, theirs := full(t)
		after(5 * time.Second)
		h.waitFrom(1)
		after(5 * time.Second)
		h.want("more of the same network wait", "shed begins", "pause begins")
		if n := len(cutOf(theirs)); n != 0 || h.sharing() != 0 {
			t.Errorf("alone, it lost %d connections, and %d places are given", n, h.sharing())
		}

		h.waitFrom(1, 2)
		after(2 * patience)
		h.want("somebody else waits", "shed begins", "pause begins", "share begins")
		if n := len(cutOf(theirs)); n != 0 || h.sharing() == 0 {
			t.Errorf("before anybody was let in it lost %d connections, and %d places are given", n, h.sharing())
		}
		if h.lets(network(1)) {
			t.Error("a newcomer of the largest network was let in")
		}
		if !h.lets(network(2)) || !h.lets(network(3)) {
			t.Error("newcomers of others were not")
		}
		h.from(2, conn.Active, -1)
		h.from(3, conn.Active, -1)
		synctest.Wait()
		if cut := cutOf(theirs); fmt.Sprint(cut) != "[98 99]" {
			t.Errorf("for the two %v of its connections were cut, want the newest two", cut)
		}
		if n := h.metric("weir_overload_connections_ended_total"); n != 2 {
			t.Errorf("%v were counted", n)
		}
		if n := h.metric("weir_overload_step"); n != 3 {
			t.Errorf("the step is %v", n)
		}
		h.set(func() { h.left, h.waits = 0, nil })
		after(calmTime + 2*time.Second)
		h.want("nobody waits", "shed begins", "pause begins", "share begins", "share ends")
		if h.sharing() != 0 || h.may != nil {
			t.Error("places are still given")
		}
	})
}

// A network gets room from others up to half of its fair share, and no more.
func TestShareHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, theirs := full(t)
		h.waitFrom(2)
		after(2 * patience)
		let := 0
		for h.lets(network(2)) {
			h.from(2, conn.Active, -1)
			synctest.Wait()
			if let++; let > 100 {
				t.Fatal("there is no end to it")
			}
		}
		if n := len(cutOf(theirs)); let != n || let < 20 || let > 34 {
			t.Errorf("%d were let in, and %d cut", let, n)
		}
	})
}

// If most of the resource is not held by clients, but for example by idle connections to endpoints, and all
// clients belong to one network, weir does not refuse that network.
func TestAloneBesideOtherThings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, full: 100, each: 1, base: 95, reserve: 40}
		for range 5 {
			h.from(1, conn.Active, -1)
		}
		h.start(0.9, 0.8)
		h.waitFrom(1)
		after(5 * time.Second)
		h.want("more of the same network wait", "shed begins", "pause begins")
		if h.sharing() != 0 {
			t.Errorf("%d places are given", h.sharing())
		}
	})
}

// Several networks of about the same size, as behind load balancers without PROXY headers,
// do not close each other's connections.
func TestEqualsAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, full: 100, each: 1}
		var all []*conn.Conn
		for i := range 100 {
			all = append(all, h.from([]int{1, 1, 2, 2, 3}[i%5], conn.Active, -1))
		}
		h.start(0.9, 0.8)
		h.waitFrom(1, 2, 3)
		after(5 * time.Second)
		if n := len(cutOf(all)); n != 0 || h.sharing() != 0 {
			t.Errorf("%d were cut, and %d places are given", n, h.sharing())
		}
	})
}

// While the queue moves, no connection is closed: new connections must have waited for some
// time.
func TestShareHasPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := full(t)
		for range 20 {
			h.waitFrom(2)
			after(patience / 2)
			h.set(func() { h.left = 0 })
			after(shedInterval)
		}
		h.want("they wait for a moment each", "shed begins", "pause begins")
	})
}

// The network that holds most cannot use up the reserve for exchanges, for example with
// streams of its open connections, unless it is alone.
func TestCurb(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, theirs := full(t)
		h.set(func() { h.base = 35 })
		after(5 * time.Second)
		if n := len(cutOf(theirs)); n != 0 {
			t.Errorf("alone, it lost %d connections", n)
		}
		other := h.from(2, conn.Active, -1)
		after(time.Second)
		if n := len(cutOf(theirs)); n != 8 || other.WasCut() {
			t.Errorf("it lost %d connections that hold two each, want 8; the other one was cut is %t", n, other.WasCut())
		}
		h.want("it was curbed", "shed begins", "pause begins", "share begins")
	})
}

// The usage beyond the reserve belongs to no client: it is connections to endpoints whose
// client connections were closed. The largest client network makes room, and networks
// that hold little lose nothing.
func TestCurbSparesTheSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, full: 100, each: 1, reserve: 40, base: 60, running: map[*conn.Conn]int{}}
		two := h.from(1, conn.Active, -1)
		h.set(func() { h.running[two] = 50 })
		small := []*conn.Conn{h.from(2, conn.Active, -1), h.from(3, conn.Active, -1)}
		h.start(0.9, 0.8)
		h.set(func() { h.base = 400 })
		after(5 * time.Second)
		if n := len(cutOf(small)); n != 0 || !two.WasCut() {
			t.Errorf("of two that hold little %d were cut, and the one with 50 exchanges was is %t", n, two.WasCut())
		}
	})
}

// An HTTP/2 connection counts with all its exchanges.
func TestExchangesOfHTTP2Count(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, full: 100, each: 1, running: map[*conn.Conn]int{}}
		two := h.from(1, conn.Active, -1)
		var ones []*conn.Conn
		for range 10 {
			ones = append(ones, h.from(2, conn.Active, -1))
		}
		h.set(func() { h.running[two], h.base = 90, 89 })
		h.start(0.9, 0.8)
		h.waitFrom(3)
		after(2 * patience)
		if !h.lets(network(3)) {
			t.Fatal("another network is not let in")
		}
		synctest.Wait()
		if !two.WasCut() || len(cutOf(ones)) != 0 {
			t.Errorf("the connection with 90 exchanges was cut is %t, and of 10 others %d", two.WasCut(), len(cutOf(ones)))
		}
	})
}

// Idle connections of a network that holds more than its share are closed before older ones
// of others.
func TestShedsTheLargestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, full: 100, each: 1}
		var old, theirs []*conn.Conn
		for i := range 35 {
			old = append(old, h.from(100+i, conn.Idle, time.Hour))
		}
		for range 60 {
			theirs = append(theirs, h.from(1, conn.Idle, 5*time.Second))
		}
		h.start(0.9, 0.8)
		if n, m := len(cutOf(theirs)), len(cutOf(old)); n != 15 || m != 0 {
			t.Errorf("%d of the largest and %d of others were ended, want 15 and 0", n, m)
		}
		h.set(func() { h.base += 80 })
		after(2 * time.Second)
		if n, m := len(cutOf(theirs)), len(cutOf(old)); n < 55 || m == 0 || m == len(old) {
			t.Errorf("when that did not do, %d and %d", n, m)
		}
	})
}

// within makes connections in networks that are written with %x for each connection.
func (h *house) within(network string, n int, s conn.State, age time.Duration) (all []*conn.Conn) {
	for i := range n {
		c := h.add(s, age)
		c.Client = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf(network, i)), 1)
		c.Identify(conn.DefaultPrefixes)
		c.Accepted = time.Now()
		all = append(all, c)
	}
	return all
}

// A client with a whole IPv6 /48 or /56, or an IPv4 /24, is one client, although each of its connections has a client
// network of its own. It makes room for others, whoever waits. Others in the network around it are served as well.
func TestSpreadNetworkMakesRoom(t *testing.T) {
	f := func(what, theirs, others, waiting string, n int, spread bool) {
		synctest.Test(t, func(t *testing.T) {
			h := &house{t: t, full: int64(n), each: 1, reserve: 40, left: 5}
			bad := h.within(theirs, n-20, conn.Active, -1)
			good := h.within(others, 20, conn.Active, -1)
			h.start(0.9, 0.8)
			waits := conn.NetworkOf(netip.MustParseAddr(waiting), conn.DefaultPrefixes)
			h.set(func() { h.left, h.waits = -1, []conn.Network{waits} })
			after(2 * patience)
			if h.sharing() == 0 || !h.lets(waits) {
				t.Fatalf("%s: the one who waits is refused", what)
			}
			after(shedInterval)
			if cut := len(cutOf(bad)); cut == 0 || cut > 4 || len(cutOf(good)) != 0 {
				t.Errorf("%s: %d of the large network were cut, and %d of others", what, len(cutOf(bad)), len(cutOf(good)))
			}
			another := conn.NetworkOf(netip.MustParseAddr(fmt.Sprintf(theirs, 0xf0)), conn.DefaultPrefixes)
			if spread && h.lets(another) {
				t.Errorf("%s: one more network of those who hold most is let in", what)
			}
		})
	}
	f("a /48 over its /64", "2001:db8:1:%x::1", "2001:db9:%x:2::1", "2001:db9:ff::1", 300, true)
	f("a /48 over more /64 than are counted", "2001:db8:1:%x::1", "2001:db9:%x:2::1", "2001:db9:ff::1", 6000, true)
	f("a /56 over its /64", "2001:db8:1:aa%02x::1", "2001:db9:%x:2::1", "2001:db9:ff::1", 250, true)
	f("a /56, and others of the same /48", "2001:db8:1:aa%02x::1", "2001:db8:1:%x00::1", "2001:db8:1:ff00::1", 250, false)
	f("a /24", "198.51.100.%d", "203.0.%d.1", "192.0.2.1", 250, true)

}
