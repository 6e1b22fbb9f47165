package memory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// client is a connection that releases all its memory when it is cut.
type client struct {
	account Account
	took    int
	cut     atomic.Bool
	stays   bool // it ignores the cut
}

func (c *client) Cut() {
	c.cut.Store(true)
	if !c.stays {
		c.account.Release(c.took)
		c.took = 0
	}
}

func (c *client) take(n int) bool {
	if !c.account.Charge(n) {
		return false
	}
	c.took += n
	return true
}

// fill charges as much as the account allows, in pieces.
func (c *client) fill(piece, most int) {
	for c.took < most && c.take(piece) {
	}
}

const mib = 1 << 20

func prefix(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
}

// process returns an account for a process, and a function that makes clients of a network.
func process(t *testing.T, limit int64) (*Process, func(n int) *client) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	p := NewProcess(ctx)
	p.SetLimit(limit)
	return p, func(n int) *client {
		c := new(client)
		c.account.Open(p, prefix(n), c)
		return c
	}
}

func TestNobodyAccounts(t *testing.T) {
	var none *Account
	if !none.Charge(1<<40) || none.Used() != 0 || none.Short() || none.Ended() {
		t.Error("a nil account is in the way")
	}
	none.Force(1)
	none.Release(1)
	none.Settle()
	none.Close()
	var unopened Account
	unopened.Open(nil, netip.Prefix{}, nil)
	if !unopened.Charge(1 << 40) {
		t.Error("an account of no process refuses")
	}
	unopened.Close()
	_, newClient := process(t, 0)
	if c := newClient(1); !c.take(1 << 40) {
		t.Error("without a limit a charge is refused")
	}
}

func TestShareOfConnection(t *testing.T) {
	p, newClient := process(t, 256*mib)
	c := newClient(1)
	c.fill(mib/4, 256*mib)
	if c.took != 32*mib {
		t.Errorf("a connection may hold %d MiB of 256, want an eighth", c.took/mib)
	}
	if p.Refused(OfConnection) != 1 || p.Used() != 32*mib {
		t.Errorf("%d charges were refused, %d bytes are used", p.Refused(OfConnection), p.Used())
	}
	for limit, most := range map[int64]int64{16 * mib: 4 * mib, 1 << 40: 64 * mib} {
		if got := ofConnection(limit); got != most {
			t.Errorf("of %d MiB a connection may hold %d MiB, want %d", limit/mib, got/mib, most/mib)
		}
	}
	c.account.Close()
	if p.Used() != 0 {
		t.Errorf("%d bytes are used once it has closed", p.Used())
	}
}

// Charges and releases within the slack of a connection need no lock. The slack is limited,
// and an idle connection gives it back.
func TestGrains(t *testing.T) {
	p, newClient := process(t, 256*mib)
	c := newClient(1)
	c.take(100)
	if p.Used() != grain {
		t.Errorf("%d bytes are used for 100, want a grain", p.Used())
	}
	c.take(mib)
	c.account.Release(mib)
	if used := p.Used(); used > slack+2*grain {
		t.Errorf("the connection keeps %d bytes", used)
	}
	c.account.Release(100)
	c.account.Settle()
	if p.Used() != 0 || len(p.networks) != 0 {
		t.Errorf("%d bytes are used, %d networks known, when all is given back", p.Used(), len(p.networks))
	}
}

// A client with a whole IPv6 /48 is one client, although it has a network of its own for each connection. Clients of
// other networks lose nothing, and those in the same /48 lose nothing if it is another customer who holds it.
func TestSpreadNetworkEnds(t *testing.T) {
	type hold struct {
		network     string // with %x for each connection
		connections int
		bytes       int
		want        string // that is cut: all, some or none
	}
	f := func(what string, all ...hold) {
		t.Helper()
		p, _ := process(t, 64*mib)
		clients := make([][]*client, len(all))
		for i, one := range all {
			for n := range one.connections {
				c := new(client)
				c.account.Open(p, netip.MustParsePrefix(fmt.Sprintf(one.network, n)), c)
				c.account.Force(one.bytes)
				c.took = one.bytes
				clients[i] = append(clients[i], c)
			}
		}
		p.endSome()
		for i, one := range all {
			cut := 0
			for _, c := range clients[i] {
				if c.cut.Load() {
					cut++
				}
			}
			if (one.want == "none") != (cut == 0) {
				t.Errorf("%s: of %s, %d of %d were cut, want %s", what, one.network, cut, one.connections, one.want)
			}
		}
	}
	f("a /48 over many /64",
		hold{"2001:db8:1:%x::/64", 1000, 64 << 10, "some"},
		hold{"2001:db8:2:%x::/64", 3, mib, "none"},
		hold{"192.0.2.%d/32", 3, mib, "none"})
	f("a /56 over many /64, beside others in the /48",
		hold{"2001:db8:1:aa%02x::/64", 250, 256 << 10, "some"},
		hold{"2001:db8:1:%x00::/64", 3, 512 << 10, "none"})
	f("an IPv4 /24",
		hold{"198.51.100.%d/32", 250, 256 << 10, "some"},
		hold{"192.0.2.%d/32", 3, 512 << 10, "none"})
	f("a /64 in a /48 of many customers",
		hold{"2001:db8:1:%x00::/64", 1, 60 * mib, "some"},
		hold{"2001:db8:1:%x01::/64", 200, 24 << 10, "none"},
		hold{"2001:db8:2:%x00::/64", 3, 512 << 10, "none"})
}

// In a shortage, weir closes the largest connections of the largest network. It serves
// clients that hold little, in that network and in others.
func TestLargestHoldersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, newClient := process(t, 64*mib)
		var mu sync.Mutex
		var events []Event
		p.Notify = func(e Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e)
		}
		good := newClient(2)
		good.take(Exchange)
		var bad []*client
		for i := range 10 {
			bad = append(bad, newClient(1))
			bad[i].fill(16<<10, 5*mib+i*mib/8)
		}
		bad = append(bad, newClient(1))
		bad[10].fill(16<<10, 8*mib)
		if !good.take(mib) {
			t.Error("a connection of another network is refused while the large ones are being ended")
		}
		synctest.Wait()
		if newcomer := newClient(1); !newcomer.take(Exchange) {
			t.Error("a new connection of the same network is refused")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if used := p.Used(); used > full(64*mib) {
			t.Errorf("%d MiB are used a second later", used/mib)
		}
		ended := 0
		for i, c := range bad {
			if c.cut.Load() {
				ended++
			} else if i > 0 && bad[i-1].cut.Load() && i < 10 {
				t.Errorf("connection %d was ended, and not %d, which held more", i-1, i)
			}
		}
		if ended == 0 || ended > 4 || good.cut.Load() || p.Ended() != int64(ended) {
			t.Errorf("%d of the large ones were ended, the good one: %t", ended, good.cut.Load())
		}
		mu.Lock()
		if len(events) != 1 || !events[0].Begins || events[0].Network != prefix(1) || events[0].Holds < 32*mib {
			t.Errorf("the events are %+v", events)
		}
		mu.Unlock()
		time.Sleep(calmTime + time.Second)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(events) != 2 || events[1].Begins || events[1].Ended != int64(ended) || p.short.Load() {
			t.Errorf("the events are %+v", events)
		}
	})
}

// weir does not close connections that hold little for similar ones of the same network.
// When there is no room for small ones either, weir refuses new ones, too.
func TestManySmallOfOneNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, newClient := process(t, 16*mib)
		var endpoint Account // the account of an endpoint changes nothing
		endpoint.Open(p, netip.Prefix{}, nil)
		endpoint.Force(grain)
		var all []*client
		for range 2 * 16 * mib / Exchange {
			c := newClient(1)
			c.take(Exchange)
			all = append(all, c)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if p.Used() > forSmall(16*mib)+grain {
			t.Errorf("%d MiB are used", p.Used()/mib)
		}
		for i, c := range all {
			if c.cut.Load() {
				t.Fatalf("connection %d was ended", i)
			}
		}
		endpoint.Close()
		// Another network still gets its share.
		other := newClient(2)
		if !other.take(Exchange) {
			t.Error("a connection of another network is refused")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if p.Ended() == 0 || other.cut.Load() {
			t.Errorf("%d were ended; the other network's: %t", p.Ended(), other.cut.Load())
		}
	})
}

// Attackers connect again before the connections that were closed give their memory back. A
// new client of their network and one of another network still get what a request needs.
func TestNewClientsBesideClosingConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, newClient := process(t, 64*mib)
		for range 60 {
			c := newClient(1)
			c.stays = true
			c.fill(16<<10, 4*mib)
			time.Sleep(2 * checkInterval)
		}
		synctest.Wait()
		if used := p.Used(); used < forFair(64*mib)-mib {
			t.Fatalf("only %d MiB of 64 are used", used/mib)
		}
		for network := 1; network <= 2; network++ {
			for i := range 10 {
				if !newClient(network).take(Exchange) {
					t.Errorf("new connection %d of network %d is refused", i, network)
				}
			}
		}
	})
}

// Connections that close slowly make room for some others, but not for any number of them.
func TestEndedButStillThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, newClient := process(t, 64*mib)
		for i := range 40 {
			c := newClient(1)
			c.stays = true
			c.fill(16<<10, 4*mib)
			if i%4 == 3 {
				time.Sleep(100 * time.Millisecond)
			}
		}
		if used := p.Used(); used > forOthers(64*mib)+mib {
			t.Errorf("%d MiB of 64 are used", used/mib)
		}
	})
}

// After the limit was lowered, as when the sockets of the cgroup take more memory, the
// account holds more than the new limit for some time. weir still serves clients that
// hold little.
func TestLimitIsLowered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, client := process(t, 64*mib)
		for i := range 20 {
			c := client(1)
			c.stays = true // closing takes time
			c.fill(mib, 3*mib)
			if c.took == 0 {
				t.Fatalf("the account has no room for client %d", i)
			}
		}
		ask := func() bool { return client(2).take(Exchange) }
		p.SetLimit(40 * mib)
		p.SetLimit(32 * mib)
		if !ask() {
			t.Error("a client of another network is refused as soon as the limit is lower")
		}
		time.Sleep(loweredFor - time.Second)
		if !ask() {
			t.Error("a client of another network is refused while the largest holders are being closed")
		}
		time.Sleep(2 * time.Second)
		if ask() {
			t.Error("the account goes on to hold more than the maximum")
		}
		p.SetLimit(64 * mib)
		if !ask() {
			t.Error("a client is refused below the limit")
		}
	})
}

func TestForce(t *testing.T) {
	p, newClient := process(t, mib)
	c := newClient(1)
	c.account.Force(8 * mib)
	if p.Used() != 8*mib {
		t.Errorf("%d bytes are used", p.Used())
	}
	if c.take(1) {
		t.Error("more is charged to a connection that is over its share")
	}
	c.account.Close()
	if p.Used() != 0 {
		t.Errorf("%d bytes are used once it has closed", p.Used())
	}
}

// check compares the sums with the accounts.
func (p *Process) check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all, doomed int64
	for key, n := range p.networks {
		var granted, gone int64
		accounts := 0
		for a := n.first; a != nil; a = a.next {
			accounts++
			granted += a.granted.Load()
			if a.doomed {
				gone += a.granted.Load()
			}
			if a.network != n {
				return fmt.Errorf("an account of %v is of another network", key)
			}
		}
		if granted != n.granted || gone != n.doomed || accounts != n.accounts || accounts == 0 {
			return fmt.Errorf("%v has %d, %d of them ended, in %d accounts; these have %d, %d in %d", key, n.granted, n.doomed, n.accounts, granted, gone, accounts)
		}
		all, doomed = all+granted, doomed+gone
	}
	if all != p.whole.granted || p.whole.inner != int64(min(1, len(p.networks))) || len(p.networks) == 0 && len(p.wider) > 0 {
		return fmt.Errorf("all groups have %d in %d networks, and %d are wider; want %d", p.whole.granted, p.whole.inner, len(p.wider), all)
	}
	if all != p.granted || doomed != p.doomed {
		return fmt.Errorf("the process has %d, %d of them ended; its networks have %d, %d", p.granted, p.doomed, all, doomed)
	}
	return nil
}

// Any sequence of charges and releases leaves no balance, and the sums are always right.
func FuzzAccounts(f *testing.F) {
	f.Add([]byte{0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77})
	f.Add([]byte{0x08, 0xff, 0x18, 0xff, 0x28, 0xff, 0x38, 0xff, 0x07, 0x17, 0x06, 0x00, 0x05, 0x01})
	f.Add([]byte("\x08\xff\x09\xff\x0a\xff\x0b\xff\x0c\xff\x0d\xff\x38\xff\x39\xff\x03\x04\x05"))
	f.Add([]byte{0x10, 0xf0, 0x20, 0xf0, 0x30, 0xf0, 0x11, 0xf0, 0x10, 0x0f, 0x37, 0x00, 0x27, 0x01, 0x17, 0x02})
	f.Fuzz(func(t *testing.T, script []byte) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		p := NewProcess(ctx)
		p.SetLimit(8 * mib)
		var clients [8]*client
		for len(script) >= 2 {
			op, n := script[0], int(script[1])<<13+int(script[0])
			script = script[2:]
			i := op & 7
			c := clients[i]
			if c == nil {
				c = &client{stays: true}
				c.account.Open(p, prefix(int(i)/3), c)
				clients[i] = c
			}
			switch op >> 3 & 7 {
			case 0, 1, 2:
				before := c.account.Used()
				if !c.take(n) && c.account.Used() != before {
					t.Fatalf("a charge that was refused left %d bytes", c.account.Used()-before)
				}
			case 3:
				c.account.Force(n)
				c.took += n
			case 4, 5:
				n = min(n, c.took)
				c.account.Release(n)
				c.took -= n
			case 6:
				c.account.Settle()
			case 7:
				c.account.Close()
				clients[i] = nil
			}
			if op >= 0xc0 {
				p.endSome()
			}
			if c.account.process != nil && c.account.Used() != int64(c.took) {
				t.Fatalf("the account has %d, the connection %d", c.account.Used(), c.took)
			}
			if err := p.check(); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range clients {
			if c == nil {
				continue
			}
			c.account.Release(c.took)
			c.account.Close()
		}
		if err := p.check(); err != nil || p.Used() != 0 || p.doomed != 0 || len(p.networks) != 0 {
			t.Fatalf("a balance is left: %d, %d ended, in %d networks; %v", p.Used(), p.doomed, len(p.networks), err)
		}
	})
}

// The same with many goroutines, for the race detector.
func TestManyAtOnce(t *testing.T) {
	p, newClient := process(t, 32*mib)
	var running sync.WaitGroup
	for i := range 16 {
		c := newClient(i % 3)
		c.stays = true
		var own sync.WaitGroup
		for range 2 {
			own.Go(func() {
				random := rand.New(rand.NewPCG(uint64(i), 1))
				held := 0
				for range 5000 {
					if n := random.IntN(256 << 10); random.IntN(2) == 0 {
						if c.account.Charge(n) {
							held += n
						}
					} else {
						n = min(n, held)
						c.account.Release(n)
						held -= n
					}
				}
				c.account.Release(held)
			})
		}
		running.Go(func() {
			own.Wait()
			c.account.Close()
		})
	}
	running.Wait()
	if err := p.check(); err != nil || p.Used() != 0 || len(p.networks) != 0 {
		t.Errorf("a balance is left: %d in %d networks; %v", p.Used(), len(p.networks), err)
	}
}

func BenchmarkCharge(b *testing.B) {
	p := NewProcess(context.Background())
	p.SetLimit(256 * mib)
	var a Account
	a.Open(p, prefix(1), nil)
	b.ReportAllocs()
	for b.Loop() {
		a.Charge(Exchange)
		a.Release(Exchange)
	}
}
