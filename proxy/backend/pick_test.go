package backend

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirproxy/weir/config"
)

// testTier returns a tier of the endpoints a, b, c … with these weights.
func testTier(balance config.Balance, weights ...int) *tier {
	var use []*Endpoint
	for i, w := range weights {
		name := string(rune('a' + i))
		use = append(use, &Endpoint{address: name, seed: seedOf(name), cfg: &config.Endpoint{Weight: w}})
	}
	return newTier(balance, use, new(atomic.Uint64))
}

// shares picks n times and returns the part that each endpoint got.
func shares(v *tier, n int, r *rand.Rand) map[string]float64 {
	got := make(map[string]float64)
	for range n {
		got[v.pick(netip.AddrFrom4([4]byte{10, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}), r.Uint64()).address] += 1 / float64(n)
	}
	return got
}

func TestWeightsDecideTheShares(t *testing.T) {
	f := func(balance config.Balance, weights ...int) {
		t.Helper()
		v := testTier(balance, weights...)
		got := shares(v, 100_000, rand.New(rand.NewPCG(1, 2)))
		for _, c := range v.members {
			want := float64(c.weight) / float64(v.total)
			if math.Abs(got[c.e.address]-want) > 0.01 {
				t.Errorf("%s %v: %s got %.3f, want %.3f", balance, weights, c.e.address, got[c.e.address], want)
			}
		}
	}
	for _, b := range []config.Balance{config.LeastRequests, config.RoundRobin, config.Hash} {
		f(b, 1)
		f(b, 1, 1)
		f(b, 7, 7, 7, 7, 7)
		f(b, 1, 2)
		f(b, 3, 1, 1)
		f(b, 1000, 1, 500)
	}
}

// With a constant number of exchanges in flight, the shares of the endpoints follow their
// weights. An endpoint with little weight never gets too many exchanges.
func TestLeastRequestsUnderLoad(t *testing.T) {
	f := func(inFlight int, tolerance float64, weights ...int) {
		t.Helper()
		r := rand.New(rand.NewPCG(3, 4))
		v := testTier(config.LeastRequests, weights...)
		var running []*Endpoint
		got := make(map[string]float64)
		const n = 50_000
		for range n {
			if len(running) == inFlight {
				i := r.IntN(len(running))
				running[i].inFlight.Add(-1)
				running[i] = running[len(running)-1]
				running = running[:len(running)-1]
			}
			e := v.pick(netip.Addr{}, r.Uint64())
			e.inFlight.Add(1)
			running = append(running, e)
			got[e.address] += 1.0 / n
		}
		for _, c := range v.members {
			want := float64(c.weight) / float64(v.total)
			if math.Abs(got[c.e.address]-want) > tolerance {
				t.Errorf("%d in flight, weights %v: %s got %.3f, want %.3f", inFlight, weights, c.e.address, got[c.e.address], want)
			}
		}
	}
	f(64, 0.01, 1, 1, 1, 1)
	f(64, 0.05, 1, 2, 3)
	f(2, 0.01, 1, 1)
	f(2, 0.005, 1, 1000) // a canary gets few exchanges
}

func TestLeastRequestsPrefersTheIdle(t *testing.T) {
	v := testTier(config.LeastRequests, 1, 1, 1)
	v.members[0].e.inFlight.Store(100)
	r := rand.New(rand.NewPCG(5, 6))
	if got := shares(v, 10_000, r); got["a"] != 0 {
		t.Errorf("the busy endpoint got %.3f", got["a"])
	}
}

func TestTriedEndpointsAreAvoided(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	client := func() netip.Addr { return netip.AddrFrom4([4]byte{byte(r.Uint32())}) }
	for _, balance := range []config.Balance{config.LeastRequests, config.RoundRobin, config.Hash} {
		for _, weights := range [][]int{{1}, {1, 1}, {1, 3}, {1, 1, 1}, {1000, 1, 1}, {1, 2, 3, 4, 5, 6}} {
			one := testTier(balance, weights...)
			v := &view{tiers: []*tier{one}, better: 1}
			for range 300 {
				var tried []*Endpoint
				for range weights {
					e := v.pick(client(), tried, r.Uint64())
					if slices.Contains(tried, e) {
						t.Fatalf("%s %v picked what was tried already", balance, weights)
					}
					tried = append(tried, e)
				}
				if v.left(tried) || len(tried) > 1 && !v.left(tried[1:]) {
					t.Fatalf("%s %v: it is not known what is left", balance, weights)
				}
				again := v.pick(client(), tried, r.Uint64())
				if again == nil || again == tried[len(tried)-1] && len(weights) > 1 {
					t.Fatalf("%s %v: the last one is picked twice", balance, weights)
				}
			}
		}
		empty := &view{}
		if empty.pick(client(), nil, 0) != nil || empty.pick(client(), []*Endpoint{{}}, 0) != nil {
			t.Errorf("%s picked from nothing", balance)
		}
	}
}

func TestRoundRobinIsSmooth(t *testing.T) {
	f := func(want string, weights ...int) {
		t.Helper()
		v := testTier(config.RoundRobin, weights...)
		var got strings.Builder
		for range want {
			got.WriteString(v.pick(netip.Addr{}, 0).address)
		}
		if got.String() != want {
			t.Errorf("weights %v: %s, want %s", weights, got.String(), want)
		}
	}
	f("abcabc", 1, 1, 1)
	f("abcabc", 5, 5, 5)
	f("aabacaaaabacaa", 5, 1, 1)
	f("babbab", 1, 2)
}

func TestHashIsStable(t *testing.T) {
	for _, weights := range [][]int{{1, 1, 1, 1, 1}, {1, 2, 3, 4, 5}} {
		all := testTier(config.Hash, weights...)
		var left []*Endpoint
		for _, c := range all.members {
			if c.e.address != "c" {
				left = append(left, c.e)
			}
		}
		fewer := newTier(all.balance, left, all.turn)
		moved := 0
		for i := range 10_000 {
			client := netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})
			before, after := all.pick(client, 1), fewer.pick(client, 2)
			if before.address == "c" {
				moved++
			} else if before != after {
				t.Fatalf("weights %v: %s moved from %s to %s although only c went", weights, client, before.address, after.address)
			}
		}
		if moved == 0 {
			t.Errorf("weights %v: c had no clients", weights)
		}
	}
}

// Another release of weir, or another node, must choose the same endpoint for a client.
func TestHashIsTheSameEverywhere(t *testing.T) {
	v := testTier(config.Hash, 1, 1, 1, 1)
	var got strings.Builder
	for i := range 16 {
		got.WriteString(v.pick(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), rand.Uint64()).address)
	}
	if want := hashGolden; got.String() != want {
		t.Errorf("clients go to %s, want %s", got.String(), want)
	}
	mapped := v.pick(netip.MustParseAddr("::ffff:203.0.113.9"), 0)
	if plain := v.pick(netip.MustParseAddr("203.0.113.9"), 0); mapped != plain {
		t.Error("an IPv4 address and the same mapped into IPv6 go to different endpoints")
	}
}

func TestAcquireDoesNotAllocate(t *testing.T) {
	for _, balance := range []config.Balance{config.LeastRequests, config.RoundRobin, config.Hash} {
		for _, weights := range [][]int{{1, 1, 1}, {1, 2, 3}} {
			w := newWorld(t, Options{})
			cfg := weighted(settings("app", "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"), weights...)
			cfg.Balance, cfg.MaxConnections = balance, 100
			w.update(cfg)
			b := w.set.Backend("app")
			client := netip.MustParseAddr("198.51.100.1")
			n := testing.AllocsPerRun(1000, func() {
				e, _ := b.Acquire(client, nil, noDeadline, alone{})
				e.Succeeded()
				e.Release()
			})
			if n != 0 {
				t.Errorf("%s %v: %v allocations", balance, weights, n)
			}
		}
	}
}

func BenchmarkAcquire(b *testing.B) {
	for _, balance := range []config.Balance{config.LeastRequests, config.RoundRobin, config.Hash} {
		for _, weights := range [][]int{{1, 1, 1}, {1, 2, 3}} {
			b.Run(fmt.Sprint(balance, weights), func(b *testing.B) {
				s := NewSet(Options{})
				defer s.Close()
				cfg := weighted(settings("app", "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"), weights...)
				cfg.Balance = balance
				if _, err := s.Update(listOf(cfg), NodeInfo{}); err != nil {
					b.Fatal(err)
				}
				app := s.Backend("app")
				client := netip.MustParseAddr("198.51.100.1")
				for b.Loop() {
					e, _ := app.Acquire(client, nil, noDeadline, alone{})
					e.Succeeded()
					e.Release()
				}
			})
		}
	}
}
