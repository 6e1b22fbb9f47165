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
)

// The annotations of weir's own, on Services.
const (
	AnnotationPreferLocal  = "weirproxy.github.io/prefer-local"
	AnnotationRequireLocal = "weirproxy.github.io/require-local"
	AnnotationRampUp       = "weirproxy.github.io/ramp-up"
)

// defaultRampUp is how long a Pod that comes to others gets less than its share:
// most have something to load or to compile when their first requests come.
const defaultRampUp = 10 * time.Second

// maxRampUp is as in the file.
const maxRampUp = time.Hour

// backend returns the name of the backend that w is to go to. There always is
// one: what leads nowhere answers 503, for if its route were left out, requests
// would fall to whoever has a shorter path.
func (v *conversion) backend(w *want) string {
	namespace := w.by.Namespace
	if w.guards = v.refuses(w); len(w.guards) > 0 {
		b := Backend{Backend: config.NewBackend(namespace + "/refused")}
		b.speak(appProtocols[""])
		return v.keep(b)
	}
	if r := w.backend.Resource; r != nil || w.backend.Service == nil {
		name := "nothing"
		if r != nil {
			name = "resource/" + r.Kind + "/" + r.Name
			v.on(w.by, ReasonResource, "The backend of %s is the resource %s %q, and weir serves only Services; name a Service.", w.claim, r.Kind, r.Name)
		} else {
			v.on(w.by, ReasonBackend, "The backend of %s is nothing; name a Service.", w.claim)
		}
		b := Backend{Backend: config.NewBackend(namespace + "/" + name)}
		b.speak(appProtocols[""])
		return v.keep(b)
	}
	name, port := w.backend.Service.Name, w.backend.Service.Port
	b, err := v.serving(config.ObjectName{Namespace: namespace, Name: name}, port)
	if err != nil {
		v.on(w.by, reasonOf(err), "The backend of %s %v.", w.claim, err)
	}
	v.letSpeak(&b, w)
	return v.keep(b)
}

func (v *conversion) keep(b Backend) string {
	if v.backends[b.Name] == nil {
		v.backends[b.Name] = &b
	}
	return b.Name
}

// unusable says that a Service is there and leads nowhere that weir goes.
type unusable struct{ why string }

func (u unusable) Error() string { return u.why }

func reasonOf(err error) Reason {
	if errors.As(err, &unusable{}) {
		return ReasonUnusable
	}
	return ReasonBackend
}

// serving is the backend of a Service's port. With an error, which says after
// "the backend" what is wrong, it has no endpoints for now.
func (v *conversion) serving(source config.ObjectName, port networkingv1.ServiceBackendPort) (Backend, error) {
	s := v.services[source]
	found, err := portOf(s, port)
	switch {
	case s == nil:
		err = fmt.Errorf("is the Service %s, which does not exist; make it, or name another", source)
	case err != nil:
		err = fmt.Errorf("is the Service %s, which %w", source, err)
	default:
		port = networkingv1.ServiceBackendPort{Number: found.number}
	}
	name := source.Namespace + "/" + source.Name
	if p := cmp.Or(port.Name, strconv.Itoa(int(port.Number))); p != "0" {
		name += ":" + p
	}
	b := Backend{Backend: config.NewBackend(name), Source: source, Port: port}
	b.PreferLocal, b.RampUp = v.prefersLocal(s), v.rampUp(s)
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

// portOf finds a port by its name or number. Services without ports are those
// that need none: headless ones and external names.
func portOf(s *corev1.Service, port networkingv1.ServiceBackendPort) (servicePort, error) {
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
	if len(known) == 0 {
		return servicePort{}, fmt.Errorf("has no TCP port %s, and no other; name a Service with the port", asked)
	}
	return servicePort{}, fmt.Errorf("has no TCP port %s; name one of %s", asked, strings.Join(known, ", "))
}

func isTCP(p *corev1.ServicePort) bool {
	return (p.Protocol == corev1.ProtocolTCP || p.Protocol == "") && isPort(p.Port)
}

func isPort(number int32) bool { return 0 < number && number < 1<<16 }

func isExternal(s *corev1.Service) bool { return s.Spec.Type == corev1.ServiceTypeExternalName }

// checkExternal refuses external names that are this machine itself, where weir's
// admin port is, or special addresses: whoever may make a Service may not reach those.
func checkExternal(s *corev1.Service) error {
	if !isExternal(s) {
		return nil
	}
	host, err := config.ParseHost(s.Spec.ExternalName)
	switch {
	case err != nil || strings.HasPrefix(host, "*."):
		return unusable{fmt.Sprintf("has the externalName %q, which is no host; write a name", s.Spec.ExternalName)}
	case isOwn(host):
		return unusable{fmt.Sprintf("has the externalName %q, which is not another machine; write a name of one", s.Spec.ExternalName)}
	}
	return nil
}

// isOwn says whether a host as config.ParseHost returns it is this machine, or
// has an address that the API server would refuse in an EndpointSlice.
func isOwn(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast()
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// prefersLocal says whether endpoints on this node and in its zone go first.
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

// rampUp is how long the endpoints of a Service ramp up.
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
		v.event(reference("v1", "Service", &s.ObjectMeta), ReasonAnnotation, `The annotation %s is %q; write a duration from "0s" to "1h".`, AnnotationRampUp, value)
		return defaultRampUp
	}
	return d
}

// truth is what an annotation of weir's says.
func (v *conversion) truth(s *corev1.Service, annotation string) (says, ok bool) {
	value, ok := s.Annotations[annotation]
	if ok && value != "true" && value != "false" {
		v.event(reference("v1", "Service", &s.ObjectMeta), ReasonAnnotation, `The annotation %s is %q; write "true" or "false".`, annotation, value)
		return false, false
	}
	return value == "true", ok
}

// requireLocal lists the backends that need a ready endpoint on this node, one
// for each Service, or it would weigh more than others. One that the
// configuration names and nothing leads to is there by its first port.
func (v *conversion) requireLocal() {
	used := v.used()
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
	// Whoever may make a Service has no say over nodes by that alone.
	namespaces := v.namespaces()
	for name, backend := range used {
		if !namespaces(name.Namespace) {
			continue
		}
		if says, ok := v.truth(v.services[name], AnnotationRequireLocal); ok && says && !v.isNeverLocal(name) {
			wanted[backend] = true
		}
	}
	for name := range wanted {
		v.out.RequireLocal = append(v.out.RequireLocal, name)
	}
	slices.Sort(v.out.RequireLocal)
}

// isNeverLocal says whether the Service, of which a ready endpoint on this node
// is required, is a name: its endpoint is on no node, and no verdict would be good again.
func (v *conversion) isNeverLocal(name config.ObjectName) bool {
	s := v.services[name]
	if s == nil || !isExternal(s) {
		return false
	}
	v.event(reference("v1", "Service", &s.ObjectMeta), ReasonNeverLocal,
		"A ready endpoint on each node is required of this Service, which is an ExternalName and is on none; it is left out. Take the annotation %s out, or the Service out of kubernetes.require_local in weir's configuration.", AnnotationRequireLocal)
	return true
}

// used is one backend of each Service that something leads to, always the same.
// What an Ingress names and is not there has no endpoint on any node, so it is none.
func (v *conversion) used() map[config.ObjectName]string {
	used := map[config.ObjectName]string{}
	for _, b := range v.backends {
		if _, err := portOf(v.services[b.Source], b.Port); err != nil {
			continue
		}
		if old := used[b.Source]; old == "" || b.Name < old {
			used[b.Source] = b.Name
		}
	}
	return used
}

// firstPort is a backend of the Service's first TCP port.
func (v *conversion) firstPort(name config.ObjectName) string {
	var port networkingv1.ServiceBackendPort
	if s := v.services[name]; s != nil {
		for _, p := range s.Spec.Ports {
			if isTCP(&p) {
				port.Number = p.Port
				break
			}
		}
	}
	b, err := v.serving(name, port)
	if err != nil {
		v.event(corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: name.Namespace, Name: name.Name}, reasonOf(err),
			"A ready endpoint on this node is required of a backend that %v.", err)
	}
	return v.keep(b)
}
