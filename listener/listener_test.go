package listener

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

func TestAcceptErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newFakeListener()
		w := serve(t, ln, config.Limits{}, Settings{})
		begin := time.Now()
		for range 3 {
			ln.next <- syscall.EMFILE
		}
		ln.next <- syscall.ECONNABORTED
		if waited := time.Since(begin); waited != (5+10+20)*time.Millisecond {
			t.Errorf("waited %v", waited)
		}
		for range 20 {
			ln.next <- syscall.EMFILE
		}
		client := ln.dial(insider)
		if waited := time.Since(begin); waited < 12*time.Second || waited > 20*time.Second {
			t.Errorf("waited %v after 23 failures: it spins or sleeps", waited)
		}
		(<-w.handled).Close()
		client.Close()
		ln.next <- syscall.EMFILE // the next wait is the shortest one again
		begin = time.Now()
		ln.next <- syscall.ECONNABORTED
		if waited := time.Since(begin); waited != 5*time.Millisecond {
			t.Errorf("after a success waited %v", waited)
		}
		w.wantRejected(ReasonDescriptors, 24)
		w.close()
		if n := len(w.troubles); n < 3 || n > 5 {
			t.Errorf("told %d times: %v", n, w.troubles)
		}
		if !errors.Is(w.troubles[0], syscall.EMFILE) {
			t.Error(w.troubles[0])
		}
	})
}

func TestServeFailsWithItsSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newFakeListener()
		w := serve(t, ln, config.Limits{}, Settings{})
		ln.Close()
		if err := <-w.served; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestCloseWithoutServe(t *testing.T) {
	ln := newFakeListener()
	tr := new(Tracker)
	l := New(ln, Options{Name: "test", Limits: NewLimits(config.Limits{}), Tracker: tr, Metrics: NewMetrics(prometheus.NewRegistry(), tr)})
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := l.Serve(); err != nil {
		t.Error(err)
	}
}

func TestLimits(t *testing.T) {
	f := func(name string, limits config.Limits, listener int, reason Reason, free func(first *conn.Conn)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ln := newFakeListener()
				w := serve(t, ln, limits, Settings{MaxConnections: listener})
				var first *conn.Conn
				for range 3 {
					defer ln.dial(insider).Close()
					c := <-w.handled
					if first == nil {
						first = c
					}
					defer c.Close()
				}
				extra := ln.dial(insider)
				if n, err := extra.Read(make([]byte, 1)); n != 0 || err != io.EOF {
					t.Errorf("a connection too many read %d, %v", n, err)
				}
				synctest.Wait()
				w.wantRejected(reason, 1)
				if len(w.refusals) != 1 || w.refusals[0].Reason != reason || w.refusals[0].Peer.String() != insider {
					t.Errorf("%+v", w.refusals)
				}
				free(first)
				defer ln.dial(insider).Close()
				(<-w.handled).Close()
				w.wantRejected(reason, 1)
				w.l.Close()
			})
		})
	}
	closeIt := func(c *conn.Conn) { c.Close() }
	establish := func(c *conn.Conn) { c.Established() }
	f("listener", config.Limits{MaxConnections: 100}, 3, ReasonMaxConnections, closeIt)
	f("all", config.Limits{MaxConnections: 3}, 100, ReasonMaxConnectionsAll, closeIt)
	f("pending closed", config.Limits{Pending: 3}, 0, ReasonPending, closeIt)
	f("pending established", config.Limits{Pending: 3}, 0, ReasonPending, establish)
	f("source closed", config.Limits{PendingPerSource: 3}, 0, ReasonPendingPerSource, closeIt)
	f("source established", config.Limits{PendingPerSource: 3}, 0, ReasonPendingPerSource, establish)
}

// The limit applies to the clients behind a load balancer, and not to the load balancer itself.
func TestPendingPerSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newFakeListener()
		w := serve(t, ln, config.Limits{PendingPerSource: 2}, Settings{Policy: NewPolicy(edge)})
		open := func(peer, first string) net.Conn {
			c := ln.dial(peer)
			go io.WriteString(c, first)
			synctest.Wait()
			return c
		}
		accepted := func(c net.Conn) *conn.Conn {
			t.Helper()
			select {
			case h := <-w.handled:
				return h
			default:
				t.Error("refused")
				return conn.New(c)
			}
		}
		refused := func(net.Conn) {
			t.Helper()
			if len(w.handled) > 0 {
				t.Error("accepted")
				(<-w.handled).Close()
			}
		}
		from := func(client string) string { return "PROXY TCP4 " + client + " 203.0.113.7 1 443\r\n" }
		from6 := func(client string) string { return "PROXY TCP6 " + client + " 2001:db8::7 1 443\r\n" }
		for _, peer := range []string{balancer, neighbor} {
			var held []*conn.Conn
			for _, client := range []string{"1.0.0.1", "1.0.0.2", "1.0.0.3"} {
				held = append(held, accepted(open(peer, from(client))), accepted(open(peer, from(client))))
				refused(open(peer, from(client)))
			}
			held = append(held, accepted(open(peer, from6("2001:db8:0:1::1"))), accepted(open(peer, from6("2001:db8:0:1:f::1"))))
			refused(open(peer, from6("2001:db8:0:1::2")))
			held = append(held, accepted(open(peer, from6("2001:db8:0:2::2"))))
			if peer != neighbor { // the connections of neighbor itself count like those of a client
				for range 5 {
					held = append(held, accepted(open(peer, "PROXY UNKNOWN\r\n")))
				}
				for range 5 {
					defer open(peer, "PROXY").Close()
				}
			}
			for _, c := range held {
				c.Close()
			}
		}
		held := []*conn.Conn{accepted(open(neighbor, "GET")), accepted(open(neighbor, "PROXY UNKNOWN\r\n"))}
		refused(open(neighbor, from("1.0.0.1")))
		held[0].Established()
		held[0].Established()
		accepted(open(neighbor, from("1.0.0.1"))).Close()
		held[0].Close()
		held[1].Close()
		time.Sleep(timeout)
		synctest.Wait()
		w.close()
	})
}

// If weir discards the PROXY header, the limit counts the peer from the moment when it connects. The address
// in the header does not use up the limit of another client, and does not hide the sender.
func TestDiscardedAddressDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newFakeListener()
		w := serve(t, ln, config.Limits{PendingPerSource: 2}, Settings{Policy: NewPolicy(edge)})
		open := func(peer, first string) {
			c := ln.dial(peer)
			t.Cleanup(func() { c.Close() })
			go io.WriteString(c, first)
			synctest.Wait()
		}
		owner := netip.MustParseAddrPort(insider).Addr()
		header := "PROXY TCP4 " + owner.String() + " 203.0.113.7 1 443\r\n"
		open(oddOne, header) // two connections reach the limit; the PROXY header of this one is complete
		open(oddOne, "PROXY")
		open(oddOne, header) // the third connection
		w.wantRejected(ReasonPendingPerSource, 1)
		open(insider, "") // the owner of that address still has its whole limit
		open(insider, "")
		w.wantRejected(ReasonPendingPerSource, 1)
		open(insider, "")
		w.wantRejected(ReasonPendingPerSource, 2)
		if len(w.handled) != 3 {
			t.Errorf("%d connections are served, want 3", len(w.handled))
		}
		for len(w.handled) > 0 {
			c := <-w.handled
			if c.Client != c.Peer || c.Network().Prefix().Addr() != c.Peer.Addr() {
				t.Errorf("a connection of %v is %v's, in %v", c.Peer, c.Client, c.Network())
			}
			c.Close()
		}
		time.Sleep(timeout)
		synctest.Wait()
		w.close()
	})
}

// The configuration defines the client networks, and a reload changes them for new
// connections.
func TestClientNetworks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newFakeListener()
		w := serve(t, ln, config.Limits{PendingPerSource: 1, Clients: config.ClientLimits{PrefixIPv4: 24, PrefixIPv6: 48}}, Settings{Policy: NewPolicy(edge)})
		var held []*conn.Conn
		f := func(family, client, network string) {
			t.Helper()
			c := ln.dial(balancer)
			t.Cleanup(func() { c.Close() })
			go io.WriteString(c, "PROXY "+family+" "+client+" "+client+" 1 443\r\n")
			synctest.Wait()
			got := "refused"
			if len(w.handled) > 0 {
				held = append(held, <-w.handled)
				got = held[len(held)-1].Network().String()
			}
			if got != network {
				t.Errorf("%s: %s, want %s", client, got, network)
			}
		}
		f("TCP4", "1.0.0.1", "1.0.0.0/24")
		f("TCP4", "1.0.0.2", "refused")
		f("TCP4", "1.0.1.2", "1.0.1.0/24")
		f("TCP6", "2001:db8:0:1::1", "2001:db8::/48")
		f("TCP6", "2001:db8:0:2::1", "refused")
		w.limits.Set(config.Limits{PendingPerSource: 1, Clients: config.ClientLimits{PrefixIPv4: 32, PrefixIPv6: 64}})
		f("TCP4", "1.0.0.2", "1.0.0.2/32")
		f("TCP6", "2001:db8:0:2::1", "2001:db8:0:2::/64")
		if got := held[0].Network().String(); got != "1.0.0.0/24" {
			t.Errorf("the network of a connection changed to %s by a reload", got)
		}
		for _, c := range held {
			c.Close()
		}
		w.close()
	})
}

func TestUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newFakeListener()
		w := serve(t, ln, config.Limits{}, Settings{Policy: NewPolicy(edge)})
		defer ln.dial(stranger).Close()
		synctest.Wait()
		w.wantHeaders("none", "denied", 1)
		second := make(chan *conn.Conn, 1)
		w.l.Update(Settings{Handle: func(c *conn.Conn) { second <- c }})
		defer ln.dial(stranger).Close()
		(<-second).Close()
		w.close()
	})
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newFakeListener()
		w := serve(t, ln, config.Limits{}, Settings{Handle: func(c *conn.Conn) {
			defer c.Close()
			buf := make([]byte, 1)
			for {
				if _, err := c.Read(buf); err != nil {
					return
				}
				c.SetState(conn.State(buf[0]))
			}
		}})
		var clients []net.Conn
		for _, state := range []conn.State{conn.Pending, conn.Active, conn.Active, conn.Idle, conn.Idle, conn.Idle, conn.Tunnel} {
			c := ln.dial(insider)
			c.Write([]byte{byte(state)})
			clients = append(clients, c)
		}
		synctest.Wait()
		seen := make(map[conn.State]int)
		w.tracker.Each(func(c *conn.Conn) { seen[c.State()]++ })
		if seen[conn.Active] != 2 || seen[conn.Idle] != 3 || w.tracker.Open() != 7 || w.l.Open() != 7 {
			t.Errorf("open are %v of %d", seen, w.tracker.Open())
		}
		w.wantOpen("active", 2)
		w.wantOpen("tunnel", 1)
		remain := func(want float64) {
			t.Helper()
			if n := w.tracker.remaining(); n != want {
				t.Errorf("%v remain, want %v", n, want)
			}
		}
		remain(0)
		w.tracker.SetFormer(3) // those of a process that this one has taken over from
		remain(3)
		w.tracker.WatchArrivals() // weir drain
		remain(10)
		w.tracker.EndArrivals()
		w.tracker.SetFormer(0)
		remain(0)
		w.l.Close()
		clients[1].Close()

		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		begin := time.Now()
		time.AfterFunc(5*time.Second, func() {
			if n := w.tracker.remaining(); n != 6 {
				t.Errorf("%v remain", n)
			}
		})
		if cut := w.tracker.Drain(ctx); cut != 2 {
			t.Errorf("%d were cut", cut)
		}
		if took := time.Since(begin); took != 10*time.Second {
			t.Errorf("took %v", took)
		}
		if w.tracker.Open() != 0 || w.tracker.remaining() != 0 {
			t.Error("some are still open")
		}
		w.close()
	})
}

func TestDrainEndsWithTheLastConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newFakeListener()
		w := serve(t, ln, config.Limits{}, Settings{})
		defer ln.dial(insider).Close()
		defer ln.dial(insider).Close()
		first, second := <-w.handled, <-w.handled
		w.l.Close()
		time.AfterFunc(time.Second, func() { first.Close() })
		time.AfterFunc(3*time.Second, func() { second.Close() })
		begin := time.Now()
		if cut := w.tracker.Drain(t.Context()); cut != 0 || time.Since(begin) != 3*time.Second {
			t.Errorf("%d were cut after %v", cut, time.Since(begin))
		}
		if cut := w.tracker.Drain(t.Context()); cut != 0 {
			t.Errorf("%d of nothing were cut", cut)
		}
		w.close()
	})
}

// An owner that does not notice the cut delays a drain only for a short time.
func TestDrainOfTheDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newFakeListener()
		w := serve(t, ln, config.Limits{}, Settings{})
		defer ln.dial(insider).Close()
		deaf := <-w.handled
		w.l.Close()
		ctx, stop := context.WithCancel(t.Context())
		stop()
		begin := time.Now()
		w.tracker.Drain(ctx)
		if took := time.Since(begin); took != cutTime || !deaf.WasCut() {
			t.Errorf("took %v", took)
		}
		deaf.Close()
		w.close()
	})
}

func TestForget(t *testing.T) {
	tr := new(Tracker)
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg, tr)
	count := func() (n int) {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			n += len(f.GetMetric())
		}
		return n
	}
	before := count()
	m.listener("a")
	m.listener("b").accepted.Inc()
	with := count()
	m.Forget("a")
	m.Forget("b")
	if after := count(); before != after || with == before {
		t.Errorf("%d series, then %d, then %d", before, with, after)
	}
}
