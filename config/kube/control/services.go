package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/api"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// The Service of a Gateway has no selector. If the Gateway has addresses of a pool, the Service has none of
// its own: its EndpointSlices have the addresses of the Gateway, so the name of the Service resolves to
// these. Otherwise the Gateway has the addresses of the Service, whose EndpointSlices have the replicas of
// weir. The Gateway owns the Service, and the cluster deletes both together.

const (
	// servicePace is the time between two Services.
	servicePace = 10 * time.Millisecond
	// lookAtServices is how often weir checks that all Services are as it has written them.
	lookAtServices = 5 * time.Minute
)

// keptService is a Service that this leader has written or checked.
type keptService struct {
	of *gateway.Service
	// replicas are the EndpointSlices that its endpoints come from; nil: they are addresses.
	replicas []*discoveryv1.EndpointSlice
	at       time.Time // of the last check of the Service itself
}

// isFresh reports whether the Service itself was checked a short time ago.
func (k *keptService) isFresh() bool { return time.Since(k.at) < lookAtServices }

// writeServices keeps the Services of Gateways until ctx ends.
func (c *Control) writeServices(ctx context.Context) {
	if c.opts.Gateways == nil {
		return
	}
	work := newServiceWork()
	for again := time.Duration(0); pause(ctx, again, c.services); {
		again = lookAtServices
		w, known := c.want()
		if known && !c.keepServices(ctx, servicesOf(w.Gateways), w.Replicas, work) {
			again = retryStatuses
		}
	}
}

// serviceKey names the Service of a Gateway. Two Gateways may want Services with the same name: the Gateway a-b of the
// class c, and the Gateway a of the class b-c. The first of them keeps the Service.
type serviceKey struct {
	gateway gateway.Key
	name    string
}

func (k serviceKey) object() config.ObjectName {
	return config.ObjectName{Namespace: k.gateway.Namespace, Name: k.name}
}

func compareServices(a, b serviceKey) int {
	return cmp.Or(strings.Compare(a.object().String(), b.object().String()), strings.Compare(a.gateway.Name, b.gateway.Name), cmp.Compare(a.gateway.UID, b.gateway.UID))
}

func servicesOf(all []*gateway.Status) map[serviceKey]*gateway.Service {
	wanted := map[serviceKey]*gateway.Service{}
	for _, s := range all {
		if s.Service != nil {
			wanted[serviceKey{s.Service.Key, s.Service.Name}] = s.Service
		}
	}
	return wanted
}

// serviceWork is what a leader knows about the Services of Gateways.
type serviceWork struct {
	kept map[serviceKey]keptService
	// failed are the Services that the API server has refused. There is no attempt for the same Service before until.
	failed map[serviceKey]failedService
	// resting are the namespaces in which the API server has failed, and until when weir writes nothing there.
	resting map[string]time.Time
	last    string // the namespace of the last write
}

type failedService struct {
	of    *gateway.Service
	until time.Time
}

func newServiceWork() *serviceWork {
	return &serviceWork{kept: map[serviceKey]keptService{}, failed: map[serviceKey]failedService{}, resting: map[string]time.Time{}}
}

// mayTry reports whether there is an attempt for a Service now.
func (w *serviceWork) mayTry(key serviceKey, s *gateway.Service) bool {
	f := w.failed[key]
	return time.Now().After(w.resting[key.gateway.Namespace]) && (f.of != s || time.Now().After(f.until))
}

// note notes the result of an attempt.
func (w *serviceWork) note(key serviceKey, s *gateway.Service, err error) {
	w.last = key.gateway.Namespace
	switch {
	case err == nil:
		delete(w.failed, key)
	case isAway(err):
		w.resting[key.gateway.Namespace] = time.Now().Add(restNamespace)
	default:
		w.failed[key] = failedService{s, time.Now().Add(retryStatuses)}
	}
}

// isAway is api.IsAway for errors that may also be refusals of weir itself.
func isAway(err error) bool { return api.IsAway(err) && !errors.As(err, &othersObject{}) }

// keepServices writes what differs from the wanted Services, for each namespace in turn. It ends early when other
// Services are wanted, or when the API server is away. It returns false if something failed.
func (c *Control) keepServices(ctx context.Context, wanted map[serviceKey]*gateway.Service, replicas []*discoveryv1.EndpointSlice, work *serviceWork) bool {
	c.forgetRefusals(wanted)
	maps.DeleteFunc(work.failed, func(key serviceKey, f failedService) bool { return wanted[key] != f.of })
	good, away := true, 0
	try := func(key serviceKey, s *gateway.Service, f func() error) (done bool) {
		const what = "keep the Services of Gateways"
		if !work.mayTry(key, s) || !c.mayTry(what, key.gateway.Namespace) {
			good = false
			return false
		}
		err := f()
		if isLeaving(err) {
			err = nil // the Gateway goes with its namespace
		}
		c.outcome(what, key.object().String()+" "+key.gateway.Name, err) // another Gateway that works does not end its trouble
		c.deny(what, key.gateway.Namespace, err)
		work.note(key, s, err)
		if away++; !isAway(err) {
			away = 0
		}
		good = good && err == nil
		return err == nil
	}
	for _, key := range slices.SortedFunc(maps.Keys(work.kept), compareServices) {
		if former := work.kept[key].of; wanted[key] == nil && try(key, former, func() error { return c.dropService(ctx, key.object(), former) }) {
			delete(work.kept, key)
		}
	}
	keys := slices.SortedFunc(maps.Keys(wanted), compareServices)
	inTurn(keys, func(k serviceKey) string { return k.gateway.Namespace }, work.last)
	for _, key := range keys {
		s, was := wanted[key], work.kept[key]
		k := keptService{of: s, at: time.Now()}
		if s.Behind != nil {
			k.replicas = replicas
		}
		keep := c.keepService
		if was.of == s && was.isFresh() {
			if slices.Equal(was.replicas, k.replicas) {
				continue
			}
			k.at, keep = was.at, c.keepSlices // only Pods of weir have come, gone or changed
		}
		tried := false
		done := try(key, s, func() error {
			tried = true
			err := keep(ctx, key.object(), &k)
			c.noteRefusal(s, err)
			return err
		})
		switch {
		case done:
			work.kept[key] = k
		case away == mostAway:
			return false
		}
		if tried && (!pause(ctx, servicePace, nil) || len(c.services) > 0) {
			return good
		}
	}
	return good
}

// keepService creates or corrects one Service and its EndpointSlices.
func (c *Control) keepService(ctx context.Context, name config.ObjectName, k *keptService) error {
	s := k.of
	if s.Gone {
		return c.dropService(ctx, name, s)
	}
	limited, cancel := whole(ctx)
	defer cancel()
	o := object{c.opts.Client.Core, "services", name, ownerOf(s), false}
	found := &corev1.Service{}
	headless := false // as it must not be, or must be; it cannot change
	err := o.keep(limited, found, serviceFrom(name, s), func() bool {
		headless = (found.Spec.ClusterIP == corev1.ClusterIPNone) != (s.Behind == nil)
		return !headless && correctService(found, s)
	})
	if headless && err == nil {
		if err = c.dropService(ctx, name, s); err == nil {
			err = o.keep(limited, &corev1.Service{}, serviceFrom(name, s), func() bool { return false })
		}
	}
	if err != nil {
		return err
	}
	return c.keepSlices(ctx, name, k)
}

// keepSlices creates or corrects the EndpointSlices of a Service that exists.
func (c *Control) keepSlices(ctx context.Context, name config.ObjectName, k *keptService) error {
	s := k.of
	if s.Gone {
		return nil
	}
	limited, cancel := whole(ctx)
	defer cancel()
	for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		wanted, found := sliceFrom(name, k, family), &discoveryv1.EndpointSlice{}
		records := s.Behind != nil && family == discoveryv1.AddressTypeIPv4 // the ports on which weir listens
		o := object{c.opts.Client.Discovery, "endpointslices", config.ObjectName{Namespace: name.Namespace, Name: wanted.Name}, ownerOf(s), len(wanted.Endpoints) == 0 && !records}
		if err := o.keep(limited, found, wanted, func() bool { return correctSlice(found, wanted) }); err != nil {
			return err
		}
	}
	return nil
}

// dropService deletes the Service of a Gateway that needs none. Its EndpointSlices stay until the
// Gateway is deleted; without the Service they have no effect.
func (c *Control) dropService(ctx context.Context, name config.ObjectName, s *gateway.Service) error {
	limited, cancel := whole(ctx)
	defer cancel()
	found := &corev1.Service{}
	err := c.opts.Client.Core.Get().Namespace(name.Namespace).Resource("services").Name(name.Name).Do(limited).Into(found)
	if err == nil && belongsTo(found, s.UID) {
		uid := found.UID
		err = c.opts.Client.Core.Delete().Namespace(name.Namespace).Resource("services").Name(name.Name).
			Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}).Do(limited).Error()
	}
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return api.Failure("delete", "services "+name.Name, name.Namespace, err)
}

func ownerOf(s *gateway.Service) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: gatewayv1.GroupVersion.String(), Kind: gateway.KindGateway, Name: s.Key.Name, UID: s.UID, Controller: new(true)}
}

func belongsTo(o metav1.Object, uid types.UID) bool {
	return slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == uid })
}

// object is an object that weir keeps for a Gateway.
type object struct {
	client   rest.Interface
	resource string
	name     config.ObjectName
	owner    metav1.OwnerReference
	optional bool // it need not exist
}

// othersObject is the error of an object that does not belong to its Gateway.
type othersObject struct{ o *object }

func (e othersObject) Error() string {
	return fmt.Sprintf("weir cannot keep the %s %s for the Gateway %s, because it exists already and does not belong to the Gateway; delete it, or rename the Gateway", e.o.resource, e.o.name, e.o.owner.Name)
}

// kubeObject is an object of a kind that the client knows.
type kubeObject interface {
	metav1.Object
	runtime.Object
	Reset()
}

// mostConflicts is how often weir reads an object again that others change or delete at the same time: the controller
// of a load balancer, for example.
const mostConflicts = 5

// keep creates the object, or corrects it if it exists. It changes no object of another owner.
func (o *object) keep(ctx context.Context, found, wanted kubeObject, correct func() bool) (err error) {
	for range mostConflicts {
		found.Reset()
		if err = o.keepOnce(ctx, found, wanted, correct); !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return err
}

func (o *object) keepOnce(ctx context.Context, found, wanted kubeObject, correct func() bool) error {
	verb := "get"
	err := o.client.Get().Namespace(o.name.Namespace).Resource(o.resource).Name(o.name.Name).Do(ctx).Into(found)
	switch {
	case apierrors.IsNotFound(err) && o.optional:
		return nil
	case apierrors.IsNotFound(err):
		verb = "create"
		wanted.SetOwnerReferences([]metav1.OwnerReference{o.owner})
		err = o.client.Post().Namespace(o.name.Namespace).Resource(o.resource).Body(wanted).Do(ctx).Error()
	case err == nil && !belongsTo(found, o.owner.UID):
		return othersObject{o}
	case err == nil && correct():
		verb = "update"
		err = o.client.Put().Namespace(o.name.Namespace).Resource(o.resource).Name(o.name.Name).Body(found).Do(ctx).Error()
	}
	if err != nil {
		err = api.Failure(verb, o.resource+" "+o.name.Name, o.name.Namespace, err)
	}
	return err
}

func serviceFrom(name config.ObjectName, s *gateway.Service) *corev1.Service {
	made := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}}
	if b := s.Behind; b != nil {
		made.Spec.ClusterIP = ""
		if b.Type == config.ServiceClusterIP { // it cannot change later
			made.Spec.ClusterIP = b.Requested
		}
		// Replicas of both families of addresses get connections of both.
		made.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
		if ip, err := netip.ParseAddr(made.Spec.ClusterIP); err == nil && b.Requested != "" {
			made.Spec.IPFamilyPolicy, made.Spec.IPFamilies = new(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{familyOf(ip)}
		}
	}
	correctService(made, s)
	return made
}

// correctService gives a Service the wanted labels, annotations and ports, and reports whether it has
// changed the Service. Other labels and annotations stay.
func correctService(o *corev1.Service, s *gateway.Service) (changed bool) {
	changed = addAll(&o.Labels, s.Labels)
	changed = addAll(&o.Annotations, s.Annotations) || changed
	if len(o.Spec.Selector) > 0 {
		o.Spec.Selector, changed = nil, true
	}
	if s.Behind != nil {
		changed = correctBehind(&o.Spec, s.Behind) || changed
	}
	nodePorts := map[string]int32{} // which the cluster has chosen
	for i := range o.Spec.Ports {
		nodePorts[o.Spec.Ports[i].Name] = o.Spec.Ports[i].NodePort
	}
	var ports []corev1.ServicePort
	for _, p := range s.Ports {
		ports = append(ports, corev1.ServicePort{Name: p.Name(), Protocol: corev1.ProtocolTCP, Port: p.Port, TargetPort: intstr.FromInt32(p.Pod), NodePort: nodePorts[p.Name()]})
	}
	same := func(a, b corev1.ServicePort) bool {
		return a.Name == b.Name && a.Protocol == b.Protocol && a.Port == b.Port && a.TargetPort == b.TargetPort
	}
	if !slices.EqualFunc(o.Spec.Ports, ports, same) {
		o.Spec.Ports, changed = ports, true
	}
	return changed
}

// correctBehind gives a Service the wanted type and address, and reports whether it has changed the Service.
func correctBehind(o *corev1.ServiceSpec, b *gateway.Behind) (changed bool) {
	if kind := corev1.ServiceType(b.Type); o.Type != kind {
		if o.Type, changed = kind, true; kind == corev1.ServiceTypeClusterIP { // which has no ports on nodes
			o.ExternalTrafficPolicy, o.HealthCheckNodePort, o.LoadBalancerClass, o.AllocateLoadBalancerNodePorts = "", 0, nil, nil
			for i := range o.Ports {
				o.Ports[i].NodePort = 0
			}
		}
	}
	address := ""
	if b.Type == config.ServiceLoadBalancer {
		address = b.Requested
	}
	if o.LoadBalancerIP != address {
		o.LoadBalancerIP, changed = address, true
	}
	return changed
}

func familyOf(ip netip.Addr) corev1.IPFamily {
	if ip.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// addAll adds entries to a map, and reports whether they were not all there.
func addAll(to *map[string]string, from map[string]string) (changed bool) {
	for name, value := range from {
		if old, ok := (*to)[name]; !ok || old != value {
			if *to == nil {
				*to = map[string]string{}
			}
			(*to)[name], changed = value, true
		}
	}
	return changed
}

// sliceFrom returns the EndpointSlice with the addresses of one family. It has no endpoints if there
// are no addresses.
func sliceFrom(name config.ObjectName, k *keptService, family discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	s := k.of
	suffix := map[discoveryv1.AddressType]string{discoveryv1.AddressTypeIPv4: "-ipv4", discoveryv1.AddressTypeIPv6: "-ipv6"}[family]
	o := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name + suffix, Labels: maps.Clone(s.Labels)}, AddressType: family}
	o.Labels[discoveryv1.LabelServiceName], o.Labels[discoveryv1.LabelManagedBy] = name.Name, gateway.SliceManager
	for _, a := range s.Addresses {
		if a.Is4() == (family == discoveryv1.AddressTypeIPv4) {
			o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
		}
	}
	if s.Behind != nil {
		o.Endpoints = endpointsOf(k.replicas, family)
	}
	for _, p := range s.Ports {
		o.Ports = append(o.Ports, discoveryv1.EndpointPort{Name: new(p.Name()), Port: new(p.Pod), Protocol: new(corev1.ProtocolTCP)})
	}
	return o
}

// mostEndpoints is the maximum of the API server for one EndpointSlice.
const mostEndpoints = 1000

// endpointsOf are the endpoints of one family in EndpointSlices, without their Pods: these are in another
// namespace, perhaps. They are in the order of their addresses. If there are more than mostEndpoints, those
// that are not ready are left out first.
func endpointsOf(replicas []*discoveryv1.EndpointSlice, family discoveryv1.AddressType) (all []discoveryv1.Endpoint) {
	for _, from := range replicas {
		if from.AddressType != family {
			continue
		}
		for i := range from.Endpoints {
			e := &from.Endpoints[i]
			all = append(all, discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions, NodeName: e.NodeName, Zone: e.Zone})
		}
	}
	compare := func(a, b discoveryv1.Endpoint) int { return slices.Compare(a.Addresses, b.Addresses) }
	slices.SortStableFunc(all, compare)
	all = slices.CompactFunc(all, func(a, b discoveryv1.Endpoint) bool { return compare(a, b) == 0 })
	for _, isSpare := range []func(discoveryv1.Endpoint) bool{isUnready, func(discoveryv1.Endpoint) bool { return true }} {
		for i := len(all) - 1; i >= 0 && len(all) > mostEndpoints; i-- {
			if isSpare(all[i]) {
				all = slices.Delete(all, i, i+1)
			}
		}
	}
	return all
}

func isUnready(e discoveryv1.Endpoint) bool { return e.Conditions.Ready != nil && !*e.Conditions.Ready }

// correctSlice gives an EndpointSlice the wanted labels, endpoints and ports, and reports whether it has
// changed the EndpointSlice.
func correctSlice(o, wanted *discoveryv1.EndpointSlice) (changed bool) {
	changed = addAll(&o.Labels, wanted.Labels)
	sameEndpoint := func(a, b discoveryv1.Endpoint) bool {
		return slices.Equal(a.Addresses, b.Addresses) && reflect.DeepEqual(a.Conditions, b.Conditions) && equalPointer(a.NodeName, b.NodeName) && equalPointer(a.Zone, b.Zone)
	}
	samePort := func(a, b discoveryv1.EndpointPort) bool {
		return a.Name != nil && a.Port != nil && *a.Name == *b.Name && *a.Port == *b.Port
	}
	if !slices.EqualFunc(o.Endpoints, wanted.Endpoints, sameEndpoint) || !slices.EqualFunc(o.Ports, wanted.Ports, samePort) {
		o.Endpoints, o.Ports, changed = wanted.Endpoints, wanted.Ports, true
	}
	return changed
}

func equalPointer[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }
