package kube

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/gateway"
	"github.com/weirproxy/weir/config/kube/informer"
)

// Kind is a kind of objects, by the name of its resource in the API.
type Kind string

// The kinds that weir watches.
const (
	IngressClasses Kind = "ingressclasses"
	Ingresses      Kind = "ingresses"
	Services       Kind = "services"
	EndpointSlices Kind = "endpointslices"
	Secrets        Kind = "secrets"
	ConfigMaps     Kind = "configmaps"
	Namespaces     Kind = "namespaces"
	Nodes          Kind = "nodes"
)

// Selection is the set of objects of a kind that weir watches.
type Selection struct {
	Namespace string // empty: all
	Fields    string // a field selector; empty: all
}

// selections are the objects that weir must watch for a configuration.
func selections(file *config.Config) map[Kind][]Selection {
	k := file.Kubernetes
	everywhere := []Selection{{}}
	if len(k.Namespaces) > 0 {
		everywhere = nil
		for _, name := range slices.Sorted(slices.Values(k.Namespaces)) {
			everywhere = append(everywhere, Selection{Namespace: name})
		}
	}
	watched := func(namespace string) bool { return len(k.Namespaces) == 0 || slices.Contains(k.Namespaces, namespace) }
	all := map[Kind][]Selection{IngressClasses: {{}}, Ingresses: everywhere, Services: everywhere, EndpointSlices: everywhere}
	for _, s := range everywhere {
		all[Secrets] = append(all[Secrets], Selection{Namespace: s.Namespace, Fields: certificatesOnly})
	}
	if d := k.DefaultCertificate; d.Name != "" && !watched(d.Namespace) {
		all[Secrets] = append(all[Secrets], selectionOf(d))
	}
	if k.TCP != nil {
		all[ConfigMaps] = append(all[ConfigMaps], selectionOf(k.TCP.ConfigMap))
	}
	if k.IngressNginx != nil {
		all[ConfigMaps] = append(all[ConfigMaps], selectionOf(k.IngressNginx.ConfigMap))
	}
	if len(k.NamespaceLabels) > 0 {
		all[Namespaces] = []Selection{{}}
	}
	gatewaySelections(k, everywhere, all)
	if file.NodeExplicit {
		all[Nodes] = []Selection{{Fields: fields.OneTermEqualSelector("metadata.name", file.Node).String()}}
	}
	return all
}

func selectionOf(o config.ObjectName) Selection {
	return Selection{Namespace: o.Namespace, Fields: fields.OneTermEqualSelector("metadata.name", o.Name).String()}
}

// certificatesOnly excludes the types of Secrets that are most common and largest.
// Secrets with certificates may have any other type.
const certificatesOnly = "type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token,type!=kubernetes.io/dockerconfigjson,type!=bootstrap.kubernetes.io/token,type!=weirproxy.github.io/storage"

// example is an object of each kind.
var example = map[Kind]runtime.Object{
	IngressClasses: &networkingv1.IngressClass{}, Ingresses: &networkingv1.Ingress{}, Services: &corev1.Service{},
	EndpointSlices: &discoveryv1.EndpointSlice{}, Secrets: &corev1.Secret{}, ConfigMaps: &corev1.ConfigMap{},
	Namespaces: &corev1.Namespace{}, Nodes: &corev1.Node{}, bundles: &corev1.ConfigMap{}, namedMaps: &corev1.ConfigMap{},
}

// byService is the index of EndpointSlices by their Services, and byKeeper that of those that weir
// keeps for Gateways.
const byService, byKeeper = "service", "keeper"

func (s *Source) makeInformers() {
	s.informers = map[Kind][]*informer.Informer{}
	for kind, all := range selections(s.opts.File) {
		if isOptional(kind) {
			continue
		}
		for _, selection := range all {
			i, _ := s.newInformer(kind, s.opts.List(kind, selection), example[kind], s.trouble)
			s.informers[kind] = append(s.informers[kind], i)
		}
	}
}

// newInformer makes an informer that does not run, and its entry in the outage, to which it belongs until its watch works.
// trouble is called with its errors.
func (s *Source) newInformer(kind Kind, list *cache.ListWatch, example runtime.Object, trouble func(*lost, Kind, error)) (*informer.Informer, *lost) {
	o := informer.Options{List: list, Example: example, Transform: slim, Retry: s.retry, Changed: func(old, now any) { s.seen(kind, old, now, s.alike(old, now)) }}
	switch kind {
	case EndpointSlices:
		o.Indexers = cache.Indexers{byService: indexOneAddress, byKeeper: indexOwnSlices}
	case bundles:
		o.Transform = slimBundle
	case namedMaps:
		o.Transform = slimHeaders
	}
	entry := &lost{outage: &s.outage}
	entry.begin()
	o.Trouble = func(err error) { trouble(entry, kind, err) }
	o.Works = func(works bool) {
		if works {
			entry.over()
		} else {
			entry.begin()
		}
	}
	return informer.New(o), entry
}

func indexOneAddress(o any) ([]string, error) { return []string{sourceOf(o).String()}, nil }

// indexOwnSlices has one key for all EndpointSlices that weir keeps for Gateways.
func indexOwnSlices(o any) ([]string, error) {
	if s, ok := o.(*discoveryv1.EndpointSlice); ok && gateway.IsOwnSlice(s) {
		return []string{gateway.SliceManager}, nil
	}
	return nil, nil
}

// decidesAddresses reports whether the addresses of Gateways depend on an EndpointSlice, which may be nil:
// weir keeps it for a Gateway, or it has the Pods of weir.
func (s *Source) decidesAddresses(o any) bool {
	slice, ok := o.(*discoveryv1.EndpointSlice)
	if !ok || s.opts.File == nil {
		return false
	}
	r := replicasOf(s.opts.File.Kubernetes)
	return r.Name != "" && (gateway.IsOwnSlice(slice) || sourceOf(slice) == r)
}

// sourceOf is the Service of an EndpointSlice.
func sourceOf(o any) config.ObjectName {
	slice, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return config.ObjectName{}
	}
	return config.ObjectName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
}

// nameOf is the name of a Service; empty: there is none.
func nameOf(o any) config.ObjectName {
	s, ok := o.(*corev1.Service)
	if !ok {
		return config.ObjectName{}
	}
	return config.ObjectName{Namespace: s.Namespace, Name: s.Name}
}

// seen records that an object was added, replaced or removed. alike means that the new object needs no
// conversion; but weir must not keep the old object in memory.
func (s *Source) seen(kind Kind, old, now any, alike bool) {
	s.note(func(d *dirt) {
		if due := s.arrive(kind, old, now, alike); due {
			d.routes.touch()
		}
		if alike {
			return
		}
		switch kind {
		case Nodes:
			d.node = true
			d.quick.touch()
		case EndpointSlices:
			if d.services == nil {
				d.services = map[config.ObjectName]bool{}
			}
			d.services[sourceOf(old)], d.services[sourceOf(now)] = true, true
			d.quick.touch()
			if s.decidesAddresses(old) || s.decidesAddresses(now) {
				d.routes.touch()
			}
		case Services: // this also changes its endpoints
			d.objects[nameOf(old)], d.objects[nameOf(now)] = true, true
			d.routes.touch()
		default:
			d.routes.touch()
		}
	})
}

// alike reports whether two states of an object are equal for weir. It ignores the
// status, which weir itself writes, and annotations that weir does not read.
func (s *Source) alike(old, now any) bool {
	switch a := old.(type) {
	case *networkingv1.Ingress:
		b, ok := now.(*networkingv1.Ingress)
		if ok && s.opts.File != nil && s.opts.File.Kubernetes.IngressNginx != nil && !sameOf(annotation.Nginx, a.Annotations, b.Annotations) {
			return false // what the ConfigMap sets depends on the annotations that there are
		}
		return ok && sameAnnotations(a.Annotations, b.Annotations, oldClass, AnnotationProtocol) &&
			annotation.UsesPatterns(a) == annotation.UsesPatterns(b) && traefikTLS(a.Annotations) == traefikTLS(b.Annotations) && isCanary(a) == isCanary(b) && sameUnsupported(a, b) && sameOf(annotation.Traefik, a.Annotations, b.Annotations) && reflect.DeepEqual(annotation.SettingsOf(a), annotation.SettingsOf(b)) && a.UID == b.UID && reflect.DeepEqual(a.Spec, b.Spec)
	case *corev1.Service:
		b, ok := now.(*corev1.Service)
		return ok && sameAnnotations(a.Annotations, b.Annotations, AnnotationPreferLocal, AnnotationRequireLocal, AnnotationRampUp, AnnotationSendProxy) && sameOf(annotation.Traefik, a.Annotations, b.Annotations) &&
			sameUnsupported(a, b) && reflect.DeepEqual(a.OwnerReferences, b.OwnerReferences) && reflect.DeepEqual(a.Spec, b.Spec) && reflect.DeepEqual(a.Status, b.Status)
	case *corev1.ConfigMap:
		b, ok := now.(*corev1.ConfigMap)
		return ok && reflect.DeepEqual(a.Data, b.Data)
	case *discoveryv1.EndpointSlice:
		b, ok := now.(*discoveryv1.EndpointSlice)
		return ok && sourceOf(a) == sourceOf(b) && gateway.IsOwnSlice(a) == gateway.IsOwnSlice(b) && a.AddressType == b.AddressType && reflect.DeepEqual(a.OwnerReferences, b.OwnerReferences) && reflect.DeepEqual(a.Ports, b.Ports) && reflect.DeepEqual(a.Endpoints, b.Endpoints)
	case *corev1.Secret:
		b, ok := now.(*corev1.Secret)
		return ok && reflect.DeepEqual(a.Data, b.Data)
	case *networkingv1.IngressClass:
		b, ok := now.(*networkingv1.IngressClass)
		return ok && sameAnnotations(a.Annotations, b.Annotations, networkingv1.AnnotationIsDefaultIngressClass) && a.UID == b.UID &&
			a.CreationTimestamp.Equal(&b.CreationTimestamp) && reflect.DeepEqual(a.Spec, b.Spec)
	case *corev1.Namespace:
		b, ok := now.(*corev1.Namespace)
		return ok && maps.Equal(a.Labels, b.Labels)
	case *corev1.Node:
		b, ok := now.(*corev1.Node)
		return ok && maps.Equal(a.Labels, b.Labels) && reflect.DeepEqual(a.DeletionTimestamp, b.DeletionTimestamp) && reflect.DeepEqual(a.Spec, b.Spec)
	}
	return sameGatewayObject(old, now)
}

// sameAnnotations reports whether two objects have equal values of the annotations in read.
func sameAnnotations(a, b map[string]string, read ...string) bool {
	return !slices.ContainsFunc(read, func(name string) bool {
		x, inA := a[name]
		y, inB := b[name]
		return x != y || inA != inB
	})
}

// sameOf reports whether two objects have the same annotations with a prefix.
func sameOf(prefix string, a, b map[string]string) bool {
	more := 0 // annotations of a, minus those of b
	for name, value := range a {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if other, ok := b[name]; !ok || other != value {
			return false
		}
		more++
	}
	for name := range b {
		if strings.HasPrefix(name, prefix) {
			more--
		}
	}
	return more == 0
}

// all are the objects of a kind.
func all[T any](s *Source, kind Kind) (found []T) {
	for _, i := range s.informers[kind] {
		for _, o := range i.Items.List() {
			found = append(found, o.(T))
		}
	}
	return found
}

// get is one object, or nil.
func get[T any](s *Source, kind Kind, name config.ObjectName) (found T) {
	for _, i := range s.informers[kind] {
		if o, ok, _ := i.Items.GetByKey(name.String()); ok {
			return o.(T)
		}
	}
	return found
}
