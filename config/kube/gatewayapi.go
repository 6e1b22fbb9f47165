package kube

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/gateway"
	"github.com/weirproxy/weir/pause"
)

// gatewayPart is the part of a Gateway, besides its routes and backends.
type gatewayPart struct {
	// The inputs, besides Services and Secrets.
	object   *gatewayv1.Gateway
	class    *gatewayv1.GatewayClass
	named    []namedHost   // by its routes
	ordered  []orderedHost // the hosts of certificates that its listeners and those of its ListenerSets order
	sets     []*gatewayv1.ListenerSet
	attached []*gateway.Route
	assigned *gateway.Assigned
	view     *gateway.View

	listeners    []config.Listener
	policies     []config.TLSPolicy
	certificates []config.Certificate
	status       *gateway.Status
}

// gatewayConverter remembers what the conversion of Gateways needs again.
type gatewayConverter struct {
	known  *gateway.Known
	parts  map[config.ObjectName]*part
	former map[config.ObjectName]*part // with the former file; nil except in the first conversion
	status *gateway.Status             // of classes
	joined []*gatewayPart              // of the last Routing
}

// convertGateways converts the Gateways that are new or have other inputs, and returns their
// number.
func (u *updating) convertGateways() (converted int) {
	k := &u.gateways
	before := k.parts
	if u.settings.Gateways == nil || u.o.Gateway == nil {
		*k = gatewayConverter{}
		u.renamed = u.renamed || len(before) > 0
		u.dropAll(slices.Collect(maps.Values(before)))
		return 0
	}
	if k.known == nil || k.known.Len() > 2*countRoutes(u.o.Gateway)+1000 {
		k.known = gateway.NewKnown()
	}
	x := gateway.NewIndex(u.o.Gateway, u.settings.Gateways.Controller, u.o.Namespaces, u.chosen, k.known)
	assigned := u.assign(x)
	k.former = nil
	k.parts = make(map[config.ObjectName]*part, len(x.Gateways()))
	for _, g := range x.Gateways() {
		name := gateway.NameOf(g)
		p := before[name]
		if p == nil || u.dropped[p] || !p.gateway.renew(x, g, assigned[name]) {
			u.drop(p)
			p = u.conversion.gateway(x, g, assigned[name]).sharing(p)
			u.added, u.renamed = append(u.added, p), true
			converted++
		}
		k.parts[name] = p
		delete(before, name)
	}
	u.renamed = u.renamed || len(before) > 0
	u.redoGateway = func(name config.ObjectName, old *part) {
		u.drop(old)
		u.added = slices.DeleteFunc(u.added, func(p *part) bool { return p == old })
		k.parts[name] = u.conversion.gateway(x, old.gateway.object, old.gateway.assigned).sharing(old)
		u.added = append(u.added, k.parts[name])
	}
	u.dropAll(slices.Collect(maps.Values(before)))
	if classes := x.Classes(u.settings.Gateways); k.status == nil || !reflect.DeepEqual(classes, k.status.Classes) {
		k.status = &gateway.Status{Classes: classes}
	}
	return converted
}

// assign gives the Gateways their addresses.
func (u *updating) assign(x *gateway.Index) map[config.ObjectName]*gateway.Assigned {
	a := &u.settings.Gateways.Addresses
	switch {
	case u.shares():
		return gateway.FromFile(x.Gateways(), u.conversion.sharedListeners())
	case a.Service != nil:
		return x.FromBalancers(u.o.Gateway, a.Service, u.offline, u.conversion.service, u.assignedBefore)
	}
	return gateway.FromPool(x.Gateways(), a.Pool, u.assignedBefore)
}

// assignedBefore returns what a Gateway was assigned in the last conversion; nil: it was not there, or another
// Gateway of this name was.
func (u *updating) assignedBefore(g *gatewayv1.Gateway) *gateway.Assigned {
	name := gateway.NameOf(g)
	p := cmp.Or(u.gateways.parts[name], u.gateways.former[name])
	if p == nil || p.gateway.object.UID != g.UID {
		return nil
	}
	return p.gateway.assigned
}

func countRoutes(o *gateway.Objects) int { return len(o.HTTP) + len(o.GRPC) + len(o.TLS) + len(o.TCP) }

// renew reports whether these inputs would give the same part. If so, the part refers to the new objects from
// now on.
func (p *gatewayPart) renew(x *gateway.Index, g *gatewayv1.Gateway, a *gateway.Assigned) bool {
	name, class := gateway.NameOf(g), x.ClassOf(g)
	if !gateway.Same(p.object, g) || !gateway.Same(p.class, class) || !gateway.SameSets(p.sets, x.SetsOf(name)) || !slices.Equal(p.attached, x.RoutesOf(name)) ||
		!p.assigned.Equal(a) || !p.view.Renew(x) {
		return false
	}
	p.object, p.class, p.sets = g, class, x.SetsOf(name)
	return true
}

// sharing replaces the lists of the part by equal lists of old, an earlier part of the same Gateway. Later
// comparisons then find the same list, and do not compare its elements. old may be nil.
func (p *part) sharing(old *part) *part {
	if old == nil {
		return p
	}
	now, before := p.gateway, old.gateway
	keep(&now.listeners, before.listeners)
	keep(&now.policies, before.policies)
	keep(&now.certificates, before.certificates)
	if reflect.DeepEqual(now.status, before.status) {
		now.status = before.status
	}
	return p
}

// gatewayEnv is what package gateway needs to know of other objects.
type gatewayEnv struct{ *conversion }

func (e gatewayEnv) Secret(name config.ObjectName) *corev1.Secret { return e.secret(name) }
func (e gatewayEnv) CheckPair(s *corev1.Secret) error             { return e.look(s).err }
func (e gatewayEnv) CertificateNames(s *corev1.Secret) []string   { return e.look(s).names }
func (e gatewayEnv) UnknownAnnotations(kind string, o metav1.Object) []string {
	return unknownAnnotations(kind, o)
}
func (e gatewayEnv) HasHeaderPolicy(name string) bool {
	return slices.ContainsFunc(e.file.HeaderPolicies, func(p config.HeaderPolicy) bool { return p.Name == name })
}
func (e gatewayEnv) HasTLSPolicy(name string) bool {
	return slices.ContainsFunc(e.file.TLSPolicies, func(p config.TLSPolicy) bool { return p.Name == name })
}

// gatewayConversion is the state of the conversion of one Gateway.
type gatewayConversion struct {
	*conversion
	*gateway.Gateway
	view *gateway.View
	part gatewayPart

	ports map[int][]string            // the names of weir's listeners for each port of the Gateway
	taken map[tunnelOf]*gateway.Route // the routes that have tunnels

	sticky bool // the backends of the current rule keep sessions
}

// gateway converts one Gateway, with its ListenerSets and routes.
func (v *conversion) gateway(x *gateway.Index, o *gatewayv1.Gateway, assigned *gateway.Assigned) *part {
	g := v.fork()
	g.looked = newLookups()
	view := gateway.NewView(x, gatewayEnv{g})
	name := gateway.NameOf(o)
	c := &gatewayConversion{conversion: g, view: view, Gateway: view.Attach(o, assigned), ports: map[int][]string{}, taken: map[tunnelOf]*gateway.Route{}}
	c.part = gatewayPart{object: o, class: x.ClassOf(o), sets: x.SetsOf(name), attached: x.RoutesOf(name), assigned: assigned, view: view}
	c.tellAnnotations()
	c.order()
	c.listen()
	for _, a := range c.Routes {
		pause.IfDue()
		c.attach(a)
	}
	c.separate()
	c.part.status = c.Status(v.settings.Gateways.Controller, c.made)
	if v.settings.Gateways.KeepsServices() {
		c.part.status.Service = c.Service()
	}
	view.Forget()
	p := g.part()
	p.gateway = &c.part
	p.used = g.used()
	g.looked.into(p)
	return p
}

// tellAnnotations records events for annotations without effect on the objects of the Gateway.
func (c *gatewayConversion) tellAnnotations() {
	version := gatewayv1.GroupVersion.String()
	c.tellUnknown(version, gateway.KindGateway, &c.Object.ObjectMeta)
	for _, s := range c.Sets {
		c.tellUnknown(version, gateway.KindListenerSet, &s.Object.ObjectMeta)
	}
	for i, a := range c.Routes {
		pause.InLoop(i)
		c.tellUnknown(version, a.Kind, a.Meta)
	}
}

// made says what weir made of a listener.
func (c *gatewayConversion) made(l *gateway.Listener) gateway.Made {
	m := gateway.Made{Listeners: c.ports[l.Port]}
	if l.Issuer != "" {
		m.Order = c.nameOf(l)
	}
	return m
}

// attach makes the routes of a route of the Gateway API.
func (c *gatewayConversion) attach(a *gateway.Attachment) {
	c.contest(a)
	switch a.Kind {
	case gateway.KindHTTPRoute:
		c.http(a)
	case gateway.KindGRPCRoute:
		c.grpc(a)
	case gateway.KindTLSRoute:
		c.tls(a)
	case gateway.KindTCPRoute:
		c.tcpRoute(a)
	}
}

// noCertificates is the name of the TLS policy for hosts that no listener of a Gateway has. It has
// no certificate, so weir refuses the handshakes.
const noCertificates = "gateway/none"

// listen makes weir's listeners of the Gateway, one for each port and address, and the TLS
// policies and certificates of the Gateway's listeners.
func (c *gatewayConversion) listen() {
	for _, l := range c.Listeners {
		if !l.Serves() || c.Rejected() {
			continue
		}
		if c.ports[l.Port] == nil {
			c.open(l)
		}
		if l.Terminates() && c.ports[l.Port] != nil {
			c.secure(l)
		}
	}
}

// separate makes the routes for what no route of the Gateway API has.
func (c *gatewayConversion) separate() {
	for _, l := range c.Listeners {
		if c.ports[l.Port] != nil && l.Owns() && l.Protocol != gatewayv1.TCPProtocolType && c.isolates(l) {
			c.isolate(l)
		}
	}
	for _, port := range slices.Sorted(maps.Keys(c.ports)) {
		if !c.shares() { // others may have unknown hosts
			c.closeUnknown(port)
		}
	}
	c.closePorts()
	c.ssh()
}

// open makes weir's listeners for the port of a listener, or finds those of the file.
func (c *gatewayConversion) open(l *gateway.Listener) {
	if c.shares() {
		if c.ports[l.Port] = c.Assigned.SharedBy(l); l.TLSPort() {
			c.addPolicy(config.TLSPolicy{Name: noCertificates}, config.DefaultTLSPolicy)
		}
		return
	}
	for _, socket := range c.Assigned.Sockets(gateway.NameOf(c.Object), l.Port) {
		made := config.NewListener(socket.Name)
		made.HeaderPolicy = c.Own.HeaderPolicy
		made.Network, made.Address, made.PublicPort = "tcp", socket.Address, socket.PublicPort
		switch {
		case l.TLSPort():
			made.Protocol, made.UnknownPolicy = config.ProtocolTLS, noCertificates
			made.HTTP2.Offer = true
			c.addPolicy(config.TLSPolicy{Name: noCertificates}, config.DefaultTLSPolicy)
		case l.Protocol == gatewayv1.TCPProtocolType:
			made.Protocol, made.HTTP2, made.PublicPort = config.ProtocolTCP, config.ListenerHTTP2{}, 0
		default:
			made.Protocol = config.ProtocolHTTP
			made.HTTP2.PriorKnowledge = true // gRPC has no other way without TLS
		}
		c.part.listeners = append(c.part.listeners, made)
		c.ports[l.Port] = append(c.ports[l.Port], socket.Name)
	}
}

// policyOf is the name of the TLS policy of a listener.
func (c *gatewayConversion) policyOf(l *gateway.Listener) string {
	switch {
	case !l.TLSPort():
		return config.DefaultTLSPolicy
	case l.Passthrough || !l.Serves():
		return noCertificates
	}
	return c.nameOf(l)
}

// nameOf is the name of what weir makes of a listener.
func (c *gatewayConversion) nameOf(l *gateway.Listener) string {
	name := "gateway/" + c.Object.Namespace + "/" + c.Object.Name
	if l.Set != nil {
		name += "/" + l.Set.Namespace + "/" + l.Set.Name
	}
	return name + "/" + l.Name
}

// secure makes the TLS policy of a listener, and its certificates.
func (c *gatewayConversion) secure(l *gateway.Listener) {
	p := config.TLSPolicy{Name: c.nameOf(l), Ask: l.Clients.Ask}
	if l.Clients.Required {
		p.ClientAuth, p.ClientAuthPool = config.ClientAuthRequire, l.Clients.CAs
		p.ClientAuthCA = "tls.frontend of the Gateway " + gateway.NameOf(c.Object).String()
	}
	c.addPolicy(p, cmp.Or(l.TLSPolicy, config.DefaultTLSPolicy))
	for _, s := range l.Secrets {
		c.part.certificates = append(c.part.certificates, config.Certificate{Pair: &config.Pair{
			Name: gateway.NameOf(s).String(), Owner: p.Name, Hosts: c.look(s).names,
			CertPEM: s.Data[corev1.TLSCertKey], KeyPEM: config.Secret(s.Data[corev1.TLSPrivateKeyKey]),
		}})
	}
	if entry := c.issuer(l.Issuer); entry != nil {
		one := *entry.ACME
		one.Hosts, one.Owner = []string{l.Hostname}, p.Name
		c.part.certificates = append(c.part.certificates, config.Certificate{Position: entry.Position, NoOCSP: entry.NoOCSP, ACME: &one})
	}
}

// addPolicy adds a TLS policy with the settings of a policy of the file.
func (c *gatewayConversion) addPolicy(p config.TLSPolicy, from string) {
	for _, base := range c.file.TLSPolicies {
		if base.Name == from {
			made := base
			made.Position = config.Position{}
			made.Name, made.Owned, made.Ask = p.Name, true, p.Ask
			if p.ClientAuth != config.ClientAuthNone {
				made.ClientAuth, made.ClientAuthPool, made.ClientAuthCA, made.ClientAuthCRL = p.ClientAuth, p.ClientAuthPool, p.ClientAuthCA, nil
			}
			c.part.policies = append(c.part.policies, made)
		}
	}
}

// afterAll is the place of a route that gets what no other route gets.
var afterAll = &config.RouteOrder{Created: 1<<63 - 1}

// isolate makes the route that answers requests for the hosts of a listener that none of its routes
// has. Without it a listener with a more general host name would get them.
func (c *gatewayConversion) isolate(l *gateway.Listener) {
	r := &config.Route{Name: c.nameOf(l), Namespace: c.Object.Namespace, Listeners: c.ports[l.Port], TLS: config.TLSTerminate, TLSPolicy: c.policyOf(l),
		Closure: &config.Closure{Status: 404, Reason: "no_route", Why: "no route of the " + l.String() + " of the Gateway " + gateway.NameOf(c.Object).String() + " has the host and path"}, Order: afterAll}
	if l.Hostname != "" {
		r.Hosts = []string{gateway.HostOf(l.Hostname)}
	}
	if l.Passthrough { // weir closes the connection, see closeUnknown
		if c.taken[tunnelOf{l.Port, l.Hostname}] != nil {
			return
		}
		r.TLS, r.Closure, r.Order, r.Backend = config.TLSPassthrough, nil, nil, c.closingBackend()
	}
	c.routes = append(c.routes, r)
}

// bind adds a route for each listener to which the attachment is bound. special may change a copy
// of the route for a listener; nil: it does not.
func (c *gatewayConversion) bind(a *gateway.Attachment, r *config.Route, special func(*config.Route, *gateway.Listener)) {
	for _, b := range a.Bound {
		if c.ports[b.Port] == nil || !b.Serves() {
			continue
		}
		one := *r
		one.Listeners, one.TLSPolicy = c.ports[b.Port], c.policyOf(b.Listener)
		every := false
		for _, h := range b.Hostnames {
			if c.Covering(b.Port, h) == b.Listener {
				every = every || h == ""
				one.Hosts = append(one.Hosts, gateway.HostOf(h))
			}
		}
		if len(one.Hosts) == 0 {
			continue
		}
		if every {
			one.Hosts = nil
		}
		if special != nil {
			special(&one, b.Listener)
		}
		c.routes = append(c.routes, &one)
	}
}

// routeOrder is the place of a match among equal ones of other routes.
func routeOrder(r *gateway.Route, index int) *config.RouteOrder {
	return &config.RouteOrder{Created: r.Meta.CreationTimestamp.Unix(), Object: r.Name.String(), Index: index}
}

// ruleName is the name of the routes of a rule.
func ruleName(r *gateway.Route, rule *gatewayv1.SectionName, index int) string {
	name := strings.ToLower(r.Kind) + "/" + r.Name.Namespace + "/" + r.Name.Name + "/"
	if rule != nil && *rule != "" {
		return name + string(*rule)
	}
	return name + fmt.Sprint(index)
}

// missingBackend returns the name of a backend whose requests get 500, and whose connections are closed
// if raw. It is empty if the attachment is not accepted, because it has no route of weir then.
func (c *gatewayConversion) missingBackend(a *gateway.Attachment, raw bool) string {
	if a.Accept != nil {
		return ""
	}
	b := Backend{Backend: config.NewBackend(a.Name.Namespace + "/missing")}
	b.Namespace, b.Missing = a.Name.Namespace, true
	b.speak(appProtocols[""])
	if raw {
		b.Name += "/tcp"
		b.Protocol = config.ProtocolTCP
	}
	return c.keep(b)
}

// closingBackend returns the name of a backend whose connections weir closes on purpose, because no
// route has them.
func (c *gatewayConversion) closingBackend() string {
	b := Backend{Backend: config.NewBackend(c.Object.Namespace + "/no-route/tcp")}
	b.Namespace, b.Closed, b.Protocol = c.Object.Namespace, true, config.ProtocolTCP
	return c.keep(b)
}

// backendOf returns the name of the backend for a reference of a route. If the reference is wrong, requests for the
// backend get 500, and connections are closed.
func (c *gatewayConversion) backendOf(a *gateway.Attachment, ref *gatewayv1.BackendObjectReference, to traffic) string {
	name, problem := c.resolve(a, ref, to)
	if problem != nil {
		a.Refs = gateway.Also(a.Refs, problem)
		return c.missingBackend(a, to.raw())
	}
	return name
}

// traffic is what a backend gets.
type traffic uint8

const (
	forRequests traffic = iota // of the kind of the route
	forCalls                   // of gRPC
	forTunnels
	forPassthrough // tunnels in which the client and the Service speak TLS with each other
)

// raw reports whether the traffic has no requests.
func (t traffic) raw() bool { return t >= forTunnels }

// resolve finds the Service of a reference, and makes its backend.
func (c *gatewayConversion) resolve(a *gateway.Attachment, ref *gatewayv1.BackendObjectReference, to traffic) (string, *gateway.Problem) {
	service, problem := c.view.Service(a.Route, ref)
	if problem != nil {
		return "", problem
	}
	port := claim.Port{}
	if ref.Port != nil {
		port.Number = int32(*ref.Port)
	}
	b, err := c.serving(service, port)
	if err != nil {
		return "", &gateway.Problem{Reason: string(gatewayv1.RouteReasonBackendNotFound), Message: fmt.Sprintf("A backend is %v.", err)}
	}
	found, _ := portOf(c.service(service), port)
	if problem := c.speakTo(&b, a, found, to); problem != nil {
		return "", problem
	}
	if t := c.tlsTo(service, found.name, to); t != nil {
		if t.Broken {
			return c.missingBackend(a, to.raw()), nil
		}
		c.secureBackend(&b, t)
	}
	b.stick(annotation.Affinity{Cookie: c.sticky})
	if a.Accept != nil {
		return b.Name, nil
	}
	return c.keep(b), nil
}

// tlsTo returns how weir uses TLS to a port of a Service; nil: it does not. TLS that weir passes through is that of the
// client: weir must not wrap it.
func (c *gatewayConversion) tlsTo(service config.ObjectName, port string, to traffic) *gateway.BackendTLS {
	if to == forPassthrough {
		return nil
	}
	return c.view.TLSTo(c.Gateway, service, port, func(name string) bool {
		s := c.service(service)
		return s != nil && slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == name })
	})
}

// secureBackend makes a backend use TLS, as a policy demands.
func (c *gatewayConversion) secureBackend(b *Backend, t *gateway.BackendTLS) {
	b.Name += "/tls/" + t.Policy.Name
	switch b.Protocol {
	case config.ProtocolHTTP, config.ProtocolHTTPS:
		b.speak(appProtocols["https"])
	case config.ProtocolH2C, config.ProtocolGRPC:
		b.speak(appProtocols["grpcs"])
	default:
		b.Secure = true
	}
	b.TLS.InsecureSkipVerify = false
	b.TLS.ServerName, b.TLS.CAPEM, b.TLS.Names, b.TLS.URIs = t.Hostname, t.CAs, t.Names, t.URIs
	if s := c.ClientCertificate; s != nil {
		b.Name += "/" + c.Object.Namespace + "/" + c.Object.Name
		b.TLS.CertPEM, b.TLS.KeyPEM = s.Data[corev1.TLSCertKey], config.Secret(s.Data[corev1.TLSPrivateKeyKey])
	}
}

// speakTo sets the protocol of a backend of a route.
func (c *gatewayConversion) speakTo(b *Backend, a *gateway.Attachment, port servicePort, to traffic) *gateway.Problem {
	if to.raw() {
		b.Name += "/tcp"
		b.Protocol = config.ProtocolTCP
		return nil
	}
	own, known := appProtocols[strings.ToLower(port.protocol)]
	if !known {
		return &gateway.Problem{Reason: string(gatewayv1.RouteReasonUnsupportedProtocol), Message: fmt.Sprintf(
			"The Service %s has the appProtocol %q, which weir does not support; write http, https, kubernetes.io/h2c, kubernetes.io/ws, grpc or grpcs.", b.Source, port.protocol)}
	}
	if to == forCalls || a.Kind == gateway.KindGRPCRoute {
		return c.speakGRPC(b, port, own)
	}
	b.speak(own)
	return nil
}

// shareBackends sets the backends of a route. The shares of a backend that occurs several times are added.
func shareBackends(r *config.Route, all []config.WeightedBackend) {
	var joined []config.WeightedBackend
	for _, b := range all {
		at := slices.IndexFunc(joined, func(o config.WeightedBackend) bool { return o.Name == b.Name && o.Request == nil && b.Request == nil })
		if at < 0 {
			joined = append(joined, b)
			continue
		}
		joined[at].Weight += b.Weight
	}
	if len(joined) == 1 && joined[0].Request == nil {
		r.Backend = joined[0].Name
		return
	}
	r.Backends = joined
}
