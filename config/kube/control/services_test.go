package control

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api/fake"
	"github.com/weirproxy/weir/config/kube/gateway"
)

func edgeService(name string, addresses ...string) *gateway.Status {
	s := &gateway.Service{Key: gateway.Key{Kind: gateway.KindGateway, ObjectName: config.ObjectName{Namespace: "shop", Name: "edge"}, UID: "u1"}, Name: name,
		Labels: map[string]string{"team": "a"}, Annotations: map[string]string{"note": "b"}, Ports: []gateway.PortPair{{Port: 80, Pod: 80}, {Port: 443, Pod: 443}}, Gone: len(addresses) == 0}
	for _, a := range addresses {
		s.Addresses = append(s.Addresses, netip.MustParseAddr(a))
	}
	return &gateway.Status{Service: s}
}

// kept are the Services and EndpointSlices of a cluster in short.
func kept(cluster *fake.API) string {
	var all []string
	for _, resource := range []string{"services", "endpointslices"} {
		for name, o := range cluster.Objects(resource) {
			meta := o["metadata"].(fake.Object)
			text := strings.TrimPrefix(name, "shop/")
			if labels, ok := meta["labels"].(fake.Object); ok {
				text += fmt.Sprint(" team=", labels["team"])
			}
			if spec, ok := o["spec"].(fake.Object); ok {
				text += fmt.Sprint(" ", spec["clusterIP"])
			}
			if endpoints, ok := o["endpoints"].([]any); ok {
				for _, e := range endpoints {
					text += fmt.Sprint(" ", e.(fake.Object)["addresses"])
				}
			}
			all = append(all, text)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// The Service of a Gateway has its addresses, is corrected, and goes when the Gateway needs none.
func TestServicesOfGateways(t *testing.T) {
	cluster := fake.New(t)
	r := gatewayReplica(t, cluster, "a")
	want := func(text string, all ...*gateway.Status) {
		t.Helper()
		r.Want(Wanted{Controller: "weir.example/c", Gateways: all})
		until(t, text, func() bool { return kept(cluster) == text })
	}
	want("edge-weir team=a None; edge-weir-ipv4 team=a [192.0.2.1]", edgeService("edge-weir", "192.0.2.1"))
	for _, resource := range []string{"services", "endpointslices"} { // the API server refuses others
		for name, o := range cluster.Objects(resource) {
			for label, value := range o["metadata"].(fake.Object)["labels"].(fake.Object) {
				if problems := validation.IsValidLabelValue(value.(string)); len(problems) > 0 {
					t.Errorf("%s has the label %s=%s: %s", name, label, value, problems)
				}
			}
		}
	}
	owners := cluster.Objects("services")["shop/edge-weir"]["metadata"].(fake.Object)["ownerReferences"].([]any)
	if o := owners[0].(fake.Object); len(owners) != 1 || o["uid"] != "u1" || o["kind"] != "Gateway" || o["controller"] != true {
		t.Errorf("the Service has the owners %v", owners)
	}
	want("edge-weir team=a None; edge-weir-ipv4 team=a [192.0.2.1]; edge-weir-ipv6 team=a [2001:db8::1]", edgeService("edge-weir", "192.0.2.1", "2001:db8::1"))
	want("edge-weir team=a None; edge-weir-ipv4 team=a; edge-weir-ipv6 team=a [2001:db8::1]", edgeService("edge-weir", "2001:db8::1"))
	writes := cluster.Asked("update", "services") + cluster.Asked("update", "endpointslices")
	want("edge-weir team=a None; edge-weir-ipv4 team=a; edge-weir-ipv6 team=a [2001:db8::1]", edgeService("edge-weir", "2001:db8::1"), edgeService("other"))
	if n := cluster.Asked("update", "services") + cluster.Asked("update", "endpointslices"); n != writes {
		t.Errorf("%d writes without a change", n-writes)
	}
	want("edge-weir-ipv4 team=a; edge-weir-ipv6 team=a [2001:db8::1]", edgeService("edge-weir"))
}

// balancedService is the Service of a Gateway that has the addresses of the Service.
func balancedService(kind config.ServiceType, requested string, targets ...int32) *gateway.Status {
	s := edgeService("edge-weir").Service
	s.Ports, s.Gone, s.Behind = nil, len(targets) == 0, &gateway.Behind{Type: kind, Requested: requested}
	for i, target := range targets {
		s.Ports = append(s.Ports, gateway.PortPair{Port: int32(80 + i), Pod: target})
	}
	return &gateway.Status{Service: s}
}

// replicaSlice is an EndpointSlice with Pods of weir.
func replicaSlice(ready bool, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: new("n1"), Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return s
}

// The Service of a Gateway leads to the replicas of weir, on ports of their own.
func TestServicesLeadToReplicas(t *testing.T) {
	cluster := fake.New(t)
	r := gatewayReplica(t, cluster, "a")
	show := func() (text string) {
		for _, o := range cluster.Objects("services") {
			spec := o["spec"].(fake.Object)
			text += fmt.Sprint(spec["type"], " ", spec["clusterIP"], " ", spec["loadBalancerIP"])
			for _, p := range spec["ports"].([]any) {
				port := p.(fake.Object)
				text += fmt.Sprint(" ", port["name"], ":", port["port"], ">", port["targetPort"])
			}
		}
		for name, o := range cluster.Objects("endpointslices") {
			text += "; " + name
			if ports, ok := o["ports"].([]any); ok {
				for _, p := range ports {
					text += fmt.Sprint(" ", p.(fake.Object)["port"])
				}
			}
			if all, ok := o["endpoints"].([]any); ok {
				for _, e := range all {
					endpoint := e.(fake.Object)
					text += fmt.Sprint(" ", endpoint["addresses"], endpoint["nodeName"], endpoint["conditions"].(fake.Object)["ready"])
				}
			}
		}
		return text
	}
	want := func(text string, replicas []*discoveryv1.EndpointSlice, all ...*gateway.Status) {
		t.Helper()
		r.Want(Wanted{Controller: "weir.example/c", Gateways: all, Replicas: replicas})
		until(t, text, func() bool { return show() == text })
	}
	balanced := balancedService(config.ServiceLoadBalancer, "192.0.2.9", 20000, 20001)
	const service = "LoadBalancer <nil> 192.0.2.9 port-80:80>20000 port-81:81>20001; shop/edge-weir-ipv4 20000 20001"
	want(service, nil, balanced) // the ports have to be written before there are Pods
	want(service+" [10.0.0.1]n1true [10.0.0.2]n1true", []*discoveryv1.EndpointSlice{replicaSlice(true, "10.0.0.2", "10.0.0.1")}, balanced)
	want(service+" [10.0.0.1]n1true [10.0.0.2]n1false", []*discoveryv1.EndpointSlice{replicaSlice(true, "10.0.0.1"), replicaSlice(false, "10.0.0.2", "10.0.0.1")}, balanced)
	want("LoadBalancer <nil> <nil> port-80:80>20000; shop/edge-weir-ipv4 20000", nil, balancedService(config.ServiceLoadBalancer, "", 20000))
	want("ClusterIP <nil> <nil> port-80:80>20000; shop/edge-weir-ipv4 20000", nil, balancedService(config.ServiceClusterIP, "", 20000))
	want("; shop/edge-weir-ipv4 20000", nil, balancedService(config.ServiceClusterIP, ""))
	want("ClusterIP 10.96.0.7 <nil> port-80:80>20000; shop/edge-weir-ipv4 20000", nil, balancedService(config.ServiceClusterIP, "10.96.0.7", 20000))
	// A Service without an address of its own cannot get one: weir replaces it.
	want("<nil> None <nil> port-80:80>80 port-443:443>443; shop/edge-weir-ipv4 80 443 [192.0.2.1] <nil> true", nil, edgeService("edge-weir", "192.0.2.1"))
	want("LoadBalancer <nil> 192.0.2.9 port-80:80>20000 port-81:81>20001; shop/edge-weir-ipv4 20000 20001", nil, balanced)
}

// weir changes no Service of others, and reports it once. It deletes none, also when the Gateway needs no Service.
func TestServiceOfOthers(t *testing.T) {
	cluster := fake.New(t)
	cluster.Change("shop", "services", "edge-weir", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"team": "theirs"}}})
	r := gatewayReplica(t, cluster, "a")
	r.Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{edgeService("edge-weir", "192.0.2.1")}})
	const trouble = "keep the Services of Gateways: weir cannot keep the services shop/edge-weir for the Gateway edge, because it exists already and does not belong to the Gateway; delete it, or rename the Gateway"
	until(t, "weir reports the Service", func() bool { return slices.Equal(r.troubles(), []string{trouble}) })
	later := edgeService("later-weir", "192.0.2.2") // weir writes Services in the order of their names
	later.Service.Key.Name, later.Service.UID = "later", "u2"
	r.Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{edgeService("edge-weir"), later}})
	until(t, "weir has written the next Service", func() bool { return strings.Contains(kept(cluster), "later-weir team=a None") })
	r.Want(Wanted{Controller: "weir.example/c"})
	if got := kept(cluster); !strings.HasPrefix(got, "edge-weir team=theirs") {
		t.Errorf("the cluster has %s", got)
	}
}

// If the API server refuses the Service of a Gateway, the status of the Gateway says why, until it accepts it.
func TestRefusedService(t *testing.T) {
	cluster := fake.New(t)
	cluster.Change("shop", "gateways", "edge", &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{UID: "u1"}})
	var refusing atomic.Bool
	refusing.Store(true)
	cluster.Refuse(func(r fake.Request) int {
		if refusing.Load() && r.Verb == "create" && r.Resource == "services" {
			return http.StatusUnprocessableEntity
		}
		return 0
	})
	r := gatewayReplica(t, cluster, "a")
	status := balancedService(config.ServiceClusterIP, "192.0.2.9", 20000)
	key := status.Service.Key
	key.UID = objectOf(t, gateway.KindGateway, cluster.Objects("gateways")["shop/edge"]).GetUID()
	status.Service.Key = key
	status.Gateways = []gateway.GatewayStatus{{Key: key, GatewayStatus: gatewayv1.GatewayStatus{Conditions: []metav1.Condition{conditionOf("Accepted", "True", 1), conditionOf("Programmed", "False", 1)}}}}
	r.Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{status}})
	programmed := func(text string) {
		t.Helper()
		until(t, text, func() bool {
			g := objectOf(t, gateway.KindGateway, cluster.Objects("gateways")["shop/edge"]).(*gatewayv1.Gateway)
			return slices.ContainsFunc(g.Status.Conditions, func(c metav1.Condition) bool {
				return c.Type == "Programmed" && strings.Contains(c.Reason+" "+c.Message, text)
			})
		})
	}
	programmed("AddressNotUsable weir cannot keep the Service of the Gateway: the API server failed to create services edge-weir in namespace shop")
	refusing.Store(false)
	next := *status.Service
	r.Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{{Gateways: status.Gateways, Service: &next}}})
	programmed("Because It is so.")
}

// An EndpointSlice has at most 1000 endpoints. Those that are not ready are left out first.
func TestMostEndpoints(t *testing.T) {
	var ready, other []string
	for i := range 700 {
		ready, other = append(ready, fmt.Sprintf("10.9.%d.%d", i/250, i%250)), append(other, fmt.Sprintf("10.0.%d.%d", i/250, i%250))
	}
	count := func(replicas ...*discoveryv1.EndpointSlice) (text string) {
		all := endpointsOf(replicas, discoveryv1.AddressTypeIPv4)
		unready := 0
		for _, e := range all {
			if isUnready(e) {
				unready++
			}
		}
		return fmt.Sprint(len(all), " of which ", unready)
	}
	if got := count(replicaSlice(true, ready...), replicaSlice(false, other...)); got != "1000 of which 300" {
		t.Errorf("some are not ready: %s", got)
	}
	if got := count(replicaSlice(true, ready...), replicaSlice(true, other...)); got != "1000 of which 0" {
		t.Errorf("all are ready: %s", got)
	}
}
