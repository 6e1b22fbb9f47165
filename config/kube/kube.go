// Package kube converts the objects of a Kubernetes cluster into weir's
// configuration. The functions are pure: they take objects, and return events and the
// same immutable values as the package config. An event describes an error in one object.
// An error in one object affects no other object.
//
// Routes and endpoints are separate. Converter.Convert makes everything except
// endpoints from Ingresses and the objects that they name. Endpoints makes the
// endpoints of one backend. So a Pod that comes or goes changes one backend only.
//
// Source watches a cluster and reports its changes.
//
// Each file of this package is about one kind of object. Ingresses become claims
// (ingress.go), about which the package claim decides. Granted claims become Routes
// (route.go). Each family of annotations has a file in the package annotation. The package
// gateway decides about objects of the Gateway API, and the files gateway*.go make Routes of them.
package kube

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/controller"
	"github.com/weirproxy/weir/config/kube/event"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// Objects are the objects of a cluster of those kinds that routes depend on. They
// may come in any order, and may name objects that do not exist. None is changed.
type Objects struct {
	Classes    []*networkingv1.IngressClass
	Ingresses  []*networkingv1.Ingress
	Services   []*corev1.Service
	Secrets    []*corev1.Secret
	Namespaces []*corev1.Namespace // used only if namespaces are selected by labels
	Controller *corev1.ConfigMap   // of ingress-nginx's controller; nil: none
	TCP        *corev1.ConfigMap   // the ports for raw TCP, in the format of ingress-nginx; nil: none
	Gateway    *gateway.Objects    // of the Gateway API; nil: weir does not serve them
	// Maps are the ConfigMaps that annotations name, and those that do not exist. It is not changed.
	Maps map[config.ObjectName]NamedMap

	inOrder bool        // all lists are in the order of names
	silent  map[any]any // by a new object: the old object that it replaced since the last conversion, without a difference for weir
}

// Routing is the configuration that the objects of a cluster ask for, without
// endpoints. Its order is fixed: equal objects give equal values.
type Routing struct {
	Listeners      []config.Listener      // for raw TCP
	Ports          corev1.ObjectReference // the ConfigMap of the listeners
	HeaderPolicies []config.HeaderPolicy  // policies of those listeners that the file does not have
	Policies       []config.TLSPolicy     // for client certificates, see auth-tls-secret
	Routes         []*config.Route
	Backends       []*Backend
	Certificates   []config.Certificate // each for its hosts
	Auth           []config.Auth        // entries of auth that routes name, besides those of the file
	Default        *config.Certificate  // for all other names; nil: the file decides
	RequireLocal   []string             // Backends that need a ready endpoint on this node
	Ingresses      []config.ObjectName  // the Ingresses that weir serves
	Events         []event.Event
	Gateways       *GatewayRouting // nil: weir serves no Gateways

	allAuth []config.Auth // those of authOf, and Auth; the same slice as long as nothing changes
	authOf  *config.Config
}

// Backend is a backend, and the Service of its endpoints.
type Backend struct {
	config.Backend                          // without Endpoints: the function Endpoints makes them
	Source         config.ObjectName        // the Service; empty: the backend never has an endpoint
	UID            types.UID                // of the Service; empty: it does not exist
	Port           claim.Port               // the port of the Service, if it has the port
	OneAddress     bool                     // its only endpoint is the address of the Service
	Users          []corev1.ObjectReference // objects that send requests to it, the oldest first; at most maxUsers
}

// decide reads the claims of Ingresses, decides about them, and makes the routes of those that
// are granted.
func (v *conversion) decide(all []*networkingv1.Ingress) {
	all = v.readAs(all)
	v.rests = restsOf(all)
	all = v.leaveCanariesOut(all)
	v.patterns = patternsOf(all)
	owners := make([]*claim.Owner, 0, len(all))
	for _, i := range all {
		owners = append(owners, v.read(i))
	}
	v.readScripts(owners)
	v.readCerts(owners)
	v.prioritise(owners)
	v.decision = claim.Decide(slices.Concat(owners, v.shutCanaries), claim.Options{
		HostOwnership: v.settings.HostOwnership == config.OwnedByNamespace, Rival: v.rivalOf, Refuses: v.refuses, Events: v.events})
	v.tellContests(owners)
	v.findPassthrough()
	for _, c := range v.decision.Granted {
		v.route(c)
	}
	v.decision.TellRefusals()
	v.tellCanaries()
}

// conversion is the state of one Convert: of a group of Ingresses, or of what all groups
// share.
type conversion struct {
	file     *config.Config
	settings *config.Kubernetes
	o        *Objects
	seen     seen     // the hosts and paths of the file
	contests contests // about hosts that Ingresses and routes of Gateways name

	plain, secure []*config.Listener // the http and the tls listeners for Ingresses

	services map[config.ObjectName]*corev1.Service
	secrets  map[config.ObjectName]*corev1.Secret
	classes  map[string]*networkingv1.IngressClass
	chosen   func(namespace string) bool // whether weir serves it

	configured map[string]string // the setting for the certificate of a host, if the configuration has one

	clientCerts bool                  // a policy requests client certificates
	protected   map[string]protection // hosts behind client certificates, computed on demand

	controller *controller.Settings // of the ConfigMap of ingress-nginx; nil: the configuration names none
	keyScript  *keyScript           // of keys of that ConfigMap; nil: it has none of these keys

	guards       map[config.ObjectName]*claim.Guards       // of Services with annotations, computed on demand
	asked        map[*claim.Owner]annotation.Settings      // what the annotations of Ingresses set for their routes
	auth         map[*claim.Owner]*wantedAuth              // what Ingresses ask for; nil: nothing
	scripts      map[scriptFor]*scripted                   // of snippets; nil: no Ingress has one
	proxySSL     map[*claim.Owner]*proxySSL                // the TLS that Ingresses ask for
	headers      map[*claim.Owner]*config.HeaderEdits      // of custom-headers
	hostCerts    map[*claim.Owner]*hostCerts               // the client certificates that Ingresses ask for
	certs        map[hostIn]*hostCerts                     // the client certificates for the hosts of a namespace
	firstNamed   map[string]*claim.Owner                   // by host: the oldest Ingress with the host, if any asks for client certificates
	patterns     *patternHosts                             // hosts with regular expressions
	canaries     map[canaryAt][]*canary                    // the oldest first
	shutCanaries []*claim.Owner                            // canaries that close their hosts; they have no claims
	through      map[string]*claim.Claim                   // by host: the claim that gets its TLS connections
	twins        map[*networkingv1.Ingress][]string        // hosts that are redirected to another name
	further      map[*networkingv1.Ingress]map[string]bool // names by server-alias and from-to-www-redirect
	rests        map[*networkingv1.Ingress][]string        // hosts that are redirected, except for paths of Ingresses
	moves        map[*claim.Claim]*config.Redirect         // of claims that are only redirected
	bare         map[*claim.Claim]bool                     // claims for whose requests only a server-snippet may do something
	priorities   map[*claim.Owner]int                      // of Ingresses with Traefik's annotation for it
	decision     *claim.Decision                           // about all claims

	// offline is that of the Converter.
	offline bool

	shut     map[claim.Match]bool        // the paths that are closed so far
	routes   []*config.Route             // so far
	backends map[string]*Backend         // so far
	entries  map[string]*config.Auth     // of auth, that routes name so far
	policies map[string]config.TLSPolicy // for client certificates, that routes name so far
	uses     map[string][]useOrder       // of the Users of backends
	events   event.Set
	pairs    map[*corev1.Secret]pair // checked so far, by this or an earlier conversion
	// authorities has the results of checkAuthorities, also of earlier conversions.
	authorities map[*corev1.Secret]error
	looked      *lookups // nil: not recorded
	out         Routing
}

// newConversion returns a conversion without objects.
func newConversion(file *config.Config) *conversion {
	v := &conversion{
		file: file, settings: file.Kubernetes, o: &Objects{}, seen: look(file),
		services: map[config.ObjectName]*corev1.Service{}, secrets: map[config.ObjectName]*corev1.Secret{},
		classes: map[string]*networkingv1.IngressClass{}, guards: map[config.ObjectName]*claim.Guards{}, asked: map[*claim.Owner]annotation.Settings{}, priorities: map[*claim.Owner]int{}, auth: map[*claim.Owner]*wantedAuth{}, entries: map[string]*config.Auth{}, moves: map[*claim.Claim]*config.Redirect{}, shut: map[claim.Match]bool{},
		backends: map[string]*Backend{}, uses: map[string][]useOrder{}, events: event.Set{}, clientCerts: requestsClientCerts(file), protected: map[string]protection{},
	}
	for i := range file.Listeners {
		l := &file.Listeners[i]
		switch {
		case !slices.Contains(v.settings.Listeners, l.Name):
		case l.Protocol == config.ProtocolHTTP:
			v.plain = append(v.plain, l)
		case l.Protocol == config.ProtocolTLS:
			v.secure = append(v.secure, l)
		}
	}
	return v
}

// event records an error of the object, once.
func (v *conversion) event(object corev1.ObjectReference, reason event.Reason, format string, args ...any) {
	v.events.Add(object, reason, format, args...)
}

// reference names an object in an event. Objects of informers do not contain their kind.
func reference(apiVersion, kind string, o *metav1.ObjectMeta) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: apiVersion, Kind: kind, Namespace: o.Namespace, Name: o.Name, UID: o.UID}
}

func compareNames(a, b config.ObjectName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// joined returns the elements of both lists. If one list is empty, the result is the other
// list itself. Neither may be changed afterwards.
func joined[T any](a, b []T) []T {
	switch {
	case len(a) == 0:
		return slices.Clip(b)
	case len(b) == 0:
		return slices.Clip(a)
	}
	return slices.Concat(a, b)
}

// Merge returns the file's configuration with r added to it. endpoints are the
// endpoints of r's backends, by name. The file takes precedence. The result shares the routes
// of both, and the backends without endpoints.
func (r *Routing) Merge(file *config.Config, endpoints map[string][]config.Endpoint) *config.Config {
	var backends []*config.Backend
	for _, b := range r.Backends {
		backends = append(backends, b.with(endpoints[b.Name], nil))
	}
	return r.MergeWith(file, backends)
}

// MergeWith is Merge with the backends of a Change, which have their endpoints. The result shares
// them.
func (r *Routing) MergeWith(file *config.Config, backends []*config.Backend) *config.Config {
	c := *file
	c.Listeners = joined(file.Listeners, r.Listeners)
	c.HeaderPolicies = joined(file.HeaderPolicies, r.HeaderPolicies)
	c.TLSPolicies = joined(file.TLSPolicies, r.Policies)
	c.Routes = joined(file.Routes, r.Routes)
	if c.Auth = r.allAuth; r.authOf != file {
		c.Auth = joined(file.Auth, r.Auth)
	}
	c.Certificates = joined(file.Certificates, r.Certificates)
	if r.Default != nil { // the first entry is for names that no entry lists
		c.Certificates = slices.Concat([]config.Certificate{*r.Default}, c.Certificates)
	}
	c.Backends = joined(file.Backends, backends)
	r.Gateways.mergeInto(&c)
	if file.Health != nil {
		h := *file.Health
		h.RequireLocal = slices.Concat(h.RequireLocal, r.RequireLocal)
		c.Health = &h
	}
	return &c
}

// with returns the backend with endpoints. was is the previous result, or nil; with returns was if it
// is equal. A backend that had no endpoints from the beginning is b's own Backend. One that has lost its endpoints is
// another: b's own may be in a list with which the new one is compared (config.Differ), and would seem unchanged.
func (b *Backend) with(endpoints []config.Endpoint, was *config.Backend) *config.Backend {
	c := b.Backend // it does not leave the stack
	if len(endpoints) > 0 {
		c.Endpoints = endpoints
	}
	switch {
	case was != nil && was.Equal(&c):
		return was
	case len(endpoints) == 0 && (was == nil || len(was.Endpoints) == 0):
		return &b.Backend
	}
	return new(c)
}
