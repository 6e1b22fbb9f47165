package kube

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/gateway"
	"github.com/weirproxy/weir/config/kube/informer"
)

// The kinds of the Gateway API. A cluster need not serve them, and may begin or cease to serve
// them at any time.
const (
	GatewayClasses     Kind = "gatewayclasses"
	Gateways           Kind = "gateways"
	ListenerSets       Kind = "listenersets"
	HTTPRoutes         Kind = "httproutes"
	GRPCRoutes         Kind = "grpcroutes"
	TLSRoutes          Kind = "tlsroutes"
	TCPRoutes          Kind = "tcproutes"
	ReferenceGrants    Kind = "referencegrants"
	BackendTLSPolicies Kind = "backendtlspolicies"
)

// bundles are the ConfigMaps with certificates of authorities, to which objects of the Gateway
// API refer.
const bundles Kind = "configmaps with ca.crt"

// notRoot excludes a ConfigMap with certificates of authorities that each namespace has.
const notRoot = "metadata.name!=kube-root-ca.crt"

// optionalExample is an object of each kind that a cluster need not serve.
var optionalExample = map[Kind]runtime.Object{
	GatewayClasses: &gatewayv1.GatewayClass{}, Gateways: &gatewayv1.Gateway{}, ListenerSets: &gatewayv1.ListenerSet{},
	HTTPRoutes: &gatewayv1.HTTPRoute{}, GRPCRoutes: &gatewayv1.GRPCRoute{}, TLSRoutes: &gatewayv1.TLSRoute{}, TCPRoutes: &gatewayv1.TCPRoute{},
	ReferenceGrants: &gatewayv1.ReferenceGrant{}, BackendTLSPolicies: &gatewayv1.BackendTLSPolicy{},
}

// isOptional reports whether a cluster need not serve the kind.
func isOptional(kind Kind) bool { return optionalExample[kind] != nil }

// gatewaySelections adds the objects that weir watches for the Gateway API.
func gatewaySelections(k *config.Kubernetes, everywhere []Selection, all map[Kind][]Selection) {
	if k.Gateways == nil {
		return
	}
	for _, s := range everywhere {
		all[bundles] = append(all[bundles], Selection{Namespace: s.Namespace, Fields: notRoot})
	}
	all[Namespaces] = []Selection{{}}
	for kind := range optionalExample {
		all[kind] = everywhere
	}
	all[GatewayClasses] = []Selection{{}}
	if r := replicasOf(k); r.Name != "" && !slices.ContainsFunc(everywhere, func(s Selection) bool { return s.Namespace == "" || s.Namespace == r.Namespace }) {
		all[EndpointSlices] = append(slices.Clone(everywhere), Selection{Namespace: r.Namespace})
	}
}

// replicasOf is the Service that selects the Pods of weir; empty: Gateways do not need it.
func replicasOf(k *config.Kubernetes) (name config.ObjectName) {
	if k.Gateways != nil && k.Gateways.Addresses.Service != nil {
		name = k.Gateways.Addresses.Service.Replicas
	}
	return name
}

const (
	// lookForKinds is how often weir asks which optional kinds the cluster serves. The API server
	// does not report new kinds.
	lookForKinds = 5 * time.Second
	// lookAgainFor is the average time until weir asks again after an error.
	lookAgainFor = time.Second
)

// optional are the informers of kinds that a cluster need not serve.
type optional struct {
	source    *Source
	wanted    map[Kind][]Selection
	kindsLost *lost // the request for the kinds that the cluster serves

	mu      sync.Mutex
	running map[Kind]*optionalKind
	sooner  chan struct{} // asks at once; has room for one
}

// optionalKind are the informers of one kind that the cluster serves.
type optionalKind struct {
	version   string
	informers []*informer.Informer
	lost      []*lost // of the informers
	cancel    context.CancelFunc
	done      sync.WaitGroup
}

func newOptional(s *Source) *optional {
	o := &optional{source: s, kindsLost: &lost{outage: &s.outage}, wanted: map[Kind][]Selection{}, running: map[Kind]*optionalKind{}, sooner: make(chan struct{}, 1)}
	for kind, selected := range selections(s.opts.File) {
		if isOptional(kind) {
			o.wanted[kind] = selected
		}
	}
	return o
}

// start waits until the objects of all kinds that the cluster serves are known. It returns
// false if ctx ended before.
func (o *optional) start(ctx context.Context) bool {
	if len(o.wanted) == 0 || o.source.opts.Served == nil {
		return true
	}
	for !o.look(ctx) {
		if !sleep(ctx, lookAgainFor/2+rand.N(lookAgainFor), nil) {
			return false
		}
	}
	for _, k := range o.kinds() {
		if !k.await(ctx) {
			return false
		}
	}
	return true
}

// run follows the kinds that the cluster serves, until ctx ends and all informers have ended.
func (o *optional) run(ctx context.Context) {
	defer func() {
		for _, k := range o.kinds() {
			k.cancel()
			k.done.Wait()
		}
	}()
	if len(o.wanted) == 0 || o.source.opts.Served == nil {
		return
	}
	for sleep(ctx, lookForKinds, o.sooner) {
		o.look(ctx)
	}
}

// sleep waits for d or for sooner. It returns false if ctx has ended.
func sleep(ctx context.Context, d time.Duration, sooner <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-sooner:
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// look asks which kinds the cluster serves. It starts the informers of new kinds, and ends the informers
// of kinds that are gone. It returns false if the API server did not answer.
func (o *optional) look(ctx context.Context) bool {
	versions, err := o.source.opts.Served(ctx)
	if err != nil {
		if ctx.Err() == nil {
			o.source.trouble(o.kindsLost, GatewayClasses, err)
		}
		return false
	}
	o.source.retry.Answered()
	gone := o.change(ctx, versions)
	o.kindsLost.over()
	for _, k := range gone {
		k.cancel()
		k.done.Wait()
		for _, l := range k.lost {
			l.over()
		}
	}
	if len(gone) > 0 {
		o.source.note(func(d *dirt) { d.routes.touch() })
	}
	return true
}

// change starts informers, and returns those whose kind or version is gone.
func (o *optional) change(ctx context.Context, versions map[string]string) (gone []*optionalKind) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for kind, k := range o.running {
		if versions[string(kind)] != k.version {
			gone = append(gone, k)
			delete(o.running, kind)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(o.wanted)) {
		version, known := versions[string(kind)], o.running[kind]
		if version == "" || known != nil {
			continue
		}
		k := &optionalKind{version: version}
		o.fill(k, kind)
		o.running[kind] = k
		k.run(ctx, func() { o.source.note(func(d *dirt) { d.routes.touch() }) })
	}
	return gone
}

// versioned is a kind in a version, for Options.List.
func versioned(kind Kind, version string) Kind { return Kind(string(kind) + "@" + version) }

// fill makes the informers of a kind.
func (o *optional) fill(k *optionalKind, kind Kind) {
	for _, selection := range o.wanted[kind] {
		i, l := o.source.newInformer(kind, o.source.opts.List(versioned(kind, k.version), selection), optionalExample[kind], o.trouble)
		k.informers, k.lost = append(k.informers, i), append(k.lost, l)
	}
}

// trouble reports an error, unless the kind is gone.
func (o *optional) trouble(l *lost, kind Kind, err error) {
	if !apierrors.IsNotFound(err) {
		o.source.trouble(l, kind, err)
		return
	}
	select {
	case o.sooner <- struct{}{}:
	default:
	}
}

// run starts the informers, and calls known when all their objects are known.
func (k *optionalKind) run(ctx context.Context, known func()) {
	ctx, k.cancel = context.WithCancel(ctx)
	for _, i := range k.informers {
		k.done.Go(func() { i.Run(ctx) })
	}
	k.done.Go(func() {
		if k.await(ctx) {
			known()
		}
	})
}

// await waits until all objects of the kind are known.
func (k *optionalKind) await(ctx context.Context) bool {
	for _, i := range k.informers {
		select {
		case <-ctx.Done():
			return false
		case <-i.Known():
		}
	}
	return true
}

func (k *optionalKind) known() bool {
	return !slices.ContainsFunc(k.informers, func(i *informer.Informer) bool { return !i.IsKnown() })
}

func (o *optional) kinds() []*optionalKind {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Values(o.running))
}

// stores are the objects of a kind; none if the cluster does not serve it, or if not all of them
// are known.
func (o *optional) stores(kind Kind) (all []cache.Store) {
	o.mu.Lock()
	defer o.mu.Unlock()
	k := o.running[kind]
	if k == nil || !k.known() {
		return nil
	}
	for _, i := range k.informers {
		all = append(all, i.Items)
	}
	return all
}

// version is the version in which the cluster serves a kind; empty: it does not.
func (o *optional) version(kind Kind) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if k := o.running[kind]; k != nil {
		return k.version
	}
	return ""
}

// allOptional are the objects of an optional kind.
func allOptional[T any](s *Source, kind Kind) (found []T) {
	for _, store := range s.optional.stores(kind) {
		for _, o := range store.List() {
			found = append(found, o.(T))
		}
	}
	return found
}

// sameGatewayObject is gateway.Same for objects of any kind.
func sameGatewayObject(old, now any) bool {
	a, okA := old.(metav1.Object)
	b, okB := now.(metav1.Object)
	return okA && okB && isGatewayObject(old) && gateway.Same(a, b)
}

// isGatewayObject reports whether an object is of the Gateway API.
func isGatewayObject(o any) bool {
	switch o.(type) {
	case *gatewayv1.GatewayClass, *gatewayv1.Gateway, *gatewayv1.ListenerSet, *gatewayv1.HTTPRoute, *gatewayv1.GRPCRoute,
		*gatewayv1.TLSRoute, *gatewayv1.TCPRoute, *gatewayv1.ReferenceGrant, *gatewayv1.BackendTLSPolicy:
		return true
	}
	return false
}

// caKey is the key of a ConfigMap with the certificates of authorities.
const caKey = "ca.crt"

// slimBundle removes what weir does not use of a ConfigMap in bundles.
func slimBundle(o any) (any, error) {
	if m, ok := o.(*corev1.ConfigMap); ok {
		m.Annotations, m.Labels, m.ManagedFields, m.BinaryData = nil, nil, nil, nil
		maps.DeleteFunc(m.Data, func(key, _ string) bool { return key != caKey })
	}
	return o, nil
}

// gatewayObjects are all known objects of the Gateway API; nil: weir does not serve them.
func (s *Source) gatewayObjects() *gateway.Objects {
	if s.opts.File.Kubernetes.Gateways == nil {
		return nil
	}
	o := &gateway.Objects{
		Classes: allOptional[*gatewayv1.GatewayClass](s, GatewayClasses), Gateways: allOptional[*gatewayv1.Gateway](s, Gateways),
		Sets: allOptional[*gatewayv1.ListenerSet](s, ListenerSets),
		HTTP: allOptional[*gatewayv1.HTTPRoute](s, HTTPRoutes), GRPC: allOptional[*gatewayv1.GRPCRoute](s, GRPCRoutes),
		TLS: allOptional[*gatewayv1.TLSRoute](s, TLSRoutes), TCP: allOptional[*gatewayv1.TCPRoute](s, TCPRoutes),
		Grants: allOptional[*gatewayv1.ReferenceGrant](s, ReferenceGrants), Policies: allOptional[*gatewayv1.BackendTLSPolicy](s, BackendTLSPolicies),
		Bundles: all[*corev1.ConfigMap](s, bundles),
	}
	if r := replicasOf(s.opts.File.Kubernetes); r.Name != "" {
		o.Slices, o.Replicas = s.slices(byKeeper, gateway.SliceManager), s.slices(byService, r.String())
	}
	return o
}

// slices are the EndpointSlices with a key of an index.
func (s *Source) slices(index, key string) (found []*discoveryv1.EndpointSlice) {
	for _, i := range s.informers[EndpointSlices] {
		some, _ := i.Items.ByIndex(index, key)
		for _, o := range some {
			found = append(found, o.(*discoveryv1.EndpointSlice))
		}
	}
	return found
}
