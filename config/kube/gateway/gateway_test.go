package gateway

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
)

// The host names of a route and of its listener have an intersection, which is the more specific
// one. A wildcard stands for any number of labels, and not for none.
func TestIntersect(t *testing.T) {
	f := func(listener, route, want string, ok bool) {
		t.Helper()
		if got, is := Intersect(listener, route); got != want || is != ok {
			t.Errorf("of the listener %q, the route %q has %q, %t, not %q, %t", listener, route, got, is, want, ok)
		}
	}
	f("", "", "", true)
	f("", "a.example", "a.example", true)
	f("a.example", "", "a.example", true)
	f("a.example", "a.example", "a.example", true)
	f("a.example", "b.example", "", false)
	f("*.example", "a.example", "a.example", true)
	f("*.example", "a.b.example", "a.b.example", true)
	f("*.example", "example", "", false)
	f("*.example", ".example", "", false)
	f("*.example", "aexample", "", false)
	f("*.example", "*.b.example", "*.b.example", true)
	f("*.b.example", "*.example", "*.b.example", true)
	f("a.b.example", "*.example", "a.b.example", true)
	f("*.a.example", "*.b.example", "", false)
	if got := hostnamesFor("*.example", []gatewayv1.Hostname{"B.example", "b.example", "*.c.example"}); !slices.Equal(got, []string{"b.example", "*.c.example"}) {
		t.Error(got)
	}
}

func TestMoreSpecific(t *testing.T) {
	order := []string{"a.long.name.example", "b.example", "*.long.name.example", "*.example", ""}
	for i, a := range order {
		for j, b := range order {
			if moreSpecific(a, b) != (i < j) {
				t.Errorf("%q before %q: %t", a, b, !(i < j))
			}
		}
	}
}

// gatewayNamed makes a Gateway that is older than those with a greater age.
func gatewayNamed(name string, age int, addresses ...string) *gatewayv1.Gateway {
	g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(age), 0))}}
	for _, a := range addresses {
		g.Spec.Addresses = append(g.Spec.Addresses, gatewayv1.GatewaySpecAddress{Value: a})
	}
	return g
}

// Addresses stay with the Gateway that has them, whatever other Gateways come and go, and each
// Gateway has its own.
func TestPoolIsStable(t *testing.T) {
	pool := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/30"), netip.MustParsePrefix("2001:db8::/127")}
	kind := gatewayv1.IPAddressType
	var before map[config.ObjectName]*Assigned
	assign := func(all ...*gatewayv1.Gateway) map[string]string {
		of := map[string]string{}
		before = FromPool(all, pool, func(g *gatewayv1.Gateway) *Assigned { return before[NameOf(g)] })
		for name, a := range before {
			of[name.Name] = "none"
			for _, addr := range a.Addresses {
				of[name.Name] = addr.String()
			}
			if (len(a.Addresses) == 0) != (a.Missing != nil) {
				t.Errorf("%s has %v, and the problem %v", name, a.Addresses, a.Missing)
			}
		}
		for _, g := range all {
			g.Status.Addresses = nil
			if a := of[g.Name]; a != "none" {
				g.Status.Addresses = []gatewayv1.GatewayStatusAddress{{Type: &kind, Value: a}}
			}
		}
		return of
	}
	want := func(got map[string]string, name, address string) {
		t.Helper()
		if got[name] != address {
			t.Errorf("%s has the address %s, not %s: %v", name, got[name], address, got)
		}
	}
	a, b, c, d, e := gatewayNamed("a", 1), gatewayNamed("b", 2), gatewayNamed("c", 3), gatewayNamed("d", 4), gatewayNamed("e", 5)
	got := assign(b, c)
	want(got, "b", "192.0.2.1")
	want(got, "c", "192.0.2.2")
	got = assign(a, b, c, d, e) // the oldest one comes last, and takes nobody's address
	want(got, "a", "2001:db8::")
	want(got, "b", "192.0.2.1")
	want(got, "c", "192.0.2.2")
	want(got, "d", "2001:db8::1")
	want(got, "e", "none")
	got = assign(a, c, d, e)
	want(got, "e", "192.0.2.1")
	want(got, "c", "192.0.2.2")
	got = assign(a, c, d, e, gatewayNamed("f", 6, "192.0.2.2")) // an older one has this address
	want(got, "f", "none")
	want(got, "c", "192.0.2.2")
	got = assign(gatewayNamed("o", 0, "192.0.2.2"), a, c, d, e) // an older one may ask for it
	want(got, "o", "192.0.2.2")
	want(got, "c", "none")
	if (&Assigned{}).Equal(&Assigned{Addresses: []netip.Addr{{}}}) || !(&Assigned{Missing: &Problem{"a", "b"}}).Equal(&Assigned{Missing: &Problem{"a", "b"}}) ||
		(&Assigned{Rejected: &Problem{"a", "b"}}).Equal(&Assigned{}) {
		t.Error("Equal is wrong")
	}
}

// The address of a network, and that of all its hosts, are nobody's.
func TestPoolLeavesNetworkAddressesOut(t *testing.T) {
	p := &poolState{pool: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/30"), netip.MustParsePrefix("198.51.100.0/31"), netip.MustParsePrefix("203.0.113.7/32")}, taken: map[netip.Addr]*gatewayv1.Gateway{}}
	var got []string
	for addr, ok := p.free(); ok; addr, ok = p.free() {
		p.taken[addr] = &gatewayv1.Gateway{}
		got = append(got, addr.String())
		if !p.has(addr) {
			t.Errorf("the pool does not have %s", addr)
		}
	}
	if want := []string{"192.0.2.1", "192.0.2.2", "198.51.100.0", "198.51.100.1", "203.0.113.7"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, not := range []string{"192.0.2.0", "192.0.2.3", "192.0.2.4", "::1"} {
		if p.has(netip.MustParseAddr(not)) {
			t.Errorf("the pool has %s", not)
		}
	}
}

// A View notices each change of what was looked up.
func TestViewNoticesChanges(t *testing.T) {
	grant := &gatewayv1.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "g"}, Spec: gatewayv1.ReferenceGrantSpec{
		From: []gatewayv1.ReferenceGrantFrom{{Group: Group, Kind: KindHTTPRoute, Namespace: "a"}}, To: []gatewayv1.ReferenceGrantTo{{Kind: "Service"}}}}
	index := func(grants ...*gatewayv1.ReferenceGrant) *Index {
		return NewIndex(&Objects{Grants: grants}, "c", nil, func(string) bool { return true }, NewKnown())
	}
	v := NewView(index(), nil)
	to := config.ObjectName{Namespace: "b", Name: "s"}
	if v.permits(KindHTTPRoute, "a", "Service", to) {
		t.Error("a reference without a grant is permitted")
	}
	if !v.Renew(index()) || v.Renew(index(grant)) {
		t.Error("the view does not notice a new grant")
	}
	v = NewView(index(grant), nil)
	if !v.permits(KindHTTPRoute, "a", "Service", to) || v.permits(KindGRPCRoute, "a", "Service", to) || v.permits(KindHTTPRoute, "c", "Service", to) ||
		v.permits(KindHTTPRoute, "a", "Secret", to) {
		t.Error("the grant permits something else")
	}
	if !v.Renew(index(grant)) || v.Renew(index()) {
		t.Error("the view does not notice that the grant is gone")
	}
}

// The features are in the order that the API demands.
func TestFeaturesAreSorted(t *testing.T) {
	pool := config.GatewayAddresses{Pool: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/28")}}
	for settings, infrastructure := range map[*config.Gateways]bool{{Addresses: pool}: false, {Addresses: pool, Services: true}: true, {Addresses: config.GatewayAddresses{Service: &config.GatewayService{}}}: true} {
		var names []string
		for _, f := range Features(settings) {
			names = append(names, string(f.Name))
		}
		if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) || slices.Contains(names, "GatewayInfrastructure") != infrastructure ||
			slices.Contains(names, "GatewayStaticAddresses") != (settings.Addresses.Pool != nil) {
			t.Errorf("the features %q are not in order, or one is there twice", names)
		}
	}
}
