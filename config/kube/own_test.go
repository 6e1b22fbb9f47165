package kube

import (
	"slices"
	"strings"
	"testing"
)

// The annotation for a ready endpoint on each node counts for Services of routes of Gateways, in namespaces of
// operators only.
func TestRequireLocalOfGateways(t *testing.T) {
	objects := gatewayBase
	for _, namespace := range []string{"infra", "shop"} {
		objects += `
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g, namespace: NS}, spec: {gatewayClassName: weir, listeners: [{name: db, port: 5432, protocol: TCP}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: TCPRoute, metadata: {name: r, namespace: NS}, spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: db, port: 5432}]}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: NS, annotations: {weirproxy.github.io/require-local: "true"}}, spec: {ports: [{port: 5432}]}}
---
`
		objects = strings.ReplaceAll(objects, "NS", namespace)
	}
	c := Converter{File: mustParse(t, strings.ReplaceAll(gatewayConfig, "kubernetes: {", "health: {address: ':8086'}\nkubernetes: {operator_namespaces: [infra], "))}
	r := c.Convert(&mustRead(t, objects).Objects)
	if want := []string{"infra/db:5432/tcp"}; !slices.Equal(r.RequireLocal, want) {
		t.Errorf("the node needs endpoints of %v, not of %v", r.RequireLocal, want)
	}
	if len(r.Events) != 1 || r.Events[0].Object.Namespace != "shop" || r.Events[0].Reason != "OperatorOnly" {
		t.Errorf("the events are %v", r.Events)
	}
}
