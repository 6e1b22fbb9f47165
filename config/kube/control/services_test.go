package control

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api/fake"
	"github.com/weirproxy/weir/config/kube/gateway"
)

func edgeService(name string, addresses ...string) *gateway.Status {
	s := &gateway.Service{Key: gateway.Key{Kind: gateway.KindGateway, ObjectName: config.ObjectName{Namespace: "shop", Name: "edge"}, UID: "u1"}, Name: name,
		Labels: map[string]string{"team": "a"}, Annotations: map[string]string{"note": "b"}, Ports: []int32{80, 443}, Gone: len(addresses) == 0}
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

// weir changes no Service of others, and reports it once.
func TestServiceOfOthers(t *testing.T) {
	cluster := fake.New(t)
	cluster.Change("shop", "services", "edge-weir", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"team": "theirs"}}})
	r := gatewayReplica(t, cluster, "a")
	r.Want(Wanted{Controller: "weir.example/c", Gateways: []*gateway.Status{edgeService("edge-weir", "192.0.2.1")}})
	const trouble = "keep the Services of Gateways: weir cannot keep the services shop/edge-weir for the Gateway edge, because it exists already and does not belong to the Gateway; delete it, or rename the Gateway"
	until(t, "weir reports the Service", func() bool { return slices.Equal(r.troubles(), []string{trouble}) })
	r.Want(Wanted{Controller: "weir.example/c"})
	if got := kept(cluster); !strings.HasPrefix(got, "edge-weir team=theirs") {
		t.Errorf("the cluster has %s", got)
	}
}
