package gateway

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

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

// Each name is followed by the names that have all its names, the most specific one first.
func TestWider(t *testing.T) {
	for name, want := range map[string][]string{"": {""}, "example": {"example", ""}, "a.b.example": {"a.b.example", "*.b.example", "*.example", ""},
		"*.b.example": {"*.b.example", "*.example", ""}, "*.example": {"*.example", ""}} {
		var got []string
		for k := range wider(name) {
			switch {
			case !k.below:
				got = append(got, k.name)
			case k.name == "":
				got = append(got, "")
			default:
				got = append(got, "*."+k.name)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("of %q: %q, not %q", name, got, want)
		}
	}
}

// randomName returns a host name of few labels, so that names often have names in common.
func randomName(r *rand.Rand) string {
	labels := []string{"a", "b", "example"}
	name := labels[r.IntN(3)]
	for range r.IntN(3) {
		name = labels[r.IntN(3)] + "." + name
	}
	switch r.IntN(4) {
	case 0:
		return "*." + name
	case 1:
		return []string{"", name}[r.IntN(2)]
	}
	return name
}

// With many routes and listeners, the indexes find the same as a comparison of all pairs.
func TestIndexesFindAll(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 1))
	for range 2000 {
		host := randomName(r)
		index, names := &hostIndex{map[hostKey]int{}, map[hostKey]int{}, map[hostKey]bool{keyOf(host): true}}, []string{}
		for i := range 1 + r.IntN(6) {
			names = append(names, randomName(r))
			index.add(names[i], i)
		}
		want := slices.IndexFunc(names, func(n string) bool { _, ok := Intersect(n, host); return ok })
		if got := index.find(host); got != want {
			t.Fatalf("of %q, %q has names in common with number %d, not %d", names, host, got, want)
		}
	}
	if (*hostIndex)(nil).find("") != -1 {
		t.Error("without an index there is a name")
	}

	protocols := []gatewayv1.ProtocolType{"HTTP", "HTTP", "HTTP", "HTTPS", "TLS", "TCP", "UDP"}
	for range 2000 {
		var all []*Listener
		for i := range 2 + r.IntN(8) {
			all = append(all, &Listener{Name: fmt.Sprint(i), Port: 80 + r.IntN(2), Protocol: protocols[r.IntN(len(protocols))], Hostname: randomName(r)})
		}
		own := r.IntN(len(all))
		findConflicts(all[:own], all[own:])
		for i, l := range all {
			var want *Problem
			for j, other := range all {
				if counts := i < own && j < own || j < i && other.conflict == nil; counts && i != j {
					want = orElse(want, conflictOf(l, other))
				}
			}
			if !equalProblem(l.conflict, want) {
				t.Fatalf("the %v has the conflict %v, not %v", l, l.conflict, want)
			}
		}
		g, host := &Gateway{Listeners: all}, randomName(r)
		var want *Listener
		for _, l := range all {
			if both, ok := Intersect(l.Hostname, host); l.Port == 80 && l.Owns() && ok && both == host && (want == nil || narrower(l.Hostname, want.Hostname)) {
				want = l
			}
		}
		if got := g.Covering(80, host); got != want {
			t.Fatalf("of %v, %q belongs to %v, not %v", all, host, got, want)
		}
	}
}

// Of HTTPRoutes and GRPCRoutes with a common host name on a common listener, the oldest kind stays.
func TestSeparateComparesAll(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 2))
	listeners := []*Listener{{Name: "a"}, {Name: "b"}}
	for range 2000 {
		g := &Gateway{}
		var lost []string
		for i := range 2 + r.IntN(8) {
			a := &Attachment{Route: &Route{Kind: []string{KindHTTPRoute, KindGRPCRoute, KindTLSRoute}[r.IntN(3)], Name: config.ObjectName{Namespace: "n", Name: fmt.Sprint(i)}}}
			if r.IntN(6) == 0 {
				a.Accept = &Problem{"Because", "It is so."}
			}
			for range 1 + r.IntN(2) {
				a.Bound = append(a.Bound, Bound{listeners[r.IntN(2)], []string{randomName(r), randomName(r)}})
			}
			g.Routes = append(g.Routes, a)
			want := ""
			for j, older := range g.Routes[:i] {
				if want == "" && lost[j] == "" && older.Accept == nil && a.Accept == nil && a.Kind != older.Kind && a.Kind != KindTLSRoute && older.Kind != KindTLSRoute && shareHost(a, older) {
					want = "The older " + older.String() + " "
				}
			}
			lost = append(lost, want)
		}
		g.separate()
		for i, a := range g.Routes {
			switch got := a.Accept; {
			case got == nil && lost[i] == "", got != nil && lost[i] == "" && got.Reason == "Because":
			case got == nil || lost[i] == "" || !strings.HasPrefix(got.Message, lost[i]) || a.Bound != nil:
				t.Fatalf("number %d of %v has the problem %v, not %q", i, g.Routes, got, lost[i])
			}
		}
	}
}

// shareHost reports whether two routes have a common host name on a common listener.
func shareHost(a, b *Attachment) bool {
	for _, x := range a.Bound {
		for _, y := range b.Bound {
			for _, h := range x.Hostnames {
				if x.Listener == y.Listener && slices.ContainsFunc(y.Hostnames, func(k string) bool { _, ok := Intersect(h, k); return ok }) {
					return true
				}
			}
		}
	}
	return false
}

// narrower reports whether the first of two names that have a name in common is more specific.
func narrower(a, b string) bool { both, ok := Intersect(a, b); return ok && both == a && a != b }

// Two policies want a Service, and routes use it several times: the second policy is in conflict, and is told once.
func TestPoliciesAreToldOnce(t *testing.T) {
	at := func(name string, age int) *gatewayv1.BackendTLSPolicy {
		ref := gatewayv1.LocalPolicyTargetReferenceWithSectionName{LocalPolicyTargetReference: gatewayv1.LocalPolicyTargetReference{Kind: "Service", Name: "s"}}
		other := ref
		other.Name = "other"
		return &gatewayv1.BackendTLSPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(age), 0))},
			Spec: gatewayv1.BackendTLSPolicySpec{TargetRefs: []gatewayv1.LocalPolicyTargetReferenceWithSectionName{ref, other, ref},
				Validation: gatewayv1.BackendTLSPolicyValidation{Hostname: "h", WellKnownCACertificates: new(gatewayv1.WellKnownCACertificatesSystem)}}}
	}
	v := NewView(NewIndex(&Objects{Policies: []*gatewayv1.BackendTLSPolicy{at("young", 2), at("old", 1)}}, "c", nil, func(string) bool { return true }, NewKnown()), nil)
	g := &Gateway{}
	service := config.ObjectName{Namespace: "a", Name: "s"}
	for range 3 {
		if got := v.TLSTo(g, service, "web", func(string) bool { return true }); got == nil || got.Policy.Name != "old" {
			t.Fatalf("the Service is used with %v", got)
		}
	}
	if len(g.policies) != 2 || g.policies[0].policy.Name != "young" || g.policies[0].accept == nil || g.policies[1].accept != nil {
		t.Errorf("the policies have the states %+v", g.policies)
	}
	if n := len(v.policies[service]); n != 2 {
		t.Errorf("the Service has %d policies", n)
	}
	if v.TLSTo(g, config.ObjectName{Namespace: "b", Name: "s"}, "web", func(string) bool { return true }) != nil {
		t.Error("a Service of another namespace has the policy")
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
	o := gatewayNamed("o", 0, "192.0.2.2")
	got = assign(o, a, c, d, e) // an older one asks for it, and does not take it either
	want(got, "o", "none")
	want(got, "c", "192.0.2.2")
	got = assign(o, a, d, e)
	want(got, "o", "192.0.2.2")
	o.Spec.Addresses[0].Value = "192.0.2.1" // o asks for the address of e, and does not get it
	got = assign(o, a, d, e)
	want(got, "o", "none")
	want(got, "e", "192.0.2.1")
	e.Spec.Addresses = o.Spec.Addresses // e asks for its own address
	got = assign(o, a, d, e)
	want(got, "e", "192.0.2.1")
	young := gatewayNamed("young", 7, "192.0.2.2")
	got = assign(o, a, d, e, young)
	want(got, "young", "192.0.2.2")
	o.Spec.Addresses = young.Spec.Addresses
	before = nil // a replica that has just started knows only the statuses
	got = assign(o, a, d, e, young)
	want(got, "young", "192.0.2.2")
	want(got, "o", "none")
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

// The message of a condition is as the API server stores it.
func TestMessagesAreStored(t *testing.T) {
	for _, text := range []string{"", "It is so.", "\xff", strings.Repeat("a", maxMessage), strings.Repeat("ä", maxMessage), "a" + strings.Repeat("ä", maxMessage)} {
		got := shortened(text)
		if !utf8.ValidString(got) || len(got) > maxMessage || len(text) <= maxMessage && utf8.ValidString(text) && got != text || len(text) > maxMessage && !strings.HasSuffix(got, "ä…") {
			t.Errorf("a message of %d bytes becomes one of %d bytes, which ends in %q", len(text), len(got), got[max(0, len(got)-10):])
		}
	}
}

// The features are in the order that the API demands.
func TestFeaturesAreSorted(t *testing.T) {
	pool := config.GatewayAddresses{Pool: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/28")}}
	service, shared := config.GatewayAddresses{Service: &config.GatewayService{}}, config.GatewayAddresses{Shared: []string{"web"}}
	for settings, infrastructure := range map[*config.Gateways]bool{{Addresses: pool}: false, {Addresses: pool, Services: true}: true, {Addresses: service}: true, {Addresses: shared}: false} {
		var names []string
		for _, f := range Features(settings) {
			names = append(names, string(f.Name))
		}
		if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) || slices.Contains(names, "GatewayInfrastructure") != infrastructure ||
			slices.Contains(names, "GatewayStaticAddresses") != (settings.Addresses.Pool != nil) || slices.ContainsFunc(names, func(n string) bool { return slices.Contains(needOwnAddress, n) }) != (settings.Addresses.Shared == nil) {
			t.Errorf("the features %q are not in order, or one is there twice", names)
		}
	}
}
