package gateway

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Service is the Service that weir keeps for a Gateway. A Service never changes.
type Service struct {
	Key         // of the Gateway
	Name        string
	Labels      map[string]string
	Annotations map[string]string
	Ports       []PortPair // of the Gateway, in order
	// Gone means that the Gateway has nothing that a Service could lead to, so there must be none.
	Gone bool
	// Addresses are those of a Gateway with addresses of its own, to which the name of the Service
	// leads. With Behind there are none: the endpoints are the replicas of weir.
	Addresses []netip.Addr
	// Behind is set if the Gateway has the addresses of the Service.
	Behind *Behind
}

// PortPair is a port of a Service, and the port of its endpoints.
type PortPair struct{ Port, Pod int32 }

// Name is the name of the port.
func (p PortPair) Name() string { return portName(p.Port) }

// managedBy is the label with the name of the controller that keeps a Service.
const managedBy = "app.kubernetes.io/managed-by"

// manager is the value of the label managed-by.
const manager = "weir"

// Service returns the Service of the Gateway.
func (g *Gateway) Service() *Service {
	s := &Service{Key: Key{KindGateway, NameOf(g.Object), g.Object.UID}, Name: serviceName(g.Object), Labels: map[string]string{}, Annotations: map[string]string{},
		Addresses: slices.Clone(g.Assigned.Addresses)}
	if i := g.Object.Spec.Infrastructure; i != nil {
		for name, text := range i.Labels {
			s.Labels[string(name)] = string(text)
		}
		for name, text := range i.Annotations {
			s.Annotations[string(name)] = string(text)
		}
	}
	s.Labels[managedBy] = manager
	s.Labels[gatewayv1.GatewayNameLabelKey] = labelValue(g.Object.Name)
	s.Labels[gatewayv1.GatewayClassNameLabelKey] = labelValue(string(g.Object.Spec.GatewayClassName))
	if b := g.Assigned.Behind; b != nil {
		// The Service stays while the Gateway has faults: otherwise it would lose its addresses.
		s.Behind = b
		for _, port := range slices.Sorted(maps.Keys(b.Wants)) {
			s.Ports = append(s.Ports, PortPair{port, b.Wants[port]})
		}
		s.Gone = len(s.Ports) == 0
		return s
	}
	ports := map[int32]bool{}
	for _, l := range g.Listeners {
		if l.Serves() {
			ports[int32(l.Port)] = true
		}
	}
	for _, port := range slices.Sorted(maps.Keys(ports)) {
		s.Ports = append(s.Ports, PortPair{port, port})
	}
	s.Gone = g.rejected != nil || len(g.Assigned.Addresses) == 0 || len(ports) == 0
	return s
}

// serviceName is the name of the Service of a Gateway: GATEWAY-CLASS, as the Gateway API recommends
// (GEP-1762), or else a hash, because a Service must have a short name without dots.
func serviceName(g *gatewayv1.Gateway) string {
	name := g.Name + "-" + string(g.Spec.GatewayClassName)
	if len(validation.IsDNS1035Label(name)) == 0 {
		return name
	}
	return "gateway-" + shortHash(name)
}

// labelValue returns a name as the value of a label, which is shorter than a name may be.
func labelValue(name string) string {
	if len(name) <= validation.LabelValueMaxLength {
		return name
	}
	return name[:40] + "-" + shortHash(name)
}

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return fmt.Sprintf("%x", sum[:8])
}
