// Package gateway applies the rules of the Gateway API to its objects: which Gateway has which
// address, which of its listeners are valid, which routes are attached to them and for which
// hosts, and which references are permitted. It writes down the result as the status of each
// object. It knows nothing of weir's configuration; package kube makes routes of the result.
//
// All functions are pure. No object is changed.
package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/pause"
)

// Group is the API group of the Gateway API.
const Group = gatewayv1.GroupName

// The kinds of objects that refer to others.
const (
	KindClass       = "GatewayClass"
	KindGateway     = "Gateway"
	KindListenerSet = "ListenerSet"
	KindHTTPRoute   = "HTTPRoute"
	KindGRPCRoute   = "GRPCRoute"
	KindTLSRoute    = "TLSRoute"
	KindTCPRoute    = "TCPRoute"
	KindPolicy      = "BackendTLSPolicy"
)

// Objects are the objects of a cluster. They may come in any order, and may name objects that do
// not exist.
type Objects struct {
	Classes  []*gatewayv1.GatewayClass
	Gateways []*gatewayv1.Gateway
	Sets     []*gatewayv1.ListenerSet
	HTTP     []*gatewayv1.HTTPRoute
	GRPC     []*gatewayv1.GRPCRoute
	TLS      []*gatewayv1.TLSRoute
	TCP      []*gatewayv1.TCPRoute
	Grants   []*gatewayv1.ReferenceGrant
	Policies []*gatewayv1.BackendTLSPolicy
	Bundles  []*corev1.ConfigMap // with the certificates of authorities
	// Slices are the EndpointSlices of the Services of Gateways, if weir keeps these for their
	// addresses. Replicas are those of the Service that selects the Pods of weir.
	Slices, Replicas []*discoveryv1.EndpointSlice
}

// Problem is the reason why a condition is not true.
type Problem struct{ Reason, Message string }

func problem[R ~string](reason R, format string, args ...any) *Problem {
	return &Problem{string(reason), fmt.Sprintf(format, args...)}
}

// NameOf returns the name of an object.
func NameOf(o metav1.Object) config.ObjectName {
	return config.ObjectName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// older orders objects by age, and equally old ones by namespace/name.
func older(a, b metav1.Object) int {
	return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), compareTexts(NameOf(a), NameOf(b)))
}

// value returns what p points to, or otherwise.
func value[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// Route is a route of any kind.
type Route struct {
	Kind      string
	Name      config.ObjectName
	Meta      *metav1.ObjectMeta
	Parents   []gatewayv1.ParentReference
	Hostnames []gatewayv1.Hostname // empty: every host, or none that matters
	// One of them is set.
	HTTP *gatewayv1.HTTPRouteSpec
	GRPC *gatewayv1.GRPCRouteSpec
	TLS  *gatewayv1.TLSRouteSpec
	TCP  *gatewayv1.TCPRouteSpec
}

// String is the route in messages.
func (r *Route) String() string { return r.Kind + " " + r.Name.String() }

// compareRoutes orders routes by age.
func compareRoutes(a, b *Route) int {
	return cmp.Or(a.Meta.CreationTimestamp.Compare(b.Meta.CreationTimestamp.Time), compareTexts(a.Name, b.Name), strings.Compare(a.Kind, b.Kind))
}

// routeOf returns the Route of an object of any kind of routes.
func routeOf(o any) *Route {
	switch o := o.(type) {
	case *gatewayv1.HTTPRoute:
		return &Route{Kind: KindHTTPRoute, Name: NameOf(o), Meta: &o.ObjectMeta, Parents: o.Spec.ParentRefs, Hostnames: o.Spec.Hostnames, HTTP: &o.Spec}
	case *gatewayv1.GRPCRoute:
		return &Route{Kind: KindGRPCRoute, Name: NameOf(o), Meta: &o.ObjectMeta, Parents: o.Spec.ParentRefs, Hostnames: o.Spec.Hostnames, GRPC: &o.Spec}
	case *gatewayv1.TLSRoute:
		return &Route{Kind: KindTLSRoute, Name: NameOf(o), Meta: &o.ObjectMeta, Parents: o.Spec.ParentRefs, Hostnames: o.Spec.Hostnames, TLS: &o.Spec}
	case *gatewayv1.TCPRoute:
		return &Route{Kind: KindTCPRoute, Name: NameOf(o), Meta: &o.ObjectMeta, Parents: o.Spec.ParentRefs, TCP: &o.Spec}
	}
	return nil
}

// Index finds the objects that belong to a Gateway, a namespace or a Service.
type Index struct {
	controller string
	serves     func(namespace string) bool
	classes    map[string]*gatewayv1.GatewayClass
	gateways   []*gatewayv1.Gateway // of weir, the oldest first
	namespaces map[string]*corev1.Namespace
	sets       map[config.ObjectName][]*gatewayv1.ListenerSet // by Gateway, the oldest first
	routes     map[config.ObjectName][]*Route                 // by Gateway, also by its ListenerSets; the oldest first
	grants     map[string][]*gatewayv1.ReferenceGrant         // by namespace
	policies   map[config.ObjectName][]*gatewayv1.BackendTLSPolicy
	bundles    map[config.ObjectName]*corev1.ConfigMap
}

// NewIndex makes the Index of objects. serves reports whether weir serves a namespace. known is
// filled.
func NewIndex(o *Objects, controller string, namespaces []*corev1.Namespace, serves func(string) bool, known *Known) *Index {
	x := &Index{controller: controller, serves: serves, classes: map[string]*gatewayv1.GatewayClass{}, namespaces: map[string]*corev1.Namespace{},
		sets: map[config.ObjectName][]*gatewayv1.ListenerSet{}, routes: map[config.ObjectName][]*Route{}, grants: map[string][]*gatewayv1.ReferenceGrant{},
		policies: map[config.ObjectName][]*gatewayv1.BackendTLSPolicy{}, bundles: map[config.ObjectName]*corev1.ConfigMap{}}
	for _, c := range o.Classes {
		x.classes[c.Name] = c
	}
	for _, n := range namespaces {
		x.namespaces[n.Name] = n
	}
	for _, g := range o.Gateways {
		if serves(g.Namespace) && x.ClassOf(g) != nil {
			x.gateways = append(x.gateways, g)
		}
	}
	slices.SortFunc(x.gateways, func(a, b *gatewayv1.Gateway) int { return older(a, b) })
	for _, g := range o.Grants {
		x.grants[g.Namespace] = append(x.grants[g.Namespace], g)
	}
	for _, m := range o.Bundles {
		x.bundles[NameOf(m)] = m
	}
	x.addPolicies(o.Policies)
	parents := x.addSets(o.Sets)
	addRoutes(x, o.HTTP, known, parents)
	addRoutes(x, o.GRPC, known, parents)
	addRoutes(x, o.TLS, known, parents)
	addRoutes(x, o.TCP, known, parents)
	compared := 0
	for _, all := range x.routes {
		slices.SortFunc(all, func(a, b *Route) int {
			compared++
			pause.InLoop(compared)
			return compareRoutes(a, b)
		})
	}
	return x
}

// ClassOf returns the class of a Gateway; nil: it is not weir's.
func (x *Index) ClassOf(g *gatewayv1.Gateway) *gatewayv1.GatewayClass {
	c := x.classes[string(g.Spec.GatewayClassName)]
	if c == nil || string(c.Spec.ControllerName) != x.controller {
		return nil
	}
	return c
}

// Gateways returns the Gateways of weir, the oldest first.
func (x *Index) Gateways() []*gatewayv1.Gateway { return x.gateways }

// RoutesOf returns the routes that name a Gateway or one of its ListenerSets, the oldest first.
func (x *Index) RoutesOf(g config.ObjectName) []*Route { return x.routes[g] }

// SetsOf returns the ListenerSets that name a Gateway, the oldest first.
func (x *Index) SetsOf(g config.ObjectName) []*gatewayv1.ListenerSet { return x.sets[g] }

// addSets indexes the ListenerSets. It returns the Gateway of each.
func (x *Index) addSets(all []*gatewayv1.ListenerSet) map[config.ObjectName]config.ObjectName {
	parents := map[config.ObjectName]config.ObjectName{}
	for _, s := range all {
		ref := &s.Spec.ParentRef
		if !x.serves(s.Namespace) || string(value(ref.Group, Group)) != Group || string(value(ref.Kind, KindGateway)) != KindGateway {
			continue
		}
		g := config.ObjectName{Namespace: string(value(ref.Namespace, gatewayv1.Namespace(s.Namespace))), Name: string(ref.Name)}
		parents[NameOf(s)] = g
		x.sets[g] = append(x.sets[g], s)
	}
	for _, sets := range x.sets {
		slices.SortFunc(sets, func(a, b *gatewayv1.ListenerSet) int { return older(a, b) })
	}
	return parents
}

// parentOf returns the object that a route names as its parent.
func parentOf(r *Route, p *gatewayv1.ParentReference) (kind string, name config.ObjectName) {
	if string(value(p.Group, Group)) != Group {
		return "", name
	}
	return string(value(p.Kind, KindGateway)), config.ObjectName{Namespace: string(value(p.Namespace, gatewayv1.Namespace(r.Name.Namespace))), Name: string(p.Name)}
}

// addRoutes indexes routes by their Gateways. sets are the Gateways of ListenerSets.
func addRoutes[T metav1.Object](x *Index, all []T, known *Known, sets map[config.ObjectName]config.ObjectName) {
	for i, o := range all {
		pause.InLoop(i)
		r := known.of(o)
		if !x.serves(r.Name.Namespace) {
			continue
		}
		for i := range r.Parents {
			kind, name := parentOf(r, &r.Parents[i])
			switch kind {
			case KindGateway:
			case KindListenerSet:
				name = sets[name]
			default:
				continue
			}
			if of := x.routes[name]; len(of) == 0 || of[len(of)-1] != r {
				x.routes[name] = append(of, r)
			}
		}
	}
	delete(x.routes, config.ObjectName{})
}

// Env is what package gateway needs to know of other objects.
type Env interface {
	// Secret returns a Secret; nil: it does not exist.
	Secret(config.ObjectName) *corev1.Secret
	// CheckPair returns why weir cannot serve the certificate in a Secret, or nil. The text
	// follows the name of the Secret.
	CheckPair(*corev1.Secret) error
	// CertificateNames are the names in the certificate of a Secret that CheckPair accepts.
	CertificateNames(*corev1.Secret) []string
	// HasHeaderPolicy and HasTLSPolicy report whether the configuration file has a policy of this
	// name for PROXY headers, and for TLS.
	HasHeaderPolicy(name string) bool
	HasTLSPolicy(name string) bool
	// HasIssuer reports whether the file has an issuer of this name. MayIssue returns why it may not order a
	// certificate of the host for an object of the namespace, or nil. The text follows the host.
	HasIssuer(name string) bool
	MayIssue(issuer, namespace, host string) error
	// RefusesHost returns why the configuration does not give a host to objects of the namespace, or an empty text. The
	// text follows the host.
	RefusesHost(namespace, host string) string
	// UnknownAnnotations are sentences about the annotations with weir's prefix that have no effect on an object of
	// the kind.
	UnknownAnnotations(kind string, o metav1.Object) []string
}

// View is an Index while one Gateway is converted. It remembers the objects that the conversion looked
// up. The result stays valid until one of these objects changes.
type View struct {
	*Index
	Env
	namespacesSeen map[string]*corev1.Namespace
	grantsSeen     map[string][]*gatewayv1.ReferenceGrant
	bundlesSeen    map[config.ObjectName]*corev1.ConfigMap
	policiesSeen   map[config.ObjectName][]*gatewayv1.BackendTLSPolicy
}

// NewView returns a View that has looked up nothing.
func NewView(x *Index, env Env) *View {
	return &View{Index: x, Env: env, namespacesSeen: map[string]*corev1.Namespace{}, grantsSeen: map[string][]*gatewayv1.ReferenceGrant{},
		bundlesSeen: map[config.ObjectName]*corev1.ConfigMap{}, policiesSeen: map[config.ObjectName][]*gatewayv1.BackendTLSPolicy{}}
}

// Renew reports whether another Index has the same objects under the names that were looked up. If so, v
// refers to the objects of that Index.
func (v *View) Renew(x *Index) bool {
	for name, n := range v.namespacesSeen {
		if x.namespaces[name] != n {
			return false
		}
	}
	for name, g := range v.grantsSeen {
		if !slices.Equal(x.grants[name], g) {
			return false
		}
	}
	for name, m := range v.bundlesSeen {
		if x.bundles[name] != m {
			return false
		}
	}
	looked := 0
	for name, p := range v.policiesSeen {
		looked++
		pause.InLoop(looked)
		if !sameObjects(p, x.policies[name]) {
			return false
		}
		v.policiesSeen[name] = x.policies[name]
	}
	return true
}

// Forget drops the Index, which would keep all objects in memory.
func (v *View) Forget() { v.Index, v.Env = nil, nil }

func (v *View) namespace(name string) *corev1.Namespace {
	n := v.namespaces[name]
	v.namespacesSeen[name] = n
	return n
}

func (v *View) bundle(name config.ObjectName) *corev1.ConfigMap {
	m := v.bundles[name]
	v.bundlesSeen[name] = m
	return m
}
