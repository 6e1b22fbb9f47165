package filter

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/weirproxy/weir/config"
)

// crowded compiles a route with a limit of two.
func crowded(t *testing.T, s *Shared, per config.PerWhat) *Chain {
	t.Helper()
	r := config.Route{Name: "r", Backend: "b", InFlight: &config.InFlight{Most: 2, Per: per, Status: 503}}
	c := &config.Config{Routes: []*config.Route{&r}}
	c.Limits.Clients = config.ClientLimits{PrefixIPv4: 32, PrefixIPv6: 64}
	p, err := s.Plan(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Commit()
	return Compile(&r, p)
}

// open returns what is open on the route r, and the number of client networks.
func (s *Shared) open() (open, networks int) {
	all := s.slots["r"]
	open = int(all.all.Load())
	for i := range all.shards {
		for _, n := range all.shards[i].open {
			open += n
			networks++
		}
	}
	return open, networks
}

func begin(c *Chain, client string) (x *exchange, refused bool) {
	x = newExchange("GET", "/")
	x.client = netip.AddrPortFrom(netip.MustParseAddr(client), 1)
	return x, c.Answer(x)
}

func TestInFlight(t *testing.T) {
	f := func(per config.PerWhat, clients []string, want string) {
		t.Helper()
		var s Shared
		c := crowded(t, &s, per)
		var all []*exchange
		got := ""
		for i, client := range clients {
			if i == 3 {
				c = crowded(t, &s, per) // a reload keeps what is open
			}
			x, refused := begin(c, client)
			if refused {
				got += "- "
				if x.answer != "503 in_flight" {
					t.Error(x.answer)
				}
			} else {
				got += "+ "
			}
			all = append(all, x)
		}
		if got != want {
			t.Errorf("per %s: %s, want %s", per, got, want)
		}
		all[0].state.End()
		all[0].state.End() // does nothing
		if _, refused := begin(c, clients[0]); refused {
			t.Errorf("per %s: refused after an end", per)
		}
		if _, refused := begin(c, clients[0]); !refused {
			t.Errorf("per %s: not refused although the slot is taken again", per)
		}
	}
	const a, b = "192.0.2.1", "2001:db8::1"
	f(config.PerClient, []string{a, a, a, a, b, "2001:db8::2", b}, "+ + - - + + - ")
	f(config.PerRoute, []string{a, b, a, b, "192.0.2.3"}, "+ + - - - ")
}

// After any sequence of begins and ends, of exchanges and of tunnels, exactly the open ones are
// counted. Networks with nothing open have no entry.
func TestSlotsAreGivenBack(t *testing.T) {
	for _, per := range []config.PerWhat{config.PerClient, config.PerRoute} {
		random := rand.New(rand.NewPCG(1, 2))
		var s Shared
		c := crowded(t, &s, per)
		var ends []func()
		for range 20_000 {
			if len(ends) > 0 && random.IntN(2) == 0 {
				i := random.IntN(len(ends))
				ends[i]()
				ends[i] = ends[len(ends)-1]
				ends = ends[:len(ends)-1]
				continue
			}
			client := fmt.Sprint("192.0.2.", random.IntN(200))
			if random.IntN(2) == 0 {
				if x, refused := begin(c, client); !refused {
					ends = append(ends, x.state.End)
				}
				continue
			}
			var state State
			if c.GuardTunnel(netip.MustParseAddrPort(client+":1"), &state, func(string, string) {}) == nil {
				ends = append(ends, state.Detach().Release)
				state.End() // the tunnel has the slot
			}
		}
		if open, _ := s.open(); open != len(ends) {
			t.Errorf("per %s: %d are counted, %d are open", per, open, len(ends))
		}
		for _, end := range ends {
			end()
		}
		if open, networks := s.open(); open+networks != 0 {
			t.Errorf("per %s: %d are left, of %d networks", per, open, networks)
		}
	}
}

func TestInFlightAllocatesNothing(t *testing.T) {
	for _, per := range []config.PerWhat{config.PerClient, config.PerRoute} {
		var s Shared
		c := crowded(t, &s, per)
		x, _ := begin(c, "192.0.2.1")
		guard := c.answerers[0]
		if n := testing.AllocsPerRun(100, func() { x.state.End(); guard.Answer(x) }); n != 0 {
			t.Errorf("per %s: %v allocations", per, n)
		}
	}
}
