package kube

import (
	"maps"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config/kube/gateway"
)

// A listener without the certificate that an issuer orders is not programmed, and its condition says why. A Gateway or
// ListenerSet is not programmed if none of its listeners is. Everything else stays as it is.
func TestOrdersAreTold(t *testing.T) {
	m := mustRead(t, gatewayBase+`
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: edge}, spec: {gatewayClassName: weir, allowedListeners: {namespaces: {from: Same}}, listeners: [
  {name: web, port: 80, protocol: HTTP}, {name: a, port: 443, protocol: HTTPS, hostname: a.all.example, tls: {options: {weirproxy.github.io/issuer: public}}}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: ListenerSet, metadata: {name: more, annotations: {weirproxy.github.io/issuer: public}}, spec: {parentRef: {name: edge}, listeners: [
  {name: a, port: 443, protocol: HTTPS, hostname: b.all.example, tls: {options: {weirproxy.github.io/issuer: public}}}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: tls}, spec: {gatewayClassName: weir, listeners: [
  {name: a, port: 443, protocol: HTTPS, hostname: c.all.example, tls: {options: {weirproxy.github.io/issuer: public}}},
  {name: b, port: 443, protocol: HTTPS, hostname: d.all.example, tls: {options: {weirproxy.github.io/issuer: public}}},
  {name: udp, port: 443, protocol: UDP}]}}
`)
	c := Converter{File: mustParse(t, gatewayConfig)}
	r := c.Convert(&m.Objects).Gateways
	before := showGateways(&Routing{Gateways: r})
	owners := map[string]string{}
	for _, one := range r.Certificates {
		if one.ACME != nil {
			owners[one.ACME.Hosts[0]] = one.ACME.Owner
		}
	}
	var told map[*gateway.Status]*gateway.Status
	f := func(orders map[string]gateway.Order, want map[string]string) {
		t.Helper()
		by := map[string]gateway.Order{}
		for host, o := range orders {
			o.Issuer, o.Host = "public", host
			by[owners[host]] = o
		}
		now := r.WithOrders(by, &told)
		all := map[string]string{}
		for _, s := range now.Status {
			for _, g := range s.Gateways {
				addProgrammed(all, g.Name, g.Conditions)
				for _, l := range g.Listeners {
					addProgrammed(all, g.Name+"/"+string(l.Name), l.Conditions)
				}
			}
			for _, set := range s.Sets {
				addProgrammed(all, set.Name, set.Conditions)
				for _, l := range set.Listeners {
					addProgrammed(all, set.Name+"/"+string(l.Name), l.Conditions)
				}
			}
		}
		delete(all, "tls/udp")
		if !maps.Equal(all, want) {
			t.Errorf("with %v the conditions are %v, not %v", orders, all, want)
		}
		if again := r.WithOrders(by, &told); len(orders) > 0 {
			for i := range again.Status {
				if again.Status[i] != now.Status[i] {
					t.Errorf("without a change, the status %d is another one", i)
				}
			}
		} else if now != r || again != r {
			t.Error("without orders, the result is another one")
		}
	}
	const none = "No listener serves anything yet; their conditions have the reasons."
	refused := gateway.Order{Failure: "the certificate authority answered: there is no such host. (dns)."}
	failed := func(host string) string {
		return "False CertificateNotIssued: The issuer public has not issued the certificate of " + host + ": the certificate authority answered: there is no such host. (dns). weir tries again, and refuses handshakes for the host until there is a certificate."
	}
	pending := func(status, host string) string {
		return status + " Pending: The issuer public has not issued the certificate of " + host + " yet."
	}
	f(nil, map[string]string{})
	f(map[string]gateway.Order{"a.all.example": refused}, map[string]string{"edge/a": failed("a.all.example")})
	f(map[string]gateway.Order{"b.all.example": {}}, map[string]string{"more": "False Pending: " + none, "more/a": pending("False", "b.all.example")})
	f(map[string]gateway.Order{"c.all.example": refused}, map[string]string{"tls/a": failed("c.all.example")})
	f(map[string]gateway.Order{"c.all.example": refused, "d.all.example": {}}, map[string]string{"tls": "False Pending: " + none, "tls/a": failed("c.all.example"), "tls/b": pending("False", "d.all.example")})
	f(map[string]gateway.Order{"c.all.example": refused, "d.all.example": {Unknown: true}}, map[string]string{"tls": "Unknown Pending: " + none, "tls/a": failed("c.all.example"), "tls/b": pending("Unknown", "d.all.example")})
	f(map[string]gateway.Order{"a.all.example": {Failure: "no", Ends: time.Unix(0, 0)}}, map[string]string{
		"edge/a": "True Programmed: weir serves the listener. The issuer public has not renewed the certificate of a.all.example, which ends at 1970-01-01T00:00:00Z: no. weir tries again."})
	f(map[string]gateway.Order{"x.all.example": refused}, map[string]string{})

	// A status changes with its order, and the texts of authorities are not too long.
	long := func(text string) *GatewayRouting {
		return r.WithOrders(map[string]gateway.Order{owners["a.all.example"]: {Failure: text}}, &told)
	}
	if first, other := long(strings.Repeat("é", 5000)), long("no"); first.Status[1] == other.Status[1] || len(first.Status[1].Gateways[0].Listeners[1].Conditions[1].Message) > 1200 {
		t.Errorf("the status is the same, or has the message %q", first.Status[1].Gateways[0].Listeners[1].Conditions[1].Message)
	}
	if after := showGateways(&Routing{Gateways: r}); after != before {
		t.Errorf("the status has changed to\n%s", after)
	}
	if unbound := r.WithUnbound(map[string]string{"gateway/default/edge/443": "It is away."}).WithOrders(map[string]gateway.Order{owners["a.all.example"]: refused}, &told); !strings.Contains(unbound.Status[1].Gateways[0].Listeners[1].Conditions[1].Message, "It is away.") {
		t.Errorf("the listener has no address, and its conditions are %v", unbound.Status[1].Gateways[0].Listeners[1].Conditions)
	}
}

// addProgrammed records a condition Programmed that is not true, or has a long message.
func addProgrammed(to map[string]string, name string, all []metav1.Condition) {
	for _, c := range all {
		if c.Type == "Programmed" && (c.Status != metav1.ConditionTrue || strings.Contains(c.Message, "issuer")) {
			to[name] = string(c.Status) + " " + c.Reason + ": " + c.Message
		}
	}
}
