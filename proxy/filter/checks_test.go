package filter

import (
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// slow does a check that takes a second, for the client with this last byte of its address.
func slow(c *checks, client, credentials byte, then func(busy bool)) {
	_, busy, gone := slowFor(&exchange{client: clientAddress(client)}, c, credentialSum{client, credentials})
	then(busy || gone != nil)
}

func slowFor(x *exchange, c *checks, sum credentialSum) (id *Identity, busy bool, gone error) {
	return c.do(x, sum, func() (*Identity, error) {
		time.Sleep(time.Second)
		return new(Identity), nil
	})
}

func clientAddress(last byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, last}), 1)
}

func newSlowChecks() *checks {
	c := newChecks(mostWaitingPasswords, mostPasswordsOfNetwork)
	c.most = 1
	c.setPrefixes(conn.DefaultPrefixes)
	return c
}

// A client does not wait for all checks of another one, and a network has a limited queue.
func TestChecksTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, refused := newSlowChecks(), 0
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range byte(40) { // a stranger tries passwords
			wg.Go(func() {
				slow(c, 1, i, func(busy bool) {
					mu.Lock()
					defer mu.Unlock()
					if busy {
						refused++
					}
				})
			})
		}
		synctest.Wait()
		if refused != 40-1-mostPasswordsOfNetwork {
			t.Errorf("%d checks were refused at once", refused)
		}
		began := time.Now()
		slow(c, 2, 0, func(busy bool) {
			if waited := time.Since(began); busy || waited > 3*time.Second {
				t.Errorf("another client: busy %t after %v", busy, waited)
			}
		})
		wg.Wait()
		if c.running != 0 || c.turns.waiting != 0 || len(c.turns.row)+len(c.same) != 0 {
			t.Errorf("left behind: %+v", c)
		}
	})
}

// Whatever network an attacker has addresses of, a client outside of it waits for two checks at most, also if the
// queue is full.
func TestChecksOfANetworkTakeTurns(t *testing.T) {
	f := func(honest string, attack func(i int) netip.Addr, networks int) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			c, ended := newSlowChecks(), make(chan struct{})
			var wg sync.WaitGroup
			junk := func(i int) {
				x := &exchange{client: netip.AddrPortFrom(attack(i%networks), 1)}
				slowFor(x, c, credentialSum{1, byte(i), byte(i >> 8), byte(i >> 16)})
			}
			for i := range 2 * mostWaitingPasswords {
				wg.Go(func() { junk(i * 37) })
			}
			wg.Go(func() { // twenty in a second
				for i := 0; ; i++ {
					select {
					case <-ended:
						return
					case <-time.After(50 * time.Millisecond):
						wg.Go(func() { junk(1<<20 + i*37) })
					}
				}
			})
			for i := range 10 {
				time.Sleep(1300 * time.Millisecond)
				began := time.Now()
				x := &exchange{client: netip.AddrPortFrom(netip.MustParseAddr(honest), 1)}
				id, busy, _ := slowFor(x, c, credentialSum{2, byte(i)})
				if waited := time.Since(began); busy || id == nil || waited > 3*time.Second {
					t.Errorf("%s against %s: busy %t after %v", honest, attack(1), busy, waited)
				}
			}
			close(ended)
			wg.Wait()
			if c.running != 0 || c.turns.waiting != 0 || len(c.turns.row)+len(c.same) != 0 {
				t.Errorf("left behind: %+v", c)
			}
		})
	}
	of48 := func(i int) netip.Addr { // each in a /64 of its own
		return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, 1, byte(i >> 8), byte(i), 15: 1})
	}
	of24 := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}) }
	f("2001:db8:2::1", of48, 1<<16)
	f("192.0.2.1", of48, 1<<16)
	f("198.51.101.1", of24, 256)
	f("2001:db8::1", of24, 256)
	of56 := func(i int) netip.Addr { return of48(i & 255) }
	f("2001:db8:1:100::1", of56, 256)                                      // another /56 of the same /48
	f("2001:db8:1:1::1", func(i int) netip.Addr { return of48(0) }, 1)     // another /64 of the same /56
	f("198.51.100.2", func(i int) netip.Addr { return of24(1) }, 1)        // another address of the same /24
	f("::ffff:198.51.100.2", func(i int) netip.Addr { return of24(1) }, 1) // the same, as IPv6 has it
}

// If the queue is full, the check that came last from the largest network is dropped at once.
func TestFullQueueDropsOfTheLargestNetwork(t *testing.T) {
	c := newChecks(4, 3)
	c.most, c.prefixes = 0, conn.DefaultPrefixes
	add := func(client string) *turn {
		t.Helper()
		turn, accepted := c.enter(netip.MustParseAddr(client))
		if turn != nil && accepted == turn.dropped {
			t.Errorf("%s: accepted %t, dropped %t", client, accepted, turn.dropped)
		}
		return turn
	}
	first, second := add("2001:db8:1::1"), add("2001:db8:1:1::1")
	third, other := add("2001:db8:1:2::1"), add("192.0.2.1")
	if late := add("2001:db8:1:3::1"); !late.dropped {
		t.Error("a check of the largest network takes a place of others")
	}
	add("203.0.113.1")
	select {
	case <-third.come:
	default:
		t.Error("the dropped check still waits")
	}
	if first.dropped || second.dropped || !third.dropped || other.dropped || c.turns.waiting != 4 {
		t.Errorf("dropped: %t, %t, %t, %t; %d wait", first.dropped, second.dropped, third.dropped, other.dropped, c.turns.waiting)
	}
	add("2001:db8:2::1") // the larger one lost a place again
	if !second.dropped || !add("2001:db8:3::1").dropped {
		t.Error("among equals, the last one is not dropped")
	}
}

// Many networks together have a limited queue, and nobody waits longer than checkPatience.
func TestChecksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSlowChecks()
		var wg sync.WaitGroup
		var mu sync.Mutex
		began, longest := time.Now(), time.Duration(0)
		for client := range byte(200) {
			for i := range byte(10) {
				wg.Go(func() {
					slow(c, client, i, func(bool) {
						mu.Lock()
						defer mu.Unlock()
						longest = max(longest, time.Since(began))
					})
				})
			}
		}
		synctest.Wait()
		c.mu.Lock()
		if c.turns.waiting != mostWaitingPasswords || c.running != 1 {
			t.Errorf("%d wait, %d run", c.turns.waiting, c.running)
		}
		c.mu.Unlock()
		wg.Wait()
		if longest > checkPatience+2*time.Second {
			t.Errorf("a check took %v", longest)
		}
	})
}

// Requests with the same credentials share a check, as those of a browser do.
func TestEqualChecksAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSlowChecks()
		began := time.Now()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				slow(c, 1, 1, func(busy bool) {
					if busy || time.Since(began) > time.Second {
						t.Errorf("busy %t after %v", busy, time.Since(began))
					}
				})
			})
		}
		wg.Wait()
	})
}

// leaver is a client that goes at the moment of its turn.
type leaver struct{ turn func() }

func (leaver) Client() netip.AddrPort { return clientAddress(2) }
func (l leaver) Wait(<-chan struct{}, time.Duration) (bool, error) {
	l.turn()
	return false, errors.New("gone")
}

// A turn that comes when its client goes is given to the next one, without a check.
func TestTurnsOfGoneClientsAreGivenBack(t *testing.T) {
	c := newSlowChecks()
	if turn, accepted := c.enter(clientAddress(1).Addr()); turn != nil || !accepted {
		t.Fatal("the first check does not run at once")
	}
	id, busy, gone := c.do(leaver{c.leave}, credentialSum{1}, func() (*Identity, error) {
		t.Error("the check runs for a client that has gone")
		return new(Identity), nil
	})
	if id != nil || !busy || gone == nil || c.running != 0 || c.turns.waiting != 0 || len(c.same) != 0 {
		t.Errorf("%v, busy %t, %v; left behind: %+v", id, busy, gone, c)
	}
}

// A client that goes gives up its place. Another one that waits for the same check then does it.
func TestGoneClientsGiveUpTheirPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSlowChecks()
		var wg sync.WaitGroup
		wg.Go(func() { slow(c, 1, 0, func(bool) {}) }) // runs for a second
		synctest.Wait()
		leaves := make(chan struct{})
		wg.Go(func() {
			x := &exchange{client: clientAddress(2), gone: leaves}
			if id, busy, gone := slowFor(x, c, credentialSum{2}); id != nil || !busy || gone == nil {
				t.Errorf("the client has gone: %v, busy %t, %v", id, busy, gone)
			}
		})
		synctest.Wait()
		began := time.Now()
		wg.Go(func() {
			x := &exchange{client: clientAddress(3)}
			if id, busy, gone := slowFor(x, c, credentialSum{2}); id == nil || busy || gone != nil || time.Since(began) != 2*time.Second {
				t.Errorf("the client that stays: %v, busy %t, %v after %v", id, busy, gone, time.Since(began))
			}
		})
		synctest.Wait()
		close(leaves)
		synctest.Wait()
		c.mu.Lock()
		if c.turns.waiting != 1 || len(c.turns.row) != 1 || c.turns.next().of.network.String() != "192.0.2.3/32" {
			t.Errorf("%d wait, in %d networks", c.turns.waiting, len(c.turns.row))
		}
		c.mu.Unlock()
		wg.Wait()
		if c.running != 0 || c.turns.waiting != 0 || len(c.turns.row)+len(c.same) != 0 {
			t.Errorf("left behind: %+v", c)
		}
	})
}

// A client that waits for the check of another one can go.
func TestGoneClientsOfASharedCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, leaves := newSlowChecks(), make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { slow(c, 1, 1, func(bool) {}) })
		synctest.Wait()
		began := time.Now()
		wg.Go(func() {
			x := &exchange{client: clientAddress(1), gone: leaves}
			if _, busy, gone := slowFor(x, c, credentialSum{1, 1}); !busy || gone == nil || time.Since(began) != 0 {
				t.Errorf("busy %t, %v after %v", busy, gone, time.Since(began))
			}
		})
		synctest.Wait()
		close(leaves)
		wg.Wait()
	})
}

// The turn of a client that goes at the same moment passes to the next one.
func TestTurnOfAGoneClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 50 { // select takes either case
			c, leaves := newSlowChecks(), make(chan struct{})
			c.running = 1
			var wg sync.WaitGroup
			wg.Go(func() { slowFor(&exchange{client: clientAddress(1), gone: leaves}, c, credentialSum{1}) })
			synctest.Wait()
			close(leaves)
			c.leave()
			wg.Wait()
			if c.running != 0 || c.turns.waiting != 0 || len(c.turns.row)+len(c.same) != 0 {
				t.Fatalf("left behind: %+v", c)
			}
		}
	})
}
