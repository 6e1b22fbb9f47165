package gateway

import (
	"maps"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
)

// everything is an Env in which each Secret exists and is usable, and each issuer may order everything.
type everything struct{}

func (everything) Secret(n config.ObjectName) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: n.Name}}
}
func (everything) CheckPair(*corev1.Secret) error                    { return nil }
func (everything) UnknownAnnotations(string, metav1.Object) []string { return nil }
func (everything) CertificateNames(*corev1.Secret) []string          { return []string{"*"} }
func (everything) HasHeaderPolicy(string) bool                       { return true }
func (everything) HasTLSPolicy(string) bool                          { return true }
func (everything) HasIssuer(string) bool                             { return true }
func (everything) RefusesHost(namespace, host string) string         { return "" }
func (everything) MayIssue(issuer, namespace, host string) error     { return nil }
func indexOf(o *Objects, served func(string) bool, namespaces ...*corev1.Namespace) *Index {
	return NewIndex(o, "c", namespaces, served, NewKnown())
}
func all(string) bool { return true }

// A grant permits the references that it lists, and no others.
func TestGrantsPermitNoMore(t *testing.T) {
	type from = gatewayv1.ReferenceGrantFrom
	type to = gatewayv1.ReferenceGrantTo
	name := func(text string) *gatewayv1.ObjectName { return new(gatewayv1.ObjectName(text)) }
	good := from{Group: Group, Kind: KindHTTPRoute, Namespace: "a"}
	for what, c := range map[string]struct {
		from from
		to   to
		in   string
		want bool
	}{
		"all Services":            {good, to{Kind: "Service"}, "b", true},
		"this Service":            {good, to{Kind: "Service", Name: name("s")}, "b", true},
		"an empty name":           {good, to{Kind: "Service", Name: name("")}, "b", true},
		"another Service":         {good, to{Kind: "Service", Name: name("other")}, "b", false},
		"another kind":            {good, to{Kind: "Secret"}, "b", false},
		"another group":           {good, to{Kind: "Service", Group: "else.example"}, "b", false},
		"a grant elsewhere":       {good, to{Kind: "Service"}, "a", false},
		"another kind of routes":  {from{Group: Group, Kind: KindTCPRoute, Namespace: "a"}, to{Kind: "Service"}, "b", false},
		"routes of a namespace":   {from{Group: Group, Kind: KindHTTPRoute, Namespace: "c"}, to{Kind: "Service"}, "b", false},
		"routes of another group": {from{Group: "else.example", Kind: KindHTTPRoute, Namespace: "a"}, to{Kind: "Service"}, "b", false},
		"routes of the core":      {from{Kind: KindHTTPRoute, Namespace: "a"}, to{Kind: "Service"}, "b", false},
	} {
		grant := &gatewayv1.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: c.in, Name: "g"}, Spec: gatewayv1.ReferenceGrantSpec{From: []from{c.from}, To: []to{c.to}}}
		v := NewView(indexOf(&Objects{Grants: []*gatewayv1.ReferenceGrant{grant}}, all), nil)
		route := &Route{Kind: KindHTTPRoute, Name: config.ObjectName{Namespace: "a", Name: "r"}}
		ref := &gatewayv1.BackendObjectReference{Namespace: new(gatewayv1.Namespace("b")), Name: "s"}
		if _, p := v.Service(route, ref); (p == nil) != c.want {
			t.Errorf("%s: the reference has the problem %v", what, p)
		}
		ref.Namespace = nil
		if _, p := v.Service(route, ref); p != nil {
			t.Errorf("%s: a reference within the namespace has the problem %v", what, p)
		}
	}
}

// tlsListener is a listener with a certificate of another namespace, which it names without a namespace if that is empty.
func tlsListener(namespace string) gatewayv1.Listener {
	ref := gatewayv1.SecretObjectReference{Name: "cert"}
	if namespace != "" {
		ref.Namespace = new(gatewayv1.Namespace(namespace))
	}
	return gatewayv1.Listener{Name: "tls", Port: 443, Protocol: gatewayv1.HTTPSProtocolType, TLS: &gatewayv1.ListenerTLSConfig{CertificateRefs: []gatewayv1.SecretObjectReference{ref}}}
}

// A ListenerSet uses its own namespace and its own grants, not those of its Gateway: for certificates, and for the routes
// that it allows.
func TestListenerSetsHaveTheirOwnNamespace(t *testing.T) {
	class := &gatewayv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "weir"}, Spec: gatewayv1.GatewayClassSpec{ControllerName: "c"}}
	edge := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "infra", Name: "edge"}, Spec: gatewayv1.GatewaySpec{GatewayClassName: "weir"}}
	set := &gatewayv1.ListenerSet{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "set"}, Spec: gatewayv1.ListenerSetSpec{
		ParentRef: gatewayv1.ParentGatewayReference{Namespace: new(gatewayv1.Namespace("infra")), Name: "edge"}}}
	route := func(namespace string) *gatewayv1.HTTPRoute {
		return &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "r"}, Spec: gatewayv1.HTTPRouteSpec{CommonRouteSpec: gatewayv1.CommonRouteSpec{
			ParentRefs: []gatewayv1.ParentReference{{Kind: new(gatewayv1.Kind(KindListenerSet)), Namespace: new(gatewayv1.Namespace("team")), Name: "set"}}}}}
	}
	grant := func(kind, from string) *gatewayv1.ReferenceGrant {
		return &gatewayv1.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "secrets", Name: "g"}, Spec: gatewayv1.ReferenceGrantSpec{
			From: []gatewayv1.ReferenceGrantFrom{{Group: Group, Kind: gatewayv1.Kind(kind), Namespace: gatewayv1.Namespace(from)}}, To: []gatewayv1.ReferenceGrantTo{{Kind: "Secret"}}}}
	}
	objects := &Objects{Classes: []*gatewayv1.GatewayClass{class}, Gateways: []*gatewayv1.Gateway{edge}, Sets: []*gatewayv1.ListenerSet{set},
		HTTP: []*gatewayv1.HTTPRoute{route("infra"), route("team")}}
	attach := func() *Gateway {
		return NewView(indexOf(objects, all), everything{}).Attach(edge, &Assigned{})
	}
	if g := attach(); g.Sets[0].rejected == nil || len(g.Listeners) > 0 {
		t.Error("a Gateway that says nothing about ListenerSets has one of another namespace")
	}
	set.Namespace, set.Spec.ParentRef.Namespace = "infra", nil
	if g := attach(); g.Sets[0].rejected == nil {
		t.Error("a Gateway that says nothing about ListenerSets has one of its own namespace")
	}
	set.Namespace, set.Spec.ParentRef.Namespace = "team", new(gatewayv1.Namespace("infra"))
	from := gatewayv1.NamespacesFromSame
	edge.Spec.AllowedListeners = &gatewayv1.AllowedListeners{Namespaces: &gatewayv1.ListenerNamespaces{From: &from}}
	if g := attach(); g.Sets[0].rejected == nil {
		t.Error("a Gateway that allows ListenerSets of its own namespace has one of another namespace")
	}
	from = gatewayv1.NamespacesFromSelector
	for what, selector := range map[string]*metav1.LabelSelector{"no": nil, "a wrong": {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: "?"}}}, "an unknown": {MatchLabels: map[string]string{"x": "y"}}} {
		edge.Spec.AllowedListeners.Namespaces.Selector = selector
		if g := attach(); g.Sets[0].rejected == nil {
			t.Errorf("a Gateway with %s selector has a ListenerSet of another namespace", what)
		}
	}
	from = "Elsewhere"
	if g := attach(); g.Sets[0].rejected == nil {
		t.Error("a Gateway that allows something unknown has a ListenerSet")
	}
	from = gatewayv1.NamespacesFromAll
	for _, c := range []struct {
		secret string
		grant  *gatewayv1.ReferenceGrant
		want   string
	}{
		{"", nil, "team"}, {"infra", nil, ""}, {"secrets", nil, ""}, {"secrets", grant(KindGateway, "infra"), ""}, {"secrets", grant(KindGateway, "team"), ""},
		{"secrets", grant(KindListenerSet, "infra"), ""}, {"secrets", grant(KindListenerSet, "team"), "secrets"},
	} {
		set.Spec.Listeners = []gatewayv1.ListenerEntry{gatewayv1.ListenerEntry(tlsListener(c.secret))}
		objects.Grants = nil
		if c.grant != nil {
			objects.Grants = []*gatewayv1.ReferenceGrant{c.grant}
		}
		g := attach()
		got := ""
		if l := g.Listeners[0]; l.Serves() && len(l.Secrets) > 0 {
			got = l.Secrets[0].Namespace
		}
		if got != c.want {
			t.Errorf("a Secret in %q with the grant %v is that of %q", c.secret, c.grant, got)
		}
		for _, a := range g.Routes {
			if (a.Accept == nil) != (a.Name.Namespace == "team") {
				t.Errorf("the route of %s has the problem %v", a.Name.Namespace, a.Accept)
			}
		}
	}
	set.Spec.Listeners[0].AllowedRoutes = &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: new(gatewayv1.NamespacesFromSelector), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"x": "y"}}}}
	for _, a := range attach().Routes {
		if a.Accept == nil {
			t.Errorf("the route of %s, whose labels are not known, is attached", a.Name.Namespace)
		}
	}
	edge.Spec.TLS = &gatewayv1.GatewayTLSConfig{Backend: &gatewayv1.GatewayBackendTLS{ClientCertificateRef: &gatewayv1.SecretObjectReference{Namespace: new(gatewayv1.Namespace("team")), Name: "cert"}}}
	if g := attach(); g.ClientCertificate != nil || g.refs == nil {
		t.Error("a Gateway shows a certificate of another namespace to backends without a grant")
	}
	edge.Spec.TLS.Frontend = &gatewayv1.FrontendTLSConfig{Default: gatewayv1.TLSConfig{Validation: &gatewayv1.FrontendTLSValidation{CACertificateRefs: []gatewayv1.ObjectReference{{Kind: "ConfigMap", Namespace: new(gatewayv1.Namespace("team")), Name: "ca"}}}}}
	if p := attach().Listeners[0].refs; p == nil || p.Reason != string(gatewayv1.ListenerReasonRefNotPermitted) {
		t.Errorf("a Gateway uses an authority of another namespace without a grant: %v", p)
	}
}

// Objects in namespaces that weir does not serve, and Gateways of other controllers, are not weir's.
func TestUnservedObjects(t *testing.T) {
	class := func(name, controller string) *gatewayv1.GatewayClass {
		return &gatewayv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: gatewayv1.GatewayClassSpec{ControllerName: gatewayv1.GatewayController(controller)}}
	}
	meta := func(namespace string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: "o"} }
	o := &Objects{Classes: []*gatewayv1.GatewayClass{class("weir", "c"), class("else", "d")}}
	for _, namespace := range []string{"in", "out"} {
		for _, of := range []string{"weir", "else", "none"} {
			o.Gateways = append(o.Gateways, &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: of}, Spec: gatewayv1.GatewaySpec{GatewayClassName: gatewayv1.ObjectName(of)}})
		}
		parent := gatewayv1.ParentReference{Namespace: new(gatewayv1.Namespace("in")), Name: "weir"}
		o.Sets = append(o.Sets, &gatewayv1.ListenerSet{ObjectMeta: meta(namespace), Spec: gatewayv1.ListenerSetSpec{ParentRef: gatewayv1.ParentGatewayReference{Namespace: parent.Namespace, Name: parent.Name}}})
		o.TCP = append(o.TCP, &gatewayv1.TCPRoute{ObjectMeta: meta(namespace), Spec: gatewayv1.TCPRouteSpec{CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{parent}}}})
		target := gatewayv1.LocalPolicyTargetReferenceWithSectionName{LocalPolicyTargetReference: gatewayv1.LocalPolicyTargetReference{Kind: "Service", Name: "s"}}
		o.Policies = append(o.Policies, &gatewayv1.BackendTLSPolicy{ObjectMeta: meta(namespace), Spec: gatewayv1.BackendTLSPolicySpec{TargetRefs: []gatewayv1.LocalPolicyTargetReferenceWithSectionName{target}}})
	}
	x := indexOf(o, func(namespace string) bool { return namespace == "in" })
	edge := config.ObjectName{Namespace: "in", Name: "weir"}
	if len(x.Gateways()) != 1 || NameOf(x.Gateways()[0]) != edge {
		t.Errorf("weir has the Gateways %v", x.Gateways())
	}
	if sets := x.SetsOf(edge); len(sets) != 1 || sets[0].Namespace != "in" {
		t.Errorf("the Gateway has the ListenerSets %v", sets)
	}
	if routes := x.RoutesOf(edge); len(routes) != 1 || routes[0].Name.Namespace != "in" {
		t.Errorf("the Gateway has the routes %v", routes)
	}
	for namespace, want := range map[string]int{"in": 1, "out": 0} {
		if n := len(x.policies[config.ObjectName{Namespace: namespace, Name: "s"}]); n != want {
			t.Errorf("the Service of %s has %d policies", namespace, n)
		}
	}
}

// SSH leads to a Service of the Gateway's own namespace.
func TestSSHStaysInItsNamespace(t *testing.T) {
	g := gatewayNamed("g", 1)
	for text, want := range map[string]config.ObjectName{"git:22": {Namespace: "ns", Name: "git"}, "other/git:22": {}, "git.other:22": {Namespace: "ns", Name: "git.other"}} {
		g.Annotations = map[string]string{AnnotationSSH: text}
		if own, p := NewView(indexOf(&Objects{}, all), everything{}).readOwn(g); p == nil && own.SSH != want || (p != nil) != (want.Name == "") {
			t.Errorf("%q leads to %v, with the problem %v", text, own.SSH, p)
		}
	}
}

// If two statuses have one address, the older Gateway keeps it, whether it asks for it or not.
func TestOneAddressInTwoStatuses(t *testing.T) {
	pool := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/29")}
	for _, asked := range [][]string{{"", ""}, {"192.0.2.3", ""}, {"", "192.0.2.3"}, {"192.0.2.3", "192.0.2.3"}} {
		var gateways []*gatewayv1.Gateway
		for i, address := range asked {
			g := gatewayNamed([]string{"old", "young"}[i], i)
			if address != "" {
				g = gatewayNamed(g.Name, i, address)
			}
			g.Status.Addresses = []gatewayv1.GatewayStatusAddress{{Value: "192.0.2.3"}}
			gateways = append(gateways, g)
		}
		got := FromPool(gateways, pool, func(*gatewayv1.Gateway) *Assigned { return nil })
		old, young := got[NameOf(gateways[0])].Addresses, got[NameOf(gateways[1])].Addresses
		if len(old) != 1 || old[0].String() != "192.0.2.3" || len(young) > 0 && young[0] == old[0] || (len(young) == 0) != (asked[1] != "") {
			t.Errorf("%q: the older Gateway has %v, the younger %v", asked, old, young)
		}
	}
}

// Labels of spec.infrastructure do not hide whose Service it is.
func TestLabelsOfServices(t *testing.T) {
	g := gatewayNamed("edge", 1)
	g.Spec.GatewayClassName = "weir"
	g.Spec.Infrastructure = &gatewayv1.GatewayInfrastructure{Labels: map[gatewayv1.LabelKey]gatewayv1.LabelValue{
		managedBy: "somebody", gatewayv1.GatewayNameLabelKey: "other", gatewayv1.GatewayClassNameLabelKey: "other", "team": "a"}}
	s := (&Gateway{Object: g, Assigned: &Assigned{}}).Service()
	if want := map[string]string{managedBy: manager, gatewayv1.GatewayNameLabelKey: "edge", gatewayv1.GatewayClassNameLabelKey: "weir", "team": "a"}; !maps.Equal(s.Labels, want) {
		t.Errorf("the Service has the labels %v", s.Labels)
	}
}
