package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
)

// A Gateway with addresses of its own has a Service while weir serves something for it.
func TestServiceIsGone(t *testing.T) {
	f := func(change func(*Gateway), gone bool) {
		t.Helper()
		g := &Gateway{Object: &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Spec: gatewayv1.GatewaySpec{GatewayClassName: "weir"}},
			Assigned: &Assigned{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, Listeners: []*Listener{{Port: 80}}}
		change(g)
		if s := g.Service(); s.Gone != gone || s.Name != "edge-weir" {
			t.Errorf("the Service is %+v", s)
		}
	}
	f(func(*Gateway) {}, false)
	f(func(g *Gateway) { g.rejected = problem(gatewayv1.GatewayReasonInvalid, "no") }, true)
	f(func(g *Gateway) { g.Assigned = &Assigned{} }, true)
	f(func(g *Gateway) { g.Listeners = nil }, true)
}

// The name of a Service has at most 63 bytes, no dots, and a letter at first; that of a Gateway need not.
func TestServiceName(t *testing.T) {
	names := map[string]bool{}
	for _, gateway := range []string{"edge", "edge.example", "2edge", strings.Repeat("a", 63), strings.Repeat("a", 64)} {
		name := serviceName(&gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: gateway}, Spec: gatewayv1.GatewaySpec{GatewayClassName: "weir"}})
		if (name == gateway+"-weir") != (gateway == "edge") || len(name) > 63 || strings.Contains(name, ".") || name[0] == '2' || names[name] {
			t.Errorf("the Service of %s is called %s", gateway, name)
		}
		names[name] = true
	}
}

// A free port is one behind those that were given last, so that no load balancer sends it connections of its former
// Gateway. Ports outside of the range do not count.
func TestFreePorts(t *testing.T) {
	f := func(written []int32, taken []int32, want string) {
		t.Helper()
		all, used := map[ownedPort]int32{}, map[int32]bool{}
		for i, port := range written {
			all[ownedPort{uid: fmt.Sprint(i)}] = port
		}
		for _, port := range taken {
			used[port] = true
		}
		if got := fmt.Sprint(freePorts(config.PortRange{First: 20000, Last: 20003}, all, used)); got != want {
			t.Errorf("%v are written, %v are taken: %s are free, want %s", written, taken, got, want)
		}
	}
	f(nil, nil, "[20000 20001 20002 20003]")
	f([]int32{20001}, []int32{20001}, "[20002 20003 20000]")
	f([]int32{20001, 20002}, []int32{20001}, "[20003 20000 20002]")
	f([]int32{20003}, nil, "[20000 20001 20002 20003]")
	f([]int32{30000, 19999}, nil, "[20000 20001 20002 20003]")
	f([]int32{20001}, slices.Collect(func(yield func(int32) bool) {
		for port := int32(20000); port < 20004 && yield(port); port++ {
		}
	}), "[]")
}
