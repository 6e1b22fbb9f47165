package policy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/config"
)

func oldHello(suites ...uint16) *tls.ClientHelloInfo {
	return &tls.ClientHelloInfo{SupportedVersions: []uint16{tls.VersionTLS11, tls.VersionTLS10}, CipherSuites: suites}
}

func oldHandshake(client string, suites ...uint16) Handshake {
	return Handshake{Listener: "l", Host: "a.example.org", Policy: "partners", Client: netip.MustParseAddr(client), Hello: oldHello(suites...),
		Version: tls.VersionTLS10, Suite: tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA}
}

func TestClientsRemember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClients()
		begun := time.Now()
		c.Note(oldHandshake("198.51.100.7", 0x000a))
		time.Sleep(time.Hour)
		c.Note(oldHandshake("::ffff:198.51.100.200", 0x000a))
		c.Note(oldHandshake("2001:db8:1:2::3%eth0", 0x000a))
		failed := Handshake{Listener: "l", Client: netip.MustParseAddr("198.51.100.7"), Hello: oldHello(5), Err: errors.New("tls: client offered only unsupported versions: []")}
		c.Note(failed)
		c.Note(Handshake{Listener: "l", Host: "a.example.org", Policy: "partners", Version: tls.VersionTLS13})
		c.Note(Handshake{Listener: "l", Host: "a.example.org", Policy: "partners", Version: tls.VersionTLS13})
		s := c.Seen()
		if !s.Since.Equal(begun) || len(s.Clients) != 3 || len(s.Modern) != 1 || s.Modern[0].Count != 2 || s.Modern[0].Host != "a.example.org" {
			t.Fatalf("seen is %+v", s)
		}
		for _, l := range s.Clients {
			switch l.Network {
			case "198.51.100.0/24":
				want := SeenClients{Listener: "l", Host: "a.example.org", Policy: "partners", Result: ResultOK, Version: "TLS 1.0",
					Suite: "TLS_RSA_WITH_3DES_EDE_CBC_SHA", Newest: "TLS 1.1", JA4: JA4(oldHello(0x000a)), Network: l.Network,
					Count: 2, First: begun, Last: begun.Add(time.Hour), Suites: []string{"TLS_RSA_WITH_3DES_EDE_CBC_SHA"}}
				if l.Result == ResultOK && fmt.Sprint(l) != fmt.Sprint(want) {
					t.Errorf("%+v, want %+v", l, want)
				}
				if l.Result != ResultOK && (l.Result != ResultNoCommonVersion || l.Newest != "TLS 1.1" || l.Count != 1) {
					t.Errorf("the failure is %+v", l)
				}
			case "2001:db8:1::/48":
			default:
				t.Errorf("a network %s", l.Network)
			}
		}
	})
}

func TestClientsForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClients()
		c.Note(oldHandshake("198.51.100.7", 1))
		c.Note(oldHandshake("198.51.100.7", 2))
		c.Note(Handshake{Listener: "gone", Version: tls.VersionTLS13})
		time.Sleep(ClientsKept - time.Hour)
		c.Note(oldHandshake("198.51.100.7", 2))
		if s := c.Seen(); len(s.Clients) != 2 || len(s.Modern) != 1 {
			t.Errorf("before its time, seen is %+v", s)
		}
		time.Sleep(2 * time.Hour)
		s := c.Seen()
		if len(s.Clients) != 1 || s.Clients[0].Count != 2 || s.Evicted != 0 || len(s.Modern) != 0 {
			t.Errorf("after 30 days, seen is %+v", s)
		}
		c.Note(Handshake{Listener: "l", Version: tls.VersionTLS13})
		if n := len(*c.modern.Load()); n != 1 {
			t.Errorf("%d counts of TLS 1.3 are kept, want 1", n)
		}
		time.Sleep(2 * ClientsKept)
		if c.Seen(); len(c.networks) != 0 || len(c.admitted.lines) != 0 || c.admitted.order.Len() != 0 {
			t.Error("something is left of clients that were forgotten")
		}
	})
}

// The line that was seen longest ago is dropped first. Failures displace only failures.
func TestClientsAreBounded(t *testing.T) {
	c := NewClients()
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1}) }
	h := oldHandshake("192.0.2.1", 1)
	c.Note(h)
	for i := range maxClients + 10 {
		h.Client = address(i)
		c.Note(h)
		if i == 5 {
			h.Client = netip.MustParseAddr("192.0.2.1")
			c.Note(h)
		}
		h.Client, h.Err = address(i), errors.New("no")
		c.Note(h)
		h.Err = nil
	}
	s := c.Seen()
	if len(s.Clients) != 2*maxClients || s.Evicted != 11 || s.EvictedFailed != 10 || len(c.networks) > 2*maxClients {
		t.Errorf("%d lines, %d evicted, %d of failures", len(s.Clients), s.Evicted, s.EvictedFailed)
	}
	if n := c.networks[networkOf(address(0))]; n != 0 {
		t.Errorf("%d lines of the network seen longest ago", n)
	}
}

// A network that invents fingerprints does not fill the table.
func TestClientsOfOneNetwork(t *testing.T) {
	c := NewClients()
	for i := range 1000 {
		h := oldHandshake("192.0.2.1", uint16(i), tls.TLS_RSA_WITH_AES_128_CBC_SHA)
		h.Hello.SupportedVersions = []uint16{tls.VersionTLS10 + uint16(i%2)}
		c.Note(h)
	}
	other := oldHandshake("198.51.100.1", 1)
	c.Note(other)
	s := c.Seen()
	if len(s.Clients) != maxPerNetwork+2 {
		t.Errorf("%d lines, want %d", len(s.Clients), maxPerNetwork+2)
	}
	for _, l := range s.Clients {
		if l.JA4 == ManyJA4 && (l.Count != 1000-maxPerNetwork || l.Newest != "TLS 1.0" || len(l.Suites) != 1) {
			t.Errorf("the line of many is %+v", l)
		}
	}
}

func TestModernClientsCostNothing(t *testing.T) {
	c := NewClients()
	h := Handshake{Listener: "l", Host: "*.example.org", Policy: "default", Client: netip.MustParseAddr("192.0.2.1"),
		Hello: &tls.ClientHelloInfo{}, Version: tls.VersionTLS13, Suite: tls.TLS_AES_128_GCM_SHA256}
	if n := testing.AllocsPerRun(1000, func() { c.Note(h) }); n != 0 {
		t.Errorf("remembering a handshake with TLS 1.3 allocates %v times", n)
	}
}

func TestClientsAreSafeTogether(t *testing.T) {
	c := NewClients()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 200 {
				c.Note(oldHandshake(fmt.Sprintf("10.0.%d.1", j), uint16(i)))
				c.Note(Handshake{Listener: fmt.Sprint(j % 7), Version: tls.VersionTLS13})
				c.Note(Handshake{Listener: "l", Err: errors.New("no")})
			}
			c.Seen()
		})
	}
	all.Wait()
	var old, modern uint64
	for _, l := range c.Seen().Clients {
		old += l.Count
	}
	for _, m := range c.Seen().Modern {
		modern += m.Count
	}
	if old != 3200 || modern != 1600 {
		t.Errorf("%d old ones and %d modern ones are counted, want 3200 and 1600", old, modern)
	}
}

// The data of a real handshake appears in the table as the report needs it.
func TestClientsOfHandshakes(t *testing.T) {
	cert := newAuthority(t, "ca").issue(t, "a.example.org", true, time.Now().Add(time.Hour))
	p := newPolicy(t, anything(), cert, keyring{}.attach)
	c := NewClients()
	f := func(client *tls.Config, want SeenClients) {
		t.Helper()
		var hello *tls.ClientHelloInfo
		state, err := shake(t, Server(func(h *tls.ClientHelloInfo) (*Policy, error) { hello = h; return p, nil }, nil), client)
		if err != nil {
			t.Fatal(err)
		}
		c.Note(Handshake{Listener: "l", Hello: hello, Version: state.Version, Suite: state.CipherSuite})
		got := c.Seen().Clients[0]
		got.JA4, got.Suites, got.Count, got.First, got.Last = "", nil, 0, time.Time{}, time.Time{}
		want.Listener, want.Result = "l", ResultOK
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	triple := []uint16{tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA}
	f(&tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11, CipherSuites: triple}, SeenClients{Version: "TLS 1.1", Newest: "TLS 1.1", Suite: "TLS_RSA_WITH_3DES_EDE_CBC_SHA"})
	f(&tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: triple}, SeenClients{Version: "TLS 1.2", Newest: "TLS 1.2", Suite: "TLS_RSA_WITH_3DES_EDE_CBC_SHA"})
	limited := config.TLSPolicy{Name: "old", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS12, CipherSuites: allIDs()}
	p = newPolicy(t, limited, cert, keyring{}.attach)
	f(&tls.Config{}, SeenClients{Version: "TLS 1.2", Newest: "TLS 1.3", Suite: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"})
}
