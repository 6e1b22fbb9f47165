package listener

import (
	"io"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

// clientLimits adds the usual client networks to c.
func clientLimits(c config.ClientLimits) config.Limits {
	c.PrefixIPv4, c.PrefixIPv6 = 32, 64
	return config.Limits{Clients: c}
}

// sender opens connections through the peers of the tests.
type sender struct {
	*world
	ln *fakeListener
}

func startSender(t *testing.T, c config.ClientLimits) *sender {
	ln := newFakeListener()
	return &sender{serve(t, ln, clientLimits(c), Settings{Policy: NewPolicy(edge)}), ln}
}

// open returns the connection of peer that begins with these bytes; nil: it was closed.
func (s *sender) open(peer, first string) *conn.Conn {
	s.t.Helper()
	c := s.ln.dial(peer)
	s.t.Cleanup(func() { c.Close() })
	go io.WriteString(c, first)
	synctest.Wait()
	select {
	case h := <-s.handled:
		return h
	default:
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			s.t.Errorf("a refused connection read %d bytes, %v", n, err)
		}
		return nil
	}
}

// from opens a connection of the client through the load balancer.
func (s *sender) from(client string) *conn.Conn {
	s.t.Helper()
	family := "TCP4"
	if netip.MustParseAddr(client).Is6() {
		family = "TCP6"
	}
	return s.open(balancer, "PROXY "+family+" "+client+" "+client+" 1 443\r\n")
}

func TestClientConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSender(t, config.ClientLimits{Connections: 2, Except: prefixes("192.0.2.0/24", "2001:db8:1::/48")})
		var held []*conn.Conn
		f := func(c *conn.Conn, accepted bool) {
			t.Helper()
			if (c != nil) != accepted {
				t.Errorf("accepted: %t, want %t", c != nil, accepted)
			}
			if c != nil {
				held = append(held, c)
			}
		}
		f(s.from("1.0.0.1"), true)
		f(s.from("1.0.0.1"), true)
		held[0].Established() // the handshake does not end the count
		f(s.from("1.0.0.1"), false)
		f(s.from("1.0.0.2"), true)
		f(s.from("2001:db8::1"), true)
		f(s.from("2001:db8::2"), true)
		f(s.from("2001:db8::3"), false)
		for range 4 {
			f(s.from("192.0.2.7"), true)
			f(s.from("2001:db8:1::7"), true)
			f(s.open(balancer, "PROXY UNKNOWN\r\n"), true) // a load balancer is no client
		}
		s.wantRejected(ReasonClientConnections, 2)
		header := "PROXY TCP4 1.0.0.9 1.0.0.9 1 443\r\n"
		f(s.open(oddOne, header), true) // the PROXY header is discarded: the peer counts
		f(s.open(oddOne, header), true)
		f(s.open(oddOne, header), false)
		f(s.open(neighbor, "GET /"), true) // without a PROXY header the peer counts
		f(s.open(neighbor, "PROXY UNKNOWN\r\n"), true)
		f(s.open(neighbor, "GET /"), false)
		f(s.open(insider, ""), true)
		f(s.open(insider, ""), true)
		f(s.open(insider, ""), false)
		held[0].Close()
		held[0].Close() // once
		f(s.from("1.0.0.1"), true)
		f(s.from("1.0.0.1"), false)
		for _, c := range held {
			c.Close()
		}
		s.close()
	})
}

// A reload keeps what is open. A connection ends the count of the network under which it began.
func TestClientConnectionsOverReloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSender(t, config.ClientLimits{Connections: 2})
		a, b := s.from("1.0.0.1"), s.from("1.0.0.1")
		s.limits.Set(clientLimits(config.ClientLimits{Connections: 1}))
		if s.from("1.0.0.1") != nil {
			t.Error("the reload forgets open connections")
		}
		s.limits.Set(clientLimits(config.ClientLimits{}))
		c := s.from("1.0.0.1")
		wide := clientLimits(config.ClientLimits{Connections: 1})
		wide.Clients.PrefixIPv4 = 24
		s.limits.Set(wide)
		d := s.from("1.0.0.1")
		for _, one := range []*conn.Conn{a, b, c, d} {
			one.Close()
		}
		s.close()
	})
}

func TestClientRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := config.ClientLimits{Rate: config.Rate{Number: 2, Per: time.Minute}, Burst: 3, Except: prefixes("192.0.2.0/24")}
		s := startSender(t, limits)
		admits := func(client string, want int) {
			t.Helper()
			n := 0
			for range 10 {
				if c := s.from(client); c != nil {
					n++
					c.Close()
				}
			}
			if n != want {
				t.Errorf("%d connections of %s are served, want %d", n, client, want)
			}
		}
		admits("1.0.0.1", 3)
		s.wantRejected(ReasonClientRate, 7)
		admits("1.0.0.2", 3)
		admits("192.0.2.1", 10)
		time.Sleep(time.Minute)
		admits("1.0.0.1", 2)
		limits.Connections = 5
		s.limits.Set(clientLimits(limits)) // the same rate keeps its counts
		admits("1.0.0.1", 0)
		limits.Burst = 0 // the number of the rate
		s.limits.Set(clientLimits(limits))
		admits("1.0.0.1", 2)
		s.close()
	})
}

// Connections that are refused because too many are open do not use up the rate.
func TestRefusedConnectionsDoNotCountForTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startSender(t, config.ClientLimits{Connections: 1, Rate: config.Rate{Number: 1, Per: time.Hour}, Burst: 2})
		first := s.from("1.0.0.1")
		for range 3 {
			s.from("1.0.0.1")
		}
		s.wantRejected(ReasonClientConnections, 3)
		first.Close()
		second := s.from("1.0.0.1")
		if second == nil {
			t.Fatal("the burst was used up by refused connections")
		}
		second.Close()
		if s.from("1.0.0.1") != nil { // and a connection that the rate refuses is not counted as open
			t.Error("more than the burst")
		}
		s.wantRejected(ReasonClientRate, 1)
		s.close()
	})
}

// Connections begin and end on all cores, while reloads change the limits.
func TestClientsAtOnce(t *testing.T) {
	var l clients
	l.set(config.ClientLimits{Connections: 5})
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 2000 {
				a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i % 7)})
				n := conn.NetworkOf(a, conn.DefaultPrefixes)
				if counted, _, _ := l.admit(a, n); counted {
					l.drop(n)
				}
				if g == 0 && i%100 == 0 {
					l.set(config.ClientLimits{Connections: 5 * (i / 100 % 2), Rate: config.Rate{Number: 1000, Per: time.Second}})
				}
			}
		})
	}
	all.Wait()
	for i := range l.shards {
		if len(l.shards[i].open) > 0 {
			t.Errorf("left: %v", l.shards[i].open)
		}
	}
}

// A flood from many networks does not make the rate forget a network that has exceeded it.
func TestManyNetworksDoNotResetOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l clients
		l.set(config.ClientLimits{Rate: config.Rate{Number: 1, Per: time.Hour}, Burst: 3})
		admits := func(a netip.Addr) bool {
			_, _, ok := l.admit(a, conn.NetworkOf(a, conn.DefaultPrefixes))
			return ok
		}
		mine := netip.MustParseAddr("2001:db8::1")
		for admits(mine) {
		}
		for i := range 4 * maxRateKeys {
			admits(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb9, byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)}))
		}
		if admits(mine) {
			t.Error("a flood of other networks resets the rate of one")
		}
		if n := l.settings.Load().rate.Keys(); n > 2*maxRateKeys+8 {
			t.Errorf("%d keys", n)
		}
	})
}

func TestCountingClientsAllocatesNothing(t *testing.T) {
	var l clients
	l.set(config.ClientLimits{Connections: 5, Rate: config.Rate{Number: 1_000_000, Per: time.Second}})
	a := netip.MustParseAddr("10.0.0.1")
	n := conn.NetworkOf(a, conn.DefaultPrefixes)
	l.admit(a, n) // its entries exist from now on
	if n := testing.AllocsPerRun(1000, func() {
		l.admit(a, n)
		l.drop(n)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
