package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/api"
	fakeapi "github.com/weirproxy/weir/config/kube/api/fake"
	writer "github.com/weirproxy/weir/config/kube/control"
)

// Installations that serve different Ingresses have different Leases.
func TestLeases(t *testing.T) {
	f := func(k config.Kubernetes, namespace, want string) {
		t.Helper()
		if k.Controller == "" {
			k.Controller = config.DefaultController
		}
		if got := leaseOf(&k, namespace).String(); got != want {
			t.Errorf("%+v in %q has the Lease %s, want %s", k, namespace, got, want)
		}
	}
	f(config.Kubernetes{}, "ingress", "ingress/weir")
	f(config.Kubernetes{}, "", "default/weir")
	f(config.Kubernetes{Class: "nginx", Controller: "k8s.io/ingress-nginx"}, "ingress", "ingress/weir-nginx")
	f(config.Kubernetes{Controller: "k8s.io/ingress-nginx"}, "ingress", "ingress/weir-k8s-io-ingress-nginx")
	f(config.Kubernetes{Class: "nginx", Lease: config.ObjectName{Namespace: "a", Name: "b"}}, "ingress", "a/b")
	f(config.Kubernetes{Class: strings.Repeat("a", 253)}, "x", "x/weir-"+strings.Repeat("a", 248))

	// Installations that serve different namespaces do not write for each other.
	f(config.Kubernetes{Namespaces: []string{"shop", "blog"}}, "ingress", "ingress/weir-98e0d881")
	f(config.Kubernetes{Namespaces: []string{"blog", "shop"}}, "ingress", "ingress/weir-98e0d881")
	f(config.Kubernetes{Namespaces: []string{"shop"}}, "ingress", "ingress/weir-d03efdfa")
	f(config.Kubernetes{NamespaceLabels: []config.Label{{Key: "team", Value: "a"}, {Key: "env", Value: "b"}}}, "ingress", "ingress/weir-af8473de")
	f(config.Kubernetes{NamespaceLabels: []config.Label{{Key: "env", Value: "b"}, {Key: "team", Value: "a"}}}, "ingress", "ingress/weir-af8473de")
	f(config.Kubernetes{Class: "nginx", Namespaces: []string{"shop"}}, "ingress", "ingress/weir-nginx-d03efdfa")
	f(config.Kubernetes{Class: strings.Repeat("a", 238) + ".b", Namespaces: []string{"shop"}}, "x", "x/weir-"+strings.Repeat("a", 238)+"-d03efdfa")
	f(config.Kubernetes{Namespaces: []string{"shop"}, Lease: config.ObjectName{Namespace: "a", Name: "b"}}, "ingress", "a/b")
}

func TestHoldersAreApart(t *testing.T) {
	t.Setenv("POD_NAME", "weir-abc")
	a, b := holder(), holder()
	if a == b || !strings.HasPrefix(a, "weir-abc_") {
		t.Errorf("two processes are called %s and %s", a, b)
	}
}

// When a reload changes the Lease, the writer hands over to the writer with the new
// Lease.
func TestLeaseIsChanged(t *testing.T) {
	objects := fakeapi.New(t)
	client, err := api.Connect(objects.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{client: client, s: &server{log: zap.NewNop(), written: writer.NewMetrics(prometheus.NewRegistry()), cluster: &cluster{source: &kube.Source{}}}}
	inEffect := func(lease string) {
		t.Helper()
		r.InEffect(&config.Config{Kubernetes: &config.Kubernetes{Lease: config.ObjectName{Namespace: "weir", Name: lease}}}, &kube.Routing{})
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if all := slices.Collect(maps.Keys(objects.Objects("leases"))); slices.Equal(all, []string{"weir/" + lease}) {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("there are the Leases %v, want %s", all, lease)
			}
		}
	}
	inEffect("a")
	inEffect("b")
	inEffect("a")
	if got := fmt.Sprint(r.formerly); got != "[weir/a weir/b]" {
		t.Errorf("the Leases from before are %s", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r.Leave(ctx, func() {})
	if left := objects.Objects("leases"); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}
