//go:build linux

package node

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
)

// many is the number of Ingresses of the benchmarks. Each has a Service with three Pods.
const many = 10_000

// manyConfig serves Ingresses with and without TLS.
const manyConfig = `
listeners: {web: {address: '@web', protocol: http}, tls: {address: '@tls', protocol: tls}}
kubernetes: {class: weir}
drain: {lame_duck: 0s, timeout: 2s}
node: node-a
`

func ingressNo(i int, path string) *networkingv1.Ingress {
	class, prefix := "weir", networkingv1.PathTypePrefix
	meta := metaNo(i)
	backend := networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: meta.Name, Port: networkingv1.ServiceBackendPort{Number: 80}}}
	host := meta.Name + ".example"
	return &networkingv1.Ingress{ObjectMeta: meta, Spec: networkingv1.IngressSpec{
		IngressClassName: &class, TLS: []networkingv1.IngressTLS{{Hosts: []string{host}}},
		Rules: []networkingv1.IngressRule{{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
			Paths: []networkingv1.HTTPIngressPath{{Path: path, PathType: &prefix, Backend: backend}}}}}}}}
}

func metaNo(i int) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: fmt.Sprint("ns", i%100), Name: fmt.Sprint("app", i)}
}

func serviceNo(i int) *corev1.Service {
	return &corev1.Service{ObjectMeta: metaNo(i), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
}

// sliceNo is the EndpointSlice of a Service. last is the last byte of its first address.
func sliceNo(i, last int) *discoveryv1.EndpointSlice {
	port, ready := int32(8080), true
	s := &discoveryv1.EndpointSlice{ObjectMeta: metaNo(i), AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}}}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: s.Name}
	for p := range 3 {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i/250, i%250, last+p)},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return s
}

// serving is a control that tells of each change of routes in effect.
type serving struct {
	*clustered
	inEffect chan struct{}
}

func (s *serving) InEffect(*config.Config, *kube.Routing) {
	select {
	case s.inEffect <- struct{}{}:
	default:
	}
}

func newServing(tb testing.TB, n int) *serving {
	s := &serving{newClustered(tb, "", "web", "tls"), make(chan struct{}, 1)}
	s.begin = func(*config.Config) (control, error) { return s, nil }
	for i := range n {
		s.held[kube.Ingresses].Add(ingressNo(i, "/"))
		s.held[kube.Services].Add(serviceNo(i))
		s.held[kube.EndpointSlices].Add(sliceNo(i, 1))
	}
	s.load(manyConfig)
	for !s.node.Verdict().Ready {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Second) // the pause after the first conversion
	<-s.inEffect
	return s
}

// BenchmarkClusterRoutes changes one Ingress among many, and waits until it is served.
func BenchmarkClusterRoutes(b *testing.B) {
	s := newServing(b, many)
	path, i := []string{"/b", "/"}, 0
	measure(b, func() {
		s.held[kube.Ingresses].Modify(ingressNo(i%many, path[i/many%2]))
		i++
		<-s.inEffect
	})
}

// BenchmarkClusterEndpoints changes one EndpointSlice among many, and waits until it is served.
func BenchmarkClusterEndpoints(b *testing.B) {
	s := newServing(b, many)
	last := 1
	measure(b, func() {
		last = last%250 + 1
		s.held[kube.EndpointSlices].Modify(sliceNo(7, last))
		want := sliceNo(7, last).Endpoints[0].Addresses[0] + ":8080"
		for !slices.ContainsFunc(s.backends.Backend("ns7/app7:80").Settings().Endpoints, func(e config.Endpoint) bool { return e.Address == want }) {
			time.Sleep(100 * time.Microsecond)
		}
	})
}

// BenchmarkClusterMemory reports the live heap with many Ingresses. It includes the objects that
// the test itself keeps, which are a fifth of it.
func BenchmarkClusterMemory(b *testing.B) {
	s := newServing(b, many)
	for b.Loop() {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc)/1e6, "live-MB")
	runtime.KeepAlive(s)
}

// measure reports the slowest changes.
func measure(b *testing.B, change func()) {
	var took []time.Duration
	b.ReportAllocs()
	cpu := cpuTime(b)
	for b.Loop() {
		begun := time.Now()
		change()
		took = append(took, time.Since(begun))
	}
	b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/1000/float64(len(took)), "cpu-ms/op")
	resident, _ := processMemory(os.Getpid())
	b.ReportMetric(float64(resident)/1e6, "RSS-MB")
	slices.Sort(took)
	for _, percent := range []int{50, 99} {
		b.ReportMetric(float64(took[len(took)*percent/100].Milliseconds()), fmt.Sprintf("p%d-ms", percent))
	}
}

// cpuTime is the CPU time of this process so far. Unlike the time of a change, it hardly depends on
// what else runs on the machine.
func cpuTime(tb testing.TB) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
