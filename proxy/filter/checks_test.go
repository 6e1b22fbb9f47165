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
		if c.running != 0 || c.waiting != 0 || len(c.turns)+len(c.byNet)+len(c.same) != 0 {
			t.Errorf("left behind: %+v", c)
		}
	})
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
		if c.waiting != mostWaitingPasswords || c.running != 1 {
			t.Errorf("%d wait, %d run", c.waiting, c.running)
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
	if turn, accepted := c.enter(conn.NetworkOf(clientAddress(1).Addr(), c.prefixes)); turn != nil || !accepted {
		t.Fatal("the first check does not run at once")
	}
	id, busy, gone := c.do(leaver{c.leave}, credentialSum{1}, func() (*Identity, error) {
		t.Error("the check runs for a client that has gone")
		return new(Identity), nil
	})
	if id != nil || !busy || gone == nil || c.running != 0 || c.waiting != 0 || len(c.same) != 0 {
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
		if c.waiting != 1 || len(c.turns) != 1 || c.turns[0].network.String() != "192.0.2.3/32" {
			t.Errorf("%d wait, in %d networks", c.waiting, len(c.turns))
		}
		c.mu.Unlock()
		wg.Wait()
		if c.running != 0 || c.waiting != 0 || len(c.turns)+len(c.byNet)+len(c.same) != 0 {
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
			if c.running != 0 || c.waiting != 0 || len(c.turns)+len(c.byNet)+len(c.same) != 0 {
				t.Fatalf("left behind: %+v", c)
			}
		}
	})
}
