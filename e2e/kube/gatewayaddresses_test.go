//go:build linux

package kube

import (
	"errors"
	"fmt"
	"strings"
)

// behindServices is a configuration with which each Gateway has the addresses of a Service.
const behindServices = `kubernetes:
  kubeconfig: '@kubeconfig'
  class: '@stage'
  lease: weir/@stage-behind
  gateways: {controller: weirproxy.github.io/@stage-behind, addresses: {service: {replicas: '@stage/weir', ports: 20000-20009}}}
proxy_protocol: {local: {rules: [{from: [10.10.0.0/16], header: optional}]}}
`

// replicaSlice are the Pods of weir as the endpoint controller would write them.
func replicaSlice(w *weir) string {
	return fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: weir-1, labels: {kubernetes.io/service-name: weir}}, addressType: IPv4,
  endpoints: [{addresses: [%s], conditions: {ready: true}}], ports: [{name: http, port: 80}]}`, w.address)
}

// wantBalancedGateway checks Gateways with addresses.service. The test plays the load balancer: it writes the status
// of the Service, and connects to the endpoints. The Service deployment a exists.
func (s *stage) wantBalancedGateway() {
	s.Helper()
	class := s.name + "-behind"
	s.apply(`{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: '@stage-behind'}, spec: {controllerName: weirproxy.github.io/@stage-behind}}`)
	s.Cleanup(func() { s.cluster.kubectl("", "delete", "gatewayclass", class, "--ignore-not-found") })
	first := s.newWeir("node-a", behindServices).launch().ready()
	s.apply(replicaSlice(first), `
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: lb, annotations: {weirproxy.github.io/proxy-protocol: local}}, spec: {gatewayClassName: '@stage-behind', infrastructure: {annotations: {lb.example/kind: internal}}, listeners: [{name: web, port: 80, protocol: HTTP}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: lb}, spec: {parentRefs: [{name: lb}], rules: [{backendRefs: [{name: a, port: 80}]}]}}
`)
	service := "lb-" + class
	endpoint := s.wantEndpoint(service, first)
	if spec := s.kubectl("get", "service", service, "--namespace="+s.name, "--output=jsonpath={.spec.type} {.spec.selector} {.metadata.annotations.lb\\.example/kind}"); spec != "LoadBalancer  internal" {
		s.Errorf("the Service has %q", spec)
	}
	if got := s.kubectl("get", "gateway", "lb", "--namespace="+s.name, `--output=jsonpath={.status.conditions[?(@.type=="Programmed")].reason}`); got != "AddressNotAssigned" {
		s.Errorf("without an address of the load balancer, the Gateway is %q", got)
	}
	s.kubectl("patch", "service", service, "--namespace="+s.name, "--subresource=status", "--type=merge", "--patch", `{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.9"}]}}}`)
	if address := s.gatewayAddress("lb"); address != "203.0.113.9" {
		s.Errorf("the Gateway has the address %s", address)
	}
	s.wantCondition("lb", "Accepted", "True")
	s.wantClient(endpoint)

	// Another process becomes the leader. It listens on the same port, and the EndpointSlice has its Pod.
	first.kill()
	second := s.newWeir("node-b", behindServices).launch().ready()
	s.apply(replicaSlice(second))
	if again := s.wantEndpoint(service, second); strings.TrimPrefix(again, second.address) != strings.TrimPrefix(endpoint, first.address) {
		s.Errorf("the port was that of %s, and is that of %s", endpoint, again)
	}
	s.wantClient(second.address + strings.TrimPrefix(endpoint, first.address))
	s.delete("gateway/lb")
	eventually(s, "the Service goes with the Gateway", func() error {
		if got := s.kubectl("get", "service", service, "--namespace="+s.name, "--ignore-not-found", "--output=name"); got != "" {
			return errors.New("it is still there")
		}
		return nil
	})
}

// wantEndpoint waits until the Service of a Gateway leads to a weir, and returns the endpoint.
func (s *stage) wantEndpoint(service string, w *weir) (endpoint string) {
	s.Helper()
	eventually(s, "the Service leads to "+w.address, func() error {
		text := s.kubectl("get", "endpointslices", "--namespace="+s.name, "--selector=kubernetes.io/service-name="+service, "--output=jsonpath={.items[*].endpoints[*].addresses[*]}:{.items[*].ports[*].port}")
		if endpoint = text; !strings.HasPrefix(text, w.address+":20") {
			return fmt.Errorf("it leads to %q", text)
		}
		return nil
	})
	return endpoint
}

// wantClient waits until a request with a PROXY header is answered at an endpoint of a Gateway, and its Pod sees the
// address in the header, and the port of the Gateway.
func (s *stage) wantClient(endpoint string) {
	s.Helper()
	eventually(s, "the Gateway answers at "+endpoint, func() error {
		lines, err := speak(endpoint, "PROXY TCP4 192.0.2.7 192.0.2.8 4711 80\r\nGET / HTTP/1.1\r\nHost: any.example\r\nConnection: close\r\n\r\n", 60)
		if text := strings.Join(lines, "\n"); !strings.Contains(text, "200 OK") || !strings.Contains(text, "192.0.2.7") {
			return fmt.Errorf("%v: %s", err, text)
		}
		return nil
	})
}
