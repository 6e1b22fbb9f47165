package listener

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

// The networks of the tests, one for each mode.
const (
	balancer = "10.1.1.1:1000"    // require
	oddOne   = "10.1.2.1:1000"    // discard, inside the balancers' network
	neighbor = "192.168.0.1:1000" // optional
	insider  = "172.16.0.1:1000"  // none
	enemy    = "10.1.3.1:1000"    // deny, inside the balancers' network
	stranger = "8.8.8.8:1000"     // nobody's rule
)

const timeout = 5 * time.Second

var edge = config.HeaderPolicy{Name: "edge", HeaderTimeout: timeout, Rules: []config.HeaderRule{
	{From: prefixes("10.0.0.0/8", "fd00::/8", "fe80::/10"), Mode: config.HeaderRequire},
	{From: prefixes("192.168.0.0/16"), Mode: config.HeaderOptional},
	{From: prefixes("10.1.2.0/24"), Mode: config.HeaderDiscard},
	{From: prefixes("172.16.0.0/12", "::ffff:172.32.0.0/112"), Mode: config.HeaderNone},
	{From: prefixes("10.1.3.0/24"), Mode: config.HeaderDeny},
}}

func prefixes(list ...string) (p []netip.Prefix) {
	for _, s := range list {
		p = append(p, netip.MustParsePrefix(s))
	}
	return p
}

// world is a listener with all that it needs.
type world struct {
	t       *testing.T
	l       *Listener
	limits  *Limits
	tracker *Tracker
	metrics *Metrics
	reg     *prometheus.Registry
	served  chan error
	handled chan *conn.Conn

	mu       sync.Mutex
	refusals []Refusal
	troubles []error
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, limits: NewLimits(config.Limits{}), tracker: new(Tracker), reg: prometheus.NewRegistry(), handled: make(chan *conn.Conn, 2000), served: make(chan error, 1)}
	w.metrics = NewMetrics(w.reg, w.tracker)
	return w
}

// start makes the listener w.l accept.
func (w *world) start() { go func() { w.served <- w.l.Serve() }() }

// serve starts a listener of ln. Without a Handle, connections go to handled.
func serve(t *testing.T, ln net.Listener, limits config.Limits, s Settings) *world {
	w := newWorld(t)
	w.limits.Set(limits)
	if s.Handle == nil {
		s.Handle = func(c *conn.Conn) { w.handled <- c }
	}
	w.l = New(ln, Options{Name: "test", Limits: w.limits, Tracker: w.tracker, Metrics: w.metrics, Refused: w.refused, Trouble: w.trouble, Settings: s})
	w.start()
	return w
}

func (w *world) refused(r Refusal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refusals = append(w.refusals, r)
}

func (w *world) trouble(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.troubles = append(w.troubles, err)
}

// close closes the listener and wants every count back at nothing.
func (w *world) close() {
	w.t.Helper()
	if err := w.l.Close(); err != nil {
		w.t.Error(err)
	}
	if err := <-w.served; err != nil {
		w.t.Error(err)
	}
	for {
		select {
		case c := <-w.handled:
			c.Close()
			continue
		default:
		}
		break
	}
	w.limits.mu.Lock()
	defer w.limits.mu.Unlock()
	if n := w.limits.connections.Load(); n != 0 || w.limits.pending.Load() != 0 || len(w.limits.sources) != 0 || w.tracker.Open() != 0 || w.l.Open() != 0 {
		w.t.Errorf("left: %d connections, %d pending, sources %v, %d tracked, %d of the listener",
			n, w.limits.pending.Load(), w.limits.sources, w.tracker.Open(), w.l.Open())
	}
}

func (w *world) wantHeaders(version, result string, want float64) {
	w.t.Helper()
	w.want("weir_proxy_headers_total", want, "test", result, version)
}

func (w *world) wantRejected(reason Reason, want float64) {
	w.t.Helper()
	w.want("weir_connections_rejected_total", want, "test", reason.String())
}

func (w *world) wantOpen(state string, want float64) {
	w.t.Helper()
	w.want("weir_connections_open", want, "test", state)
}

// want looks at the series whose labels, in the order of their names, have the given values.
func (w *world) want(name string, want float64, labels ...string) {
	w.t.Helper()
	families, err := w.reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			if !slices.Equal(values, labels) {
				continue
			}
			if got := m.GetCounter().GetValue() + m.GetGauge().GetValue(); got != want {
				w.t.Errorf("%s%v is %v, want %v", name, labels, got, want)
			}
			return
		}
	}
	w.t.Errorf("there is no %s%v", name, labels)
}

// fakeListener hands out what is put into it. It has no descriptor.
type fakeListener struct {
	next   chan any // net.Conn or error
	closed chan struct{}
	once   sync.Once
}

func newFakeListener() *fakeListener {
	return &fakeListener{next: make(chan any), closed: make(chan struct{})}
}

func (f *fakeListener) Accept() (net.Conn, error) {
	select {
	case a := <-f.next:
		if err, ok := a.(error); ok {
			return nil, &net.OpError{Op: "accept", Net: "tcp", Err: err}
		}
		return a.(net.Conn), nil
	case <-f.closed:
		return nil, net.ErrClosed
	}
}

func (f *fakeListener) Close() error {
	err := net.ErrClosed
	f.once.Do(func() {
		close(f.closed)
		err = nil
	})
	return err
}

func (f *fakeListener) Addr() net.Addr { return &net.TCPAddr{} }

// dial connects to the fake listener from the peer address.
func (f *fakeListener) dial(peer string) net.Conn {
	client, server := net.Pipe()
	f.next <- addressed{server, netip.MustParseAddrPort(peer)}
	return client
}

// addressed is a pipe that has addresses.
type addressed struct {
	net.Conn
	peer netip.AddrPort
}

func (a addressed) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(a.peer) }
func (a addressed) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 443} }

// checkLeaks wants as many goroutines and descriptors at the end of the test as now.
func checkLeaks(t *testing.T) {
	if ln, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		if a, taken, err := conn.NewAcceptor(ln); taken && err == nil { // the pollers have their own descriptors from now on
			a.Close()
		}
		ln.Close()
	}
	routines, files := runtime.NumGoroutine(), descriptors()
	t.Cleanup(func() {
		for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > routines || descriptors() > files; runtime.Gosched() {
			if time.Now().After(deadline) {
				buf := make([]byte, 1<<20)
				t.Fatalf("%d goroutines, %d before; %d descriptors, %d before:\n%s",
					runtime.NumGoroutine(), routines, descriptors(), files, buf[:runtime.Stack(buf, true)])
			}
		}
	})
}

// descriptors counts the open ones, where the system says.
func descriptors() int {
	list, _ := os.ReadDir("/proc/self/fd")
	return len(list)
}

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
		ln.next <- syscall.EMFILE // the wait begins anew
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

// A load balancer is not counted against itself; behind it, its clients are.
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
		for _, peer := range []string{balancer, oddOne, neighbor} {
			var held []*conn.Conn
			for _, client := range []string{"1.0.0.1", "1.0.0.2", "1.0.0.3"} {
				held = append(held, accepted(open(peer, from(client))), accepted(open(peer, from(client))))
				refused(open(peer, from(client)))
			}
			held = append(held, accepted(open(peer, from6("2001:db8:0:1::1"))), accepted(open(peer, from6("2001:db8:0:1:f::1"))))
			refused(open(peer, from6("2001:db8:0:1::2")))
			held = append(held, accepted(open(peer, from6("2001:db8:0:2::2"))))
			if peer != neighbor { // whose own connections count as any client's
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

// An owner that does not notice holds a drain up for a moment only.
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
