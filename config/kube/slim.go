package kube

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/gateway"
	"github.com/weirproxy/weir/proxy/htpasswd"
)

// A node keeps the objects of a whole cluster in memory. Most of an object is for others:
// managed fields, annotations with the last applied manifest, labels, selectors. So each object
// becomes slim before it is stored. TestGolden checks that conversions see no difference.

// slim removes what weir does not read from an object. It changes the object, which nobody
// else has seen yet.
func slim(o any) (any, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return o, nil // the last state of a deleted object, which is slim already
	}
	m.SetManagedFields(sharedManagers.share(whoWroteStatus(o, m.GetManagedFields())))
	m.SetOwnerReferences(gatewayOwners(m.GetOwnerReferences()))
	m.SetFinalizers(nil)
	m.SetNamespace(shared(m.GetNamespace()))
	if isGatewayObject(o) {
		slimMeta(m)
	}
	switch o := o.(type) {
	case *networkingv1.Ingress:
		slimMeta(&o.ObjectMeta)
		o.Spec.IngressClassName = sharedPointer(o.Spec.IngressClassName)
		o.Status.LoadBalancer.Ingress = sharedAddresses.share(o.Status.LoadBalancer.Ingress)
	case *corev1.Service:
		slimMeta(&o.ObjectMeta)
		o.Spec = slimService(&o.Spec)
		if o.Status.Conditions = nil; len(o.OwnerReferences) == 0 { // otherwise it has the addresses of a Gateway
			o.Status = corev1.ServiceStatus{}
		}
	case *discoveryv1.EndpointSlice:
		service, named := o.Labels[discoveryv1.LabelServiceName]
		own := gateway.IsOwnSlice(o)
		slimMeta(&o.ObjectMeta)
		if named {
			o.Labels = map[string]string{discoveryv1.LabelServiceName: service}
		}
		if named && own {
			o.Labels[discoveryv1.LabelManagedBy] = gateway.SliceManager
		}
		o.Ports = slices.Clone(o.Ports) // without the room for more of them
		for i := range o.Ports {
			p := &o.Ports[i]
			p.Name, p.Protocol, p.Port, p.AppProtocol = sharedPointer(p.Name), sharedPointer(p.Protocol), sharedPointer(p.Port), sharedPointer(p.AppProtocol)
		}
		o.Ports, o.Endpoints = sharedPorts.share(o.Ports), slices.Clip(o.Endpoints)
		for i := range o.Endpoints {
			slimEndpoint(&o.Endpoints[i])
		}
	case *corev1.Secret:
		slimMeta(&o.ObjectMeta)
		maps.DeleteFunc(o.Data, func(key string, value []byte) bool { return !usesSecretKey(key, value) })
	case *corev1.Namespace:
		o.Annotations = nil
	case *corev1.Node:
		o.Status = corev1.NodeStatus{}
		o.Annotations = nil
	}
	return o, nil
}

// gatewayOwners keeps the owners that are Gateways: weir keeps Services and EndpointSlices for them.
func gatewayOwners(all []metav1.OwnerReference) (kept []metav1.OwnerReference) {
	for i := range all {
		if r := &all[i]; gateway.IsGatewayOwner(r) {
			kept = append(kept, metav1.OwnerReference{APIVersion: shared(r.APIVersion), Kind: shared(r.Kind), Name: r.Name, UID: r.UID})
		}
	}
	return kept
}

// usesSecretKey reports whether weir may need a value of a Secret. Annotations decide about that,
// and weir does not know them here. The keys of a Secret of users are their names.
func usesSecretKey(key string, value []byte) bool {
	switch key {
	case corev1.TLSCertKey, corev1.TLSPrivateKeyKey, authFileKey, caKey, crlKey:
		return true
	}
	return htpasswd.IsHash(string(value))
}

// whoWroteStatus keeps only one part of the managed fields: the managers of the status of Ingresses.
func whoWroteStatus(o any, all []metav1.ManagedFieldsEntry) (kept []metav1.ManagedFieldsEntry) {
	if _, ok := o.(*networkingv1.Ingress); !ok {
		return nil
	}
	for _, m := range all {
		if m.Subresource == "status" {
			kept = append(kept, metav1.ManagedFieldsEntry{Manager: shared(m.Manager), Subresource: shared(m.Subresource)})
		}
	}
	return kept
}

// readPrefixes are the prefixes of the annotations that weir reads.
var readPrefixes = append([]string{annotation.Nginx, annotation.Traefik, annotation.Own, oldClass}, annotation.HAProxy...)

// slimMeta removes the labels, and the annotations that weir does not read.
func slimMeta(m metav1.Object) {
	m.SetLabels(nil)
	var kept map[string]string
	for name, value := range m.GetAnnotations() {
		for _, prefix := range readPrefixes {
			if strings.HasPrefix(name, prefix) {
				if kept == nil {
					kept = map[string]string{}
				}
				kept[shared(name)] = value
			}
		}
	}
	m.SetAnnotations(kept)
}

// slimService returns the part of a Service that weir reads.
func slimService(s *corev1.ServiceSpec) corev1.ServiceSpec {
	kept := corev1.ServiceSpec{Type: shared(s.Type), ExternalName: s.ExternalName, TrafficDistribution: s.TrafficDistribution, ClusterIP: s.ClusterIP}
	if len(s.IPFamilies) > 0 && s.IPFamilies[0] == corev1.IPv6Protocol { // the other family is the default
		kept.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	}
	if len(s.Ports) > 0 {
		kept.Ports = make([]corev1.ServicePort, 0, len(s.Ports))
	}
	for _, p := range s.Ports {
		kept.Ports = append(kept.Ports, corev1.ServicePort{Name: shared(p.Name), Protocol: shared(p.Protocol), AppProtocol: p.AppProtocol, Port: p.Port, TargetPort: p.TargetPort})
	}
	kept.Ports = sharedServicePorts.share(kept.Ports)
	return kept
}

// podMark begins the Hostname of a slim endpoint of a Pod. The Pod's UID follows. It takes less memory
// than TargetRef, and no hostname begins with it.
const podMark = "/"

// slimEndpoint removes what weir does not read from an endpoint.
func slimEndpoint(e *discoveryv1.Endpoint) {
	if len(e.Addresses) > 1 {
		e.Addresses = []string{e.Addresses[0]} // the meaning of further addresses is not defined
	}
	c := &e.Conditions
	c.Ready, c.Serving, c.Terminating = sharedBool(c.Ready), sharedBool(c.Serving), sharedBool(c.Terminating)
	e.NodeName, e.Zone = sharedPointer(e.NodeName), sharedPointer(e.Zone)
	e.DeprecatedTopology, e.Hints = nil, nil
	if e.Hostname != nil && !strings.HasPrefix(*e.Hostname, podMark) { // otherwise the endpoint is slim already
		e.Hostname = nil
	}
	switch r := e.TargetRef; {
	case r == nil:
	case r.Kind != "Pod":
		e.TargetRef = nil
	case r.UID != "": // which alone identifies the Pod
		e.TargetRef, e.Hostname = nil, new(podMark+string(r.UID))
	default:
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: shared(r.Namespace), Name: r.Name}
	}
}

// shared returns a text that all objects with the same text share.
func shared[T ~string](s T) T { return unique.Make(s).Value() }

// mostPointers is the number of values that sharedPointer keeps. Beyond it, each object has its own.
const mostPointers = 10_000

var (
	pointers     sync.Map // the values that objects share: from a value to a pointer
	pointersKept atomic.Int64
)

// sharedPointer returns a pointer to the same value that all objects share. Nobody writes to it.
// It is for names of nodes, zones, classes and ports, of which there are few.
func sharedPointer[T comparable](p *T) *T {
	if p == nil {
		return nil
	}
	if known, ok := pointers.Load(*p); ok {
		return known.(*T)
	}
	if pointersKept.Load() >= mostPointers {
		return p
	}
	known, ok := pointers.LoadOrStore(*p, p)
	if !ok {
		pointersKept.Add(1)
	}
	return known.(*T)
}

// repeated shares one list among consecutive objects with equal lists, such as the published addresses.
// Nobody writes to the list.
type repeated[T any] struct{ last atomic.Pointer[[]T] }

var (
	sharedAddresses repeated[networkingv1.IngressLoadBalancerIngress]
	sharedManagers  repeated[metav1.ManagedFieldsEntry]
	sharedPorts     repeated[discoveryv1.EndpointPort]

	sharedServicePorts repeated[corev1.ServicePort]
)

// share returns the list of the previous object if the lists are equal, and otherwise list.
func (r *repeated[T]) share(list []T) []T {
	if len(list) == 0 {
		return nil
	}
	if last := r.last.Load(); last != nil && reflect.DeepEqual(*last, list) {
		return *last
	}
	list = slices.Clip(list)
	r.last.Store(&list)
	return list
}

var yes, no = true, false

// sharedBool returns a pointer to the same value that all objects share. Nobody writes to it.
func sharedBool(b *bool) *bool {
	switch {
	case b == nil:
		return nil
	case *b:
		return &yes
	}
	return &no
}
