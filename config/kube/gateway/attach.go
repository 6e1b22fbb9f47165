package gateway

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/pause"
)

// Gateway is a Gateway with everything that belongs to it.
type Gateway struct {
	Object    *gatewayv1.Gateway
	Assigned  *Assigned
	Listeners []*Listener // its own, then those of its ListenerSets, the oldest first
	Sets      []*Set
	Own       Own
	Routes    []*Attachment
	// ClientCertificate is what weir shows to backends; nil: nothing.
	ClientCertificate *corev1.Secret

	owners   map[hostOnPort]*Listener // see Covering
	secured  map[securedPort]*BackendTLS
	policies []policyState
	told     map[*gatewayv1.BackendTLSPolicy]int // the index of each policy in policies
	rejected *Problem                            // why it is not accepted, apart from its listeners
	refs     *Problem
	unknown  []string // sentences about annotations without effect
}

// Set is a ListenerSet of a Gateway.
type Set struct {
	Object    *gatewayv1.ListenerSet
	Listeners []*Listener

	rejected *Problem // why none of its listeners counts
	unknown  []string // sentences about annotations without effect
}

// Attachment is a route and one of the parents that it names.
type Attachment struct {
	*Route
	Parent *gatewayv1.ParentReference
	Bound  []Bound // where it is attached
	// Refs is a reference of the route that cannot be resolved; nil: all can be.
	Refs *Problem
	// Partly is set if some of its rules are not served; nil: all are.
	Partly *Problem
	// Contested is set if objects of another kind name its hosts and do not get them.
	Contested *Problem
	// Accept is why it is not attached; nil: it is.
	Accept *Problem

	notes []string // what the condition of an attached route says too
}

// maxNotes is how many notes the status of a route has.
const maxNotes = 5

// Note adds a sentence to the condition Accepted of a route that is attached.
func (a *Attachment) Note(sentence string) {
	if len(a.notes) < maxNotes && !slices.Contains(a.notes, sentence) {
		a.notes = append(a.notes, sentence)
	}
}

// Has reports whether the route is attached for a hostname.
func (a *Attachment) Has(host string) bool {
	return slices.ContainsFunc(a.Bound, func(b Bound) bool { return slices.Contains(b.Hostnames, host) })
}

// Bound is a listener to which a route is attached.
type Bound struct {
	*Listener
	Hostnames []string // of the route on this listener; the empty one is every host
}

// Attach finds the listeners of a Gateway, and the routes that are attached to them.
func (v *View) Attach(o *gatewayv1.Gateway, assigned *Assigned) *Gateway {
	g := &Gateway{Object: o, Assigned: assigned, rejected: assigned.Rejected}
	if p := o.Spec.Infrastructure; p != nil && p.ParametersRef != nil {
		g.rejected = orElse(g.rejected, problem(gatewayv1.GatewayReasonInvalidParameters, "spec.infrastructure.parametersRef names the %s %s, but weir has no parameters for Gateways; remove it.", p.ParametersRef.Kind, p.ParametersRef.Name))
	}
	if c := v.ClassOf(o); c.Spec.ParametersRef != nil {
		g.rejected = orElse(g.rejected, problem(gatewayv1.GatewayReasonInvalidParameters, "The GatewayClass %s has a parametersRef, but weir has no parameters for classes.", c.Name))
	}
	own, p := v.readOwn(o)
	g.Own, g.rejected = own, orElse(g.rejected, p)
	g.unknown = v.UnknownAnnotations(KindGateway, o)
	if len(assigned.Shared) > 0 {
		g.rejected = orElse(g.rejected, assigned.allow(&own, v.portsOf(o)))
	}
	v.readClientCertificate(g)
	for _, s := range v.SetsOf(NameOf(o)) {
		g.Sets = append(g.Sets, v.set(g, s))
	}
	g.Listeners = v.listeners(o, g.Sets)
	for _, l := range g.Listeners {
		assigned.admit(l)
	}
	for _, r := range v.RoutesOf(NameOf(o)) {
		pause.IfDue()
		for i := range r.Parents {
			if listeners, mine := g.listenersOf(r, &r.Parents[i]); mine {
				g.Routes = append(g.Routes, v.attach(r, &r.Parents[i], listeners))
			}
		}
	}
	g.separate()
	for i, a := range g.Routes {
		pause.InLoop(i)
		for _, b := range a.Bound {
			b.attached[a.Route] = true
		}
	}
	return g
}

// Rejected reports whether the Gateway is not accepted. weir then serves nothing of it: an annotation
// that has no effect might protect it.
func (g *Gateway) Rejected() bool { return g.rejected != nil }

// Reject says that no rule of the route can be served.
func (a *Attachment) Reject(p *Problem) {
	a.Accept = p
	for _, b := range a.Bound {
		delete(b.attached, a.Route)
	}
}

// Drop removes hostnames from an attachment. If none is left, the route is not accepted, for
// the reason p; otherwise only a part of it is served.
func Drop[T any](a *Attachment, hosts map[string]T, p *Problem) {
	a.DropEach(func(_ *Listener, h string) *Problem {
		if _, out := hosts[h]; out {
			return p
		}
		return nil
	})
}

// DropEach is Drop for the hostnames on those listeners for which why returns a reason. The first reason
// counts.
func (a *Attachment) DropEach(why func(l *Listener, host string) *Problem) {
	var kept []Bound
	var p *Problem
	for _, b := range a.Bound {
		b.Hostnames = slices.DeleteFunc(slices.Clone(b.Hostnames), func(h string) bool {
			one := why(b.Listener, h)
			p = orElse(p, one)
			return one != nil
		})
		if len(b.Hostnames) > 0 {
			kept = append(kept, b)
		} else {
			delete(b.attached, a.Route)
		}
	}
	switch a.Bound = kept; {
	case p == nil:
	case len(kept) == 0:
		a.Accept = p
	default:
		a.Partly = p
	}
}

// set decides whether a ListenerSet belongs to the Gateway.
func (v *View) set(g *Gateway, o *gatewayv1.ListenerSet) *Set {
	s := &Set{Object: o, unknown: v.UnknownAnnotations(KindListenerSet, o)}
	if !v.allowsSet(g.Object, o) {
		s.rejected = problem(gatewayv1.ListenerSetReasonNotAllowed, "spec.allowedListeners of the Gateway %s does not allow ListenerSets of the namespace %s.", NameOf(g.Object), o.Namespace)
	} else if g.rejected != nil {
		s.rejected = problem(gatewayv1.ListenerSetReasonParentNotAccepted, "The Gateway %s is not accepted.", NameOf(g.Object))
	}
	return s
}

// allowsSet reports whether a Gateway allows a ListenerSet of its namespace.
func (v *View) allowsSet(g *gatewayv1.Gateway, o *gatewayv1.ListenerSet) bool {
	allowed := g.Spec.AllowedListeners
	if allowed == nil || allowed.Namespaces == nil {
		allowed = &gatewayv1.AllowedListeners{Namespaces: &gatewayv1.ListenerNamespaces{}}
	}
	return v.isFrom(value(allowed.Namespaces.From, gatewayv1.NamespacesFromNone), allowed.Namespaces.Selector, o.Namespace, g.Namespace)
}

// listenersOf returns the listeners of the parent that a route names. It returns false if the
// parent is neither the Gateway nor one of its ListenerSets.
func (g *Gateway) listenersOf(r *Route, p *gatewayv1.ParentReference) (all []*Listener, mine bool) {
	kind, name := parentOf(r, p)
	switch {
	case kind == KindGateway && name == NameOf(g.Object):
		return slices.DeleteFunc(slices.Clone(g.Listeners), func(l *Listener) bool { return l.Set != nil }), true
	case kind == KindListenerSet:
		for _, s := range g.Sets {
			if NameOf(s.Object) == name {
				return s.Listeners, true
			}
		}
	}
	return nil, false
}

// attach attaches a route to those listeners of one of its parents that allow it.
func (v *View) attach(r *Route, p *gatewayv1.ParentReference, listeners []*Listener) *Attachment {
	a := &Attachment{Route: r, Parent: p}
	named := slices.DeleteFunc(slices.Clone(listeners), func(l *Listener) bool {
		return p.SectionName != nil && string(*p.SectionName) != l.Name || p.Port != nil && int(*p.Port) != l.Port
	})
	allowed := slices.DeleteFunc(slices.Clone(named), func(l *Listener) bool { return !v.allows(l, r) })
	switch {
	case len(named) == 0:
		a.Accept = problem(gatewayv1.RouteReasonNoMatchingParent, "%s", noListener(r, p, listeners))
		return a
	case len(allowed) == 0:
		a.Accept = problem(gatewayv1.RouteReasonNotAllowedByListeners, "%s", notAllowed(r, p, named))
		return a
	}
	for _, l := range allowed {
		if names := hostnamesFor(l.Hostname, r.Hostnames); len(names) > 0 {
			a.Bound = append(a.Bound, Bound{l, names})
		}
	}
	if len(a.Bound) == 0 {
		a.Accept = problem(gatewayv1.RouteReasonNoMatchingListenerHostname, "%s", noHostname(r, p, allowed))
	}
	return a
}

// separate rejects HTTPRoutes and GRPCRoutes that share a listener and a host name with an older
// route of the other kind.
func (g *Gateway) separate() {
	type place struct {
		on   *Listener
		kind string
	}
	known, wild := map[place]*hostIndex{}, map[hostKey]bool{}
	for i, a := range g.Routes {
		pause.InLoop(i)
		for _, b := range a.Bound {
			for _, host := range b.Hostnames {
				if k := keyOf(host); k.below {
					wild[k] = true
				}
			}
		}
	}
	for i, a := range g.Routes {
		pause.InLoop(i)
		other := map[string]string{KindHTTPRoute: KindGRPCRoute, KindGRPCRoute: KindHTTPRoute}[a.Kind]
		if other == "" || a.Accept != nil {
			continue
		}
		oldest := -1
		for _, b := range a.Bound {
			for _, host := range b.Hostnames {
				if at := known[place{b.Listener, other}].find(host); at >= 0 && (oldest < 0 || at < oldest) {
					oldest = at
				}
			}
		}
		if oldest >= 0 {
			a.Accept = problem(gatewayv1.RouteReasonNotAllowedByListeners, "The older %v has a listener and a hostname of this route, and %ss and %ss cannot share them; use another hostname.", g.Routes[oldest].Route, other, a.Kind)
			a.Bound = nil
			continue
		}
		for _, b := range a.Bound {
			at := place{b.Listener, a.Kind}
			if known[at] == nil {
				known[at] = &hostIndex{map[hostKey]int{}, map[hostKey]int{}, wild}
			}
			for _, host := range b.Hostnames {
				known[at].add(host, i)
			}
		}
	}
}

// readClientCertificate finds what weir shows to backends.
func (v *View) readClientCertificate(g *Gateway) {
	t := g.Object.Spec.TLS
	if t == nil || t.Backend == nil || t.Backend.ClientCertificateRef == nil {
		return
	}
	s, p := v.certificate(KindGateway, g.Object.Namespace, t.Backend.ClientCertificateRef)
	if p != nil && p.Reason == string(gatewayv1.ListenerReasonInvalidCertificateRef) {
		p.Reason = string(gatewayv1.GatewayReasonInvalidClientCertificateRef)
	}
	g.ClientCertificate, g.refs = s, p
}

// Covering returns the listener that gets requests for a host on the port of another listener: the
// most specific one whose hostname has all names of the host.
func (g *Gateway) Covering(port int, host string) *Listener {
	if g.owners == nil {
		g.owners = map[hostOnPort]*Listener{}
		for _, l := range g.Listeners {
			if at := (hostOnPort{l.Port, keyOf(l.Hostname)}); l.Owns() && g.owners[at] == nil {
				g.owners[at] = l
			}
		}
	}
	for name := range wider(host) {
		if l := g.owners[hostOnPort{port, name}]; l != nil {
			return l
		}
	}
	return nil
}

// hostOnPort is a host name of a port.
type hostOnPort struct {
	port int
	host hostKey
}
