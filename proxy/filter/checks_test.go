package filter

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// slow does a check that takes a second, for the client with this last byte of its address.
func slow(c *checks, client, credentials byte, then func(busy bool)) {
	_, busy := c.do(credentialSum{client, credentials}, netip.AddrFrom4([4]byte{192, 0, 2, client}), func() *Identity {
		time.Sleep(time.Second)
		return new(Identity)
	})
	then(busy)
}

func newSlowChecks() *checks {
	c := newChecks()
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
		if refused != 40-1-mostWaitingOfNetwork {
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
		if c.waiting != mostWaitingChecks || c.running != 1 {
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
