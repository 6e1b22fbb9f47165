package filter

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

func prefixes(s string) (all []netip.Prefix) {
	for one := range strings.FieldsSeq(s) {
		all = append(all, netip.MustParsePrefix(one))
	}
	return all
}

func TestClients(t *testing.T) {
	f := func(allow, deny, client string, refused, explicitly, allowed bool) {
		t.Helper()
		var addr netip.Addr // of an unknown client
		if client != "" {
			addr = netip.MustParseAddr(client)
		}
		settings := &config.Clients{Allow: prefixes(allow), Deny: prefixes(deny)}
		for onlyDeny, want := range map[bool]bool{false: refused, true: explicitly} {
			c := newClients(settings, onlyDeny)
			x := newExchange("GET", "/")
			x.client = netip.AddrPortFrom(addr, 1)
			answer := ""
			if want {
				answer = "403 client_denied"
			}
			if got := c.Answer(x); got != want || x.answer != answer {
				t.Errorf("allow %s, deny %s, only deny %t: the request of %s got %q", allow, deny, onlyDeny, client, x.answer)
			}
			if got := c.GuardTunnel(x.client, nil); (got != nil) != want {
				t.Errorf("allow %s, deny %s, only deny %t: the connection of %s got %v", allow, deny, onlyDeny, client, got)
			}
		}
		if got := newClients(settings, true).allows(addr); got != allowed {
			t.Errorf("allow %s, deny %s: %s is in allow: %t", allow, deny, client, got)
		}
	}
	const lan, one = "203.0.113.0/24 2001:db8::/32", "203.0.113.66/32"
	f(lan, one, "203.0.113.7", false, false, true)
	f(lan, one, "203.0.113.66", true, true, false) // deny wins
	f(lan, one, "198.51.100.1", true, false, false)
	f(lan, one, "::ffff:203.0.113.7", false, false, true)
	f(lan, one, "::ffff:203.0.113.66", true, true, false)
	f(lan, one, "2001:db8:ffff::1", false, false, true)
	f(lan, one, "2001:db9::", true, false, false)
	f(lan, one, "", true, false, false)
	f("", one, "203.0.113.7", false, false, false)
	f("", one, "203.0.113.66", true, true, false)
	f("", one, "", false, false, false)
	f("", "fe80::/10", "fe80::1%eth0", true, true, false)
	f("0.0.0.0/0", "", "198.51.100.1", false, false, true)
	f("0.0.0.0/0", "", "2001:db8::1", true, false, false)
}

// A set of networks contains what one of them contains.
func TestNetworksEqualAList(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	address := func() netip.Addr {
		if random.IntN(2) == 0 {
			return netip.AddrFrom4([4]byte{10, byte(random.IntN(4)), 0, byte(random.IntN(256))})
		}
		return netip.AddrFrom16([16]byte{0x20, 1, 15: byte(random.IntN(256))})
	}
	for range 500 {
		var list []netip.Prefix
		for range random.IntN(8) {
			a := address()
			p, err := a.Prefix(random.IntN(a.BitLen() + 1))
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, p)
		}
		set := newNetworks(list)
		for range 50 {
			a := address()
			want := slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
			if got := set.contain(a); got != want {
				t.Fatalf("%v contain %v: %t", list, a, got)
			}
		}
	}
}

func TestClientsAllocateNothing(t *testing.T) {
	c := Compile(&config.Route{Backend: "b", Clients: &config.Clients{Allow: prefixes("203.0.113.0/24"), Deny: prefixes("203.0.113.66/32")}}, nil)
	x := newExchange("GET", "/")
	x.client = netip.MustParseAddrPort("203.0.113.7:5000")
	guard := c.answerers[0]
	if n := testing.AllocsPerRun(100, func() { guard.Answer(x) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Tunnels ask the guards that know connections, and count what they decide.
func TestGuardTunnel(t *testing.T) {
	c := Compile(&config.Route{Backend: "b", MaxBody: 1, Clients: &config.Clients{Deny: prefixes("203.0.113.66/32")}}, nil)
	var counted []string
	count := func(guard, result string) { counted = append(counted, guard+" "+result) }
	if r := c.GuardTunnel(netip.MustParseAddrPort("203.0.113.7:1"), nil, count); r != nil {
		t.Error(r)
	}
	if r := c.GuardTunnel(netip.MustParseAddrPort("203.0.113.66:1"), nil, count); r != refuseClient {
		t.Error(r)
	}
	if want := []string{"clients allowed", "clients client_denied"}; !slices.Equal(counted, want) {
		t.Errorf("counted %q", counted)
	}
	if r := (*Chain)(nil).GuardTunnel(netip.AddrPort{}, nil, count); r != nil {
		t.Error(r)
	}
}
