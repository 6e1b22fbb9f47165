package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	fake "k8s.io/client-go/tools/cache/testing"

	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/config/kube"
)

const clusterObjects = `
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: shop}, spec: {ingressClassName: weir, rules: [{host: shop.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: shop, port: {number: 80}}}}]}}]}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: broken}, spec: {ingressClassName: weir, rules: [{host: broken.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: broken, port: {number: 80}}}}]}}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: shop}, spec: {ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: shop-1, labels: {kubernetes.io/service-name: shop}}, addressType: IPv4, ports: [{port: 8080}], endpoints: [{addresses: ['192.0.2.1']}]}
`

// listed returns how the objects in manifests are listed and watched.
func listed(t *testing.T, manifests string) listing {
	t.Helper()
	var m kube.Manifests
	if err := m.Read(strings.NewReader(manifests)); err != nil {
		t.Fatal(err)
	}
	held := map[kube.Kind]*fake.FakeControllerSource{}
	for _, kind := range []kube.Kind{kube.IngressClasses, kube.Ingresses, kube.Services, kube.EndpointSlices, kube.Secrets, kube.ConfigMaps, kube.Namespaces, kube.Nodes} {
		held[kind] = fake.NewFakeControllerSource()
		t.Cleanup(held[kind].Shutdown)
	}
	for _, o := range m.Ingresses {
		held[kube.Ingresses].Add(o)
	}
	for _, o := range m.Services {
		held[kube.Services].Add(o)
	}
	for _, o := range m.Slices {
		held[kube.EndpointSlices].Add(o)
	}
	return func(kind kube.Kind, _ kube.Selection) *cache.ListWatch {
		return &cache.ListWatch{
			ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) { return held[kind].List(o) },
			WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
				if o.SendInitialEvents != nil { // the fake streams no lists
					return nil, apierrors.NewBadRequest("sendInitialEvents is not supported")
				}
				return held[kind].Watch(o)
			},
		}
	}
}

func TestCheckObjects(t *testing.T) {
	cfg, err := file.Parse("test", []byte("listeners: {web: {address: ':80', protocol: http}}\nkubernetes: {class: weir}\nnode: node-a\n"), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	cmd := &cobra.Command{}
	var out, warnings strings.Builder
	cmd.SetOut(&out)
	cmd.SetErr(&warnings)
	if err := checkObjects(cmd, cfg, listed(t, clusterObjects)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"- name: default/shop/shop.example/", "address: 192.0.2.1:8080", "# cluster: 2 Ingresses, 2 routes, 2 backends, 1 warning\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %q in\n%s", want, out.String())
		}
	}
	if !strings.HasPrefix(warnings.String(), "Ingress default/broken: warning: The backend of path / of broken.example") {
		t.Errorf("warnings are %s", warnings.String())
	}
	without := *cfg
	without.Kubernetes = nil
	if err := checkCluster(cmd, &without); err == nil {
		t.Error("a configuration without a cluster is checked beside one")
	}
}
