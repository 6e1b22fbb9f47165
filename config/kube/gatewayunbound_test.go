package kube

import (
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// While weir cannot listen on an address of a Gateway, the Gateway or the ListenerSet, and its
// listener, are not programmed. Everything else stays as it is.
func TestUnboundListenersAreNotProgrammed(t *testing.T) {
	m := mustRead(t, gatewayBase+`
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: edge}, spec: {gatewayClassName: weir, addresses: [{value: 192.0.2.1}, {value: 192.0.2.2}],
  allowedListeners: {namespaces: {from: Same}}, listeners: [{name: web, port: 80, protocol: HTTP}, {name: udp, port: 80, protocol: UDP}, {name: other, port: 81, protocol: HTTP}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: second}, spec: {gatewayClassName: weir, listeners: [{name: web, port: 80, protocol: HTTP}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: ListenerSet, metadata: {name: more}, spec: {parentRef: {name: edge}, listeners: [{name: web, port: 82, protocol: HTTP}, {name: other, port: 83, protocol: HTTP}]}}
`)
	c := Converter{File: mustParse(t, gatewayConfig)}
	r := c.Convert(&m.Objects).Gateways
	before := showGateways(&Routing{Gateways: r})
	unprogrammed := func(unbound ...string) map[string]string {
		why := map[string]string{}
		for _, name := range unbound {
			why[name] = name + " is away."
		}
		all := map[string]string{}
		for _, s := range r.WithUnbound(why).Status {
			for _, g := range s.Gateways {
				addUnprogrammed(all, g.Name, g.Conditions)
				for _, l := range g.Listeners {
					addUnprogrammed(all, g.Name+"/"+string(l.Name), l.Conditions)
				}
			}
			for _, set := range s.Sets {
				addUnprogrammed(all, set.Name, set.Conditions)
				for _, l := range set.Listeners {
					addUnprogrammed(all, set.Name+"/"+string(l.Name), l.Conditions)
				}
			}
		}
		return all
	}
	f := func(want map[string]string, unbound ...string) {
		t.Helper()
		want["edge/udp"] = "Invalid: The listener is not accepted. weir does not support the protocol UDP; use HTTP, HTTPS, TLS or TCP."
		if got := unprogrammed(unbound...); !reflect.DeepEqual(got, want) {
			t.Errorf("without %v, not programmed are %v, not %v", unbound, got, want)
		}
	}
	f(map[string]string{})
	f(map[string]string{}, "a/port")
	const web, set = "gateway/default/edge/80/192.0.2.2", "gateway/default/edge/83/192.0.2.1"
	f(map[string]string{"edge": "AddressNotUsable: " + web + " is away.", "edge/web": "Pending: " + web + " is away."}, web)
	f(map[string]string{"more": "Pending: " + set + " is away.", "more/other": "Pending: " + set + " is away."}, set)
	f(map[string]string{"second": "AddressNotUsable: gateway/default/second/80 is away.", "second/web": "Pending: gateway/default/second/80 is away."}, "gateway/default/second/80")
	if after := showGateways(&Routing{Gateways: r}); after != before {
		t.Errorf("the status has changed to\n%s", after)
	}
	for i, s := range r.WithUnbound(map[string]string{"gateway/default/second/80": "It is away."}).Status {
		if same := s == r.Status[i]; same != (len(s.Gateways) == 0 || s.Gateways[0].Name == "edge") {
			t.Errorf("the status %d is the same: %t", i, same)
		}
	}
}

// addUnprogrammed records the reason of a false condition Programmed.
func addUnprogrammed(to map[string]string, name string, all []metav1.Condition) {
	for _, c := range all {
		if c.Type == "Programmed" && c.Status != metav1.ConditionTrue {
			to[name] = c.Reason + ": " + c.Message
		}
	}
}
