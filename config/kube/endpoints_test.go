package kube

import (
	"fmt"
	"testing"
)

// Two Pods may have one address, for example on the host's network. Then the endpoint is the Pod that does
// not terminate.
func TestOneAddressTwice(t *testing.T) {
	m := mustRead(t, `
{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a-1, labels: {kubernetes.io/service-name: a}}, addressType: IPv4, ports: [{port: 8080}], endpoints: [
  {addresses: [10.0.0.1], nodeName: node-a, zone: z1, conditions: {ready: false, serving: true, terminating: true}, targetRef: {kind: Pod, namespace: default, name: old}},
  {addresses: [10.0.0.1], nodeName: node-b, zone: z1, targetRef: {kind: Pod, namespace: default, name: new}},
  {addresses: [10.0.0.1], nodeName: node-b, zone: z2, targetRef: {kind: Pod, namespace: default, name: newer}}]}
`)
	b := Backend{}
	b.Port.Number = 80
	for range 100 { // the order of maps varies
		if got := fmt.Sprint(Endpoints(&b, m.Services[0], m.Slices)); got != "[{ 10.0.0.1:8080 node-b z1 1 false true}]" {
			t.Fatalf("the endpoints are %s", got)
		}
	}
}
