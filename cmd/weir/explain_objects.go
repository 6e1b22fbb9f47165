package main

import (
	"errors"
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
)

// objectsRead are objects of manifests, and what weir makes of them.
type objectsRead struct {
	*kube.Manifests
	routing *kube.Routing
}

// withObjects reads manifests. It returns their objects, and cfg with the routes and backends that weir makes of them.
func withObjects(c *cobra.Command, cfg *config.Config, files []string) (*objectsRead, *config.Config, error) {
	if cfg.Kubernetes == nil {
		return nil, nil, errors.New("--objects needs a configuration with a section kubernetes, and this one has none; kubernetes: {} is a complete section")
	}
	m := &kube.Manifests{}
	for _, name := range files {
		if err := readManifests(m, name, c.InOrStdin()); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	k := cfg.Kubernetes
	if k.Gateways == nil && m.Gateway != nil {
		fmt.Fprintln(c.ErrOrStderr(), "warning: the configuration has no kubernetes.gateways, so the objects of the Gateway API have no effect.")
	}
	assumeClasses(m, k)
	for _, o := range m.ConfigMaps {
		name := config.ObjectName{Namespace: o.Namespace, Name: o.Name}
		if k.TCP != nil && name == k.TCP.ConfigMap {
			m.TCP = o
		}
		if k.IngressNginx != nil && name == k.IngressNginx.ConfigMap {
			m.Controller = o
		}
	}
	m.UseMaps()
	converter := kube.Converter{File: cfg, Offline: true}
	r := converter.Convert(&m.Objects)
	return &objectsRead{m, r}, r.Merge(cfg, nil), nil
}

// assumeClasses adds classes of weir for those that objects name and the manifests do not have.
func assumeClasses(m *kube.Manifests, k *config.Kubernetes) {
	known := map[string]bool{k.Class: true}
	for _, c := range m.Classes {
		known[c.Name] = true
	}
	for _, i := range m.Ingresses {
		if name := classOf(i); name != "" && !known[name] && k.Class == "" {
			known[name] = true
			m.Classes = append(m.Classes, &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.IngressClassSpec{Controller: k.Controller}})
		}
	}
	g := m.Gateway
	if g == nil || k.Gateways == nil {
		return
	}
	g.Bundles, g.Slices = m.ConfigMaps, m.Slices
	clear(known)
	for _, c := range g.Classes {
		known[c.Name] = true
	}
	for _, o := range g.Gateways {
		if name := string(o.Spec.GatewayClassName); !known[name] {
			known[name] = true
			g.Classes = append(g.Classes, &gatewayv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: gatewayv1.GatewayClassSpec{ControllerName: gatewayv1.GatewayController(k.Gateways.Controller)}})
		}
	}
}
