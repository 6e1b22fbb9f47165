package kube

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
)

// The annotations of weir's own, on Services.
const (
	AnnotationPreferLocal  = annotation.Own + "prefer-local"
	AnnotationRequireLocal = annotation.Own + "require-local"
	AnnotationRampUp       = annotation.Own + "ramp-up"
	AnnotationSendProxy    = annotation.Own + "send-proxy-protocol"
)

// defaultRampUp is the default duration of slow start: most applications have
// something to load or to compile when their first requests arrive.
const defaultRampUp = 10 * time.Second

// maxRampUp is the same limit as in the file.
const maxRampUp = time.Hour

// backend returns the name of c's backend. There always is one: a path without a
// usable backend answers 503. Without its route, its requests would go to a shorter
// path, which may belong to any tenant.
func (v *conversion) backend(c *claim.Claim) string {
	if c.Refusal == nil && c.Closed() == c.Backend.Guards && c.Backend.Supported { // its object closes nothing, so the Service counts
		v.tellService(c.Backend.Name)
	}
	switch {
	case c.Closed() != nil || c.Refusal != nil:
		return v.closedBackend(c.Owner.Name.Namespace, "refused", true)
	case c.Backend.Supported:
		return v.serviceBackend(c)
	case c.Backend == claim.Backend{}:
		v.on(c.Owner, event.ReasonBackend, "The backend of %s is empty; name a Service.", c.Match)
		return v.closedBackend(c.Owner.Name.Namespace, "nothing", false)
	}
	b := &c.Backend
	v.on(c.Owner, event.ReasonResource, "The backend of %s is the resource %s %q, but weir supports only Services; name a Service.", c.Match, b.Kind, b.Name.Name)
	return v.closedBackend(c.Owner.Name.Namespace, "resource/"+b.Kind+"/"+b.Name.Name, false)
}

// closedBackend returns the name of a backend of the namespace that never has an endpoint.
// onPurpose means that weir refuses its requests on purpose.
func (v *conversion) closedBackend(namespace, name string, onPurpose bool) string {
	b := Backend{Backend: config.NewBackend(namespace + "/" + name)}
	b.Namespace, b.Closed = namespace, onPurpose
	b.speak(appProtocols[""])
	return v.keep(b)
}

// serviceBackend returns the name of the backend for the Service of c.
func (v *conversion) serviceBackend(c *claim.Claim) string {
	b, err := v.serving(c.Backend.Name, c.Backend.Port)
	if err != nil {
		v.on(c.Owner, reasonOf(err), "The backend of %s is %v.", c.Match, err)
	}
	v.letSpeak(&b, c)
	v.secureAs(&b, c.Owner)
	v.ofService(&b)
	v.choose(&b, v.asks(c))
	if v.keep(b); err == nil {
		v.use(c.Owner, b.Name, c.Implicit)
	}
	return b.Name
}

// use records that an object sends requests to the backend of a Service. implicit is that of
// the claim.
func (v *conversion) use(o *claim.Owner, backend string, implicit bool) {
	b, user := v.backends[backend], o.Reference()
	if !slices.Contains(b.Users, user) && len(b.Users) < maxUsers {
		b.Users = append(b.Users, user)
		v.uses[backend] = append(v.uses[backend], useOrder{implicit, o.Created})
	}
}

// maxUsers is the maximum number of objects that get the event NoEndpoints of one backend.
const maxUsers = 100

// NoEndpoints are the events of a backend whose Service has no ready endpoint.
func (b *Backend) NoEndpoints() (events []event.Event) {
	for _, user := range b.Users {
		events = append(events, event.Event{Object: user, Reason: event.ReasonNoEndpoints, Message: fmt.Sprintf(
			"The Service %s has no ready endpoint for port %s, so its paths answer 503; check that its Pods run and are ready, and that its selector matches them.",
			b.Source, cmp.Or(b.Port.Name, strconv.Itoa(int(b.Port.Number))))})
	}
	return events
}

// Refused is the event of a Service some of whose endpoints weir refused. why
// lists their addresses, each with the reason.
func (b *Backend) Refused(why string) event.Event {
	service := corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: b.Source.Namespace, Name: b.Source.Name, UID: b.UID}
	return event.Event{Object: service, Reason: event.ReasonUnusable,
		Message: fmt.Sprintf("weir refuses addresses of this Service: %s. Give the Service addresses of other machines.", why)}
}

func (v *conversion) keep(b Backend) string {
	if v.backends[b.Name] == nil {
		v.backends[b.Name] = &b
	}
	return b.Name
}

// unusable is the error of a Service that exists, but to which weir must not connect.
type unusable struct{ why string }

func (u unusable) Error() string { return u.why }

func reasonOf(err error) event.Reason {
	if errors.As(err, &unusable{}) {
		return event.ReasonUnusable
	}
	return event.ReasonBackend
}

// serving returns the backend for a port of a Service. If it also returns an error, the
// backend has no endpoints until the Service is corrected. The error names the Service and
// its fault.
func (v *conversion) serving(source config.ObjectName, port claim.Port) (Backend, error) {
	s := v.service(source)
	found, err := portOf(s, port)
	switch {
	case s == nil:
		err = unread{fmt.Errorf("the Service %s, which does not exist; create it, or name another", source)}
	case err != nil:
		err = fmt.Errorf("the Service %s, which %w", source, err)
	default:
		port = claim.Port{Number: found.number}
	}
	name := source.Namespace + "/" + source.Name
	if p := cmp.Or(port.Name, strconv.Itoa(int(port.Number))); p != "0" {
		name += ":" + p
	}
	b := Backend{Backend: config.NewBackend(name), Source: source, Port: port}
	b.Namespace, b.Group = source.Namespace, name
	b.PreferLocal, b.RampUp, b.SendProxy = v.prefersLocal(s), v.rampUp(s), v.sendProxy(s)
	if s != nil {
		b.UID = s.UID
		v.tellUnknown("v1", "Service", &s.ObjectMeta)
	}
	b.speak(appProtocols[""])
	return b, err
}

// servicePort is a port of a Service that was found.
type servicePort struct {
	number   int32  // the Service's
	name     string // by which EndpointSlices have it
	protocol string // appProtocol
	direct   bool   // the number is that of the endpoints: nothing translates it
}

// portOf finds a port by its name or number. Headless Services and ExternalNames
// need not list their ports.
func portOf(s *corev1.Service, port claim.Port) (servicePort, error) {
	if s == nil {
		return servicePort{}, errors.New("does not exist")
	}
	var known []string
	for _, p := range s.Spec.Ports {
		if !isTCP(&p) {
			continue
		}
		if port.Name != "" && p.Name == port.Name || port.Name == "" && p.Port == port.Number {
			found := servicePort{number: p.Port, name: p.Name, direct: isExternal(s)}
			if p.AppProtocol != nil {
				found.protocol = *p.AppProtocol
			}
			return found, checkExternal(s)
		}
		known = append(known, strings.TrimSuffix(fmt.Sprintf("%d (%s", p.Port, p.Name), " (")+strings.Repeat(")", min(1, len(p.Name))))
	}
	if direct := isExternal(s) || s.Spec.ClusterIP == corev1.ClusterIPNone && len(s.Spec.Ports) == 0; direct && port.Name == "" && isPort(port.Number) {
		return servicePort{number: port.Number, direct: true}, checkExternal(s)
	}
	asked := fmt.Sprintf("%q", port.Name)
	if port.Name == "" {
		asked = strconv.Itoa(int(port.Number))
	}
	switch {
	case len(known) == 0 && port == claim.Port{}:
		return servicePort{}, errors.New("has no TCP port; add one, or name another Service")
	case len(known) == 0:
		return servicePort{}, fmt.Errorf("has no TCP port %s, and no other TCP port; add the port, or name another Service", asked)
	}
	return servicePort{}, fmt.Errorf("has no TCP port %s; use one of its TCP ports: %s", asked, strings.Join(known, ", "))
}

// portIn is the port of a Service that an Ingress means. ingress-nginx also finds it by its targetPort, which weir looks for
// only if no port of the Service has the name or number. s may be nil.
func portIn(s *corev1.Service, written networkingv1.ServiceBackendPort) claim.Port {
	port := claim.Port(written)
	if _, err := portOf(s, port); err == nil || s == nil || isExternal(s) {
		return port
	}
	for _, p := range s.Spec.Ports {
		if isTCP(&p) && p.TargetPort.String() == cmp.Or(port.Name, strconv.Itoa(int(port.Number))) {
			return claim.Port{Number: p.Port}
		}
	}
	return port
}

func isTCP(p *corev1.ServicePort) bool {
	return (p.Protocol == corev1.ProtocolTCP || p.Protocol == "") && isPort(p.Port)
}

func isPort(number int32) bool { return 0 < number && number < 1<<16 }

func isExternal(s *corev1.Service) bool { return s.Spec.Type == corev1.ServiceTypeExternalName }

// checkExternal refuses external names of this machine, where weir's admin port is,
// and special addresses: the author of a Service must not reach them.
func checkExternal(s *corev1.Service) error {
	if !isExternal(s) {
		return nil
	}
	host, err := config.ParseHost(s.Spec.ExternalName)
	switch {
	case err != nil || strings.HasPrefix(host, "*."):
		return unusable{fmt.Sprintf("has the invalid externalName %q; write a host name", s.Spec.ExternalName)}
	case isOwn(host):
		return unusable{fmt.Sprintf("has the externalName %q: weir does not connect to loopback, link-local, multicast and unspecified addresses; name another machine", s.Spec.ExternalName)}
	}
	return nil
}

// isOwn reports whether a host, as config.ParseHost returns it, is this machine, or an
// address that the API server would refuse in an EndpointSlice.
func isOwn(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast()
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// prefersLocal reports whether weir prefers endpoints on this node and in its zone.
func (v *conversion) prefersLocal(s *corev1.Service) bool {
	if s == nil {
		return v.settings.PreferLocal
	}
	if says, ok := v.truth(s, AnnotationPreferLocal); ok {
		return says
	}
	if d := s.Spec.TrafficDistribution; d != nil {
		near := []string{corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode}
		return slices.Contains(near, *d)
	}
	return v.settings.PreferLocal
}

// rampUp is the duration of slow start for the endpoints of a Service.
func (v *conversion) rampUp(s *corev1.Service) time.Duration {
	if s == nil {
		return defaultRampUp
	}
	value, given := s.Annotations[AnnotationRampUp]
	if !given {
		return defaultRampUp
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || d > maxRampUp {
		v.event(reference("v1", "Service", &s.ObjectMeta), event.ReasonAnnotation, `The annotation %s is %q; write a duration from "0s" to "1h".`, AnnotationRampUp, value)
		return defaultRampUp
	}
	return d
}

// sendProxy is the version of the PROXY header that a Service wants; 0: none.
func (v *conversion) sendProxy(s *corev1.Service) int {
	if s == nil {
		return 0
	}
	switch value, given := s.Annotations[AnnotationSendProxy]; {
	case value == "v1":
		return 1
	case value == "v2":
		return 2
	case given:
		v.event(reference("v1", "Service", &s.ObjectMeta), event.ReasonAnnotation, `The annotation %s is %q; write "v1" or "v2".`, AnnotationSendProxy, value)
	}
	return 0
}

// truth is the value of an annotation of weir.
func (v *conversion) truth(s *corev1.Service, annotation string) (says, ok bool) {
	value, ok := s.Annotations[annotation]
	if ok && value != "true" && value != "false" {
		v.event(reference("v1", "Service", &s.ObjectMeta), event.ReasonAnnotation, `The annotation %s is %q; write "true" or "false".`, annotation, value)
		return false, false
	}
	return value == "true", ok
}

// requireLocal lists the backends that need a ready endpoint on this node: one for
// each Service, so that each Service counts once. A Service that the configuration
// names, and that no route uses, counts by its first port.
func (v *conversion) requireLocal(used map[config.ObjectName]string) {
	wanted := map[string]bool{}
	for _, name := range v.settings.RequireLocal {
		if v.isNeverLocal(name) {
			continue
		}
		backend, ok := used[name]
		if !ok {
			backend = v.firstPort(name)
		}
		wanted[backend] = true
	}
	// The right to create a Service is not enough to affect the health of nodes.
	for name, backend := range used {
		if !v.chosen(name.Namespace) {
			continue
		}
		if says, ok := v.truth(v.service(name), AnnotationRequireLocal); ok && says && v.mayDecide(name) && !v.isNeverLocal(name) {
			wanted[backend] = true
		}
	}
	for name := range wanted {
		v.out.RequireLocal = append(v.out.RequireLocal, name)
	}
	slices.Sort(v.out.RequireLocal)
}

// mayDecide reports whether the annotation AnnotationRequireLocal of the Service has an
// effect. A tenant could take all nodes out of service by it.
func (v *conversion) mayDecide(name config.ObjectName) bool {
	if v.settings.IsOperator(name.Namespace) {
		return true
	}
	v.event(reference("v1", "Service", &v.service(name).ObjectMeta), event.ReasonOperator,
		"The annotation %s has no effect, because kubernetes.operator_namespaces in weir's configuration does not list the namespace %s; the annotation would make the health port of nodes without a ready endpoint of this Service answer 503. Remove it, or let the operator of weir add the Service to kubernetes.require_local.",
		AnnotationRequireLocal, name.Namespace)
	return false
}

// isNeverLocal reports whether a Service that must have a ready endpoint on this node is
// an ExternalName. It has no endpoint on any node, so no node would be healthy again.
func (v *conversion) isNeverLocal(name config.ObjectName) bool {
	s := v.service(name)
	if s == nil || !isExternal(s) {
		return false
	}
	v.event(reference("v1", "Service", &s.ObjectMeta), event.ReasonNeverLocal,
		"weir does not require a ready endpoint of this Service on each node, because a Service of type ExternalName has no endpoint on any node. Remove the annotation %s, or remove the Service from kubernetes.require_local in weir's configuration.", AnnotationRequireLocal)
	return true
}

// used returns one backend of each Service that a route uses and that may be required on this
// node, always the same one; nil: there is none. A Service or port that does not exist has no
// endpoint on any node, so it is not used.
func (v *conversion) used() (used map[config.ObjectName]string) {
	for _, b := range v.backends {
		s := v.service(b.Source)
		if _, err := portOf(s, b.Port); err != nil {
			continue
		}
		if _, annotated := s.Annotations[AnnotationRequireLocal]; annotated || slices.Contains(v.settings.RequireLocal, b.Source) {
			used = addUsed(used, b.Source, b.Name)
		}
	}
	return used
}

// addUsed adds a backend of a Service, unless another one goes before it.
func addUsed(used map[config.ObjectName]string, of config.ObjectName, backend string) map[config.ObjectName]string {
	if used == nil {
		used = map[config.ObjectName]string{}
	}
	if old := used[of]; old == "" || backend < old {
		used[of] = backend
	}
	return used
}

// firstPort is a backend of the Service's first TCP port.
func (v *conversion) firstPort(name config.ObjectName) string {
	b, err := v.serving(name, v.firstOf(name))
	if err != nil {
		v.event(corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: name.Namespace, Name: name.Name}, reasonOf(err),
			"kubernetes.require_local in weir's configuration requires a ready endpoint of %v.", err)
	}
	return v.keep(b)
}
