package backend

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/config"
)

func foreign(b config.Backend) config.Backend {
	for i := range b.Endpoints {
		b.Endpoints[i].Foreign = true
	}
	return b
}

// hostAddrs stands for the addresses of this host, which change.
type hostAddrs struct {
	addrs  atomic.Pointer[[]netip.Addr]
	broken atomic.Bool
	asked  atomic.Int32
}

func (h *hostAddrs) set(addrs ...string) {
	list := []netip.Addr{}
	for _, a := range addrs {
		list = append(list, netip.MustParseAddr(a))
	}
	h.addrs.Store(&list)
}

func (h *hostAddrs) has(a netip.Addr) (bool, error) {
	h.asked.Add(1)
	if h.broken.Load() {
		return false, errors.New("no route could be asked for")
	}
	return slices.Contains(*h.addrs.Load(), a), nil
}

func sockets(all ...string) (list []netip.AddrPort) {
	for _, s := range all {
		list = append(list, netip.MustParseAddrPort(s))
	}
	return list
}

// Objects cannot use an address on which this process listens as an endpoint, in any form.
func TestOwnSocketsAreNoEndpoints(t *testing.T) {
	var host hostAddrs
	host.set("10.0.0.5", "2001:db8::5")
	for _, c := range []struct {
		endpoint string
		refused  bool
	}{
		{"10.0.0.5:8087", true},
		{"10.0.0.5:8088", false}, // another process on this host, with host networking
		{"10.0.0.6:8087", false}, // a Pod with the same port
		{"[2001:db8::5]:8087", true},
		{"[::ffff:10.0.0.5]:8087", true},
		{"[64:ff9b::a00:5]:8087", true},
		{"[64:ff9b::a00:6]:8087", false},
		{"[2002:a00:5::1]:8087", true},
		{"192.0.2.9:8443", true}, // weir listens on that address
		{"192.0.2.8:8443", false},
		{"[64:ff9b::c000:209]:8443", true},
	} {
		t.Run(c.endpoint, func(t *testing.T) {
			w := newWorld(t, Options{OnThisHost: host.has})
			w.set.SetOwn(sockets("[::]:8087", "192.0.2.9:8443", "127.0.0.1:8088"))
			w.update(foreign(settings("team/app:80", c.endpoint)), settings("file", c.endpoint))
			b := w.set.Backend("team/app:80")
			if got := b.Ready() == 0; got != c.refused {
				t.Errorf("refused: %t, want %t", got, c.refused)
			}
			refusals := w.set.Refusals()
			if (len(refusals) == 1) != c.refused || c.refused && (!refusals[0].Own || refusals[0].Backend != "team/app:80") {
				t.Errorf("refusals %+v", refusals)
			}
			// The configuration file may name weir's own address.
			if w.set.Backend("file").Ready() != 1 {
				t.Error("an endpoint of the file is refused")
			}
		})
	}
}

// A reload changes the sockets, and each look-up may change the addresses of a name.
func TestOwnSocketsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var host hostAddrs
		host.set("10.0.0.5")
		var dns nameServer
		var told atomic.Int32
		w := newWorld(t, Options{OnThisHost: host.has, Lookup: dns.lookup, RefusalsChanged: func() { told.Add(1) }})
		dns.set(nil, "10.0.0.5", "10.0.0.7")
		w.update(foreign(settings("team/app:80", "10.0.0.5:8087", "name.example.:9000", "10.0.0.5:7000")))
		b := w.set.Backend("team/app:80")
		wantReady(t, b, "10.0.0.5:8087", "10.0.0.5:9000", "10.0.0.7:9000", "10.0.0.5:7000")
		if told.Load() != 0 || host.asked.Load() != 0 {
			t.Errorf("told %d times, asked %d times before there was a socket", told.Load(), host.asked.Load())
		}

		w.set.SetOwn(sockets("0.0.0.0:8087", "0.0.0.0:9000"))
		wantReady(t, b, "10.0.0.7:9000", "10.0.0.5:7000")
		w.wantEvents("address refused 10.0.0.5:8087", "address refused 10.0.0.5:9000name.example.")
		if told.Load() != 1 {
			t.Errorf("told %d times", told.Load())
		}
		if why := w.set.Refusals()[1].Why(); why != "10.0.0.5:9000 (from name.example.) is weir itself, which listens there" {
			t.Errorf("why: %s", why)
		}
		w.set.SetOwn(sockets("0.0.0.0:9000", "0.0.0.0:8087"))
		if told.Load() != 1 {
			t.Error("the same sockets in another order are a change")
		}

		dns.set(nil, "10.0.0.7")
		time.Sleep(time.Minute)
		if got := w.set.Refusals(); len(got) != 1 || told.Load() != 2 {
			t.Errorf("the name leads elsewhere, and refused is %+v; told %d times", got, told.Load())
		}
		w.set.SetOwn(sockets("0.0.0.0:9000"))
		wantReady(t, b, "10.0.0.5:8087", "10.0.0.7:9000", "10.0.0.5:7000")
		if len(w.set.Refusals()) != 0 || told.Load() != 3 {
			t.Errorf("refusals %+v", w.set.Refusals())
		}
	})
}

// weir refuses an address that the host got later when it connects.
func TestOwnSocketIsNotDialled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var host hostAddrs
		host.set()
		w := newWorld(t, Options{OnThisHost: host.has})
		w.set.SetOwn(sockets("[::]:8087"))
		w.update(checked(foreign(settings("team/app:80", "203.0.113.5:8087"))))
		b := w.set.Backend("team/app:80")
		check := w.check("203.0.113.5:8087")
		check.SetReady(true, "")
		e, err := b.Acquire(netip.Addr{}, nil, noDeadline, alone{})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Release()

		host.set("203.0.113.5")
		if _, err := e.Dial(context.Background(), nil); err == nil || !strings.Contains(err.Error(), "it is weir itself, which listens there") {
			t.Errorf("dialled: %v", err)
		}
		if _, err := check.Dial(context.Background(), true); !errors.Is(err, errOwn) {
			t.Errorf("checked: %v", err)
		}
		synctest.Wait()
		if got := w.set.Refusals(); len(got) != 1 || !got[0].Own {
			t.Errorf("refusals %+v", got)
		}
		// weir does not connect if the kernel cannot tell.
		host.set()
		host.broken.Store(true)
		if _, err := e.Dial(context.Background(), nil); err == nil || !strings.Contains(err.Error(), "no route could be asked for") {
			t.Errorf("dialled: %v", err)
		}
	})
}

// A limited number of backends of one namespace have time series of their own. The others
// share series.
func TestBackendsOfObjectsHaveFewSeries(t *testing.T) {
	w := newWorld(t, Options{})
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg, w.set)
	m.SetLimit(config.ObjectMetrics{Series: 1000, Backends: 2, Endpoints: 3})
	m.SetPerEndpoint(true)
	of := func(namespace, name string, addresses ...string) config.Backend {
		b := settings(name, addresses...)
		b.Namespace = namespace
		return b
	}
	w.update(settings("file", "10.0.0.1:80"), of("a", "a/1", "10.0.0.2:80"), of("a", "a/2", "10.0.0.3:80", "10.0.0.4:80", "10.0.0.5:80"), of("a", "a/3", "10.0.0.6:80"),
		of("a", "a/4"), of("b", "b/1", "10.0.0.7:80"))
	acquire(t, w.set.Backend("a/3"))
	lines := func() string { return strings.Join(gather(t, reg), "\n") + "\n" }
	for range 2 { // repeated scrapes change nothing
		text := lines()
		for _, want := range []string{"weir_backend_endpoints_ready{a/1} 1\n", "weir_backend_endpoints_ready{a/2} 3\n", "weir_backend_endpoints_ready{a/other} 1\n", "weir_backend_requests_in_flight{a/other} 1\n",
			"weir_backend_endpoint_up{a/2,10.0.0.4:80} 1\n", "weir_backend_endpoint_up{b/1,10.0.0.7:80} 1\n", "weir_backend_endpoint_up{file,10.0.0.1:80} 1\n",
			"weir_metrics_folded_backends{a} 2\n", "weir_metrics_folded_endpoints{a} 2\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %s in\n%s", want, text)
			}
		}
		if strings.Contains(text, "a/3") || strings.Contains(text, "a/4") || strings.Contains(text, "10.0.0.5") {
			t.Errorf("too much is shown:\n%s", text)
		}
	}
	// Backends with series of their own keep them.
	w.update(of("a", "a/0", "10.0.0.8:80"), of("a", "a/2", "10.0.0.3:80"))
	w.update(of("a", "a/0", "10.0.0.8:80"), of("a", "a/1"), of("a", "a/2", "10.0.0.3:80"))
	if text := lines(); !strings.Contains(text, "{a/2}") || strings.Contains(text, "{a/1}") {
		t.Errorf("another one is shown:\n%s", text)
	}
}

// The kernel knows the addresses of this host.
func TestOnThisHost(t *testing.T) {
	for _, a := range interfaceAddrs() {
		if a.IsLinkLocalUnicast() {
			continue // the address needs a zone, and weir refuses it anyway
		}
		if here, err := onThisHost(a); !here || err != nil {
			t.Errorf("%s, an address of an interface: %t, %v", a, here, err)
		}
	}
	for _, a := range []string{"192.0.2.1", "198.51.100.77", "2001:db8::1"} {
		if here, err := onThisHost(netip.MustParseAddr(a)); here || err != nil {
			t.Errorf("%s: %t, %v", a, here, err)
		}
	}
	if here, err := onThisHost(netip.MustParseAddr("127.77.0.1")); !here || err != nil {
		t.Errorf("127.77.0.1, which no interface has by itself: %t, %v", here, err)
	}
	ln, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	o := newOwn(onThisHost)
	at := ln.Addr().(*net.TCPAddr).AddrPort()
	o.set([]netip.AddrPort{at})
	for _, a := range interfaceAddrs() {
		if is, err := o.has(netip.AddrPortFrom(a.WithZone(""), at.Port())); !is && !a.IsLinkLocalUnicast() {
			t.Errorf("%s with the port of a socket: %t, %v", a, is, err)
		}
	}
}
