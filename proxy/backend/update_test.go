package backend

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

func TestUpdateEndpointsCarriesOverByAddress(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(checked(settings("app", "10.0.0.1:80", "10.0.0.2:80")), settings("other", "10.0.0.9:80"))
	b, other := w.set.Backend("app"), w.set.Backend("other").view.Load()
	w.check("10.0.0.1:80").SetReady(true, "")
	w.check("10.0.0.2:80").SetReady(true, "")
	one, two := endpointOf(t, b, "10.0.0.1:80"), endpointOf(t, b, "10.0.0.2:80")
	kept, _ := link(one)
	one.Keep(kept)
	lost, far := link(two)
	two.Keep(lost)
	running, err := b.Acquire(netip.Addr{}, []*Endpoint{one}, noDeadline, alone{})
	if err != nil || running != two {
		t.Fatal(running, err)
	}
	tunnel := conn.New(pipeConn{})
	two.Track(tunnel)

	if err := w.set.UpdateEndpoints("app", settings("app", "10.0.0.3:80", "10.0.0.1:80").Endpoints); err != nil {
		t.Fatal(err)
	}
	if w.set.Backend("app") != b || endpointOf(t, b, "10.0.0.1:80") != one || one.Idle(Need{}) != kept || w.begun != 3 {
		t.Errorf("backend, endpoint, connection or check are new; %d checks begun", w.begun)
	}
	if w.set.Backend("other").view.Load() != other {
		t.Error("another backend was made anew")
	}
	wantReady(t, b, "10.0.0.1:80") // the other one has no verdict yet
	if _, err := far.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the idle connection of the endpoint that is gone reads %v", err)
	}
	if !two.Removed() || !slices.Equal(w.gone["10.0.0.2:80"], []conn.Cuttable{tunnel}) || len(w.checks) != 2 {
		t.Errorf("removed %t, tunnels %v, %d checks", two.Removed(), w.gone, len(w.checks))
	}
	if b.InFlight() != 1 || two.InFlight() != 1 { // running exchanges end as usual
		t.Errorf("%d in flight", b.InFlight())
	}
	busy, _ := link(two)
	running.Keep(busy)
	running.Release()
	if b.InFlight() != 0 || two.IdleCount() != 0 {
		t.Errorf("%d in flight, %d idle", b.InFlight(), two.IdleCount())
	}
}

func TestUpdateEndpointsThatCannotBe(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(settings("app", "10.0.0.1:80"))
	for name, endpoint := range map[string]string{"app": "10.0.0.1:0", "nobody": "10.0.0.1:80"} {
		err := w.set.UpdateEndpoints(name, settings("", endpoint).Endpoints)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantReady(t, w.set.Backend("app"), "10.0.0.1:80")
	w.set.Close()
	if err := w.set.UpdateEndpoints("app", nil); err == nil {
		t.Error("a closed set takes endpoints")
	}
}

// Over TLS each host has a TLS configuration of its own, including new hosts. Connections stay
// open when other endpoints are added or removed.
func TestUpdateEndpointsOverTLS(t *testing.T) {
	w := newWorld(t, Options{})
	cfg := settings("app", "10.0.0.1:443")
	cfg.Protocol, cfg.HTTP2 = config.ProtocolHTTPS, true
	w.update(cfg)
	b := w.set.Backend("app")
	one := endpointOf(t, b, "10.0.0.1:443")
	idle, _ := link(one)
	one.Keep(idle)
	change := func(addresses ...string) {
		t.Helper()
		if err := w.set.UpdateEndpoints("app", settings("app", addresses...).Endpoints); err != nil {
			t.Fatal(err)
		}
		for _, a := range addresses {
			d, host := endpointOf(t, b, a).dial.Load(), strings.TrimSuffix(a, ":443")
			if d.tls == nil || d.tls.ServerName != host || d.tls1.ServerName != host || a == one.address && !d.takes(idle.own.made) {
				t.Errorf("%s: %+v", a, d)
			}
		}
	}
	change("10.0.0.1:443", "10.0.0.2:443")
	change("10.0.0.2:443", "10.0.0.1:443")
	change("10.0.0.1:443", "10.0.0.3:443")
	w.update(cfg)
	change("10.0.0.1:443", "10.0.0.4:443")
	if one.Idle(Need{}) != idle {
		t.Error("the idle connection is gone")
	}
	if n := len(b.dialSettings().byHost); n != 2 {
		t.Errorf("%d hosts are remembered", n)
	}
}

// If a name replaces all endpoints, the old endpoints serve until the name has an answer.
func TestUpdateEndpointsToAName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dns := nameServer{delay: time.Second}
		dns.set(nil, "10.0.0.2")
		w := newWorld(t, Options{Lookup: dns.lookup})
		w.update(settings("app", "10.0.0.1:80"))
		b := w.set.Backend("app")
		began := time.Now()
		if err := w.set.UpdateEndpoints("app", settings("app", "app.internal:80").Endpoints); err != nil || time.Since(began) > 0 {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		wantReady(t, b, "10.0.0.1:80")
		time.Sleep(time.Second)
		synctest.Wait()
		wantReady(t, b, "10.0.0.2:80")
		if err := w.set.UpdateEndpoints("app", nil); err != nil {
			t.Fatal(err)
		}
		wantReady(t, b)
	})
}

// Endpoints are added and removed during reloads, verdicts and traffic, for the race detector.
// Every exchange finds an endpoint, because one always stays.
func TestEndpointsComeAndGoBesideReloads(t *testing.T) {
	w := newWorld(t, Options{})
	cfgs := []config.Backend{placed(config.LeastRequests, "10.0.0.1:1"), placed(config.RoundRobin, "10.0.0.1:1", "10.0.0.2:1"), placed(config.Hash, "10.0.0.1:1")}
	cfgs[0].RampUp, cfgs[1].MaxIdle = time.Second, 0
	w.updateHere(cfgs...)
	var traffic, changes sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		traffic.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				b := w.set.Backend("app")
				var tried []*Endpoint
				for range 1 + rand.IntN(3) {
					e, err := b.Acquire(netip.AddrFrom4([4]byte{byte(rand.Uint32())}), tried, noDeadline, alone{})
					if err != nil {
						t.Error(err)
						return
					}
					if s := e.Idle(Need{}); s != nil {
						s.Close()
					}
					s, _ := link(e)
					e.Keep(s)
					e.Failed(errors.New("reset"))
					tried = append(tried, e)
					e.Release()
				}
			}
		})
	}
	changes.Go(func() {
		for i := range 500 {
			places := []string{"10.0.0.1:1/node-a/zone-1"}
			for j := range 5 {
				if i>>j&1 == 1 {
					places = append(places, fmt.Sprintf("10.0.0.%d:1/node-%d/zone-%d%s", j+2, j, j%2, []string{"", "+"}[i>>5&1]))
				}
			}
			if err := w.set.UpdateEndpoints("app", endpointsAt(places...)); err != nil {
				t.Error(err)
			}
			w.set.SetZone(fmt.Sprintf("zone-%d", i%3))
		}
	})
	changes.Go(func() {
		for i := range 100 {
			if _, err := w.set.Update(listOf(cfgs[i%len(cfgs)]), NodeInfo{Name: "node-a", Explicit: true}); err != nil {
				t.Error(err)
			}
			w.set.Status()
		}
	})
	changes.Wait()
	close(stop)
	traffic.Wait()
	if n := w.set.Backend("app").InFlight(); n != 0 {
		t.Errorf("%d in flight at the end", n)
	}
}
