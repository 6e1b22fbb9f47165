package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
)

// clusterAPI is the part of an API server that weir reads: lists and watches of objects in memory, in
// protobuf as from a real one. It refuses everything else.
type clusterAPI struct {
	kinds map[string]*kindAPI // by the path of the resource
	pages map[string]any      // other answers, by path
	codec runtime.SerializerInfo

	mu      sync.Mutex
	version int
}

// kindAPI are the objects of a kind.
type kindAPI struct {
	kind    metav1.TypeMeta
	custom  bool                  // of a CustomResourceDefinition, which API servers send as JSON
	list    func() runtime.Object // an empty list
	objects map[types.NamespacedName]runtime.Object
	watches []chan frame
}

// frame is a change for a watch.
type frame struct {
	what   watch.EventType
	object runtime.Object
}

func newClusterAPI() (*clusterAPI, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, networkingv1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	a := &clusterAPI{version: 1000}
	a.codec, _ = runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(scheme).SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	kind := func(group, kind string, list func() runtime.Object) *kindAPI {
		return &kindAPI{kind: metav1.TypeMeta{APIVersion: group, Kind: kind}, list: list, objects: map[types.NamespacedName]runtime.Object{}}
	}
	a.kinds = map[string]*kindAPI{
		"/apis/networking.k8s.io/v1/ingressclasses": kind("networking.k8s.io/v1", "IngressClass", func() runtime.Object { return &networkingv1.IngressClassList{} }),
		"/apis/networking.k8s.io/v1/ingresses":      kind("networking.k8s.io/v1", "Ingress", func() runtime.Object { return &networkingv1.IngressList{} }),
		"/api/v1/services":                          kind("v1", "Service", func() runtime.Object { return &corev1.ServiceList{} }),
		"/api/v1/secrets":                           kind("v1", "Secret", func() runtime.Object { return &corev1.SecretList{} }),
		"/apis/discovery.k8s.io/v1/endpointslices":  kind("discovery.k8s.io/v1", "EndpointSlice", func() runtime.Object { return &discoveryv1.EndpointSliceList{} }),
	}
	return a, nil
}

// serve serves the API on a free port, and returns its URL.
func (a *clusterAPI) serve() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go http.Serve(l, a)
	return "http://" + l.Addr().String(), nil
}

// put creates or replaces an object.
func (a *clusterAPI) put(path string, o runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.kinds[path]
	m, err := meta.Accessor(o)
	if err != nil {
		panic(err) // a mistake in the bench
	}
	a.version++
	m.SetResourceVersion(strconv.Itoa(a.version))
	name, what := types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}, watch.Added
	if k.objects[name] != nil {
		what = watch.Modified
	}
	o.GetObjectKind().SetGroupVersionKind(k.kind.GroupVersionKind())
	k.objects[name] = o
	for _, w := range k.watches {
		w <- frame{what, o}
	}
}

func (a *clusterAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k := a.kinds[r.URL.Path]
	switch q := r.URL.Query(); {
	case a.pages[r.URL.Path] != nil:
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		json.NewEncoder(w).Encode(a.pages[r.URL.Path])
	case k == nil || r.Method != http.MethodGet:
		refuseAPI(w)
	case q.Get("watch") == "true" || q.Get("watch") == "1":
		a.watch(w, r, k, q.Get("sendInitialEvents") == "true")
	default:
		a.listAll(w, k)
	}
}

// refuseAPI says that a right is missing.
func refuseAPI(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusForbidden)
	json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: "this is only a part of an API server"})
}

func (a *clusterAPI) listAll(w http.ResponseWriter, k *kindAPI) {
	a.mu.Lock()
	all := k.list()
	var items []runtime.Object
	for _, o := range k.objects {
		items = append(items, o)
	}
	err := meta.SetList(all, items)
	if m, err := meta.ListAccessor(all); err == nil {
		m.SetResourceVersion(strconv.Itoa(a.version))
	}
	a.mu.Unlock()
	kind := k.kind.GroupVersionKind()
	kind.Kind += "List"
	all.GetObjectKind().SetGroupVersionKind(kind)
	var text []byte
	if err == nil {
		text, err = a.encode(k, all)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", k.contentType())
	w.Write(text)
}

func (k *kindAPI) contentType() string {
	if k.custom {
		return runtime.ContentTypeJSON
	}
	return runtime.ContentTypeProtobuf
}

// encode returns an object as the API server sends it.
func (a *clusterAPI) encode(k *kindAPI, o runtime.Object) ([]byte, error) {
	if k.custom {
		return json.Marshal(o)
	}
	var text bytes.Buffer
	err := a.codec.Serializer.Encode(o, &text)
	return text.Bytes(), err
}

// watch sends the changes from now on. all means that it begins with all objects, as the API server does
// since 1.34.
func (a *clusterAPI) watch(w http.ResponseWriter, r *http.Request, k *kindAPI, all bool) {
	changes := make(chan frame, 1000)
	a.mu.Lock()
	var before []runtime.Object
	for _, o := range k.objects {
		before = append(before, o)
	}
	version := strconv.Itoa(a.version)
	k.watches = append(k.watches, changes)
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		k.watches = slices.DeleteFunc(k.watches, func(c chan frame) bool { return c == changes })
	}()
	w.Header().Set("Content-Type", k.contentType()+";stream=watch")
	w.WriteHeader(http.StatusOK)
	out := io.Writer(w)
	if !k.custom {
		out = a.codec.StreamSerializer.Framer.NewFrameWriter(w)
	}
	if all {
		for _, o := range before {
			if a.send(out, k, frame{watch.Added, o}) != nil {
				return
			}
		}
		if a.send(out, k, frame{watch.Bookmark, bookmark(k, version)}) != nil {
			return
		}
	}
	for {
		http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case c := <-changes:
			if a.send(out, k, c) != nil {
				return
			}
		}
	}
}

// bookmark ends the objects with which a watch begins.
func bookmark(k *kindAPI, version string) runtime.Object {
	items, err := meta.GetItemsPtr(k.list())
	if err != nil {
		panic(err) // a mistake in the bench
	}
	o := reflect.New(reflect.TypeOf(items).Elem().Elem()).Interface().(runtime.Object)
	m, _ := meta.Accessor(o)
	m.SetResourceVersion(version)
	m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	o.GetObjectKind().SetGroupVersionKind(k.kind.GroupVersionKind())
	return o
}

func (a *clusterAPI) send(w io.Writer, k *kindAPI, f frame) error {
	text, err := a.encode(k, f.object)
	if err != nil {
		return err
	}
	event := &metav1.WatchEvent{Type: string(f.what), Object: runtime.RawExtension{Raw: text}}
	if k.custom {
		return json.NewEncoder(w).Encode(event)
	}
	return a.codec.StreamSerializer.Serializer.Encode(event, w)
}

// newUID returns a UID in the form of the API server's.
func newUID() types.UID {
	var b [16]byte
	rand.Read(b[:])
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]))
}

// clusterMeta is the metadata of an object, with all that kubectl, controllers and the API server add.
func clusterMeta(kind string, i int) metav1.ObjectMeta {
	name, now := fmt.Sprintf("shop-frontend-%d", i), metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	labels := map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/instance": name, "app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "shop-frontend-1.4.2"}
	fields := `{"f:metadata":{"f:annotations":{".":{},"f:kubectl.kubernetes.io/last-applied-configuration":{}},"f:labels":{".":{},"f:app.kubernetes.io/name":{},"f:app.kubernetes.io/instance":{},"f:app.kubernetes.io/managed-by":{},"f:helm.sh/chart":{}}},"f:spec":{"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{},"f:targetPort":{}}},"f:selector":{},"f:sessionAffinity":{},"f:type":{}}}`
	return metav1.ObjectMeta{
		Namespace: fmt.Sprintf("tenant-%d", i%100), Name: name, UID: newUID(), CreationTimestamp: now, Generation: 1, Labels: labels,
		Annotations: map[string]string{"kubectl.kubernetes.io/last-applied-configuration": `{"kind":"` + kind + `","metadata":{"name":"` + name + `"},"spec":"` + strings.Repeat("x", 500) + `"}`,
			"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": fmt.Sprintf("tenant-%d", i%100)},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "helm", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &now, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}},
	}
}

func clusterIngress(i int, path string) *networkingv1.Ingress {
	class, prefix := "weir", networkingv1.PathTypePrefix
	o := &networkingv1.Ingress{ObjectMeta: clusterMeta("Ingress", i)}
	backend := networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: o.Name, Port: networkingv1.ServiceBackendPort{Name: "http"}}}
	o.Spec = networkingv1.IngressSpec{IngressClassName: &class, Rules: []networkingv1.IngressRule{{Host: clusterHost(i), IngressRuleValue: networkingv1.IngressRuleValue{
		HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Path: path, PathType: &prefix, Backend: backend}}}}}}}
	o.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: "203.0.113.10"}}
	return o
}

func clusterHost(i int) string { return fmt.Sprintf("shop-%d.tenant-%d.example.org", i, i%100) }

func clusterService(i int) *corev1.Service {
	o := &corev1.Service{ObjectMeta: clusterMeta("Service", i)}
	single, cluster, ip := corev1.IPFamilyPolicySingleStack, corev1.ServiceInternalTrafficPolicyCluster, fmt.Sprintf("10.96.%d.%d", i/250, i%250)
	o.Spec = corev1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}, Type: corev1.ServiceTypeClusterIP, SessionAffinity: corev1.ServiceAffinityNone,
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: &single, InternalTrafficPolicy: &cluster,
		Selector: map[string]string{"app.kubernetes.io/name": o.Name, "app.kubernetes.io/instance": o.Name},
		Ports:    []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("http")}}}
	return o
}

// clusterSlice has the Pods of a Service. weir never connects to them.
func clusterSlice(i, pods int) *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{ObjectMeta: clusterMeta("EndpointSlice", i), AddressType: discoveryv1.AddressTypeIPv4}
	o.Labels[discoveryv1.LabelServiceName], o.Labels[discoveryv1.LabelManagedBy] = o.Name, "endpointslice-controller.k8s.io"
	o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: o.Name, UID: newUID(), Controller: new(true), BlockOwnerDeletion: new(true)}}
	o.Ports = []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}}
	for p := range pods {
		o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 100+p, i/250, i%250+1)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			NodeName:   new(fmt.Sprintf("node-%d", (i+p)%200)), Zone: new(fmt.Sprintf("zone-%d", p%3)),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: o.Namespace, Name: fmt.Sprintf("%s-7d9f8c6b5d-%05d", o.Name, p), UID: newUID()}})
	}
	return o
}
