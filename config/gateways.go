package config

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Gateways are the settings for objects of the Gateway API.
type Gateways struct {
	// Controller is the value of spec.controllerName in the GatewayClasses that weir serves.
	// Never empty.
	Controller string
	Addresses  GatewayAddresses
	// Services means that weir keeps a Service for each Gateway with an address of Addresses.Pool.
	Services bool
}

// KeepsServices reports whether weir keeps a Service for each Gateway.
func (g *Gateways) KeepsServices() bool { return g.Services || g.Addresses.Service != nil }

// GatewayAddresses is where Gateways get their addresses from. Exactly one field is set.
type GatewayAddresses struct {
	// Pool has networks. Each Gateway gets an address from them, and weir listens on the address.
	Pool []netip.Prefix
	// Service gives each Gateway a Service of its own, with the addresses of its load balancer.
	Service *GatewayService
	// Shared are the names of http and tls listeners that serve all Gateways, beside Ingresses and
	// the routes of the file. Each Gateway has the addresses that Ingresses have.
	Shared []string
}

// GatewayService is how weir makes the Service of each Gateway.
type GatewayService struct {
	Type ServiceType
	// Ports are the ports on which weir listens: one for each port of each Gateway.
	Ports PortRange
	// Replicas is the Service that selects the Pods of weir. The Services of Gateways get its
	// endpoints.
	Replicas ObjectName
}

// ServiceType is the type of a Service.
type ServiceType string

// The types of Services that Gateways can have.
const (
	ServiceLoadBalancer ServiceType = "LoadBalancer"
	ServiceNodePort     ServiceType = "NodePort"
	ServiceClusterIP    ServiceType = "ClusterIP"
)

// PortRange is a range of ports, with both ends. 0 < First <= Last.
type PortRange struct{ First, Last uint16 }

// Has reports whether the range has a port.
func (r PortRange) Has(port int) bool { return int(r.First) <= port && port <= int(r.Last) }

func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// DefaultGatewayPorts are the ports on which weir listens for Services of Gateways. They are below the
// ports of nodes (30000), and below those that Linux gives to outgoing connections (32768).
var DefaultGatewayPorts = PortRange{20000, 20999}

// DefaultGatewayController is the spec.controllerName of GatewayClasses that weir serves by default.
const DefaultGatewayController = "weirproxy.github.io/gateway"

func newGateways() *Gateways { return &Gateways{Controller: DefaultGatewayController} }

func (g *Gateways) section() section {
	return section{object: g, keys: []key{
		{"controller", gatewayController.at(&g.Controller), "The value of spec.controllerName in the GatewayClasses that weir serves."},
		{"addresses", mapping(g.Addresses.section).required("{pool: [192.0.2.0/28]}"), "Where Gateways get their addresses from: exactly one of pool, service and shared."},
		{"services", truth(&g.Services), "With addresses.pool: weir keeps a Service without selector for each Gateway, in its namespace, so that the name of the Service leads to the addresses of the Gateway. It has the labels and annotations of `spec.infrastructure`."},
	}}
}

func (a *GatewayAddresses) section() section {
	return section{object: a, check: checkGatewayAddresses, rules: gatewayAddressesRules, keys: []key{
		{"pool", list(&a.Pool, poolNetwork.at), "Networks. Each Gateway gets an address of its own from them, and weir listens on this address. So the addresses have to lead to the machines on which weir runs, and weir needs the network of the host."},
		{"service", optional(&a.Service, newGatewayService, (*GatewayService).section).byDefault("none"), "weir keeps a Service without selector for each Gateway, in its namespace. The addresses of this Service are those of the Gateway."},
		{"shared", list(&a.Shared, text), "Names of http and tls listeners, which serve all Gateways beside Ingresses and the routes of this file. A listener of a Gateway is served by the listeners here with its port (public_port, or else the port of address). The addresses of each Gateway are those of Ingresses, so this needs kubernetes.publish."},
	}}
}

func newGatewayService() *GatewayService {
	return &GatewayService{Type: ServiceLoadBalancer, Ports: DefaultGatewayPorts}
}

func (s *GatewayService) section() section {
	return section{object: s, keys: []key{
		{"type", oneOf(ServiceLoadBalancer, ServiceNodePort, ServiceClusterIP).at(&s.Type), "The type of the Services. A Gateway gets the addresses of the load balancer, or else the cluster IP."},
		{"ports", portRange.at(&s.Ports), "The ports on which weir listens, on all addresses of its Pod: one for each port of each Gateway. No other port of weir, and with the network of the host no other process, may be in this range."},
		{"replicas", objectName.at(&s.Replicas).required("weir/weir"), "The Service, as namespace/name, that selects the Pods of weir. Its endpoints become those of the Services of Gateways."},
	}}
}

func checkGatewayAddresses(v *draft, there keySet, n *Tree, p path) {
	if n.Shape == ShapeMapping && len(there) != 1 {
		v.fail(n, p, "has to have exactly one of pool, service and shared; a Gateway gets its addresses from one place")
	}
}

// checkGateways checks the keys of gateways that depend on each other or on other sections.
func (v *draft) checkGateways(g *Gateways) {
	a := &g.Addresses
	if g.Services && a.Pool == nil {
		v.failAt(v.places[&g.Services], "is only for addresses.pool; remove it")
	}
	v.checkShared(a)
	if a.Service == nil {
		return
	}
	place := v.places[&a.Service.Ports]
	if !v.given(&a.Service.Ports) {
		place = v.places[a.Service]
	}
	check := func(whose, network, address string) {
		if p := portOfAddress(address); network == "tcp" && address != "" && a.Service.Ports.Has(p) {
			v.failAt(place, "ports has the port %d of %s; write another range, or change that port", p, whose)
		}
	}
	for _, l := range v.listeners {
		check("the listener "+l.Name, l.Network, l.Address)
	}
	if v.health != nil {
		check("health.address", v.health.Network, v.health.Address)
	}
	if v.admin != nil {
		check("admin.address", v.admin.Network, v.admin.Address)
	}
	if v.metrics != nil {
		check("metrics.address", v.metrics.Network, v.metrics.Address)
	}
}

// checkShared checks the listeners that serve all Gateways.
func (v *draft) checkShared(a *GatewayAddresses) {
	if len(a.Shared) > 0 && v.kubernetes != nil && !v.kubernetes.Publish.Any() {
		v.failAt(v.places[&a.Shared], "gives Gateways the addresses of Ingresses, and kubernetes.publish has none; set publish, such as {addresses: [192.0.2.1]}")
	}
	byPort := map[int]*Listener{}
	for i := range a.Shared {
		name := &a.Shared[i]
		checkName(v, name, "listener", v.listeners, func(l *Listener) string { return l.Name })
		l := v.listenerNamed(*name)
		switch {
		case l == nil:
		case l.Protocol == ProtocolTCP:
			v.failAt(v.places[name], "%s is tcp, where Gateways cannot be told apart; name http and tls listeners", v.quote(name, *name))
		case l.ClientPort() == 0:
			v.failAt(v.places[name], "%s has no port that a Gateway could have; set public_port of this listener", v.quote(name, *name))
		case byPort[l.ClientPort()] != nil && byPort[l.ClientPort()].Protocol != l.Protocol:
			v.failAt(v.places[name], "%s and %s have the port %d for clients, and different protocols; take one of them out", v.quote(name, *name), byPort[l.ClientPort()].Name, l.ClientPort())
		default:
			byPort[l.ClientPort()] = l
		}
	}
}

// mostGatewayPorts limits the sockets that authors of Gateways can make weir open.
const mostGatewayPorts = 10_000

// portRange is a range of ports.
var portRange = kind[PortRange]{what: "a range of ports such as 20000-20999", format: PortRange.String, pattern: "[0-9]{1,5}-[0-9]{1,5}",
	parse: func(s string) (PortRange, error) {
		first, last, _ := strings.Cut(s, "-")
		a, errA := strconv.ParseUint(first, 10, 16)
		b, errB := strconv.ParseUint(last, 10, 16)
		switch {
		case errA != nil || errB != nil || a == 0 || a > b:
			return PortRange{}, fmt.Errorf("is not a range of ports; write the first and the last one, such as %v", DefaultGatewayPorts)
		case b-a >= mostGatewayPorts:
			return PortRange{}, fmt.Errorf("has more than %d ports; write a smaller range", mostGatewayPorts)
		}
		return PortRange{uint16(a), uint16(b)}, nil
	}}

// gatewayController has the form that the Gateway API demands of controllerName.
var gatewayController = kind[string]{what: "the name of a controller", parse: parseController, format: same[string], pattern: subdomainPattern + "/[!-~]+"}

// mostPool limits the addresses of a network: a pool is given to machines by hand.
const mostPool = 16

// poolNetwork is a network from which Gateways get addresses.
var poolNetwork = kind[netip.Prefix]{what: "a network", format: prefix.format, pattern: prefix.pattern,
	parse: func(s string) (netip.Prefix, error) {
		p, err := prefix.parse(s)
		switch {
		case err != nil:
			return p, err
		case p.Addr().IsUnspecified() || p.Addr().IsMulticast() || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast():
			return p, fmt.Errorf("has no addresses for clients of other machines; write a network that leads to this machine")
		case p.Addr().BitLen()-p.Bits() > mostPool:
			return p, fmt.Errorf("has more than %d addresses; write a smaller network", 1<<mostPool)
		}
		return p, nil
	}}
