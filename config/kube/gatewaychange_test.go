package kube

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config/kube/gateway"
)

// After each of many random changes, also of Gateways, of their routes and of the file, the result is that of
// a conversion from scratch. TestIncrementalConversion does the same for the other objects.
func TestIncrementalGateways(t *testing.T) {
	for seed, texts := range [][]string{
		{gatewayConfig, strings.Replace(gatewayConfig, "192.0.2.0/28", "192.0.2.0/30", 1)}, {gatewayConfig, sharedHostsConfig},
		{sharedHostsConfig, sharedConfig}, {sharedOwnedConfig, sharedHostsConfig},
	} {
		random := rand.New(rand.NewPCG(uint64(seed), 3))
		fixed := mustRead(t, gatewayBase+strings.ReplaceAll(openGateway, "NAMESPACE", "a")+"\n---\n{apiVersion: v1, kind: Service, metadata: {name: svc, namespace: a}, spec: {ports: [{port: 80}]}}")
		objects := map[string]*Manifests{"": fixed}
		c := Converter{File: mustParse(t, texts[0])}
		for step := range 250 {
			what := randomObject(random)
			kind, rest, _ := strings.Cut(strings.SplitN(what, "kind: ", 2)[1], ",")
			name, _, _ := strings.Cut(rest, ", creationTimestamp")
			if random.IntN(4) == 0 {
				what = "without " + kind + name
				delete(objects, kind+name)
			} else {
				objects[kind+name] = mustRead(t, what)
			}
			if random.IntN(50) == 0 {
				what += ", and another file"
				texts[0], texts[1] = texts[1], texts[0]
				c.File = mustParse(t, texts[0])
			}
			got, want := c.Convert(merged(objects)), (&Converter{File: c.File}).Convert(merged(objects))
			writeAddresses(objects, got)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, change %d (%s): got\n%s\nwant\n%s", seed, step, what, showGateways(got), showGateways(want))
			}
		}
	}
}

// writeAddresses writes the addresses of Gateways into their statuses, as a leader does.
func writeAddresses(objects map[string]*Manifests, r *Routing) {
	shown := map[types.NamespacedName][]gatewayv1.GatewayStatusAddress{}
	for _, s := range r.Gateways.Status {
		for _, g := range s.Gateways {
			shown[types.NamespacedName{Namespace: g.Namespace, Name: g.Name}] = g.Addresses
		}
	}
	for _, m := range objects {
		if m.Gateway == nil {
			continue
		}
		for i, g := range m.Gateway.Gateways {
			g = g.DeepCopy()
			g.Status.Addresses = shown[types.NamespacedName{Namespace: g.Namespace, Name: g.Name}]
			m.Gateway.Gateways[i] = g
		}
	}
}

// A Gateway keeps its address, or its ports, while the cluster does not show its status or EndpointSlice yet. Another
// Gateway of the same second whose name comes first in the alphabet does not take them.
func TestAssignmentsStayBeforeTheyAreWritten(t *testing.T) {
	gateways := func(all ...string) (text string) {
		for _, name := range all {
			name, uid, _ := strings.Cut(name, " ")
			text += fmt.Sprintf("\n---\n{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: %s, uid: %q}, spec: {gatewayClassName: weir, listeners: [{name: web, port: 80, protocol: HTTP}]}}", name, uid)
		}
		return gatewayBase + text
	}
	for mode, text := range map[string]string{
		"pool":    gatewayConfig,
		"service": strings.Replace(gatewayConfig, "pool: [192.0.2.0/28]", "service: {replicas: weir/weir, ports: 20000-20003}", 1),
	} {
		t.Run(mode, func(t *testing.T) {
			c := Converter{File: mustParse(t, text)}
			assigned := func(all ...string) map[string]string {
				o := &mustRead(t, gateways(all...)).Objects
				c.Convert(o)
				of := map[string]string{}
				for name, p := range c.known.gateways.parts {
					a := p.gateway.assigned
					if of[name.Name] = fmt.Sprint(a.Addresses); a.Behind != nil {
						of[name.Name] = fmt.Sprint(a.Behind.Wants)
					}
				}
				return of
			}
			first := assigned("m 1")["m"]
			c.File = mustParse(t, text+"limits: {pending: 4000}\n") // converts all objects again
			second := assigned("c 2", "m 1")
			if second["m"] != first || second["c"] == first {
				t.Errorf("m had %s, and with c there are %v", first, second)
			}
			if now := assigned("b 3", "c 4", "m 1"); now["m"] != first || now["b"] == now["c"] {
				t.Errorf("m had %s, and after c was created again there are %v", first, now)
			} else if now["b"] != second["c"] && mode == "pool" {
				t.Errorf("b has %s: c, which was created again, kept the address %s", now["b"], second["c"])
			}
		})
	}
}

// randomObject returns an object of gatewayDice.
func randomObject(random *rand.Rand) string {
	bytes := make([]byte, 100)
	for i := range bytes {
		bytes[i] = byte(random.Uint32())
	}
	d := gatewayDice{bytes}
	return d.object()
}

// merged returns the objects of several Manifests.
func merged(all map[string]*Manifests) *Objects {
	o := &Objects{Gateway: &gateway.Objects{}}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		m := all[name]
		o.Ingresses, o.Services = append(o.Ingresses, m.Ingresses...), append(o.Services, m.Services...)
		if m.Gateway == nil {
			continue
		}
		sum, more := reflect.ValueOf(o.Gateway).Elem(), reflect.ValueOf(m.Gateway).Elem()
		for i := range sum.NumField() {
			sum.Field(i).Set(reflect.AppendSlice(sum.Field(i), more.Field(i)))
		}
	}
	return o
}

// A status that weir or another controller writes converts nothing, and a changed route only its Gateway.
func TestStatusesConvertNothing(t *testing.T) {
	m := manyRoutes(t, 300)
	for i, r := range m.Gateway.HTTP {
		r.UID, r.Generation = types.UID(fmt.Sprint("r", i)), 1
	}
	for i, g := range m.Gateway.Gateways {
		g.UID, g.Generation = types.UID(fmt.Sprint("g", i)), 1
	}
	c := Converter{File: mustParse(t, manyGatewaysConfig)}
	first := c.Convert(&m.Objects)
	for i, r := range m.Gateway.HTTP {
		r = r.DeepCopy()
		r.Status.Parents = []gatewayv1.RouteParentStatus{{ControllerName: "c"}}
		m.Gateway.HTTP[i] = r
	}
	for i, g := range m.Gateway.Gateways {
		g = g.DeepCopy()
		g.Status.Conditions = []metav1.Condition{{Type: "Programmed"}}
		m.Gateway.Gateways[i] = g
	}
	c.convertedGateways = 0
	if now := c.Convert(&m.Objects); now != first || c.convertedGateways != 0 {
		t.Errorf("statuses changed, and %d Gateways were converted", c.convertedGateways)
	}
	r := m.Gateway.HTTP[7].DeepCopy()
	r.Generation, r.Spec.Hostnames[0] = 2, "new.example"
	m.Gateway.HTTP[7] = r
	now := c.Convert(&m.Objects)
	if now == first || c.convertedGateways != 1 {
		t.Errorf("one route changed, and %d Gateways were converted", c.convertedGateways)
	}
	if !now.SameCertificates(first) || !sameList(now.Gateways.Listeners, first.Gateways.Listeners) {
		t.Error("certificates or listeners were joined again")
	}
	if again := (&Converter{File: c.File}).Convert(&m.Objects); !reflect.DeepEqual(again, now) {
		t.Errorf("got\n%s\nwant\n%s", showGateways(now), showGateways(again))
	}
}

// A route of two Gateways with shared listeners has routes of one name there. Their order does not depend on which
// Gateway has changed last.
func TestSharedRouteOfTwoGateways(t *testing.T) {
	m := mustRead(t, gatewayBase+`
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: one, generation: 1}, spec: {gatewayClassName: weir, listeners: [{name: web, port: 80, protocol: HTTP, hostname: a.example}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: two, generation: 1}, spec: {gatewayClassName: weir, listeners: [{name: web, port: 80, protocol: HTTP, hostname: b.example}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: r}, spec: {parentRefs: [{name: one}, {name: two}], rules: [{}]}}
`)
	c := Converter{File: mustParse(t, sharedHostsConfig)}
	c.Convert(&m.Objects)
	for i := range m.Gateway.Gateways {
		g := m.Gateway.Gateways[i].DeepCopy()
		g.Generation++
		m.Gateway.Gateways = slices.Clone(m.Gateway.Gateways)
		m.Gateway.Gateways[i] = g
		got, want := c.Convert(&m.Objects), (&Converter{File: c.File}).Convert(&m.Objects)
		if !reflect.DeepEqual(got, want) || len(got.Routes) != 4 {
			t.Errorf("after a change of %s: got\n%s\nwant\n%s", g.Name, showGateways(got), showGateways(want))
		}
	}
}
