package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
)

// Gateways can share listeners of the configuration file. Then a listener of a Gateway opens no socket: it is
// served by the listeners of the file with its port. These keep their settings, such as their policy for PROXY
// headers, because other Gateways, Ingresses and the file use them too.

// SharedListener is a listener of the configuration file that serves Gateways.
type SharedListener struct {
	Name         string
	Port         int  // that clients use
	Secure       bool // it is a tls listener, otherwise an http listener
	HeaderPolicy string
}

// protocol is the protocol of the listener, in the words of the configuration file.
func (l *SharedListener) protocol() config.Protocol {
	if l.Secure {
		return config.ProtocolTLS
	}
	return config.ProtocolHTTP
}

// possible are the protocols that listeners of Gateways can have on it.
func (l *SharedListener) possible() string {
	if l.Secure {
		return "HTTPS or TLS"
	}
	return "HTTP"
}

// FromFile gives all Gateways the same listeners. They have the addresses that Ingresses have.
func FromFile(gateways []*gatewayv1.Gateway, listeners []SharedListener) map[config.ObjectName]*Assigned {
	all := make(map[config.ObjectName]*Assigned, len(gateways))
	for _, g := range gateways {
		all[NameOf(g)] = &Assigned{Shared: listeners, Rejected: unsupportedAddress(g)}
	}
	return all
}

// SharedBy are the names of the shared listeners that can serve a listener of a Gateway.
func (a *Assigned) SharedBy(l *Listener) (names []string) {
	for i := range a.Shared {
		if s := &a.Shared[i]; s.Port == l.Port && s.Secure == l.TLSPort() && l.Protocol != gatewayv1.TCPProtocolType {
			names = append(names, s.Name)
		}
	}
	return names
}

// admit finds why no shared listener can serve a listener of a Gateway.
func (a *Assigned) admit(l *Listener) {
	if len(a.Shared) == 0 || protocolKinds[l.Protocol] == nil {
		return
	}
	if l.Protocol == gatewayv1.TCPProtocolType {
		l.accept = orElse(l.accept, problem(gatewayv1.ListenerReasonUnsupportedProtocol, "A listener with the protocol TCP needs a port of its own, and Gateways share the ports of weir's configuration (kubernetes.gateways.addresses.shared); use addresses.pool or addresses.service there, or the protocol TLS."))
		return
	}
	at := slices.IndexFunc(a.Shared, func(s SharedListener) bool { return s.Port == l.Port })
	switch {
	case at < 0:
		l.accept = orElse(l.accept, problem(gatewayv1.ListenerReasonPortUnavailable, "No listener under kubernetes.gateways.addresses.shared in weir's configuration has the port %d for clients; use %s, or add a listener with this port there (public_port, or the port of address).", l.Port, a.ports()))
	case a.Shared[at].Secure != l.TLSPort():
		s := &a.Shared[at]
		l.accept = orElse(l.accept, problem(gatewayv1.ListenerReasonUnsupportedProtocol, "The listener %s of weir's configuration has the port %d and the protocol %s, which cannot serve %s; use the protocol %s, or another port.", s.Name, l.Port, s.protocol(), l.Protocol, s.possible()))
	}
}

// ports lists the ports of the shared listeners.
func (a *Assigned) ports() string {
	var all []int
	for i := range a.Shared {
		all = append(all, a.Shared[i].Port)
	}
	slices.Sort(all)
	var texts []string
	for _, port := range slices.Compact(all) {
		texts = append(texts, strconv.Itoa(port))
	}
	return strings.Join(texts, " or ")
}

// allow returns why annotations of a Gateway cannot apply to shared listeners; nil: they can. The file decides
// which peers may send PROXY headers, for all that use the listener.
func (a *Assigned) allow(own *Own, ports map[int32]bool) *Problem {
	if len(a.Shared) == 0 {
		return nil
	}
	if own.SSH.Name != "" {
		return problem(gatewayv1.GatewayReasonInvalidParameters, "The annotation %s needs ports of the Gateway's own, and Gateways share the ports of weir's configuration (kubernetes.gateways.addresses.shared); remove the annotation, or write a route with first_bytes there.", AnnotationSSH)
	}
	for i := range a.Shared {
		l := &a.Shared[i]
		if own.HeaderPolicy == "" || !ports[int32(l.Port)] || l.HeaderPolicy == own.HeaderPolicy {
			continue
		}
		has := "no policy for PROXY headers"
		if l.HeaderPolicy != "" {
			has = fmt.Sprintf("the policy %s", l.HeaderPolicy)
		}
		return problem(gatewayv1.GatewayReasonInvalidParameters, "The annotation %s names the policy %s, but the listener %s of weir's configuration has %s, which applies to all Gateways that share it (kubernetes.gateways.addresses.shared); remove the annotation, or change proxy_protocol of the listener.", AnnotationHeaderPolicy, own.HeaderPolicy, l.Name, has)
	}
	return nil
}

// requested are the addresses that a Gateway asks for.
func requested(g *gatewayv1.Gateway) (all []string) {
	for i := range g.Spec.Addresses {
		if text := g.Spec.Addresses[i].Value; text != "" {
			all = append(all, text)
		}
	}
	return all
}

// addressProblem is why a Gateway with these published addresses is not programmed; nil: it is.
func (s *GatewayStatus) addressProblem(published []string) *Problem {
	if len(published) == 0 {
		return problem(gatewayv1.GatewayReasonAddressNotAssigned, "kubernetes.publish in weir's configuration gives no address yet, and the Gateway has the addresses of Ingresses.")
	}
	for _, text := range s.Requested {
		if !slices.ContainsFunc(published, func(p string) bool { return sameAddress(p, text) }) {
			return problem(gatewayv1.GatewayReasonAddressNotUsable, "The Gateway asks for the address %q, but has the addresses of Ingresses (kubernetes.publish in weir's configuration); remove it from spec.addresses.", text)
		}
	}
	return nil
}

// WithPublished returns the status of a Gateway whose addresses are the published ones. Faults of the Gateway
// itself come first. s does not change.
func (s *GatewayStatus) WithPublished(published []string) *GatewayStatus {
	next := *s
	next.Addresses = nil
	for _, text := range published[:min(len(published), mostAddresses)] {
		kind := gatewayv1.HostnameAddressType
		if _, err := netip.ParseAddr(text); err == nil {
			kind = gatewayv1.IPAddressType
		}
		next.Addresses = append(next.Addresses, gatewayv1.GatewayStatusAddress{Type: &kind, Value: text})
	}
	if p := s.addressProblem(published); p != nil {
		next.Conditions = notProgrammed(s.Conditions, gatewayv1.GatewayConditionReason(p.Reason), p.Message)
	}
	return &next
}

// WithPublished returns the status of a ListenerSet whose Gateway has the published addresses. s does not
// change.
func (s *SetStatus) WithPublished(published []string) *SetStatus {
	if len(published) > 0 {
		return s
	}
	next := *s
	next.Conditions = notProgrammed(s.Conditions, gatewayv1.ListenerSetReasonPending, "The Gateway has no address.")
	return &next
}
