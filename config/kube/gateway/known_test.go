package gateway

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
)

// An object keeps its Route while only its status changes, and the old object is forgotten.
func TestKnownKeepsRoutes(t *testing.T) {
	state := func(generation int64, host gatewayv1.Hostname) *gatewayv1.HTTPRoute {
		return &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "r", UID: "1", Generation: generation}, Spec: gatewayv1.HTTPRouteSpec{Hostnames: []gatewayv1.Hostname{host}}}
	}
	k := NewKnown()
	first, second := state(1, "x.example"), state(1, "x.example")
	r := k.of(first)
	if k.of(first) != r || k.of(second) != r || r.HTTP != &second.Spec || r.Meta != &second.ObjectMeta {
		t.Errorf("the new state has the route %v of %p, and not of %p", r, r.HTTP, &second.Spec)
	}
	third := state(2, "y.example")
	if now := k.of(third); now == r || now.Hostnames[0] != "y.example" || r.Hostnames[0] != "x.example" {
		t.Errorf("a new spec has the old route, or changes it: %v", now.Hostnames)
	}
	if unnumbered := state(0, "z.example"); k.of(unnumbered) == k.of(state(0, "z.example")) {
		t.Error("without a generation, weir cannot know that the specs are equal")
	}
	if k.Len() != 1 {
		t.Errorf("%d objects are known", k.Len())
	}
}

func TestSame(t *testing.T) {
	gateway := func(change func(*gatewayv1.Gateway)) *gatewayv1.Gateway {
		g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "g", UID: "1", Generation: 3, Annotations: map[string]string{"a": "b"}}}
		g.Status.Addresses = []gatewayv1.GatewayStatusAddress{{Value: "192.0.2.1"}}
		change(g)
		return g
	}
	before := gateway(func(*gatewayv1.Gateway) {})
	for name, c := range map[string]struct {
		change func(*gatewayv1.Gateway)
		same   bool
	}{
		"a condition":  {func(g *gatewayv1.Gateway) { g.Status.Conditions = []metav1.Condition{{Type: "Accepted"}} }, true},
		"the version":  {func(g *gatewayv1.Gateway) { g.ResourceVersion = "7" }, true},
		"the spec":     {func(g *gatewayv1.Gateway) { g.Generation = 4 }, false},
		"the object":   {func(g *gatewayv1.Gateway) { g.UID = "2" }, false},
		"annotations":  {func(g *gatewayv1.Gateway) { g.Annotations = nil }, false},
		"an address":   {func(g *gatewayv1.Gateway) { g.Status.Addresses = nil }, false},
		"its deletion": {func(g *gatewayv1.Gateway) { g.DeletionTimestamp = new(metav1.Now()) }, false},
	} {
		if got := Same(before, gateway(c.change)); got != c.same {
			t.Errorf("another state with another value of %s is the same: %v", name, got)
		}
	}
}

// compareTexts orders names as their texts.
func TestCompareTexts(t *testing.T) {
	var all []config.ObjectName
	for _, namespace := range []string{"", "a", "a-b", "a.b", "ab", "b"} {
		for _, name := range []string{"x", "x-y"} {
			all = append(all, config.ObjectName{Namespace: namespace, Name: name})
		}
	}
	for _, a := range all {
		for _, b := range all {
			if got, want := compareTexts(a, b), strings.Compare(fmt.Sprint(a), fmt.Sprint(b)); got != want {
				t.Errorf("%s and %s: %d, and not %d", a, b, got, want)
			}
		}
	}
}
