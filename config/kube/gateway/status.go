package gateway

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/pause"
)

// Key names an object whose status weir writes.
type Key struct {
	Kind string
	config.ObjectName
	UID types.UID
}

// Status has the status of each object that weir writes because of one Gateway, or because of the
// classes. The conditions have no time of their last transition; package control sets it.
type Status struct {
	Classes   []ClassStatus
	Gateways  []GatewayStatus
	Sets      []SetStatus
	Parents   []ParentStatus
	Ancestors []AncestorStatus
	// Service is the Service that weir keeps for the Gateway; nil: none.
	Service *Service
}

// ClassStatus is the status of a GatewayClass.
type ClassStatus struct {
	Key
	gatewayv1.GatewayClassStatus
}

// GatewayStatus is the status of a Gateway.
type GatewayStatus struct {
	Key
	gatewayv1.GatewayStatus
	// Made says what weir made of each listener of the status. See WithUnbound and WithOrders.
	Made map[gatewayv1.SectionName]Made
	// Published means that the addresses are those of Ingresses, which only the leader knows. See
	// WithPublished. Requested are the addresses that the Gateway asks for then.
	Published bool
	Requested []string
}

// Made names what weir made of a listener.
type Made struct {
	Listeners []string // of weir
	// Order is the TLS policy whose certificate an issuer orders; empty: no issuer does.
	Order string
}

// SetStatus is the status of a ListenerSet.
type SetStatus struct {
	Key
	gatewayv1.ListenerSetStatus
	// Made and Published are those of GatewayStatus.
	Made      map[gatewayv1.SectionName]Made
	Published bool
}

// Generation is the generation of the ListenerSet to which the status belongs.
func (s *SetStatus) Generation() int64 { return s.Conditions[0].ObservedGeneration }

// Orphaned returns the status of a ListenerSet whose Gateway weir no longer serves. s does not change.
func (s *SetStatus) Orphaned() *SetStatus {
	p := problem(gatewayv1.ListenerSetReasonParentNotAccepted, "The Gateway that spec.parentRef names does not exist any more, or is not weir's any more.")
	next := SetStatus{Key: s.Key}
	next.Conditions = []metav1.Condition{
		condition(gatewayv1.ListenerSetConditionAccepted, s.Generation(), p, gatewayv1.ListenerSetReasonAccepted, ""),
		condition(gatewayv1.ListenerSetConditionProgrammed, s.Generation(), p, gatewayv1.ListenerSetReasonProgrammed, ""),
	}
	return &next
}

// ParentStatus is one entry in the status of a route.
type ParentStatus struct {
	Key
	Index int // of the parent in the spec
	gatewayv1.RouteParentStatus
}

// AncestorStatus is one entry in the status of a policy.
type AncestorStatus struct {
	Key
	gatewayv1.PolicyAncestorStatus
}

// condition makes a condition that is true unless there is a problem.
func condition[T, R ~string](kind T, generation int64, p *Problem, reason R, message string) metav1.Condition {
	c := metav1.Condition{Type: string(kind), Status: metav1.ConditionTrue, ObservedGeneration: generation, Reason: string(reason), Message: message}
	if p != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, p.Reason, shortened(p.Message)
	}
	return c
}

// ConditionHostContested is the type of the condition of a route with hosts that objects of another
// kind name too, and do not get.
const ConditionHostContested = annotation.Own + "HostContested"

// maxMessage is the maximum length of a message in a condition. The API allows more, but a message repeats what an object
// says, such as an annotation of 256 KiB, in the status of each listener and each parent: the object would get too large to
// be stored.
const maxMessage = 4096

// shortened shortens a message. The result is valid UTF-8: the API server replaces all else, so that the status would
// differ from the wanted one for ever.
func shortened(s string) string {
	if len(s) <= maxMessage {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	return strings.ToValidUTF8(s[:maxMessage-len("…")], "") + "…"
}

// Features are the features of the Gateway API that weir supports, in alphabetical order.
func Features(settings *config.Gateways) (all []gatewayv1.SupportedFeature) {
	for _, name := range features {
		if name == "GatewayInfrastructure" && !settings.KeepsServices() || name == "GatewayStaticAddresses" && settings.Addresses.Pool == nil {
			continue // a cluster need not give a Service the addresses that a Gateway asks for
		}
		if len(settings.Addresses.Shared) > 0 && slices.Contains(needOwnAddress, name) {
			continue
		}
		all = append(all, gatewayv1.SupportedFeature{Name: gatewayv1.FeatureName(name)})
	}
	return all
}

// needOwnAddress are the features with conformance tests that need an address or ports of the Gateway's own. In
// HTTPRouteMultipleGateways and TLSRouteHostnameIntersection, Gateways answer the same hosts in different ways.
var needOwnAddress = []string{"GatewayPort8080", "HTTPRoute", "HTTPRouteParentRefPort", "TCPRoute", "TLSRoute", "TLSRouteModeMixed", "TLSRouteModeTerminate"}

// features are the names of these features.
var features = []string{
	"BackendTLSPolicy", "BackendTLSPolicySANValidation",
	"GRPCRoute", "GRPCRouteNamedRouteRule",
	"Gateway", "GatewayAddressEmpty", "GatewayBackendClientCertificate", "GatewayFrontendClientCertificateValidation",
	"GatewayFrontendClientCertificateValidationInsecureFallback", "GatewayHTTPListenerIsolation",
	"GatewayHTTPSListenerDetectMisdirectedRequests", "GatewayInfrastructure", "GatewayPort8080", "GatewayStaticAddresses",
	"HTTPRoute", "HTTPRoute303RedirectStatusCode", "HTTPRoute307RedirectStatusCode", "HTTPRoute308RedirectStatusCode",
	"HTTPRouteBackendProtocolH2C", "HTTPRouteBackendProtocolWebSocket", "HTTPRouteBackendRequestHeaderModification",
	"HTTPRouteBackendTimeout", "HTTPRouteCORS", "HTTPRouteDestinationPortMatching", "HTTPRouteHostRewrite", "HTTPRouteMethodMatching",
	"HTTPRouteNamedRouteRule", "HTTPRouteParentRefPort", "HTTPRoutePathRedirect", "HTTPRoutePathRewrite", "HTTPRoutePortRedirect",
	"HTTPRouteQueryParamMatching", "HTTPRouteRequestMirror", "HTTPRouteRequestMultipleMirrors", "HTTPRouteRequestPercentageMirror",
	"HTTPRouteRequestTimeout", "HTTPRouteResponseHeaderModification", "HTTPRouteRetry", "HTTPRouteRetryBackendTimeout",
	"HTTPRouteRetryConnectionError", "HTTPRouteSchemeRedirect",
	"ListenerSet", "ReferenceGrant",
	"TCPRoute", "TLSRoute", "TLSRouteModeMixed", "TLSRouteModeTerminate",
}

// StatusOfClass is the status of a class of weir.
func StatusOfClass(c *gatewayv1.GatewayClass, settings *config.Gateways) ClassStatus {
	var p *Problem
	if c.Spec.ParametersRef != nil {
		p = problem(gatewayv1.GatewayClassReasonInvalidParameters, "weir has no parameters for classes; remove spec.parametersRef.")
	}
	return ClassStatus{Key{KindClass, config.ObjectName{Name: c.Name}, c.UID}, gatewayv1.GatewayClassStatus{
		Conditions: []metav1.Condition{
			condition(gatewayv1.GatewayClassConditionStatusAccepted, c.Generation, p, gatewayv1.GatewayClassReasonAccepted, "weir serves the Gateways of this class."),
		},
		SupportedFeatures: Features(settings),
	}}
}

// Classes returns the status of all classes of weir.
func (x *Index) Classes(settings *config.Gateways) (all []ClassStatus) {
	for _, c := range x.classes {
		if string(c.Spec.ControllerName) == x.controller {
			all = append(all, StatusOfClass(c, settings))
		}
	}
	slices.SortFunc(all, func(a, b ClassStatus) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Status returns the status of the Gateway, of its ListenerSets, and of the routes and policies that
// belong to it. made returns what weir made of a listener.
func (g *Gateway) Status(controller string, made func(*Listener) Made) *Status {
	s := &Status{Gateways: []GatewayStatus{g.status(made)}}
	for _, set := range g.Sets {
		s.Sets = append(s.Sets, g.statusOfSet(set, made))
	}
	for i, a := range g.Routes {
		pause.InLoop(i)
		s.Parents = append(s.Parents, a.status(controller))
	}
	for i := range g.policies {
		s.Ancestors = append(s.Ancestors, g.ancestor(&g.policies[i], controller))
	}
	return s
}

// accepted returns the condition Accepted of the Gateway. If only some listeners are valid, the
// condition is true with the reason ListenersNotValid.
func (g *Gateway) accepted() metav1.Condition {
	generation := g.Object.Generation
	bad, good := []string{}, 0
	for _, l := range g.Listeners {
		switch {
		case l.Set != nil:
		case l.conflict != nil || l.accept != nil:
			bad = append(bad, l.Name)
		default:
			good++
		}
	}
	p := g.rejected
	if p == nil && good == 0 && !g.servesSets() {
		p = problem(gatewayv1.GatewayReasonListenersNotValid, "No listener is valid; their conditions have the reasons.")
	}
	c := condition(gatewayv1.GatewayConditionAccepted, generation, p, gatewayv1.GatewayReasonAccepted, "The Gateway is valid.")
	if p == nil && len(bad) > 0 {
		c.Reason, c.Message = string(gatewayv1.GatewayReasonListenersNotValid), shortened(fmt.Sprintf("weir serves the Gateway without the listeners %s; their conditions have the reasons.", strings.Join(bad, ", ")))
	}
	return alsoSaying(c, g.unknown)
}

// alsoSaying adds sentences to a condition that is true. weir serves the object, so the condition stays true. But a user
// who finds that something has no effect, or that clients fail, looks here for the reason.
func alsoSaying(c metav1.Condition, sentences []string) metav1.Condition {
	if c.Status == metav1.ConditionTrue && len(sentences) > 0 {
		c.Message = shortened(c.Message + " " + strings.Join(sentences, " "))
	}
	return c
}

func (g *Gateway) servesSets() bool {
	return slices.ContainsFunc(g.Sets, func(s *Set) bool { return s.rejected == nil && s.valid() > 0 })
}

// valid counts the listeners of a ListenerSet that can serve something.
func (s *Set) valid() (n int) {
	for _, l := range s.Listeners {
		if l.Serves() {
			n++
		}
	}
	return n
}

// programmed is why the Gateway serves nothing, or lacks an address; nil: it serves.
func (g *Gateway) programmed(accepted metav1.Condition) *Problem {
	switch {
	case accepted.Status != metav1.ConditionTrue:
		return problem(gatewayv1.GatewayReasonInvalid, "The Gateway is not accepted. %s", accepted.Message)
	case g.Assigned.Missing != nil:
		return g.Assigned.Missing
	case len(g.Listeners) > 0 && !slices.ContainsFunc(g.Listeners, (*Listener).Serves):
		return problem(gatewayv1.GatewayReasonInvalid, "No listener serves anything; their conditions have the reasons.")
	}
	return nil
}

func (g *Gateway) status(made func(*Listener) Made) GatewayStatus {
	generation := g.Object.Generation
	accepted := g.accepted()
	refs := g.refs
	s := GatewayStatus{Key: Key{KindGateway, NameOf(g.Object), g.Object.UID}, Made: map[gatewayv1.SectionName]Made{}}
	var sets int32
	for _, set := range g.Sets {
		if set.accepted() == nil {
			sets++
		}
	}
	if len(g.Sets) > 0 || g.Object.Spec.AllowedListeners != nil {
		s.AttachedListenerSets = &sets
	}
	for _, l := range g.Listeners {
		if l.Set != nil {
			continue
		}
		s.Listeners = append(s.Listeners, gatewayv1.ListenerStatus{Name: gatewayv1.SectionName(l.Name), SupportedKinds: l.Kinds, AttachedRoutes: l.count(), Conditions: l.conditions(generation, g)})
		s.Made[gatewayv1.SectionName(l.Name)] = made(l)
		if l.refs != nil {
			refs = orElse(refs, problem(gatewayv1.GatewayReasonListenersNotResolved, "A reference of the listener %s cannot be resolved. %s", l.Name, l.refs.Message))
		}
	}
	s.Conditions = []metav1.Condition{accepted,
		condition(gatewayv1.GatewayConditionProgrammed, generation, g.programmed(accepted), gatewayv1.GatewayReasonProgrammed, "weir serves the Gateway."),
		condition(gatewayv1.GatewayConditionResolvedRefs, generation, refs, gatewayv1.GatewayReasonResolvedRefs, "All references are resolved."),
	}
	if insecureFallback(g.Object) {
		s.Conditions = append(s.Conditions, condition(gatewayv1.GatewayConditionInsecureFrontendValidationMode, generation, nil, gatewayv1.GatewayReasonConfigurationChanged,
			"AllowInsecureFallback lets clients without a valid certificate in."))
	}
	// The Gateway keeps its addresses while it has faults, and the status is the record of who has them. Names lead there.
	s.Addresses = g.Assigned.shown()
	if s.Published = len(g.Assigned.Shared) > 0; s.Published {
		s.Requested = requested(g.Object)
	}
	return s
}

// WithRefusal returns the status of a Gateway whose Service the API server refuses, for the reason p. Faults of
// the Gateway itself come first. s does not change.
func (s *GatewayStatus) WithRefusal(p *Problem) *GatewayStatus {
	next := *s
	next.Conditions = slices.Clone(s.Conditions)
	for i := range next.Conditions {
		c := &next.Conditions[i]
		if c.Type == string(gatewayv1.GatewayConditionProgrammed) && c.Reason != string(gatewayv1.GatewayReasonInvalid) {
			*c = condition(gatewayv1.GatewayConditionProgrammed, c.ObservedGeneration, p, gatewayv1.GatewayReasonProgrammed, "")
		}
	}
	return &next
}

// count is the number of routes that are attached to the listener and accepted.
func (l *Listener) count() int32 { return int32(len(l.attached)) }

// conditions are the conditions of a listener.
func (l *Listener) conditions(generation int64, g *Gateway) []metav1.Condition {
	accept, program := orElse(l.conflict, l.accept), orElse(l.conflict, l.program)
	switch {
	case accept != nil && l.conflict == nil:
		program = problem(gatewayv1.ListenerReasonInvalid, "The listener is not accepted. %s", accept.Message)
	case program == nil && g.rejected != nil:
		program = problem(gatewayv1.ListenerReasonPending, "The Gateway is not accepted.")
	case program == nil:
		program = g.Assigned.pending(l.Port)
	}
	conflicted := metav1.Condition{Type: string(gatewayv1.ListenerConditionConflicted), Status: metav1.ConditionFalse, ObservedGeneration: generation,
		Reason: string(gatewayv1.ListenerReasonNoConflicts), Message: "No other listener has the port and the hostname."}
	if l.conflict != nil {
		conflicted.Status, conflicted.Reason, conflicted.Message = metav1.ConditionTrue, l.conflict.Reason, shortened(l.conflict.Message)
	}
	return []metav1.Condition{
		condition(gatewayv1.ListenerConditionAccepted, generation, accept, gatewayv1.ListenerReasonAccepted, "The listener is valid."),
		condition(gatewayv1.ListenerConditionProgrammed, generation, program, gatewayv1.ListenerReasonProgrammed, "weir serves the listener."),
		alsoSaying(condition(gatewayv1.ListenerConditionResolvedRefs, generation, l.refs, gatewayv1.ListenerReasonResolvedRefs, "All references are resolved."), l.unfit),
		conflicted,
	}
}

// accepted is why the ListenerSet is not accepted; nil: it is.
func (s *Set) accepted() *Problem {
	if s.rejected == nil && s.valid() == 0 {
		return problem(gatewayv1.ListenerSetReasonListenersNotValid, "No listener is valid and has a certificate; their conditions have the reasons.")
	}
	return s.rejected
}

func (g *Gateway) statusOfSet(set *Set, made func(*Listener) Made) SetStatus {
	generation := set.Object.Generation
	accept := set.accepted()
	program := accept
	switch {
	case accept != nil:
	case g.Assigned.Missing != nil && len(g.Assigned.shown()) == 0:
		program = problem(gatewayv1.ListenerSetReasonPending, "The Gateway has no address.")
	}
	s := SetStatus{Key: Key{KindListenerSet, NameOf(set.Object), set.Object.UID}, Made: map[gatewayv1.SectionName]Made{}, Published: len(g.Assigned.Shared) > 0}
	s.Conditions = []metav1.Condition{
		alsoSaying(condition(gatewayv1.ListenerSetConditionAccepted, generation, accept, gatewayv1.ListenerSetReasonAccepted, "The ListenerSet is valid."), set.unknown),
		condition(gatewayv1.ListenerSetConditionProgrammed, generation, program, gatewayv1.ListenerSetReasonProgrammed, "weir serves the ListenerSet."),
	}
	for _, l := range set.Listeners {
		s.Listeners = append(s.Listeners, gatewayv1.ListenerEntryStatus{Name: gatewayv1.SectionName(l.Name), SupportedKinds: l.Kinds, AttachedRoutes: l.count(), Conditions: l.conditions(generation, g)})
		s.Made[gatewayv1.SectionName(l.Name)] = made(l)
	}
	return s
}

// status is the entry of a parent in the status of a route.
func (a *Attachment) status(controller string) ParentStatus {
	generation := a.Meta.Generation
	c := []metav1.Condition{
		alsoSaying(condition(gatewayv1.RouteConditionAccepted, generation, a.Accept, gatewayv1.RouteReasonAccepted, "The route is attached."), a.notes),
		condition(gatewayv1.RouteConditionResolvedRefs, generation, a.Refs, gatewayv1.RouteReasonResolvedRefs, "All references are resolved."),
	}
	if a.Partly != nil && a.Accept == nil {
		c = append(c, metav1.Condition{Type: string(gatewayv1.RouteConditionPartiallyInvalid), Status: metav1.ConditionTrue, ObservedGeneration: generation,
			Reason: a.Partly.Reason, Message: shortened(a.Partly.Message)})
	}
	if a.Contested != nil && a.Accept == nil {
		c = append(c, metav1.Condition{Type: ConditionHostContested, Status: metav1.ConditionTrue, ObservedGeneration: generation,
			Reason: a.Contested.Reason, Message: shortened(a.Contested.Message)})
	}
	at := slices.IndexFunc(a.Parents, func(p gatewayv1.ParentReference) bool { return equalRef(&p, a.Parent) })
	return ParentStatus{Key{a.Kind, a.Name, a.Meta.UID}, at, gatewayv1.RouteParentStatus{ParentRef: *a.Parent, ControllerName: gatewayv1.GatewayController(controller), Conditions: c}}
}

// ancestor is the entry of the Gateway in the status of a policy.
func (g *Gateway) ancestor(p *policyState, controller string) AncestorStatus {
	generation := p.policy.Generation
	group, kind, namespace := gatewayv1.Group(Group), gatewayv1.Kind(KindGateway), gatewayv1.Namespace(g.Object.Namespace)
	return AncestorStatus{Key{KindPolicy, NameOf(p.policy), p.policy.UID}, gatewayv1.PolicyAncestorStatus{
		AncestorRef:    gatewayv1.ParentReference{Group: &group, Kind: &kind, Namespace: &namespace, Name: gatewayv1.ObjectName(g.Object.Name)},
		ControllerName: gatewayv1.GatewayController(controller),
		Conditions: []metav1.Condition{
			condition(gatewayv1.PolicyConditionAccepted, generation, p.accept, gatewayv1.PolicyReasonAccepted, "weir applies the policy."),
			condition(gatewayv1.BackendTLSPolicyConditionResolvedRefs, generation, p.refs, gatewayv1.BackendTLSPolicyReasonResolvedRefs, "All references are resolved."),
		},
	}}
}

// equalRef reports whether two references name the same parent in the same words.
func equalRef(a, b *gatewayv1.ParentReference) bool {
	return equalPointer(a.Group, b.Group) && equalPointer(a.Kind, b.Kind) && equalPointer(a.Namespace, b.Namespace) && a.Name == b.Name &&
		equalPointer(a.SectionName, b.SectionName) && equalPointer(a.Port, b.Port)
}

func equalPointer[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
