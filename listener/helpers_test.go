package listener

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/sockets"
)

// The networks of the tests, one for each mode.
const (
	balancer = "10.1.1.1:1000"    // require
	oddOne   = "10.1.2.1:1000"    // discard, inside the balancers' network
	neighbor = "192.168.0.1:1000" // optional
	insider  = "172.16.0.1:1000"  // none
	enemy    = "10.1.3.1:1000"    // deny, inside the balancers' network
	stranger = "8.8.8.8:1000"     // no rule
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

// world is a listener with everything that it needs.
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

// serve starts a listener on ln. Without a Handle, connections go to handled.
func serve(t *testing.T, ln net.Listener, limits config.Limits, s Settings) *world {
	w := newWorld(t)
	if c := &limits.Clients; c.PrefixIPv4 == 0 && c.PrefixIPv6 == 0 {
		c.PrefixIPv4, c.PrefixIPv6 = 32, 64
	}
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

// close closes the listener and checks that every count is zero again.
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
	for i := range w.limits.clients.shards {
		if s := &w.limits.clients.shards[i]; len(s.open) > 0 {
			w.t.Errorf("left: connections of the client networks %v", s.open)
		}
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

// want checks the series whose labels, in the order of their names, have the given
// values.
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

// openSocket opens the socket of a listener.
func openSocket(t *testing.T, network, address string) *sockets.Socket {
	t.Helper()
	return openFor(t, new(sockets.Set), "listeners.test", network, address)
}

// openFor makes one owner the only one of a Set, and returns its new socket.
func openFor(t *testing.T, set *sockets.Set, owner, network, address string) *sockets.Socket {
	t.Helper()
	plan := set.Plan([]sockets.Want{{Owner: owner, Network: network, Address: address}})
	if err := plan.Err(owner); err != nil {
		t.Fatal(err)
	}
	plan.Commit()
	return plan.Opened(owner)
}

// fakeListener accepts the connections that a test gives it. It has no descriptor.
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

// checkLeaks checks that the end of the test has as many goroutines and descriptors as
// now.
func checkLeaks(t *testing.T) {
	if ln, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		if a, taken, err := conn.NewAcceptor(ln); taken && err == nil { // opens descriptors of the pollers
			a.Close()
		}
		ln.Close()
	}
	readyQueues() // also opens the kernel's tables of connections
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

// descriptors returns the number of open descriptors, on systems that report it.
func descriptors() int {
	list, _ := os.ReadDir("/proc/self/fd")
	return len(list)
}
