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
}

func TestHoldersAreApart(t *testing.T) {
	t.Setenv("POD_NAME", "weir-abc")
	a, b := holder(), holder()
	if a == b || !strings.HasPrefix(a, "weir-abc_") {
		t.Errorf("two processes are called %s and %s", a, b)
	}
}
