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

// sharing is a configuration whose listeners serve Gateways, Ingresses and its own routes.
const sharing = `kubernetes:
  kubeconfig: '@kubeconfig'
  class: '@stage'
  lease: weir/@stage-shared
  publish: {addresses: ['@ip']}
  gateways: {controller: weirproxy.github.io/@stage-shared, addresses: {shared: [web, websecure]}}
certificates: [{self_signed: {hosts: [file.shared.example]}}]
routes:
- {hosts: [file.shared.example], listeners: [web, websecure], respond: {status: 204}}
`

// applySharedClass creates the class that a weir with sharing serves.
func (s *stage) applySharedClass() {
	s.Helper()
	s.apply(`{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: '@stage-shared'}, spec: {controllerName: weirproxy.github.io/@stage-shared}}`)
	s.Cleanup(func() { s.cluster.kubectl("", "delete", "gatewayclass", s.name+"-shared", "--ignore-not-found") })
}

// sharedRoute is a route of a Gateway with shared listeners to a Service.
func sharedRoute(name, gateway, host, service string) string {
	return fmt.Sprintf(`{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: %s}, spec: {parentRefs: [{name: %s}], hostnames: [%s], rules: [{backendRefs: [{name: %s, port: 80}]}]}}`, name, gateway, host, service)
}

// wantSharedGateways checks Gateways with addresses.shared: two Gateways, an Ingress and the file are served on the
// same two ports, and nothing that changes beside them breaks a request. The Deployment a exists.
func (s *stage) wantSharedGateways() {
	s.Helper()
	s.applySharedClass()
	s.apply(deployment("b", 1), s.secret("first", "first", "first.shared.example"), s.secret("second", "second", "second.shared.example"), s.secret("kept", "kept", "kept.shared.example"))
	s.rolledOut("b")
	s.apply(`
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: first}, spec: {gatewayClassName: '@stage-shared', listeners: [
  {name: web, port: 80, protocol: HTTP}, {name: tls, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: first}]}}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: second}, spec: {gatewayClassName: '@stage-shared', listeners: [
  {name: web, port: 80, protocol: HTTP}, {name: tls, port: 443, protocol: HTTPS, hostname: second.shared.example, tls: {certificateRefs: [{name: second}]}},
  {name: pass, port: 443, protocol: TLS, hostname: pass.shared.example, tls: {mode: Passthrough}}, {name: far, port: 8080, protocol: HTTP}, {name: raw, port: 9000, protocol: TCP}]}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: TLSRoute, metadata: {name: pass}, spec: {parentRefs: [{name: second}], hostnames: [pass.shared.example], rules: [{backendRefs: [{name: b, port: 443}]}]}}
`, sharedRoute("first", "first", "first.shared.example", "a"), sharedRoute("second", "second", "second.shared.example", "b"), sharedRoute("filed", "first", "file.shared.example", "a"),
		ingress("old", "old.shared.example", "/", "a", ""), ingress("kept", "kept.shared.example", "/", "a", "kept"))
	w := s.weir(sharing)
	for _, name := range []string{"first", "second"} {
		if address := s.gatewayAddress(name); address != w.address {
			s.Errorf("the Gateway %s has the address %s, not %s", name, address, w.address)
		}
	}
	s.wantCondition("first", "Accepted", "True")
	w.wantApp("http://first.shared.example/", "a")
	w.wantApp("http://second.shared.example/", "b")
	for _, host := range []string{"first", "second", "kept"} {
		w.want("https://"+host+".shared.example/", "its certificate", func(a answer) bool { return a.Status == 200 && a.Certificate == host })
	}
	w.wantStatus("http://file.shared.example/", 204)
	w.wantStatus("https://file.shared.example/", 204)
	w.want("https://pass.shared.example/", "a Pod of b over its own TLS", func(a answer) bool { return a.TLS && strings.HasPrefix(a.Pod, "b-") })
	if text := s.wantCondition("filed", "Accepted", "False"); !strings.Contains(text, "HostTaken weir's configuration has routes for file.shared.example") {
		s.Errorf("the route with a host of the file has %q", text)
	}
	for listener, reason := range map[string]string{"far": "PortUnavailable", "raw": "UnsupportedProtocol"} {
		if got := s.kubectl("get", "gateway", "second", "--namespace="+s.name, fmt.Sprintf(`--output=jsonpath={.status.listeners[?(@.name==%q)].conditions[?(@.type=="Accepted")].reason}`, listener)); got != reason {
			s.Errorf("the listener %s has the reason %q", listener, got)
		}
	}

	// While hosts of others stay served, one moves from its Ingress to a Gateway, the file gets another route, and
	// a Gateway goes.
	stays, moves := w.underLoad("https://first.shared.example/"), w.underLoad("http://old.shared.example/")
	s.apply(sharedRoute("old", "second", "old.shared.example", "b"))
	if text := s.wantCondition("old", "Accepted", "False"); !strings.Contains(text, "the older Ingress "+s.name+"/old") {
		s.Errorf("the route with the host of the Ingress has %q", text)
	}
	if text := s.wantEvent("Ingress", "old", "HostContested"); !strings.Contains(text, "HTTPRoute "+s.name+"/old of the Gateway "+s.name+"/second") {
		s.Errorf("the event says %q", text)
	}
	s.delete("ingress", "old")
	w.wantApp("http://old.shared.example/", "b")
	s.wantCondition("old", "Accepted", "True")
	moves.more(20)
	moves.stop()
	w.write(sharing + "- {hosts: [new.shared.example], listeners: [web, websecure], respond: {status: 204}}\n") // weir loads a changed file by itself
	w.wantStatus("http://new.shared.example/", 204)
	s.delete("gateway/second")
	w.wantStatus("http://second.shared.example/", 404)
	stays.more(20)
	stays.stop()
	w.wantStatus("https://file.shared.example/", 204)
}
