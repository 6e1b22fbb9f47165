package main

import (
	"os"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// lintGatewayConfig is the configuration for converting objects of the Gateway API.
const lintGatewayConfig = `
listeners: {web: {address: "127.0.0.1:80", protocol: http}}
kubernetes: {class: weir, gateways: {addresses: {pool: [198.18.0.0/16]}}}
`

// readGatewayKinds are the kinds of the Gateway API that weir reads.
var readGatewayKinds = []string{gateway.KindClass, gateway.KindGateway, gateway.KindListenerSet, gateway.KindHTTPRoute, gateway.KindGRPCRoute, gateway.KindTLSRoute,
	gateway.KindTCPRoute, gateway.KindPolicy, "ReferenceGrant"}

// lintUnread reports on an object of another API for routes; nil: the object has no error. wrong are the
// errors by object.
func lintUnread(o kube.Unread, wrong map[string][]string) *report {
	r := &report{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
	switch {
	case !strings.HasPrefix(o.APIVersion, gateway.Group+"/"):
		r.Wrong = []string{"weir does not read Traefik's own objects; write an Ingress instead, or use weir's configuration."}
	case !slices.Contains(readGatewayKinds, o.Kind):
		r.Wrong = []string{"weir does not read this kind of the Gateway API, so the object has no effect."}
	default:
		r.Wrong = wrong[o.Kind+"/"+o.Namespace+"/"+o.Name]
	}
	if len(r.Wrong) == 0 {
		return nil
	}
	return r
}

// gatewayWrongs converts the objects of the Gateway API as if all of them were weir's, and calls add
// with their errors. A reference to an object that is not in the manifests is no error.
func gatewayWrongs(m *kube.Manifests, add func(key gateway.Key, message string)) {
	if m.Gateway == nil {
		return
	}
	cfg, err := file.Parse("lint", []byte(lintGatewayConfig), os.LookupEnv)
	if err != nil { // a test loads the configuration
		panic(err)
	}
	for _, c := range m.Gateway.Classes {
		if c.Spec.ParametersRef != nil {
			add(gateway.Key{Kind: gateway.KindClass, ObjectName: config.ObjectName{Namespace: metav1.NamespaceDefault, Name: c.Name}}, "weir has no parameters for classes, so it does not accept the class. Remove spec.parametersRef.")
		}
	}
	converter := kube.Converter{File: cfg}
	routing := converter.Convert(&kube.Objects{Services: m.Services, Secrets: m.Secrets, Namespaces: m.Namespaces, Gateway: asIfOwn(m)})
	if routing.Gateways == nil {
		return
	}
	for _, s := range routing.Gateways.Status {
		tellStatus(s, add)
	}
}

// tellStatus calls add for each condition that reports an error.
func tellStatus(s *gateway.Status, add func(gateway.Key, string)) {
	tell := func(key gateway.Key, prefix string, all []metav1.Condition) {
		var told []string // two conditions may have one message
		for i := range all {
			if c := &all[i]; isFault(c) && !slices.Contains(told, c.Message) {
				told = append(told, c.Message)
				add(key, prefix+c.Message)
			}
		}
	}
	for i := range s.Gateways {
		g := &s.Gateways[i]
		tell(g.Key, "", g.Conditions)
		for n := range g.Listeners {
			tell(g.Key, "Listener "+string(g.Listeners[n].Name)+": ", g.Listeners[n].Conditions)
		}
	}
	for i := range s.Sets {
		set := &s.Sets[i]
		tell(set.Key, "", set.Conditions)
		for n := range set.Listeners {
			tell(set.Key, "Listener "+string(set.Listeners[n].Name)+": ", set.Listeners[n].Conditions)
		}
	}
	for i := range s.Parents {
		tell(s.Parents[i].Key, "", s.Parents[i].Conditions)
	}
	for i := range s.Ancestors {
		tell(s.Ancestors[i].Key, "", s.Ancestors[i].Conditions)
	}
}

// isFault reports whether a condition reports an error of the object itself.
func isFault(c *metav1.Condition) bool {
	switch c.Reason {
	case string(gatewayv1.RouteReasonBackendNotFound), string(gatewayv1.ListenerReasonInvalidCertificateRef), string(gatewayv1.ListenerReasonInvalidCACertificateRef),
		string(gatewayv1.ListenerReasonNoValidCACertificate): // the object may be in the cluster
		return false
	case gateway.ReasonPolicyNotFound, gateway.ReasonIssuerNotFound: // weir's configuration has the policies and issuers
		return false
	case string(gatewayv1.GatewayReasonListenersNotValid), string(gatewayv1.GatewayReasonListenersNotResolved): // conditions of the listeners have the details
		return false
	}
	switch c.Type {
	case string(gatewayv1.GatewayConditionAccepted), string(gatewayv1.GatewayConditionResolvedRefs):
		return c.Status == metav1.ConditionFalse
	case string(gatewayv1.ListenerConditionConflicted), string(gatewayv1.RouteConditionPartiallyInvalid):
		return c.Status == metav1.ConditionTrue
	}
	return false
}

// asIfOwn returns the objects of manifests with a class of weir for all Gateways. It adds the Gateways that
// routes name and the manifests do not have, with listeners for these routes.
func asIfOwn(m *kube.Manifests) *gateway.Objects {
	const class = "weir"
	o := *m.Gateway
	o.Bundles = m.ConfigMaps
	o.Classes = []*gatewayv1.GatewayClass{{ObjectMeta: metav1.ObjectMeta{Name: class}, Spec: gatewayv1.GatewayClassSpec{ControllerName: config.DefaultGatewayController}}}
	o.Gateways = nil
	known := map[config.ObjectName]bool{}
	for _, g := range m.Gateway.Gateways {
		g = g.DeepCopy()
		g.Spec.GatewayClassName, g.Spec.Addresses = class, nil // addresses depend on the configuration
		o.Gateways, known[gateway.NameOf(g)] = append(o.Gateways, g), true
	}
	missing := map[config.ObjectName]*gatewayv1.Gateway{}
	need := func(namespace string, parents []gatewayv1.ParentReference, kind string) {
		for i := range parents {
			p := &parents[i]
			if p.Kind != nil && *p.Kind != gateway.KindGateway {
				continue
			}
			name := config.ObjectName{Namespace: namespace, Name: string(p.Name)}
			if p.Namespace != nil {
				name.Namespace = string(*p.Namespace)
			}
			if known[name] {
				continue
			}
			g := missing[name]
			if g == nil {
				g = &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Spec: gatewayv1.GatewaySpec{GatewayClassName: class}}
				missing[name], o.Gateways = g, append(o.Gateways, g)
			}
			g.Spec.Listeners = append(g.Spec.Listeners, listenerFor(p, kind, len(g.Spec.Listeners)))
		}
	}
	for _, r := range o.HTTP {
		need(r.Namespace, r.Spec.ParentRefs, gateway.KindHTTPRoute)
	}
	for _, r := range o.GRPC {
		need(r.Namespace, r.Spec.ParentRefs, gateway.KindGRPCRoute)
	}
	for _, r := range o.TLS {
		need(r.Namespace, r.Spec.ParentRefs, gateway.KindTLSRoute)
	}
	for _, r := range o.TCP {
		need(r.Namespace, r.Spec.ParentRefs, gateway.KindTCPRoute)
	}
	return &o
}

// listenerFor returns a listener that allows a route of a kind.
func listenerFor(p *gatewayv1.ParentReference, kind string, index int) gatewayv1.Listener {
	l := gatewayv1.Listener{Name: "any", Port: gatewayv1.PortNumber(1 + index), Protocol: gatewayv1.HTTPProtocolType,
		AllowedRoutes: &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: new(gatewayv1.NamespacesFromAll)}}}
	if p.SectionName != nil {
		l.Name = *p.SectionName
	}
	if p.Port != nil {
		l.Port = *p.Port
	}
	switch kind {
	case gateway.KindTLSRoute:
		l.Protocol, l.TLS = gatewayv1.TLSProtocolType, &gatewayv1.ListenerTLSConfig{Mode: new(gatewayv1.TLSModePassthrough)}
	case gateway.KindTCPRoute:
		l.Protocol = gatewayv1.TCPProtocolType
	}
	return l
}
