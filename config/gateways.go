package config

import (
	"fmt"
	"net/netip"
)

// Gateways are the settings for objects of the Gateway API.
type Gateways struct {
	// Controller is the value of spec.controllerName in the GatewayClasses that weir serves.
	// Never empty.
	Controller string
	Addresses  GatewayAddresses
	// Services means that weir keeps a Service for each Gateway.
	Services bool
}

// GatewayAddresses is where Gateways get their addresses from. Exactly one field is set.
type GatewayAddresses struct {
	// Pool has networks. Each Gateway gets an address from them, and weir listens on the address.
	Pool []netip.Prefix
}

// DefaultGatewayController is the spec.controllerName of GatewayClasses that weir serves by default.
const DefaultGatewayController = "weirproxy.github.io/gateway"

func newGateways() *Gateways { return &Gateways{Controller: DefaultGatewayController} }

func (g *Gateways) section() section {
	return section{object: g, keys: []key{
		{"controller", gatewayController.at(&g.Controller), "The value of spec.controllerName in the GatewayClasses that weir serves."},
		{"addresses", mapping(g.Addresses.section).required("{pool: [192.0.2.0/28]}"), "Where Gateways get their addresses from."},
		{"services", truth(&g.Services), "weir keeps a Service without selector for each Gateway, in its namespace, so that the name of the Service leads to the addresses of the Gateway. It has the labels and annotations of `spec.infrastructure`."},
	}}
}

func (a *GatewayAddresses) section() section {
	return section{object: a, keys: []key{
		{"pool", list(&a.Pool, poolNetwork.at).required("[192.0.2.0/28]"), "Networks. Each Gateway gets an address of its own from them, and weir listens on this address. So the addresses have to lead to the machines on which weir runs, and weir needs the network of the host."},
	}}
}

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
