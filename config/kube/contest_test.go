package kube

import (
	"reflect"
	"testing"

	"github.com/weirproxy/weir/config"
)

// contestObjects are an Ingress, and a younger route of another namespace with the same hosts.
const contestObjects = `
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g, namespace: infra}, spec: {gatewayClassName: weir, listeners: [{name: web, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: r, namespace: b, creationTimestamp: "2026-01-02T00:00:00Z"}, spec: {parentRefs: [{name: g, namespace: infra}], hostnames: [x.example], rules: [{}]}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i, namespace: a, creationTimestamp: "2026-01-01T00:00:00Z"}, spec: {ingressClassName: weir, rules: [{host: x.example}, {host: "*.wild.example"}]}}
`

// After each change of an Ingress, a route or a Gateway, the owners of hosts are those of a conversion from
// scratch.
func TestContestsFollowChanges(t *testing.T) {
	m := mustRead(t, gatewayBase+contestObjects)
	c := Converter{File: mustParse(t, gatewayConfig)}
	ingresses, routes, gateways := m.Ingresses, m.Gateway.HTTP, m.Gateway.Gateways
	step := func(what string, lost ...string) {
		t.Helper()
		got, want := c.Convert(&m.Objects), (&Converter{File: c.File}).Convert(&m.Objects)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got\n%s\nwant\n%s", what, showGateways(got), showGateways(want))
		}
		var losers []string
		for n, one := range c.known.contests {
			if len(one.lost) > 0 {
				losers = append(losers, n.String())
			}
		}
		if !reflect.DeepEqual(losers, lost) {
			t.Errorf("%s: %v lost a host, not %v", what, losers, lost)
		}
	}
	step("the start", "HTTPRoute b/r")
	step("nothing", "HTTPRoute b/r")
	m.Ingresses = nil
	step("without the Ingress")
	m.Ingresses = ingresses
	step("with the Ingress", "HTTPRoute b/r")
	younger := *ingresses[0]
	younger.CreationTimestamp.Time = younger.CreationTimestamp.AddDate(1, 0, 0)
	m.Ingresses = append(m.Ingresses[:0:0], &younger)
	step("with a younger Ingress", "Ingress a/i")
	m.Gateway.HTTP = nil
	step("without the route")
	m.Gateway.HTTP = routes
	step("with the route", "Ingress a/i")
	other := *routes[0]
	other.Spec.Hostnames = append(other.Spec.Hostnames[:0:0], "a.b.wild.example")
	m.Gateway.HTTP = append(routes[:0:0], &other)
	step("with a route for a name below the wildcard")
	m.Gateway.HTTP = routes
	step("with the route again", "Ingress a/i")
	m.Gateway.Gateways = nil
	step("without the Gateway")
	m.Gateway.Gateways = gateways
	step("with the Gateway", "Ingress a/i")
}

// If each host belongs to one namespace, a wildcard owns the younger names below it, of both kinds.
func TestContestsOfWildcards(t *testing.T) {
	const head = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: g, namespace: infra}
spec: {gatewayClassName: weir, listeners: [{name: web, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]}
---
`
	route := func(day, host string) string {
		return "{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: r, namespace: b, creationTimestamp: 2026-01-0" + day + "T00:00:00Z}, spec: {parentRefs: [{name: g, namespace: infra}], hostnames: ['" + host + "'], rules: [{}]}}\n---\n"
	}
	ingress := func(day, host string) string {
		return "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i, namespace: a, creationTimestamp: 2026-01-0" + day + "T00:00:00Z}, spec: {ingressClassName: weir, rules: [{host: '" + host + "'}]}}\n---\n"
	}
	for _, c := range []struct{ objects, shared, owned string }{
		{ingress("1", "*.x.example") + route("2", "a.x.example"), "", "HTTPRoute b/r"},
		{ingress("2", "*.x.example") + route("1", "a.x.example"), "", ""},
		{ingress("1", "*.x.example") + route("2", "a.b.x.example"), "", ""}, // a wildcard of an Ingress is one label
		{route("1", "*.x.example") + ingress("2", "a.x.example"), "", "Ingress a/i"},
		{route("1", "*.x.example") + ingress("2", "a.b.x.example"), "", "Ingress a/i"},
		{route("1", "*.x.example") + ingress("2", "*.b.x.example"), "", "Ingress a/i"},
		{route("1", "*.x.example") + ingress("2", "*.x.example"), "Ingress a/i", "Ingress a/i"},
		{route("1", "*.x.example") + ingress("2", "x.example"), "", ""},
	} {
		for text, want := range map[string]string{"shared": c.shared, "namespace": c.owned} {
			m := mustRead(t, gatewayBase+head+c.objects)
			conv := Converter{File: mustParse(t, gatewayConfig)}
			conv.File.Kubernetes.HostOwnership = config.HostOwnership(text)
			conv.Convert(&m.Objects)
			got := ""
			for n, one := range conv.known.contests {
				if len(one.lost) > 0 {
					got += n.String()
				}
			}
			if got != want {
				t.Errorf("%s%s: %q lost a host, not %q", c.objects, text, got, want)
			}
		}
	}
}
