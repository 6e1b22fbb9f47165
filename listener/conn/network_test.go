package conn

import (
	"net/netip"
	"slices"
	"testing"
	"unsafe"
)

func TestNetworkOf(t *testing.T) {
	f := func(address string, p Prefixes, want string) {
		t.Helper()
		a, _ := netip.ParseAddr(address)
		n := NetworkOf(a, p)
		if n.String() != want || n.IsValid() != (want != "unknown") {
			t.Errorf("%q belongs to %v, want %s", address, n, want)
		}
	}
	f("192.0.2.77", DefaultPrefixes, "192.0.2.77/32")
	f("::ffff:192.0.2.77", DefaultPrefixes, "192.0.2.77/32")
	f("2001:db8:1:2:3:4:5:6", DefaultPrefixes, "2001:db8:1:2::/64")
	f("fe80::1%eth0", DefaultPrefixes, "fe80::/64")
	f("::1", DefaultPrefixes, "::/64")
	f("::", DefaultPrefixes, "::/64")
	f("", DefaultPrefixes, "unknown")
	f("192.0.2.77", Prefixes{IPv4: 24, IPv6: 56}, "192.0.2.0/24")
	f("192.0.2.77", Prefixes{IPv4: 27}, "192.0.2.64/27")
	f("192.0.2.77", Prefixes{}, "0.0.0.0/0")
	f("2001:db8:1:23ff::", Prefixes{IPv6: 56}, "2001:db8:1:2300::/56")
	f("2001:db8:1:23ff::", Prefixes{IPv6: 58}, "2001:db8:1:23c0::/58")
	f("2001:db8::1", Prefixes{IPv6: 128}, "2001:db8::1/128")
	f("2001:db8::1", Prefixes{}, "::/0")
	f("255.255.255.255", Prefixes{IPv4: 1}, "128.0.0.0/1")
}

func TestLevels(t *testing.T) {
	f := func(address string, p Prefixes, want ...string) {
		t.Helper()
		a, _ := netip.ParseAddr(address)
		n := NetworkOf(a, p)
		levels, count := n.Levels()
		var got []string
		for _, l := range levels[:count] {
			got = append(got, l.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("the levels of %s under %v are %v, want %v", address, p, got, want)
		}
		if levels[count-1] != n {
			t.Errorf("the last level of %v is %v", n, levels[count-1])
		}
		if allocated := testing.AllocsPerRun(100, func() { n.Levels() }); allocated != 0 {
			t.Errorf("%v allocations", allocated)
		}
	}
	f("2001:db8:1:23ff::5", DefaultPrefixes, "2001:db8:1::/48", "2001:db8:1:2300::/56", "2001:db8:1:23ff::/64")
	f("2001:db8:1:23ff::5", Prefixes{IPv6: 128}, "2001:db8:1::/48", "2001:db8:1:2300::/56", "2001:db8:1:23ff::/64", "2001:db8:1:23ff::5/128")
	f("2001:db8:1:23ff::5", Prefixes{IPv6: 60}, "2001:db8:1::/48", "2001:db8:1:2300::/56", "2001:db8:1:23f0::/60")
	f("2001:db8:1:23ff::5", Prefixes{IPv6: 48}, "2001:db8:1::/48")
	f("2001:db8:1:23ff::5", Prefixes{IPv6: 32}, "2001:db8::/32")
	f("::1", DefaultPrefixes, "::/48", "::/56", "::/64")
	f("::1", Prefixes{}, "::/0")
	f("192.0.2.77", DefaultPrefixes, "192.0.2.0/24", "192.0.2.77/32")
	f("::ffff:192.0.2.77", DefaultPrefixes, "192.0.2.0/24", "192.0.2.77/32")
	f("192.0.2.77", Prefixes{IPv4: 24}, "192.0.2.0/24")
	f("192.0.2.77", Prefixes{IPv4: 16}, "192.0.0.0/16")
	f("192.0.2.77", Prefixes{}, "0.0.0.0/0")
	f("", DefaultPrefixes, "unknown")
}

// All spellings of an address have the same network value. Different networks have
// different values.
func TestNetworksAreComparable(t *testing.T) {
	f := func(a, b string, p Prefixes, same bool) {
		t.Helper()
		if got := NetworkOf(netip.MustParseAddr(a), p) == NetworkOf(netip.MustParseAddr(b), p); got != same {
			t.Errorf("%s and %s are one network: %t", a, b, got)
		}
	}
	f("192.0.2.1", "::ffff:192.0.2.1", DefaultPrefixes, true)
	f("192.0.2.1", "192.0.2.2", DefaultPrefixes, false)
	f("fe80::1%eth0", "fe80::2%eth1", DefaultPrefixes, true)
	f("2001:db8::1", "2001:db8:0:1::1", DefaultPrefixes, false)
	f("0.0.0.0", "::", Prefixes{}, false)
}

func TestIdentify(t *testing.T) {
	c := &Conn{Origin: Origin{Client: netip.MustParseAddrPort("[2001:db8::1]:80")}}
	if c.Network() != (Network{}) {
		t.Errorf("before it was identified: %v", c.Network())
	}
	c.Identify(Prefixes{IPv4: 32, IPv6: 48})
	if got := c.Network().String(); got != "2001:db8::/48" {
		t.Errorf("its network is %s", got)
	}
	c = new(Conn)
	c.Identify(Prefixes{})
	if c.Network() != (Network{}) {
		t.Errorf("without an address: %v", c.Network())
	}
	if n := testing.AllocsPerRun(100, func() { c.Network() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Every idle client has a Conn, so a Conn must not grow into the next size class of the
// allocator.
func TestSizeOfConn(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) == 8 && unsafe.Sizeof(Conn{}) > 448 {
		t.Errorf("a Conn takes %d bytes; the next size class is 480", unsafe.Sizeof(Conn{}))
	}
}
