package kube

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// large returns a cluster of n Ingresses, each with a Service, a Secret and ten Pods.
func large(tb testing.TB, n int) *Manifests {
	m := &Manifests{}
	cert, key := certify(tb, "*.example")
	class, prefix := "weir", networkingv1.PathTypePrefix
	for i := range n {
		meta := metav1.ObjectMeta{Namespace: fmt.Sprint("ns", i%100), Name: fmt.Sprint("app", i)}
		backend := networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: meta.Name, Port: networkingv1.ServiceBackendPort{Number: 80}}}
		host := fmt.Sprintf("app%d.example", i)
		m.Ingresses = append(m.Ingresses, &networkingv1.Ingress{ObjectMeta: meta, Spec: networkingv1.IngressSpec{
			IngressClassName: &class, TLS: []networkingv1.IngressTLS{{Hosts: []string{host}, SecretName: meta.Name}},
			Rules: []networkingv1.IngressRule{{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
				Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &prefix, Backend: backend}}}}}}}})
		m.Services = append(m.Services, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
		m.Secrets = append(m.Secrets, &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key}})
		port := int32(8080)
		slice := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}}}
		for p := range 10 {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i/250, i%250, p+1)}})
		}
		m.Slices = append(m.Slices, slice)
	}
	return m
}

// BenchmarkConvert changes one of 10,000 Ingresses.
func BenchmarkConvert(b *testing.B) { convertOften(b, large(b, 10_000)) }

// BenchmarkConvertAll converts 10,000 Ingresses, as after a reload.
func BenchmarkConvertAll(b *testing.B) {
	m := large(b, 10_000)
	c := Converter{File: mustParse(b, plainConfig)}
	c.Convert(&m.Objects)
	b.ReportAllocs()
	for b.Loop() {
		c.known = nil
		c.Convert(&m.Objects)
	}
}

// BenchmarkEndpoints measures one change of a Service with ten Pods. The number of other
// Services must not matter.
func BenchmarkEndpoints(b *testing.B) {
	m := large(b, 1)
	c := Converter{File: mustParse(b, plainConfig)}
	r := c.Convert(&m.Objects)
	b.ReportAllocs()
	for b.Loop() {
		Endpoints(r.Backends[0], m.Services[0], m.Slices)
	}
}

// manyHosts returns one Ingress with n hosts that have TLS.
func manyHosts(tb testing.TB, n int) *Manifests {
	m := large(tb, n)
	all := m.Ingresses[0]
	for _, i := range m.Ingresses[1:] {
		all.Spec.Rules = append(all.Spec.Rules, i.Spec.Rules...)
		all.Spec.TLS[0].Hosts = append(all.Spec.TLS[0].Hosts, i.Spec.TLS[0].Hosts...)
	}
	m.Ingresses = m.Ingresses[:1]
	return m
}

// manySolvers returns n Ingresses. Two sevenths of them solve challenges of hosts that no
// other Ingress has.
func manySolvers(tb testing.TB, n int) *Manifests {
	m := large(tb, n)
	for i, o := range m.Ingresses[:n*2/7] {
		o.Spec.TLS = nil
		o.Spec.Rules[0].Host = fmt.Sprintf("solved%d.example", i)
		o.Spec.Rules[0].HTTP.Paths[0].Path = claim.ChallengePath + "/token"
	}
	return m
}

func BenchmarkConvertHosts(b *testing.B)   { convertOften(b, manyHosts(b, 5_000)) }
func BenchmarkConvertSolvers(b *testing.B) { convertOften(b, manySolvers(b, 7_000)) }

// convertOften changes one Ingress after the other.
func convertOften(b *testing.B, m *Manifests) {
	c := Converter{File: mustParse(b, plainConfig)}
	c.Convert(&m.Objects)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		o := m.Ingresses[i%len(m.Ingresses)].DeepCopy()
		o.Spec.Rules[0].HTTP.Paths[0].Path = fmt.Sprint("/", i)
		m.Ingresses[i%len(m.Ingresses)] = o
		c.Convert(&m.Objects)
	}
}

// The time of a conversion grows with the number of objects, and not with its square: the
// changes of other tenants wait for the conversion.
func TestConversionGrows(t *testing.T) {
	for name, f := range map[string]func(testing.TB, int) *Manifests{"Ingresses": large, "hosts": manyHosts, "solvers": manySolvers} {
		bytes := func(n int) uint64 {
			m, c := f(t, n), Converter{File: mustParse(t, plainConfig)}
			c.Convert(&m.Objects)
			c.known = nil
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			c.Convert(&m.Objects)
			runtime.ReadMemStats(&after)
			return after.TotalAlloc - before.TotalAlloc
		}
		if few, many := bytes(500), bytes(2_000); many > 8*few {
			t.Errorf("500 %s take %d bytes, and 2,000 of them %d", name, few, many)
		}
	}
}

// manyRoutes returns a cluster of n HTTPRoutes on n/100 Gateways, each route with a Service.
func manyRoutes(tb testing.TB, n int) *Manifests {
	m := &Manifests{}
	m.Gateway = &gateway.Objects{Classes: []*gatewayv1.GatewayClass{{ObjectMeta: metav1.ObjectMeta{Name: "weir"}, Spec: gatewayv1.GatewayClassSpec{ControllerName: "weirproxy.github.io/gateway"}}}}
	exact, path, port := gatewayv1.PathMatchExact, "/", gatewayv1.PortNumber(80)
	for i := range max(1, n/100) {
		g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("ns", i), Name: "edge"}}
		g.Spec.GatewayClassName, g.Spec.Listeners = "weir", []gatewayv1.Listener{{Name: "web", Port: 80, Protocol: gatewayv1.HTTPProtocolType}}
		m.Gateway.Gateways = append(m.Gateway.Gateways, g)
	}
	for i := range n {
		meta := metav1.ObjectMeta{Namespace: fmt.Sprint("ns", i%max(1, n/100)), Name: fmt.Sprint("app", i)}
		r := &gatewayv1.HTTPRoute{ObjectMeta: meta}
		r.Spec.ParentRefs = []gatewayv1.ParentReference{{Name: "edge"}}
		r.Spec.Hostnames = []gatewayv1.Hostname{gatewayv1.Hostname(meta.Name + ".example")}
		ref := gatewayv1.HTTPBackendRef{}
		ref.Name, ref.Port = gatewayv1.ObjectName(meta.Name), &port
		r.Spec.Rules = []gatewayv1.HTTPRouteRule{{Matches: []gatewayv1.HTTPRouteMatch{{Path: &gatewayv1.HTTPPathMatch{Type: &exact, Value: &path}}}, BackendRefs: []gatewayv1.HTTPBackendRef{ref}}}
		m.Gateway.HTTP = append(m.Gateway.HTTP, r)
		m.Services = append(m.Services, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
	}
	return m
}

// manyGatewaysConfig gives each Gateway an address.
const manyGatewaysConfig = `
listeners: {web: {address: "127.0.0.1:80", protocol: http}}
kubernetes: {class: weir, gateways: {addresses: {pool: [192.0.2.0/24]}}}
`

// BenchmarkConvertGateways changes one of 10,000 HTTPRoutes on 100 Gateways.
func BenchmarkConvertGateways(b *testing.B) {
	m := manyRoutes(b, 10_000)
	c := Converter{File: mustParse(b, manyGatewaysConfig)}
	c.Convert(&m.Objects)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		o := m.Gateway.HTTP[i%len(m.Gateway.HTTP)].DeepCopy()
		*o.Spec.Rules[0].Matches[0].Path.Value = fmt.Sprint("/", i)
		m.Gateway.HTTP = slices.Clone(m.Gateway.HTTP)
		m.Gateway.HTTP[i%len(m.Gateway.HTTP)] = o
		c.Convert(&m.Objects)
	}
}
