package backend

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

// settings returns a backend with the defaults of package config.
func settings(name string, addresses ...string) config.Backend {
	b := config.Backend{
		Name: name, Protocol: config.ProtocolHTTP, Balance: config.LeastRequests,
		ResolveInterval: 30 * time.Second, MaxIdle: 10,
		Ejection: config.Ejection{Failures: 3, For: 10 * time.Second},
		Queue:    config.Queue{Size: 2, Timeout: 5 * time.Second},
		Timeouts: config.BackendTimeouts{Connect: 5 * time.Second, ResponseHead: time.Minute, BodyIdle: time.Minute, KeepAlive: 60 * time.Second},
		Retries:  config.Retries{Attempts: 3, Share: 0.2},
	}
	for _, a := range addresses {
		b.Endpoints = append(b.Endpoints, config.Endpoint{Address: a, Weight: 1})
	}
	return b
}

func weighted(b config.Backend, weights ...int) config.Backend {
	for i := range weights {
		b.Endpoints[i].Weight = weights[i]
	}
	return b
}

func checked(b config.Backend) config.Backend {
	b.HealthCheck = &config.HealthCheck{TCP: true, Interval: time.Second, Timeout: time.Second, Rise: 2, Fall: 3}
	return b
}

// world is a Set with its events and checks.
type world struct {
	t   *testing.T
	set *Set

	mu      sync.Mutex
	events  []Event // all except outages
	outages []Event
	checks  []*Check // running checks
	begun   int
	gone    map[string][]conn.Cuttable
}

func newWorld(t *testing.T, opts Options) *world {
	w := &world{t: t, gone: make(map[string][]conn.Cuttable)}
	opts.Notify = func(e Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if e.Kind == BackendDown || e.Kind == BackendRecovered {
			w.outages = append(w.outages, e)
			return
		}
		w.events = append(w.events, e)
	}
	opts.StartCheck = func(c *Check) func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.begun++
		w.checks = append(w.checks, c)
		return func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.checks = slices.DeleteFunc(w.checks, func(o *Check) bool { return o == c })
		}
	}
	opts.Gone = func(e *Endpoint, tunnels []conn.Cuttable) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.gone[e.Address()] = append(w.gone[e.Address()], tunnels...)
	}
	if opts.InterfaceAddrs == nil {
		opts.InterfaceAddrs = func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("192.0.2.7")} }
	}
	w.set = NewSet(opts)
	t.Cleanup(w.set.Close)
	return w
}

func (w *world) update(backends ...config.Backend) {
	w.t.Helper()
	if _, err := w.set.Update(listOf(backends...), NodeInfo{Name: "node-a"}); err != nil {
		w.t.Fatal(err)
	}
}

// check returns the running check of an endpoint.
func (w *world) check(address string) *Check {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.checks {
		if c.endpoint.address == address {
			return c
		}
	}
	w.t.Fatalf("no check of %s runs", address)
	return nil
}

// kinds returns the events since the last call, as "kind address".
func (w *world) kinds() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []string
	for _, e := range w.events {
		list = append(list, string(e.Kind)+" "+e.Endpoint+e.Host)
	}
	w.events = nil
	return list
}

func (w *world) wantEvents(want ...string) {
	w.t.Helper()
	if got := w.kinds(); !slices.Equal(got, want) {
		w.t.Errorf("events %q, want %q", got, want)
	}
}

// ready returns the addresses that a pick may choose.
func ready(b *Backend) []string {
	var list []string
	for _, t := range b.view.Load().used() {
		for _, c := range t.members {
			list = append(list, c.e.address)
		}
	}
	return list
}

func wantReady(t *testing.T, b *Backend, want ...string) {
	t.Helper()
	if got := ready(b); !slices.Equal(got, want) {
		t.Errorf("ready: %q, want %q", got, want)
	}
	wantCounted(t, b)
}

// wantCounted compares the Summary of a backend, whose counts may be old, with the state of its endpoints.
func wantCounted(t *testing.T, b *Backend) {
	t.Helper()
	got, state := b.summary(), b.status()
	down := 0
	for _, e := range state.Endpoints {
		if !e.Up && !e.Terminating {
			down++
		}
	}
	if got.Ready != state.Ready || got.Working != state.Working || got.Endpoints != len(state.Endpoints) || got.Down != down {
		t.Errorf("summary %+v of %+v", got, state)
	}
}

func endpointOf(t *testing.T, b *Backend, address string) *Endpoint {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.endpoints {
		if e.address == address {
			return e
		}
	}
	t.Fatalf("backend %s has no endpoint %s", b.name, address)
	return nil
}

func acquire(t *testing.T, b *Backend) *Endpoint {
	t.Helper()
	e, err := b.Acquire(netip.Addr{}, nil, time.Time{}, alone{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// link returns a link over a pipe. The other end of the pipe shows whether it was
// closed.
func link(e *Endpoint) (*Link, net.Conn) {
	here, there := net.Pipe()
	s := newLink(e, conn.New(here), e.dial.Load())
	return s, there
}

// pipeConn is one end of a pipe, with TCP addresses.
type pipeConn struct{ net.Conn }

func (pipeConn) RemoteAddr() net.Addr { return &net.TCPAddr{} }
func (pipeConn) LocalAddr() net.Addr  { return &net.TCPAddr{} }

// listOf returns the backends as a configuration has them.
func listOf(all ...config.Backend) (out []*config.Backend) {
	for _, b := range all {
		out = append(out, &b)
	}
	return out
}

// alone waits in a queue until the end.
type alone struct{}

func (alone) Wait(turn <-chan struct{}, patience time.Duration) (came bool, gone error) {
	select {
	case <-turn:
		return true, nil
	case <-time.After(patience):
		return false, nil
	}
}
