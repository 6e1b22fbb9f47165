package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Values that many objects have are in memory once.
func TestSlimObjectsShare(t *testing.T) {
	must := func(o any) any {
		o, err := slim(o)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	slice := func() *discoveryv1.EndpointSlice {
		return must(&discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(80)), Protocol: new(corev1.ProtocolTCP)}},
			Endpoints: []discoveryv1.Endpoint{{NodeName: new("node-a"), Zone: new("zone-a")}}}).(*discoveryv1.EndpointSlice)
	}
	a, b := slice(), slice()
	if &a.Ports[0] != &b.Ports[0] || a.Endpoints[0].NodeName != b.Endpoints[0].NodeName || a.Endpoints[0].Zone != b.Endpoints[0].Zone {
		t.Errorf("%v and %v share less than they could", a, b)
	}
	ingress := func(ip string) *networkingv1.Ingress {
		i := &networkingv1.Ingress{Spec: networkingv1.IngressSpec{IngressClassName: new("weir")}}
		i.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "weir", Subresource: "status"}}
		i.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: ip}}
		return must(i).(*networkingv1.Ingress)
	}
	i, j, other := ingress("192.0.2.1"), ingress("192.0.2.1"), ingress("192.0.2.2")
	if &i.Status.LoadBalancer.Ingress[0] != &j.Status.LoadBalancer.Ingress[0] || &i.ManagedFields[0] != &j.ManagedFields[0] || i.Spec.IngressClassName != j.Spec.IngressClassName {
		t.Errorf("%v and %v share less than they could", i, j)
	}
	if got := other.Status.LoadBalancer.Ingress[0].IP; got != "192.0.2.2" {
		t.Errorf("an Ingress has the address %s of another one", got)
	}
}

// A Pod is the same in slim objects, also in those that were made slim twice, and it is not that of
// a hostname.
func TestSlimPods(t *testing.T) {
	identityOf := func(e discoveryv1.Endpoint, times int) string {
		o := &discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{e}}
		for range times {
			if _, err := slim(o); err != nil {
				t.Fatal(err)
			}
		}
		return identity(&o.Endpoints[0], "address", 80)
	}
	for name, e := range map[string]discoveryv1.Endpoint{
		"none": {}, "hostname": {Hostname: new("app-0")}, "node": {TargetRef: &corev1.ObjectReference{Kind: "Node", UID: "uid-0"}},
	} {
		for times := range 3 {
			if got := identityOf(e, times); got != "address" {
				t.Errorf("%s, %d times slim: the identity is %s", name, times, got)
			}
		}
	}
	for times := range 3 {
		seen := map[string]string{}
		for name, r := range map[string]*corev1.ObjectReference{
			"UID": {Kind: "Pod", Namespace: "a", Name: "app-0", UID: "uid-0"}, "another UID": {Kind: "Pod", Namespace: "a", Name: "app-0", UID: "uid-1"},
			"name": {Kind: "Pod", Namespace: "a", Name: "app-0"}, "another namespace": {Kind: "Pod", Namespace: "b", Name: "app-0"},
		} {
			got := identityOf(discoveryv1.Endpoint{Hostname: new("app-0"), TargetRef: r}, times)
			if got != identityOf(discoveryv1.Endpoint{TargetRef: r}, times) || seen[got] != "" || got == "address" {
				t.Errorf("%s, %d times slim: the identity is %s, as that of %q", name, times, got, seen[got])
			}
			seen[got] = name
		}
	}
}
