package backend

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/config"
)

// placed returns a backend that prefers near endpoints. Each of places is address/node/zone,
// with a + at its end if it is terminating.
func placed(balance config.Balance, places ...string) config.Backend {
	b := settings("app")
	b.Balance, b.PreferLocal, b.Endpoints = balance, true, endpointsAt(places...)
	return b
}

func endpointsAt(places ...string) (all []config.Endpoint) {
	for _, p := range places {
		place, terminating := strings.CutSuffix(p, "+")
		parts := strings.Split(place+"//", "/")
		all = append(all, config.Endpoint{Address: parts[0], Node: parts[1], Zone: parts[2], Weight: 1, Terminating: terminating})
	}
	return all
}

// here is the node of weir in these tests.
var here = NodeInfo{Name: "node-a", Explicit: true, Zone: "zone-1"}

func (w *world) updateHere(backends ...config.Backend) *Backend {
	w.t.Helper()
	if _, err := w.set.Update(listOf(backends...), here); err != nil {
		w.t.Fatal(err)
	}
	return w.set.Backend(backends[0].Name)
}

var balances = []config.Balance{config.LeastRequests, config.RoundRobin, config.Hash}

// picked returns the addresses that weir picks for many clients, after they have tried these
// endpoints.
func picked(t *testing.T, b *Backend, tried ...*Endpoint) (all []string) {
	t.Helper()
	for i := range 200 {
		e, err := b.Acquire(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), tried, noDeadline, alone{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(all, e.address) {
			all = append(all, e.address)
		}
		e.Release()
	}
	slices.Sort(all)
	return all
}

func wantPicked(t *testing.T, b *Backend, tried []*Endpoint, want ...string) {
	t.Helper()
	if got := picked(t, b, tried...); !slices.Equal(got, want) {
		t.Errorf("after %d others exchanges go to %q, want %q", len(tried), got, want)
	}
}

func TestNearEndpointsGoFirst(t *testing.T) {
	for _, balance := range balances {
		t.Run(string(balance), func(t *testing.T) {
			w := newWorld(t, Options{})
			f := func(want string, places ...string) *Backend {
				t.Helper()
				b := w.updateHere(placed(balance, places...))
				wantPicked(t, b, nil, strings.Fields(want)...)
				return b
			}
			f("10.0.0.1:1", "10.0.0.1:1/node-a/zone-1", "10.0.0.2:1/node-b/zone-1", "10.0.0.3:1/node-c/zone-2")
			f("10.0.0.2:1", "10.0.0.2:1/node-b/zone-1", "10.0.0.3:1/node-c/zone-2")
			f("10.0.0.3:1 10.0.0.4:1", "10.0.0.3:1/node-c/zone-2", "10.0.0.4:1/node-d")
			f("10.0.0.1:1 10.0.0.2:1", "10.0.0.1:1/node-a/zone-1", "10.0.0.2:1/node-a/zone-1", "10.0.0.3:1/node-c/zone-2")
			f("10.0.0.5:1", "10.0.0.5:1/node-a", "10.0.0.6:1") // its node and zone are not known

			far := placed(balance, "10.0.0.1:1/node-a/zone-1", "10.0.0.3:1/node-c/zone-2")
			far.PreferLocal = false
			wantPicked(t, w.updateHere(far), nil, "10.0.0.1:1", "10.0.0.3:1")
		})
	}
}

// No request fails or gets 503 while any endpoint is ready anywhere.
func TestFarEndpointsServeWhereNearOnesCannot(t *testing.T) {
	places := []string{"10.0.0.1:1/node-a/zone-1", "10.0.0.2:1/node-b/zone-1", "10.0.0.3:1/node-c/zone-2", "10.0.0.4:1/node-a/zone-1+"}
	refused, unreachable := &netError{syscall.ECONNREFUSED}, &netError{syscall.EHOSTUNREACH}
	for _, balance := range balances {
		t.Run(string(balance), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Options{})
				b := w.updateHere(placed(balance, places...))
				at := func(i int) *Endpoint { return endpointOf(t, b, fmt.Sprintf("10.0.0.%d:1", i)) }

				// After a failed dial the next tier follows. Terminating endpoints come last.
				wantPicked(t, b, nil, "10.0.0.1:1")
				wantPicked(t, b, []*Endpoint{at(1)}, "10.0.0.2:1")
				wantPicked(t, b, []*Endpoint{at(1), at(2)}, "10.0.0.3:1")
				wantPicked(t, b, []*Endpoint{at(3)}, "10.0.0.1:1") // the next endpoint is on another node than that of at(3), here on weir's node
				wantPicked(t, b, []*Endpoint{at(1), at(2), at(3)}, "10.0.0.4:1")
				all, excused := []*Endpoint{at(1), at(2), at(3), at(4)}, 0
				if b.Another(all) || !b.Another(all[:3]) {
					t.Error("what is left is not known")
				}
				f := func(tried []*Endpoint, err error, after time.Duration, want bool, wantExcused int) {
					t.Helper()
					if got := b.AllowConnect(tried, &excused, err, after); got != want || excused != wantExcused {
						t.Errorf("%v after %v: %t with %d excused, want %t with %d", err, after, got, excused, want, wantExcused)
					}
				}
				f(all[:3], io.EOF, 0, false, 0)
				f(all[:3], unreachable, 3*time.Second, false, 0) // the failure is known only after three seconds, so weir does not excuse it
				f(all[:3], refused, 0, true, 1)
				f(all[:3], io.EOF, 0, true, 1)
				f(all, refused, 0, false, 1)

				// An endpoint is ejected, and returns.
				for range 3 {
					at(1).Failed(refused)
				}
				wantPicked(t, b, nil, "10.0.0.2:1")
				for range 3 {
					at(2).Failed(refused)
					at(3).Failed(refused)
				}
				wantPicked(t, b, nil, "10.0.0.3:1") // weir never ejects the last ready endpoint
				time.Sleep(10 * time.Second)
				synctest.Wait()
				wantPicked(t, b, nil, "10.0.0.1:1")
			})
		})
	}
}

// netError returns an error as package net returns it.
type netError struct{ error }

func (e *netError) Unwrap() error { return e.error }

func TestNotReadyEndpointsAreNeverUsed(t *testing.T) {
	for _, balance := range balances {
		w := newWorld(t, Options{})
		b := w.updateHere(checked(placed(balance, "10.0.0.1:1/node-a/zone-1", "10.0.0.2:1/node-b/zone-1", "10.0.0.3:1/node-c/zone-2")))
		for i, want := range []string{3: "10.0.0.3:1", 2: "10.0.0.2:1", 1: "10.0.0.1:1"} {
			if i == 0 {
				continue
			}
			w.check(fmt.Sprintf("10.0.0.%d:1", i)).SetReady(true, "")
			wantPicked(t, b, nil, want)
			w.check(fmt.Sprintf("10.0.0.%d:1", i)).SetReady(false, "down")
			if _, err := b.Acquire(netip.Addr{}, nil, noDeadline, alone{}); !errors.Is(err, ErrNoReady) {
				t.Errorf("%s: without any ready endpoint: %v", balance, err)
			}
		}
	}
}

// weir uses a terminating endpoint only if there is no other one. Terminating endpoints do not count for the
// verdict.
func TestTerminatingEndpoints(t *testing.T) {
	for _, balance := range balances {
		t.Run(string(balance), func(t *testing.T) {
			w := newWorld(t, Options{})
			f := func(want string, ready, local int, places ...string) {
				t.Helper()
				if w.set.Backend("app") == nil {
					w.updateHere(placed(balance, places...))
				} else if err := w.set.UpdateEndpoints("app", endpointsAt(places...)); err != nil {
					t.Fatal(err)
				}
				b := w.set.Backend("app")
				wantCounted(t, b)
				if want != "" {
					wantPicked(t, b, nil, strings.Fields(want)...)
				}
				if b.Ready() != ready || b.LocalReady() != local {
					t.Errorf("%q: %d ready, %d of them local; want %d, %d", places, b.Ready(), b.LocalReady(), ready, local)
				}
			}
			up := func(want ...bool) {
				t.Helper()
				for i, e := range w.set.Status()[0].Endpoints {
					if e.Up != want[i] || !e.Terminating && !e.Up {
						t.Errorf("%+v", e)
					}
				}
			}
			f("10.0.0.1:1", 1, 1, "10.0.0.1:1/node-a/zone-1")
			f("10.0.0.2:1", 1, 0, "10.0.0.1:1/node-a/zone-1+", "10.0.0.2:1/node-c/zone-2") // a ready endpoint is better, even if it is far
			up(false, true)
			f("10.0.0.1:1", 0, 0, "10.0.0.1:1/node-a/zone-1+", "10.0.0.2:1/node-c/zone-2+")
			up(true, true)
			f("10.0.0.2:1", 0, 0, "10.0.0.2:1/node-c/zone-2+")
			f("", 0, 0)
			if _, err := w.set.Backend("app").Acquire(netip.Addr{}, nil, noDeadline, alone{}); !errors.Is(err, ErrNoReady) {
				t.Errorf("without an endpoint: %v", err)
			}
		})
	}
}

// If only terminating endpoints are left, weir ejects a failing endpoint only if it is
// terminating, too.
func TestEjectionBesideTerminatingEndpoints(t *testing.T) {
	w := newWorld(t, Options{})
	f := func(fails int, want string, places ...string) {
		t.Helper()
		b := w.updateHere(placed(config.RoundRobin, places...))
		for range 3 {
			endpointOf(t, b, fmt.Sprintf("10.0.0.%d:1", fails)).Failed(io.EOF)
		}
		wantPicked(t, b, nil, strings.Fields(want)...)
		w.update() // without an update, the ejection would stay
	}
	f(1, "10.0.0.1:1", "10.0.0.1:1", "10.0.0.2:1+")
	f(2, "10.0.0.1:1", "10.0.0.1:1", "10.0.0.2:1+")
	f(1, "10.0.0.2:1", "10.0.0.1:1+", "10.0.0.2:1+")
	f(1, "10.0.0.1:1", "10.0.0.1:1+")
	f(1, "10.0.0.2:1", "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1+")
	b := w.updateHere(placed(config.RoundRobin, "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1+"))
	for range 3 {
		endpointOf(t, b, "10.0.0.1:1").Failed(io.EOF)
	}
	w.kinds()
	if err := w.set.UpdateEndpoints("app", endpointsAt("10.0.0.1:1", "10.0.0.2:1+", "10.0.0.3:1+")); err != nil {
		t.Fatal(err)
	}
	wantPicked(t, b, nil, "10.0.0.1:1")
	w.wantEvents("endpoint returned 10.0.0.1:1")
}

// When others serve, a terminating endpoint gets no new exchanges, and weir keeps no idle
// connections to it.
func TestTerminatingEndpointsKeepNoConnections(t *testing.T) {
	w := newWorld(t, Options{})
	b := w.updateHere(placed(config.RoundRobin, "10.0.0.1:1", "10.0.0.2:1"))
	e := endpointOf(t, b, "10.0.0.1:1")
	idle, other := link(e)
	e.Keep(idle)
	busy, _ := link(e)
	change := func(places ...string) {
		t.Helper()
		if err := w.set.UpdateEndpoints("app", endpointsAt(places...)); err != nil {
			t.Fatal(err)
		}
	}
	change("10.0.0.1:1+", "10.0.0.2:1")
	if _, err := other.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the idle connection reads %v", err)
	}
	if e.Keep(busy); e.IdleCount() != 0 {
		t.Error("a connection was kept")
	}
	change("10.0.0.1:1+")
	again, _ := link(e)
	if e.Keep(again); e.IdleCount() != 1 {
		t.Error("the only endpoint's connection was not kept")
	}
}

func TestZoneThatIsToldLater(t *testing.T) {
	w := newWorld(t, Options{})
	nowhere := here
	nowhere.Zone = ""
	update := func(node NodeInfo) *Backend {
		t.Helper()
		if _, err := w.set.Update(listOf(placed(config.RoundRobin, "10.0.0.2:1/node-b/zone-1", "10.0.0.3:1/node-c/zone-2")), node); err != nil {
			t.Fatal(err)
		}
		return w.set.Backend("app")
	}
	b := update(nowhere)
	wantPicked(t, b, nil, "10.0.0.2:1", "10.0.0.3:1")
	w.set.SetZone("zone-2")
	wantPicked(t, b, nil, "10.0.0.3:1")
	update(nowhere)
	wantPicked(t, b, nil, "10.0.0.3:1")
	update(here) // the zone of the configuration has priority
	wantPicked(t, b, nil, "10.0.0.2:1")
	w.set.SetZone("zone-3")
	wantPicked(t, b, nil, "10.0.0.2:1")
	update(nowhere)
	wantPicked(t, b, nil, "10.0.0.2:1", "10.0.0.3:1")
}

// For any set of endpoints, retries use each endpoint once, the terminating ones last.
func TestRetriesGoThroughAllEndpoints(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for range 500 {
		cfg := &config.Backend{Balance: balances[r.IntN(3)], PreferLocal: r.IntN(3) > 0}
		var use []*Endpoint
		better := 0
		for i := range 1 + r.IntN(8) {
			e := &Endpoint{address: fmt.Sprint(i), seed: seedOf(fmt.Sprint(i)), distance: distance(r.IntN(int(distances))),
				cfg: &config.Endpoint{Weight: 1 + r.IntN(3), Terminating: r.IntN(3) == 0}}
			if use = append(use, e); !e.cfg.Terminating {
				e.withheld = int8(r.IntN(3) * 45)
				better++
			}
		}
		v := newView(cfg, use, new(atomic.Uint64))
		client := netip.AddrFrom4([4]byte{10, 0, byte(r.Uint32()), byte(r.Uint32())})
		var tried []*Endpoint
		for i := range use {
			e := v.pick(client, tried, r.Uint64())
			if e == nil || slices.Contains(tried, e) || e.cfg.Terminating != (i >= better) {
				t.Fatalf("%s among %d, %d of them to stay: the attempt after %d goes to %+v", cfg.Balance, len(use), better, i, e)
			}
			tried = append(tried, e)
		}
		if e := v.pick(client, tried, r.Uint64()); e == nil || len(use) > 1 && e == tried[len(tried)-1] {
			t.Fatalf("after all were tried it goes to %+v", e)
		}
	}
}

// A reload does not recreate unchanged objects.
func TestReloadOfTheSameKeepsAll(t *testing.T) {
	w := newWorld(t, Options{})
	secure := settings("secure", "10.0.0.3:443")
	secure.Protocol = config.ProtocolHTTPS
	all := []config.Backend{checked(settings("app", "10.0.0.1:80", "10.0.0.2:80")), secure}
	w.update(all...)
	before := []*dialSettings{w.set.Backend("app").dialSettings(), w.set.Backend("secure").dialSettings()}
	e := endpointOf(t, w.set.Backend("secure"), "10.0.0.3:443")
	d := e.dial.Load()
	w.update(all...)
	if w.set.Backend("app").dialSettings() != before[0] || w.set.Backend("secure").dialSettings() != before[1] || e.dial.Load() != d || w.begun != 2 {
		t.Error("something was made anew")
	}
	all[1].Timeouts.Connect++
	all[1].Ejection.Failures = 77
	w.update(all...)
	if now := e.dial.Load(); now.connect != all[1].Timeouts.Connect || !now.takes(d) || w.set.Backend("secure").Settings().Ejection.Failures != 77 {
		t.Errorf("a change has no effect: %+v", now)
	}
	if _, err := w.set.Update(listOf(all...), NodeInfo{Name: "node-b"}); err != nil {
		t.Fatal(err)
	}
	all[0].Endpoints = slices.Clone(all[0].Endpoints)
	all[0].Endpoints[1].Node = "node-b"
	if _, err := w.set.Update(listOf(all...), NodeInfo{Name: "node-b"}); err != nil {
		t.Fatal(err)
	}
	w.check("10.0.0.2:80").SetReady(true, "")
	if n := w.set.LocalReady("app"); n != 1 {
		t.Errorf("%d are local", n)
	}
}
