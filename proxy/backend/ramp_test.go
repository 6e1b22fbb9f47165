package backend

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/config"
)

// ramped returns a backend whose endpoints have a slow start of ten seconds.
func ramped(balance config.Balance, addresses ...string) config.Backend {
	b := settings("app", addresses...)
	b.Balance, b.RampUp = balance, 10*time.Second
	return b
}

// part returns the share of an endpoint in many exchanges that end at once.
func part(t *testing.T, b *Backend, address string) float64 {
	t.Helper()
	const n = 20_000
	got := 0.0
	for range n {
		e, err := b.Acquire(netip.AddrFrom4([4]byte{10, byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32())}), nil, noDeadline, alone{})
		if err != nil {
			t.Fatal(err)
		}
		if e.address == address {
			got++
		}
		e.Release()
	}
	return got / n
}

func wantPart(t *testing.T, b *Backend, address string, least, most float64) {
	t.Helper()
	if got := part(t, b, address); got < least || got > most {
		t.Errorf("%s: %s gets %.3f of all, not %.2f to %.2f", b.Settings().Balance, address, got, least, most)
	}
}

func TestEndpointsRampUp(t *testing.T) {
	for _, balance := range balances {
		t.Run(string(balance), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Options{})
				w.update(ramped(balance, "10.0.0.1:1", "10.0.0.2:1"))
				b := w.set.Backend("app")
				wantPart(t, b, "10.0.0.1:1", 0.48, 0.52) // both are new: no slow start
				time.Sleep(time.Minute)
				w.update(ramped(balance, "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"))
				wantPart(t, b, "10.0.0.3:1", 0.03, 0.07) // 10 of 210
				time.Sleep(5*time.Second + time.Millisecond)
				synctest.Wait()
				wantPart(t, b, "10.0.0.3:1", 0.17, 0.23) // 50 of 250
				if s := w.set.Status()[0].Endpoints[2]; s.RampedUp < 40 || s.RampedUp > 50 {
					t.Errorf("the status is %+v", s)
				}
				w.update(ramped(balance, "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1")) // a reload does not change the slow start
				wantPart(t, b, "10.0.0.3:1", 0.17, 0.23)
				time.Sleep(6 * time.Second)
				synctest.Wait()
				wantPart(t, b, "10.0.0.3:1", 0.31, 0.36)
				if s := w.set.Status()[0].Endpoints[2]; s.RampedUp != 0 {
					t.Errorf("the status is %+v", s)
				}

				// All are replaced: no slow start.
				w.update(ramped(balance, "10.0.0.4:1", "10.0.0.5:1"))
				wantPart(t, b, "10.0.0.4:1", 0.48, 0.52)
			})
		})
	}
}

// Slow start also applies to endpoints that return from ejection or from failing checks.
func TestEndpointsRampUpWhenTheyComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.update(checked(ramped(config.LeastRequests, "10.0.0.1:1", "10.0.0.2:1")))
		b := w.set.Backend("app")
		one, two := w.check("10.0.0.1:1"), w.check("10.0.0.2:1")
		one.SetReady(true, "")
		wantPart(t, b, "10.0.0.1:1", 1, 1)
		two.SetReady(true, "")
		wantPart(t, b, "10.0.0.2:1", 0.05, 0.25) // an endpoint is picked if it wins one of two draws, so it gets a bit more than a tenth
		time.Sleep(11 * time.Second)
		synctest.Wait()
		wantPart(t, b, "10.0.0.2:1", 0.48, 0.52)

		for range 3 {
			endpointOf(t, b, "10.0.0.2:1").Failed(io.EOF)
		}
		wantPart(t, b, "10.0.0.2:1", 0, 0)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		wantPart(t, b, "10.0.0.2:1", 0.05, 0.25)
		time.Sleep(11 * time.Second)
		synctest.Wait()

		two.SetReady(false, "down")
		two.SetReady(true, "")
		wantPart(t, b, "10.0.0.2:1", 0.05, 0.25)
		one.SetReady(false, "down") // the other endpoint gets all exchanges
		wantPart(t, b, "10.0.0.2:1", 1, 1)
		one.SetReady(true, "")
		wantPart(t, b, "10.0.0.1:1", 0.48, 0.52) // the other one began its slow start a moment ago
	})
}

// Without slow start, the endpoint with nothing in flight would get every request until it
// has as many as the others.
func TestLeastRequestsDoesNotFloodWhatIsNew(t *testing.T) {
	f := func(rampUp time.Duration, least, most int) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, Options{})
			addresses := []string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"}
			cfg := settings("app", addresses...)
			cfg.RampUp = rampUp
			w.update(cfg)
			b := w.set.Backend("app")
			var running []*Endpoint
			for range 300 {
				running = append(running, acquire(t, b))
			}
			cfg.Endpoints = append(cfg.Endpoints, config.Endpoint{Address: "10.0.0.4:1", Weight: 1})
			if err := w.set.UpdateEndpoints("app", cfg.Endpoints); err != nil {
				t.Fatal(err)
			}
			flood := 0
			for range 100 { // all these exchanges begin before one of them has ended
				e := acquire(t, b)
				if running = append(running, e); e.address == "10.0.0.4:1" {
					flood++
				}
			}
			if flood < least || flood > most {
				t.Errorf("with ramp_up %v the new endpoint gets %d of 100, not %d to %d", rampUp, flood, least, most)
			}
			for _, e := range running {
				e.Release()
			}
		})
	}
	f(0, 30, 70) // each pick compares two of four endpoints, and the new one wins if it is among them
	f(10*time.Second, 1, 16)
}

// A near endpoint gets little at first if far endpoints already serve, even if it is the only
// near one.
func TestTiersRampUp(t *testing.T) {
	for _, balance := range balances {
		t.Run(string(balance), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Options{})
				cfg := placed(balance, "10.0.0.2:1/node-b/zone-1", "10.0.0.3:1/node-c/zone-2")
				cfg.RampUp = 10 * time.Second
				b := w.updateHere(cfg)
				change := func(places ...string) {
					t.Helper()
					if err := w.set.UpdateEndpoints("app", endpointsAt(places...)); err != nil {
						t.Fatal(err)
					}
				}
				wantPart(t, b, "10.0.0.2:1", 1, 1)
				change("10.0.0.1:1/node-a/zone-1", "10.0.0.2:1/node-b/zone-1", "10.0.0.3:1/node-c/zone-2")
				wantPart(t, b, "10.0.0.1:1", 0.08, 0.12)
				wantPart(t, b, "10.0.0.2:1", 0.88, 0.92)
				time.Sleep(5*time.Second + time.Millisecond)
				synctest.Wait()
				wantPart(t, b, "10.0.0.1:1", 0.47, 0.53)
				time.Sleep(6 * time.Second)
				synctest.Wait()
				wantPart(t, b, "10.0.0.1:1", 1, 1)
				change("10.0.0.4:1/node-a/zone-1") // an endpoint with its full share keeps it
				wantPart(t, b, "10.0.0.4:1", 1, 1)
			})
		})
	}
}

// With balance: hash, clients keep their endpoint. Some clients move once, to the new
// endpoint.
func TestHashWhileEndpointsRampUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.update(ramped(config.Hash, "10.0.0.1:1", "10.0.0.2:1"))
		b := w.set.Backend("app")
		where := map[netip.Addr]string{}
		look := func() (moved int) {
			for i := range 1000 {
				client := netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})
				e, _ := b.Acquire(client, nil, noDeadline, alone{})
				if was := where[client]; was != "" && was != e.address {
					if moved++; e.address != "10.0.0.3:1" {
						t.Errorf("%s moved from %s to %s", client, was, e.address)
					}
				}
				where[client] = e.address
				e.Release()
			}
			return moved
		}
		look()
		w.update(ramped(config.Hash, "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"))
		var moves []int
		total := 0
		for range 12 {
			n := look()
			moves = append(moves, n)
			total += n
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if total < 280 || total > 380 || moves[0] > 90 {
			t.Errorf("%s clients moved, %d in all", fmt.Sprint(moves), total)
		}
	})
}

// With little traffic, an endpoint in slow start gets its share, too, although its weight
// changes before all endpoints have had their turn.
func TestRampUpWithLittleTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		slow := func(addresses ...string) config.Backend {
			c := ramped(config.RoundRobin, addresses...)
			c.RampUp = time.Minute
			return c
		}
		w.update(slow("10.0.0.1:1", "10.0.0.2:1"))
		b := w.set.Backend("app")
		time.Sleep(2 * time.Minute)
		w.update(slow("10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"))
		got := 0
		for range 116 {
			e, err := b.Acquire(netip.Addr{}, nil, noDeadline, alone{})
			if err != nil {
				t.Fatal(err)
			}
			if e.address == "10.0.0.3:1" {
				got++
			}
			e.Release()
			time.Sleep(500 * time.Millisecond)
		}
		if got < 3 {
			t.Errorf("%d of 116 requests reached it", got)
		}
	})
}
