package gateway

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
)

// Listener is a listener of a Gateway, or of one of its ListenerSets.
type Listener struct {
	Name     string
	Port     int
	Protocol gatewayv1.ProtocolType
	Hostname string // in lower case; empty: every host
	// Passthrough means that weir does not terminate the TLS of a TLS listener.
	Passthrough bool
	Set         *gatewayv1.ListenerSet // nil: the listener is of the Gateway itself
	// Secrets have the certificates, all of them usable.
	Secrets []*corev1.Secret
	// TLSPolicy is the policy in the configuration file whose settings the listener has; empty: the
	// default.
	TLSPolicy string
	// Issuer is the issuer in the configuration file that orders the certificate; empty: none, because there are
	// Secrets, or nothing is to be ordered.
	Issuer string
	// Clients is how weir checks the certificates of clients.
	Clients ClientCheck

	Kinds    []gatewayv1.RouteGroupKind // that may be attached
	allowed  *gatewayv1.AllowedRoutes
	owner    config.ObjectName // the Gateway or the ListenerSet
	attached map[*Route]bool

	conflict *Problem // with another listener
	foreign  bool     // the configuration gives the hostname to other namespaces
	accept   *Problem // why it is not accepted
	refs     *Problem // a reference that cannot be resolved
	program  *Problem // why it serves nothing
	unfit    []string // a sentence about certificates that are not valid for the hostname
}

// ClientCheck is how weir checks the certificates of the clients of a listener.
type ClientCheck struct {
	Required bool
	// Ask means that clients are asked for a certificate, and need none.
	Ask bool
	// CAs are the certificates of authorities in PEM. Not empty if Required.
	CAs []byte
}

// TLSPort reports whether the connections of the listener begin with TLS.
func (l *Listener) TLSPort() bool {
	return l.Protocol == gatewayv1.HTTPSProtocolType || l.Protocol == gatewayv1.TLSProtocolType
}

// Terminates reports whether weir terminates the TLS of the listener.
func (l *Listener) Terminates() bool { return l.TLSPort() && !l.Passthrough }

// Serves reports whether the listener serves something: it is valid, allows a kind of
// routes, and has a certificate if it needs one.
func (l *Listener) Serves() bool {
	return l.conflict == nil && l.accept == nil && l.program == nil
}

// Owns reports whether requests for the hosts of the listener belong to it, even if it serves
// nothing. Otherwise a more general listener would get them, perhaps without a check of clients.
func (l *Listener) Owns() bool {
	return l.conflict == nil && !l.foreign && protocolKinds[l.Protocol] != nil
}

// String is the listener in messages.
func (l *Listener) String() string {
	if l.Set != nil {
		return fmt.Sprintf("listener %s of the ListenerSet %s", l.Name, l.owner)
	}
	return "listener " + l.Name
}

// protocolKinds are the kinds of routes of each protocol.
var protocolKinds = map[gatewayv1.ProtocolType][]string{
	gatewayv1.HTTPProtocolType: {KindHTTPRoute, KindGRPCRoute}, gatewayv1.HTTPSProtocolType: {KindHTTPRoute, KindGRPCRoute},
	gatewayv1.TLSProtocolType: {KindTLSRoute}, gatewayv1.TCPProtocolType: {KindTCPRoute},
}

// listeners reads the listeners of a Gateway and of the ListenerSets that it allows, and finds
// their faults.
func (v *View) listeners(g *gatewayv1.Gateway, sets []*Set) []*Listener {
	var all []*Listener
	for i := range g.Spec.Listeners {
		all = append(all, v.listener(g, nil, &g.Spec.Listeners[i]))
	}
	own := len(all)
	for _, s := range sets {
		if s.rejected != nil {
			continue
		}
		for i := range s.Object.Spec.Listeners {
			e := gatewayv1.Listener(s.Object.Spec.Listeners[i])
			l := v.listener(g, s.Object, &e)
			all, s.Listeners = append(all, l), append(s.Listeners, l)
		}
	}
	findConflicts(all[:own], all[own:])
	return all
}

// listener reads one listener.
func (v *View) listener(g *gatewayv1.Gateway, set *gatewayv1.ListenerSet, spec *gatewayv1.Listener) *Listener {
	l := &Listener{Name: string(spec.Name), Port: int(spec.Port), Protocol: spec.Protocol, Set: set, allowed: spec.AllowedRoutes, owner: NameOf(g), attached: map[*Route]bool{}}
	if set != nil {
		l.owner = NameOf(set)
	}
	kinds := protocolKinds[spec.Protocol]
	if kinds == nil {
		l.accept = problem(gatewayv1.ListenerReasonUnsupportedProtocol, "weir does not support the protocol %s; use HTTP, HTTPS, TLS or TCP.", spec.Protocol)
		l.Kinds = []gatewayv1.RouteGroupKind{}
		return l
	}
	if spec.Protocol != gatewayv1.TCPProtocolType {
		l.Hostname = strings.ToLower(string(value(spec.Hostname, "")))
	}
	if l.Hostname != "" {
		if why := v.RefusesHost(l.owner.Namespace, l.Hostname); why != "" {
			l.foreign = true
			l.accept = problem(gatewayv1.ListenerConditionReason("HostTaken"), "The host %s %s; use another host, or change the list.", l.Hostname, why)
		}
	}
	l.readKinds(kinds)
	if l.TLSPort() {
		v.readTLS(g, l, spec.TLS)
	}
	if len(l.Kinds) == 0 {
		l.program = orElse(l.program, problem(gatewayv1.ListenerReasonInvalid, "The listener allows no kind of routes that weir supports for it."))
	}
	return l
}

// orElse returns the first problem, or else the second.
func orElse(first, second *Problem) *Problem {
	if first != nil {
		return first
	}
	return second
}

// readKinds finds the kinds of routes that a listener allows, of those that its protocol has.
func (l *Listener) readKinds(possible []string) {
	group := gatewayv1.Group(Group)
	l.Kinds = []gatewayv1.RouteGroupKind{}
	if l.allowed == nil || len(l.allowed.Kinds) == 0 {
		for _, kind := range possible {
			l.Kinds = append(l.Kinds, gatewayv1.RouteGroupKind{Group: &group, Kind: gatewayv1.Kind(kind)})
		}
		return
	}
	for i := range l.allowed.Kinds {
		k := &l.allowed.Kinds[i]
		if string(value(k.Group, gatewayv1.Group(Group))) == Group && slices.Contains(possible, string(k.Kind)) {
			l.Kinds = append(l.Kinds, gatewayv1.RouteGroupKind{Group: &group, Kind: k.Kind})
			continue
		}
		l.refs = orElse(l.refs, problem(gatewayv1.ListenerReasonInvalidRouteKinds, "allowedRoutes has the kind %s, which weir does not support for the protocol %s; use %s.", k.Kind, l.Protocol, strings.Join(possible, " or ")))
	}
}

// readTLS finds the certificates of a listener.
func (v *View) readTLS(g *gatewayv1.Gateway, l *Listener, spec *gatewayv1.ListenerTLSConfig) {
	if spec == nil {
		spec = &gatewayv1.ListenerTLSConfig{}
	}
	l.Issuer = g.Annotations[Issuer]
	if l.Set != nil {
		l.Issuer = l.Set.Annotations[Issuer]
	}
	v.readOptions(l, spec.Options)
	if value(spec.Mode, gatewayv1.TLSModeTerminate) == gatewayv1.TLSModePassthrough {
		l.Passthrough = true
		if l.Protocol == gatewayv1.HTTPSProtocolType {
			l.accept = problem(gatewayv1.ListenerReasonUnsupportedValue, "A listener with the protocol HTTPS cannot pass TLS through; use the mode Terminate, or the protocol TLS.")
		}
		return
	}
	var unusable *Problem
	for i := range spec.CertificateRefs {
		if s, p := v.certificate(l.kind(), l.owner.Namespace, &spec.CertificateRefs[i]); p != nil {
			unusable = orElse(unusable, p)
		} else {
			l.Secrets = append(l.Secrets, s)
		}
	}
	refused := v.readIssuer(l)
	if len(spec.CertificateRefs) == 0 && l.Issuer == "" {
		unusable = problem(gatewayv1.ListenerReasonInvalidCertificateRef, "tls.certificateRefs is empty; name a Secret of type kubernetes.io/tls.")
	}
	if len(l.Secrets) == 0 && l.Issuer == "" {
		l.lackCertificate(orElse(refused, unusable))
	}
	l.refs = orElse(l.refs, unusable)
	if len(l.Secrets) > 0 && l.Hostname != "" && !slices.ContainsFunc(l.Secrets, func(s *corev1.Secret) bool { return fits(v.CertificateNames(s), l.Hostname) }) {
		l.unfit = []string{fmt.Sprintf("But clients will refuse the certificate, because it is not valid for %s; name a Secret with a certificate for this hostname.", l.Hostname)}
	}
	if l.Protocol == gatewayv1.HTTPSProtocolType {
		v.readClientCheck(g, l)
	}
}

// kind is the kind of the object that has the listener.
func (l *Listener) kind() string {
	if l.Set != nil {
		return KindListenerSet
	}
	return KindGateway
}

// certificate returns the Secret that an object names.
func (v *View) certificate(kind, namespace string, ref *gatewayv1.SecretObjectReference) (*corev1.Secret, *Problem) {
	name := config.ObjectName{Namespace: string(value(ref.Namespace, gatewayv1.Namespace(namespace))), Name: string(ref.Name)}
	if value(ref.Group, "") != "" || value(ref.Kind, "Secret") != "Secret" {
		return nil, problem(gatewayv1.ListenerReasonInvalidCertificateRef, "The certificate %s is of the kind %s, but weir supports only Secrets.", name, kindName(string(value(ref.Group, "")), string(value(ref.Kind, "Secret"))))
	}
	if !v.permits(kind, namespace, "Secret", name) {
		return nil, problem(gatewayv1.ListenerReasonRefNotPermitted, noGrant, name.Namespace, kind, namespace, "Secret", name.Name)
	}
	s := v.Secret(name)
	if s == nil {
		return nil, problem(gatewayv1.ListenerReasonInvalidCertificateRef, "The Secret %s does not exist; create it, or name another.", name)
	}
	if err := v.CheckPair(s); err != nil {
		return nil, problem(gatewayv1.ListenerReasonInvalidCertificateRef, "The Secret %s %v.", name, err)
	}
	return s, nil
}

// fits reports whether a certificate with these names is valid for a hostname, or for at least one name below a
// wildcard. In a certificate, a wildcard stands for one label.
func fits(names []string, hostname string) bool {
	_, parent, _ := strings.Cut(hostname, ".")
	return slices.ContainsFunc(names, func(name string) bool {
		if strings.HasPrefix(hostname, "*.") {
			return name == hostname || covers(hostname, name)
		}
		return name == hostname || name == "*."+parent
	})
}

// findConflicts marks listeners that share a port and cannot be told apart. Of the listeners of
// the Gateway, none of these is served. A listener of a ListenerSet gives way to the Gateway, and
// to older ListenerSets.
func findConflicts(own, ofSets []*Listener) {
	for i, a := range own {
		for j, b := range own {
			if i != j {
				a.conflict = orElse(a.conflict, conflictOf(a, b))
			}
		}
	}
	kept := map[int]*portListeners{}
	for _, l := range own {
		if l.conflict == nil {
			kept[l.Port] = kept[l.Port].with(l)
		}
	}
	for _, l := range ofSets {
		if l.conflict = kept[l.Port].conflictOf(l); l.conflict == nil {
			kept[l.Port] = kept[l.Port].with(l)
		}
	}
}

// portListeners are listeners of one port without conflicts among them.
type portListeners struct {
	first *Listener
	by    map[string]*Listener // by hostname
}

// with adds a listener. p may be nil.
func (p *portListeners) with(l *Listener) *portListeners {
	switch {
	case protocolKinds[l.Protocol] == nil:
		return p
	case p == nil:
		p = &portListeners{l, map[string]*Listener{}}
	}
	p.by[l.Hostname] = l
	return p
}

// conflictOf returns the conflict of another listener with one of these; nil: there is none. p may be nil. All
// of them agree on TCP and TLS, so the first one stands for all.
func (p *portListeners) conflictOf(l *Listener) *Problem {
	if p == nil {
		return nil
	}
	c := conflictOf(l, p.first)
	if same := p.by[l.Hostname]; c == nil && same != nil {
		c = conflictOf(l, same)
	}
	return c
}

// seenFrom names a listener in a message about another one. A reader of a ListenerSet does not see the listeners of the
// Gateway.
func (l *Listener) seenFrom(other *Listener) string {
	if l.Set == nil && other.Set != nil {
		return fmt.Sprintf("The %v of the Gateway %s", l, l.owner)
	}
	return fmt.Sprintf("The %v", l)
}

// conflictOf returns the conflict of a with b; nil: there is none.
func conflictOf(a, b *Listener) *Problem {
	if a.Port != b.Port || protocolKinds[a.Protocol] == nil || protocolKinds[b.Protocol] == nil {
		return nil
	}
	tcp := a.Protocol == gatewayv1.TCPProtocolType || b.Protocol == gatewayv1.TCPProtocolType
	switch {
	case tcp || a.TLSPort() != b.TLSPort() || a.Protocol != b.Protocol && a.Hostname == b.Hostname:
		return problem(gatewayv1.ListenerReasonProtocolConflict, "%s has the port %d as well, with the protocol %s; use another port.", b.seenFrom(a), b.Port, b.Protocol)
	case a.Hostname == b.Hostname:
		return problem(gatewayv1.ListenerReasonHostnameConflict, "%s has the port %d and the same hostname; change one of them.", b.seenFrom(a), b.Port)
	}
	return nil
}

func (l *Listener) allowsKind(kind string) bool {
	return slices.ContainsFunc(l.Kinds, func(k gatewayv1.RouteGroupKind) bool { return string(k.Kind) == kind })
}

// allows returns true if routes of the kind, in the namespace, may be attached to the listener.
func (v *View) allows(l *Listener, r *Route) bool {
	if !l.allowsKind(r.Kind) {
		return false
	}
	from, selector := gatewayv1.NamespacesFromSame, (*metav1.LabelSelector)(nil)
	if l.allowed != nil && l.allowed.Namespaces != nil {
		from, selector = value(l.allowed.Namespaces.From, from), l.allowed.Namespaces.Selector
	}
	return v.isFrom(from, selector, r.Name.Namespace, l.owner.Namespace)
}

// isFrom reports whether a namespace is one of those that an object in another namespace selects.
func (v *View) isFrom(from gatewayv1.FromNamespaces, selector *metav1.LabelSelector, namespace, own string) bool {
	switch from {
	case gatewayv1.NamespacesFromAll:
		return true
	case gatewayv1.NamespacesFromSame:
		return namespace == own
	case gatewayv1.NamespacesFromSelector:
		if selector == nil {
			return false
		}
		s, err := metav1.LabelSelectorAsSelector(selector)
		n := v.namespace(namespace)
		return err == nil && n != nil && s.Matches(labels.Set(n.Labels))
	}
	return false
}
