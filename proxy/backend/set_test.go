package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

func TestReloadCarriesOverByAddress(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(checked(settings("app", "10.0.0.1:80", "10.0.0.2:80")))
	b := w.set.Backend("app")
	w.check("10.0.0.1:80").SetReady(true, "")
	w.check("10.0.0.2:80").SetReady(true, "")
	one, two := endpointOf(t, b, "10.0.0.1:80"), endpointOf(t, b, "10.0.0.2:80")
	kept, _ := link(one)
	one.Keep(kept)
	lost, other := link(two)
	two.Keep(lost)
	one.inFlight.Add(1)
	tunnel := conn.New(pipeConn{})
	two.Track(tunnel)

	w.update(checked(settings("app", "10.0.0.3:80", "10.0.0.1:80")))
	if w.set.Backend("app") != b || endpointOf(t, b, "10.0.0.1:80") != one {
		t.Error("backend or endpoint are new although their names stayed")
	}
	wantReady(t, b, "10.0.0.1:80")
	if one.InFlight() != 1 || one.Idle(Need{}) != kept || !kept.Reused || w.begun != 3 {
		t.Errorf("in flight %d, idle %v, %d checks begun", one.InFlight(), kept, w.begun)
	}
	if _, err := other.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the idle link of the removed endpoint reads %v", err)
	}
	if !two.Removed() || !slices.Equal(w.gone["10.0.0.2:80"], []conn.Cuttable{tunnel}) || len(w.checks) != 2 {
		t.Errorf("removed %t, tunnels %v, %d checks", two.Removed(), w.gone, len(w.checks))
	}
	late := conn.New(pipeConn{})
	two.Track(late)()
	if !slices.Equal(w.gone["10.0.0.2:80"], []conn.Cuttable{tunnel, late}) {
		t.Errorf("a tunnel that came after the end was not told of: %v", w.gone)
	}
	again, other := link(two)
	two.Keep(again)
	if _, err := other.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a link that was kept after the end reads %v", err)
	}
}

func TestUntrackedTunnelsAreNotDrained(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(settings("app", "10.0.0.1:80"))
	b := w.set.Backend("app")
	endpointOf(t, b, "10.0.0.1:80").Track(conn.New(pipeConn{}))()
	w.update(settings("app", "10.0.0.2:80"))
	if len(w.gone) != 0 {
		t.Errorf("drained %v", w.gone)
	}
}

func TestCheckDecidesReadiness(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(checked(settings("app", "10.0.0.1:80")))
	b := w.set.Backend("app")
	wantReady(t, b)
	c := w.check("10.0.0.1:80")
	c.SetReady(false, "refused")
	w.wantEvents("endpoint not ready 10.0.0.1:80")
	c.SetReady(false, "refused again")
	w.wantEvents()
	c.SetReady(true, "")
	wantReady(t, b, "10.0.0.1:80")
	w.wantEvents("endpoint ready 10.0.0.1:80")

	// A changed check begins with the verdict of the old one. Verdicts of the old check have
	// no effect any more.
	cfg := checked(settings("app", "10.0.0.1:80"))
	cfg.HealthCheck.Interval = 7 * time.Second
	w.update(cfg)
	if next := w.check("10.0.0.1:80"); next == c || !next.WasReady || next.Settings.Interval != 7*time.Second {
		t.Errorf("the changed check: %+v", next)
	}
	c.SetReady(false, "late")
	wantReady(t, b, "10.0.0.1:80")

	w.check("10.0.0.1:80").SetReady(false, "down")
	wantReady(t, b)
	w.update(settings("app", "10.0.0.1:80")) // without a check it is ready
	wantReady(t, b, "10.0.0.1:80")
	if len(w.checks) != 0 {
		t.Errorf("%d checks run", len(w.checks))
	}
}

// A reload that replaces every endpoint must not be an outage while the new endpoints wait for
// their first verdict.
func TestReplacedEndpointsServeUntilTheFirstVerdict(t *testing.T) {
	f := func(verdict bool, want ...string) {
		t.Helper()
		w := newWorld(t, Options{})
		w.update(checked(settings("app", "127.0.0.1:80")))
		b := w.set.Backend("app")
		w.check("127.0.0.1:80").SetReady(true, "")
		w.update(checked(settings("app", "127.0.0.2:80", "127.0.0.3:80")))
		wantReady(t, b, "127.0.0.1:80")
		if b.LocalReady() != 1 {
			t.Error("the verdict flaps")
		}
		w.check("127.0.0.2:80").SetReady(false, "down")
		wantReady(t, b, "127.0.0.1:80")
		w.check("127.0.0.3:80").SetReady(verdict, "")
		wantReady(t, b, want...)
	}
	f(true, "127.0.0.3:80")
	f(false)
}

func TestRemovedBackendServesWhatWasRoutedBefore(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(settings("app", "10.0.0.1:80"), settings("api", "10.0.0.2:80"))
	b := w.set.Backend("app")
	w.update(settings("api", "10.0.0.2:80"))
	if w.set.Backend("app") != nil {
		t.Error("the backend is still there")
	}
	e := acquire(t, b)
	e.Failed(io.EOF)
	e.Succeeded()
	e.Release()
}

func TestUpdateIsAllOrNothing(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(settings("app", "10.0.0.1:80"))
	bad := settings("app", "10.0.0.2:80")
	bad.Protocol, bad.TLS.CAFile = config.ProtocolHTTPS, "/nonexistent/ca.pem"
	worse := settings("api", "10.0.0.2:99999")
	unix := settings("unix", "unix:/run/app.sock")
	unix.Protocol = config.ProtocolHTTPS
	_, err := w.set.Update(listOf(bad, worse, unix, settings("new", "10.0.0.9:80")), NodeInfo{})
	for _, want := range []string{`"app"`, "tls.ca", `"api"`, "99999", `"unix"`, "tls.server_name"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error %q does not say %s", err, want)
		}
	}
	wantReady(t, w.set.Backend("app"), "10.0.0.1:80")
	if w.set.Backend("new") != nil {
		t.Error("a refused configuration has an effect")
	}
}

func TestEjection(t *testing.T) {
	broken := errors.New("connection refused")
	fail := func(e *Endpoint, n int) {
		for range n {
			e.Failed(broken)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.update(settings("app", "10.0.0.1:80", "10.0.0.2:80"))
		b := w.set.Backend("app")
		one, two := endpointOf(t, b, "10.0.0.1:80"), endpointOf(t, b, "10.0.0.2:80")
		fail(one, 2)
		one.Succeeded()
		fail(one, 2)
		wantReady(t, b, "10.0.0.1:80", "10.0.0.2:80") // the failures are not consecutive
		fail(one, 1)
		wantReady(t, b, "10.0.0.2:80")
		fail(two, 5)
		wantReady(t, b, "10.0.0.2:80") // weir never ejects the last one
		w.wantEvents("endpoint ejected 10.0.0.1:80")

		time.Sleep(10*time.Second - 1)
		wantReady(t, b, "10.0.0.2:80")
		time.Sleep(1 * time.Nanosecond)
		synctest.Wait()
		wantReady(t, b, "10.0.0.1:80", "10.0.0.2:80")
		fail(one, 1) // no success since
		wantReady(t, b, "10.0.0.2:80")
		w.wantEvents("endpoint returned 10.0.0.1:80", "endpoint ejected 10.0.0.1:80")
	})
}

func TestEjectionEndsWhenTheOthersGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		cfg := checked(settings("app", "10.0.0.1:80", "10.0.0.2:80"))
		cfg.Ejection.Failures = 1
		w.update(cfg)
		b := w.set.Backend("app")
		w.check("10.0.0.1:80").SetReady(true, "")
		w.check("10.0.0.2:80").SetReady(true, "")
		endpointOf(t, b, "10.0.0.1:80").Failed(io.EOF)
		wantReady(t, b, "10.0.0.2:80")
		if b.LocalReady() != 0 || b.Ready() != 1 {
			t.Error("counts")
		}
		w.check("10.0.0.2:80").SetReady(false, "down")
		wantReady(t, b, "10.0.0.1:80")
		time.Sleep(time.Minute)
		synctest.Wait()
		wantReady(t, b, "10.0.0.1:80")
	})
}

func TestWhatIsOurOwnFaultDoesNotEject(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(settings("app", "10.0.0.1:80", "10.0.0.2:80"))
	b := w.set.Backend("app")
	e := endpointOf(t, b, "10.0.0.1:80")
	for _, err := range []error{syscall.EMFILE, syscall.EADDRNOTAVAIL, context.Canceled, conn.ErrCut} {
		for range 10 {
			e.Failed(fmt.Errorf("connecting: %w", err))
		}
	}
	wantReady(t, b, "10.0.0.1:80", "10.0.0.2:80")
	off := settings("app", "10.0.0.1:80", "10.0.0.2:80")
	off.Ejection.Failures = 0
	w.update(off)
	for range 10 {
		e.Failed(io.EOF)
	}
	wantReady(t, b, "10.0.0.1:80", "10.0.0.2:80")
}

func TestLocality(t *testing.T) {
	f := func(node NodeInfo, endpoint config.Endpoint, want bool) {
		t.Helper()
		w := newWorld(t, Options{})
		b := settings("app")
		b.Endpoints = []config.Endpoint{endpoint}
		if _, err := w.set.Update(listOf(b), node); err != nil {
			t.Fatal(err)
		}
		if got := w.set.Backend("app").LocalReady() == 1; got != want {
			t.Errorf("%+v on %+v: local %t, want %t", endpoint, node, got, want)
		}
	}
	named, unnamed := NodeInfo{Name: "node-a", Explicit: true}, NodeInfo{Name: "node-a"}
	f(unnamed, config.Endpoint{Address: "127.0.0.1:80"}, true)
	f(unnamed, config.Endpoint{Address: "127.9.9.9:80"}, true)
	f(unnamed, config.Endpoint{Address: "[::1]:80"}, true)
	f(unnamed, config.Endpoint{Address: "[::ffff:127.0.0.1]:80"}, true)
	f(unnamed, config.Endpoint{Address: "192.0.2.7:80"}, true) // the address of an interface
	f(unnamed, config.Endpoint{Address: "192.0.2.8:80"}, false)
	f(unnamed, config.Endpoint{Address: "unix:/run/app.sock"}, true)
	f(unnamed, config.Endpoint{Address: "127.0.0.1:80", Node: "node-b"}, false)
	f(unnamed, config.Endpoint{Address: "192.0.2.8:80", Node: "node-a"}, true)
	f(named, config.Endpoint{Address: "127.0.0.1:80"}, false)
	f(named, config.Endpoint{Address: "127.0.0.1:80", Node: "node-a"}, true)
	f(named, config.Endpoint{Address: "192.0.2.8:80", Node: "node-a"}, true)
	f(named, config.Endpoint{Address: "192.0.2.7:80", Node: "node-b"}, false)
}

func TestMetricsFollowTheSet(t *testing.T) {
	w := newWorld(t, Options{})
	reg := prometheus.NewPedanticRegistry()
	m := NewMetrics(reg, w.set)
	want := func(lines ...string) {
		t.Helper()
		if got := gather(t, reg); !slices.Equal(got, lines) {
			t.Errorf("metrics\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
		}
	}
	want()
	w.update(checked(settings("app", "10.0.0.1:80")), settings("api", "10.0.0.2:80"))
	acquire(t, w.set.Backend("api"))
	w.set.Backend("api").Retried(RetryConnect)
	want("weir_backend_endpoint_up{app,10.0.0.1:80} 0",
		"weir_backend_endpoints_ready{api} 1",
		"weir_backend_endpoints_ready{app} 0",
		"weir_backend_queue_depth{api} 0",
		"weir_backend_requests_in_flight{api} 1",
		"weir_backend_retries_total{api,connect} 1")
	m.SetPerEndpoint(true)
	want("weir_backend_endpoint_requests_total{api,10.0.0.2:80} 1",
		"weir_backend_endpoint_up{api,10.0.0.2:80} 1",
		"weir_backend_endpoint_up{app,10.0.0.1:80} 0",
		"weir_backend_endpoints_ready{api} 1",
		"weir_backend_endpoints_ready{app} 0",
		"weir_backend_queue_depth{api} 0",
		"weir_backend_requests_in_flight{api} 1",
		"weir_backend_retries_total{api,connect} 1")
	m.SetPerEndpoint(false)
	w.check("10.0.0.1:80").SetReady(true, "")
	w.update(checked(settings("app", "10.0.0.1:80")))
	want("weir_backend_endpoints_ready{app} 1")
	w.check("10.0.0.1:80").SetReady(false, "")
	want("weir_backend_endpoint_up{app,10.0.0.1:80} 0", "weir_backend_endpoints_ready{app} 0")
}

func gather(t *testing.T, reg prometheus.Gatherer) []string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetValue())
			}
			list = append(list, fmt.Sprintf("%s{%s} %v", f.GetName(), strings.Join(labels, ","),
				m.GetGauge().GetValue()+m.GetCounter().GetValue()))
		}
	}
	return list
}

func TestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{Lookup: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		}})
		app := settings("app", "app.internal:80", "10.0.0.2:80")
		app.Endpoints[1].Node = "node-b"
		app.Ejection.Failures = 1
		w.update(app, checked(settings("api", "10.0.0.3:80")))
		b := w.set.Backend("app")
		endpointOf(t, b, "10.0.0.2:80").Failed(io.EOF)
		acquire(t, b)
		w.check("10.0.0.3:80").SetReady(false, "refused")
		got := fmt.Sprintf("%+v", w.set.Status())
		want := fmt.Sprintf("%+v", []BackendStatus{
			{Name: "api", Endpoints: []EndpointStatus{{Address: "10.0.0.3:80", Weight: 1, LastError: "refused"}}},
			{Name: "app", InFlight: 1, Ready: 1, Working: 1, Ejections: 1, Endpoints: []EndpointStatus{
				{Address: "127.0.0.1:80", Host: "app.internal", Local: true, Weight: 1, Up: true, InFlight: 1},
				{Address: "10.0.0.2:80", Node: "node-b", Weight: 1, EjectedUntil: time.Now().Add(10 * time.Second), Failing: true, LastError: "EOF"},
			}},
		})
		if got != want {
			t.Errorf("status\n%s\nwant\n%s", got, want)
		}
	})
}

func TestPoolKeepsTheNewestAndSweepsTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		cfg := settings("app", "10.0.0.1:80")
		cfg.MaxIdle = 3
		w.update(cfg)
		e := endpointOf(t, w.set.Backend("app"), "10.0.0.1:80")
		var list []*Link
		for range 4 {
			s, _ := link(e)
			e.Keep(s)
			list = append(list, s)
			time.Sleep(10 * time.Second)
		}
		if e.IdleCount() != 3 || e.Idle(Need{}) != list[2] { // the fourth exceeded max_idle
			t.Error("the pool is no bounded stack")
		}
		time.Sleep(20*time.Second - 1) // 60 s after the first one became idle
		synctest.Wait()
		if e.IdleCount() != 2 {
			t.Errorf("%d idle before keep_alive is over", e.IdleCount())
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if e.IdleCount() != 1 || e.Idle(Need{}) != list[1] {
			t.Error("the oldest outlived keep_alive")
		}
		if _, err := list[0].own.Write([]byte("x")); err == nil {
			t.Error("the oldest was not closed")
		}
	})
}

func TestChangedSettingsEmptyThePool(t *testing.T) {
	for setting, change := range map[string]func(*config.Backend){
		"send_proxy": func(b *config.Backend) { b.SendProxy = 2 },
		"lenient":    func(b *config.Backend) { b.Lenient = []config.Leniency{config.BareLF} },
	} {
		w := newWorld(t, Options{})
		w.update(settings("app", "10.0.0.1:80"))
		e := endpointOf(t, w.set.Backend("app"), "10.0.0.1:80")
		idle, _ := link(e)
		e.Keep(idle)
		busy, _ := link(e)
		cfg := settings("app", "10.0.0.1:80")
		change(&cfg)
		w.update(cfg)
		e.Keep(busy)
		if n := e.IdleCount(); n != 0 {
			t.Errorf("%d links without %s are still in the pool", n, setting)
		}
	}
}

// A connection whose certificate was checked against one host is not used for another host.
func TestChangedHostEmptiesThePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dns nameServer
		dns.set(nil, "10.0.0.1")
		w := newWorld(t, Options{Lookup: dns.lookup})
		w.update(secure(settings("app", "one.internal:443"), config.BackendTLS{}))
		e := endpointOf(t, w.set.Backend("app"), "10.0.0.1:443")
		idle, _ := link(e)
		e.Keep(idle)
		busy, _ := link(e)
		w.update(secure(settings("app", "two.internal:443"), config.BackendTLS{}))
		if e.Removed() {
			t.Fatal("the endpoint is another one")
		}
		e.Keep(busy)
		if n := e.IdleCount(); n != 0 {
			t.Errorf("%d links with the other host are still in the pool", n)
		}
	})
}

// Keep does not keep a connection if a reload changes the settings at the same time.
func TestKeepBesideAReload(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(settings("app", "10.0.0.1:80"))
	e := endpointOf(t, w.set.Backend("app"), "10.0.0.1:80")
	s, _ := link(e)
	kept := make(chan struct{})
	e.mu.Lock()
	go func() { defer close(kept); e.Keep(s) }()
	buf := make([]byte, 1<<20)
	eventually(t, "Keep waits for the lock", func() bool {
		return slices.ContainsFunc(strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n"), func(g string) bool {
			return strings.Contains(g, "sync.Mutex.Lock") && strings.Contains(g, "(*Endpoint).Keep(")
		})
	})
	changed := *e.dial.Load()
	changed.sendProxy = 2
	e.dial.Store(&changed)
	e.mu.Unlock() // as takeIdle does; it found no link
	<-kept
	if n := e.IdleCount(); n != 0 {
		t.Errorf("%d links without a header are in the pool", n)
	}
}

// Reloads, verdicts and traffic at the same time, for the race detector.
func TestEverythingAtOnce(t *testing.T) {
	w := newWorld(t, Options{})
	cfgs := []config.Backend{
		checked(settings("app", "10.0.0.1:80", "10.0.0.2:80")), settings("app", "10.0.0.2:80", "10.0.0.3:80"),
		weighted(settings("app", "10.0.0.1:80", "10.0.0.3:80"), 3, 1),
	}
	cfgs[1].Balance, cfgs[1].MaxConnections = config.RoundRobin, 2
	cfgs[2].Balance, cfgs[2].SendProxy = config.Hash, 1
	w.update(cfgs[1])
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				exchange(t, w.set.Backend("app"))
			}
		})
	}
	for i := range 300 {
		w.update(cfgs[i%3])
		w.mu.Lock()
		checks := slices.Clone(w.checks)
		w.mu.Unlock()
		for _, c := range checks {
			c.SetReady(rand.IntN(4) > 0, "")
		}
		w.set.Status()
	}
	close(stop)
	wg.Wait()
	if n := w.set.Backend("app").InFlight(); n != 0 {
		t.Errorf("%d in flight at the end", n)
	}
}

func exchange(t *testing.T, b *Backend) {
	e, err := b.Acquire(netip.AddrFrom4([4]byte{byte(rand.Uint32())}), nil, time.Now().Add(time.Second), alone{})
	if err != nil {
		if !errors.Is(err, ErrNoReady) && !errors.Is(err, ErrQueueFull) {
			t.Error(err)
		}
		return
	}
	s := e.Idle(Need{})
	if s == nil {
		s, _ = link(e)
	}
	untrack := e.Track(s.own.Conn)
	if rand.IntN(3) == 0 {
		e.Failed(io.EOF)
	} else {
		e.Succeeded()
	}
	untrack()
	e.Keep(s)
	e.Release()
}

// A change of one of many backends of a cluster touches that backend alone. A change of the
// node touches all.
func TestUnchangedObjectsAreNotTouched(t *testing.T) {
	s := NewSet(Options{InterfaceAddrs: func() []netip.Addr { return nil }})
	t.Cleanup(s.Close)
	backends := []config.Backend{}
	for i := range 100 {
		b := config.NewBackend(fmt.Sprint("b", i))
		b.Endpoints = []config.Endpoint{{Address: "10.0.0.1:80", Weight: 1}}
		backends = append(backends, b)
	}
	node := NodeInfo{}
	f := func(what string, want int) {
		t.Helper()
		p, err := s.PlanObjects(listOf(backends...), node, nil)
		if err == nil {
			err = p.Commit()
		}
		if err != nil || p.Backends().Len() != len(backends) {
			t.Fatalf("%s: there are %d backends, %v", what, p.Backends().Len(), err)
		}
		if n := len(p.changes); n != want {
			t.Errorf("%s: %d backends were touched, not %d", what, n, want)
		}
		for _, b := range backends {
			if got := s.Backend(b.Name).Settings(); !got.Equal(&b) {
				t.Errorf("%s: %s has %+v, not %+v", what, b.Name, got, b)
			}
		}
	}
	f("the start", 100)
	f("nothing", 0)
	backends[7].PreferLocal = true
	f("a setting", 1)
	backends[8].Endpoints = []config.Endpoint{{Address: "10.0.0.2:80", Weight: 1}}
	f("an endpoint", 1)
	if err := s.UpdateEndpoints("b9", nil); err != nil {
		t.Fatal(err)
	}
	f("endpoints that changed alone", 1)
	backends = backends[:50]
	f("fewer", 0)
	node.Name = "node-b"
	f("the node", 50)
	s.SetZone("z")
	f("the zone", 0)
}

// After random changes of objects, the backends are those of the configuration, and those that stay
// are the same ones. The configurations share the settings that have not changed.
func TestRandomObjects(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 50 {
		s := NewSet(Options{InterfaceAddrs: func() []netip.Addr { return nil }})
		var list []*config.Backend
		made := map[string]*Backend{}
		make := func(name string) *config.Backend {
			b := settings(name, fmt.Sprintf("10.0.0.%d:80", r.IntN(9)))
			b.MaxIdle = r.IntN(3)
			return &b
		}
		node := NodeInfo{}
		for range 40 {
			for range r.IntN(3) {
				list = slices.Clone(list)
				name := fmt.Sprint("b", r.IntN(12))
				at, known := slices.BinarySearchFunc(list, name, func(b *config.Backend, name string) int { return strings.Compare(b.Name, name) })
				switch {
				case !known:
					list = slices.Insert(list, at, make(name))
				case r.IntN(3) == 0:
					list = slices.Delete(list, at, at+1)
				default:
					list[at] = make(name)
					if b := s.Backend(name); b != nil && r.IntN(2) == 0 { // the endpoints take effect first
						if err := s.UpdateEndpoints(name, list[at].Endpoints); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			if r.IntN(10) == 0 {
				node.Zone = fmt.Sprint("zone", r.IntN(3))
			}
			p, err := s.PlanObjects(list, node, nil)
			if err == nil {
				err = p.Commit()
			}
			if err != nil || p.Backends().Len() != len(list) {
				t.Fatalf("there are %d backends, not %d: %v", p.Backends().Len(), len(list), err)
			}
			now := map[string]*Backend{}
			for _, cfg := range list {
				b := s.Backend(cfg.Name)
				if now[cfg.Name] = b; b == nil || !b.Settings().Equal(cfg) || b.locality.zone != node.Zone || b.removed {
					t.Fatalf("%s is %+v", cfg.Name, b)
				}
				if old := made[cfg.Name]; old != nil && old != b {
					t.Fatalf("%s is another one", cfg.Name)
				}
			}
			for name, b := range made {
				if now[name] == nil && !b.removed {
					t.Fatalf("%s was not removed", name)
				}
			}
			made = now
		}
		s.Close()
	}
}
