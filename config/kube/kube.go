// Package kube makes weir's configuration of what a cluster holds. The functions
// are pure: Kubernetes objects go in, the same immutable values that a file
// becomes come out, and events that say in a sentence what is wrong with an
// object. Whatever is wrong with one harms nothing that another asks for.
//
// Routes and endpoints are separate. Converter.Convert makes everything but
// endpoints, of Ingresses and what they name; Endpoints makes those of one
// backend. So Pods that come and go cost what they cost and nothing more.
//
// Source watches a cluster and tells of what became of it.
//
// A file of this package is about one kind of object. Annotations that ask for
// route features belong to ingress.go, where a Route is made; the Gateway API
// would be files of its own beside it, with the same Routing as outcome.
package kube

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
)

// Objects are what a cluster holds, of the kinds that routes are made of. They
// may come in any order and name what is not there. None is ever changed.
type Objects struct {
	Classes    []*networkingv1.IngressClass
	Ingresses  []*networkingv1.Ingress
	Services   []*corev1.Service
	Secrets    []*corev1.Secret
	Namespaces []*corev1.Namespace // looked at only where they are chosen by labels
	TCP        *corev1.ConfigMap   // of ports, as ingress-nginx has it; nil: none
}

// Routing is what the objects of a cluster ask for, but for endpoints. It is
// in a fixed order: equal objects make equal values.
type Routing struct {
	Listeners      []config.Listener      // for raw TCP
	Ports          corev1.ObjectReference // the ConfigMap that those are of
	HeaderPolicies []config.HeaderPolicy  // that those listeners have and the file does not
	Routes         []config.Route
	Backends       []Backend
	Certificates   []config.Certificate // each for its hosts
	Default        *config.Certificate  // for everybody else; nil: what the file says
	RequireLocal   []string             // Backends that need a ready endpoint on this node
	Ingresses      []config.ObjectName  // those that are ours
	Events         []Event
}

// Backend is a backend, and what its endpoints are found by.
type Backend struct {
	config.Backend                                 // Endpoints come from the function of that name
	Source         config.ObjectName               // of kind Service; empty: none, and no endpoint ever
	Port           networkingv1.ServiceBackendPort // as the Service has it, if it has
}

// Converter makes a Routing of Objects. It is for one goroutine.
type Converter struct {
	// File is the configuration of the file. It has the section kubernetes, and goes before all objects.
	File *config.Config
	// Lint says which annotations weir does not do. It is needed: without it nobody would be kept out.
	Lint Lint

	pairs map[*corev1.Secret]pair // those of the last conversion
}

// Convert makes a Routing of o.
func (c *Converter) Convert(o *Objects) *Routing {
	v := newConversion(c.File, o)
	v.lint = c.Lint
	v.known, v.pairs = c.pairs, map[*corev1.Secret]pair{}
	v.readIngresses()
	v.settle()
	v.uncover()
	v.tcp()
	v.requireLocal()
	v.certificates()
	c.pairs = v.pairs
	return v.finish()
}

// conversion is the state of one Convert.
type conversion struct {
	file     *config.Config
	settings *config.Kubernetes
	o        *Objects
	lint     Lint
	seen     seen // what the file has

	plain, secure []*config.Listener // that serve Ingresses

	services map[config.ObjectName]*corev1.Service
	secrets  map[config.ObjectName]*corev1.Secret
	classes  map[string]*networkingv1.IngressClass

	asking    bool                  // some policy asks for client certificates
	protected map[string]protection // hosts behind client certificates, as far as somebody asked

	ingresses []*ingress              // ours, the oldest first
	closed    map[hostIn]*ingress     // hosts that one of them closes for all
	patterns  map[hostIn][]*want      // what some close by an expression
	claims    map[claim]*want         // who has which host and path
	shut      map[claim]bool          // paths that are closed so far
	routes    []config.Route          // so far
	backends  map[string]*Backend     // so far
	events    map[Event]bool          // so far
	known     map[*corev1.Secret]pair // looked at by an earlier conversion
	pairs     map[*corev1.Secret]pair // looked at by this one
	out       Routing
}

func newConversion(file *config.Config, o *Objects) *conversion {
	v := &conversion{
		file: file, settings: file.Kubernetes, o: o, seen: look(file),
		services: map[config.ObjectName]*corev1.Service{}, secrets: map[config.ObjectName]*corev1.Secret{},
		classes: map[string]*networkingv1.IngressClass{}, claims: map[claim]*want{}, shut: map[claim]bool{},
		backends: map[string]*Backend{}, events: map[Event]bool{}, asking: asks(file), protected: map[string]protection{},
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
	for _, s := range o.Services {
		v.services[config.ObjectName{Namespace: s.Namespace, Name: s.Name}] = s
	}
	for _, s := range o.Secrets {
		v.secrets[config.ObjectName{Namespace: s.Namespace, Name: s.Name}] = s
	}
	for _, c := range o.Classes {
		v.classes[c.Name] = c
	}
	return v
}

// finish puts everything in order.
func (v *conversion) finish() *Routing {
	r := &v.out
	r.Routes = v.routes
	slices.SortStableFunc(r.Routes, func(a, b config.Route) int { return strings.Compare(a.Name, b.Name) })
	for _, b := range v.backends {
		r.Backends = append(r.Backends, *b)
	}
	slices.SortFunc(r.Backends, func(a, b Backend) int { return strings.Compare(a.Name, b.Name) })
	for _, i := range v.ingresses {
		r.Ingresses = append(r.Ingresses, i.name)
	}
	slices.SortFunc(r.Ingresses, compareNames)
	for e := range v.events {
		r.Events = append(r.Events, e)
	}
	slices.SortFunc(r.Events, compareEvents)
	return r
}

func compareNames(a, b config.ObjectName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// Merge is the file's configuration with everything of r in it. endpoints are
// those of r's backends, by name. The file goes first.
func (r *Routing) Merge(file *config.Config, endpoints map[string][]config.Endpoint) *config.Config {
	c := *file
	c.Listeners = slices.Concat(file.Listeners, r.Listeners)
	c.HeaderPolicies = slices.Concat(file.HeaderPolicies, r.HeaderPolicies)
	c.Routes = slices.Concat(file.Routes, r.Routes)
	c.Certificates = slices.Concat(file.Certificates, r.Certificates)
	if r.Default != nil { // the first entry is that of unlisted names
		c.Certificates = slices.Concat([]config.Certificate{*r.Default}, c.Certificates)
	}
	c.Backends = slices.Clone(file.Backends)
	for _, b := range r.Backends {
		b.Endpoints = endpoints[b.Name]
		c.Backends = append(c.Backends, b.Backend)
	}
	if file.Health != nil {
		h := *file.Health
		h.RequireLocal = slices.Concat(h.RequireLocal, r.RequireLocal)
		c.Health = &h
	}
	return &c
}
