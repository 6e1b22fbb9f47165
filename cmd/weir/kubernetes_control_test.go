package main

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

// Installations that serve other Ingresses have other Leases.
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

	// Those that serve other namespaces do not write for each other.
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
