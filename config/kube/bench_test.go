package kube

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// large is a cluster of n Ingresses, each with a Service, a Secret and ten Pods.
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

// BenchmarkConvert is 10,000 Ingresses, of which nothing changed.
func BenchmarkConvert(b *testing.B) {
	m := large(b, 10_000)
	c := Converter{File: mustParse(b, plainConfig)}
	c.Convert(&m.Objects)
	b.ReportAllocs()
	for b.Loop() {
		c.Convert(&m.Objects)
	}
}

// BenchmarkEndpoints is one change of a Service with ten Pods, however many others there are.
func BenchmarkEndpoints(b *testing.B) {
	m := large(b, 1)
	c := Converter{File: mustParse(b, plainConfig)}
	r := c.Convert(&m.Objects)
	b.ReportAllocs()
	for b.Loop() {
		Endpoints(&r.Backends[0], m.Services[0], m.Slices)
	}
}
