package control

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api"
	"github.com/weirproxy/weir/config/kube/api/fake"
)

func TestPublishedService(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	cluster.Change("shop", "ingresses", "a", ingress())
	r := newReplica(t, cluster, "r1")
	w := Wanted{Publish: config.Publish{Balancer: config.ObjectName{Namespace: "weir", Name: "weir"}}, Ingresses: names("a")}
	r.Want(w)
	until(t, "a word about the Service", func() bool {
		return slices.ContainsFunc(r.troubles(), func(s string) bool { return strings.Contains(s, "names the Service weir/weir, which does not exist") })
	})
	cluster.Change("weir", "services", "weir", &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.9"}}}}})
	until(t, "its address", func() bool { return statuses(t, cluster) == "a=192.0.2.9" })
}

// A Service that does not exist is reported after a failure to read Services, too.
func TestPublishedServiceAfterFailure(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	cluster.Refuse(func(r fake.Request) int {
		if r.Resource == "services" {
			return http.StatusForbidden
		}
		return 0
	})
	r := newReplica(t, cluster, "r1")
	r.Want(Wanted{Publish: config.Publish{Balancer: config.ObjectName{Namespace: "weir", Name: "weir"}}})
	until(t, "an error of the list", func() bool {
		return slices.ContainsFunc(r.troubles(), func(s string) bool { return strings.HasPrefix(s, "read the published Service: ") })
	})
	cluster.Refuse(nil)
	until(t, "the missing Service", func() bool {
		return slices.ContainsFunc(r.troubles(), func(s string) bool { return strings.Contains(s, "weir/weir, which does not exist") })
	})
}

// A node that does not exist is reported after a failure to read it, too.
func TestMissingNodeAfterFailure(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	cluster.Refuse(func(r fake.Request) int {
		if r.Resource == "nodes" {
			return http.StatusInternalServerError
		}
		return 0
	})
	r := newReplica(t, cluster, "r1")
	r.Want(Wanted{Publish: config.Publish{Nodes: "external"}, Node: "n1"})
	until(t, "an error of the read", func() bool {
		return slices.ContainsFunc(r.troubles(), func(s string) bool { return strings.HasPrefix(s, "read the addresses of the node: ") })
	})
	cluster.Refuse(nil)
	until(t, "the missing node", func() bool {
		wake(r.presence)
		return slices.ContainsFunc(r.troubles(), func(s string) bool { return strings.Contains(s, "has no node n1") })
	})
}

func TestAddressesOfServices(t *testing.T) {
	t.Parallel()
	f := func(s corev1.ServiceSpec, balancers []corev1.LoadBalancerIngress, want ...string) {
		t.Helper()
		got := addressesOfService(&corev1.Service{Spec: s, Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: balancers}}})
		if !slices.Equal(got, want) {
			t.Errorf("%+v has %q, want %q", s, got, want)
		}
	}
	spec := func(kind corev1.ServiceType, ip string, external ...string) corev1.ServiceSpec {
		return corev1.ServiceSpec{Type: kind, ClusterIP: ip, ExternalIPs: external, ExternalName: "lb.example.org"}
	}
	f(spec(corev1.ServiceTypeExternalName, ""), nil, "lb.example.org")
	f(spec(corev1.ServiceTypeLoadBalancer, "10.0.0.1"), nil)
	f(spec(corev1.ServiceTypeLoadBalancer, "10.0.0.1", "192.0.2.1"), []corev1.LoadBalancerIngress{{IP: "192.0.2.2"}, {Hostname: "a.example"}}, "192.0.2.2", "a.example", "192.0.2.1")
	f(spec(corev1.ServiceTypeNodePort, "10.0.0.1", "192.0.2.1"), nil, "192.0.2.1")
	f(spec(corev1.ServiceTypeNodePort, "10.0.0.1"), nil, "10.0.0.1")
	f(spec(corev1.ServiceTypeClusterIP, "10.0.0.1"), nil, "10.0.0.1")
	f(spec(corev1.ServiceTypeClusterIP, corev1.ClusterIPNone), nil)
}

// Only the addresses of nodes on which replicas run are published.
func TestPublishedNodes(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	cluster.Change("shop", "ingresses", "a", ingress())
	for name, ip := range map[string]string{"n1": "10.0.0.1", "n2": "10.0.0.2", "n3": "10.0.0.3"} {
		cluster.Change("", "nodes", name, &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: ip}, {Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeExternalIP, Address: "192.0.2" + strings.TrimPrefix(ip, "10.0.0")}}}})
	}
	w := Wanted{Publish: config.Publish{Nodes: "external"}, Ingresses: names("a"), Node: "n2"}
	second := newReplica(t, cluster, "r2")
	second.Want(w)
	until(t, "an address", func() bool { return statuses(t, cluster) == "a=192.0.2.2" })
	first := newReplica(t, cluster, "r1")
	w.Node = "n1"
	first.Want(w)
	until(t, "both addresses", func() bool { wake(second.statuses); return statuses(t, cluster) == "a=192.0.2.1,192.0.2.2" })
	second.leave()
	until(t, "the address of who is left", func() bool { return statuses(t, cluster) == "a=192.0.2.1" })
}

// The Leases of dead replicas do not count, and are deleted.
func TestReplicasDie(t *testing.T) {
	t.Parallel()
	cluster := fake.New(t)
	client, err := api.Connect(cluster.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	mine, theirs := api.NewLeases(client, "weir"), api.NewLeases(client, "weir")
	labels := map[string]string{"a": "b"}
	for i, d := range []time.Duration{time.Second, time.Hour} {
		if ok, err := theirs.Take(t.Context(), api.Bid{Name: fmt.Sprint("r", i), Holder: "x", Duration: d, Labels: labels}); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	alive := func() (n int) {
		all, err := mine.Alive(t.Context(), "a=b")
		if err != nil {
			t.Error(err)
		}
		return len(all)
	}
	if n := alive(); n != 2 {
		t.Errorf("%d are alive at first sight, want 2", n)
	}
	until(t, "one that is dead", func() bool { return alive() == 1 })
	until(t, "one that is gone", func() bool { alive(); return len(cluster.Objects("leases")) == 1 })
	if n := alive(); n != 1 {
		t.Errorf("%d are alive, want 1", n)
	}
	held := cluster.Objects("leases")["weir/r1"]
	spec := held["spec"].(fake.Object)
	spec["renewTime"], spec["leaseDurationSeconds"] = metav1.NewMicroTime(time.Now().Add(-12*time.Hour)), 1000
	cluster.Change("weir", "leases", "r1", held)
	if n := alive(); n != 1 {
		t.Errorf("%d are alive that nobody could renew yet, want 1", n)
	}
	spec["leaseDurationSeconds"] = 6
	cluster.Change("weir", "leases", "r1", held)
	begun := time.Now()
	until(t, "one that nobody has renewed since yesterday", func() bool { return alive() == 0 })
	if d := time.Since(begun); d < 3*time.Second {
		t.Errorf("who was not renewed since yesterday had %v to do so, want 3s", d)
	}
}
