package kube

import (
	"fmt"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// tunnelOf is the port of a Gateway, and the host whose connections are tunnels; of a TCP listener:
// empty. Only one route can have them: the oldest.
type tunnelOf struct {
	port int
	host string
}

// take reports whether a route gets the tunnels: unless an older one has them. The API has no condition for that, so the
// status of the younger route says it in the message of another one.
func (c *gatewayConversion) take(a *gateway.Attachment, of tunnelOf) bool {
	switch by := c.taken[of]; {
	case by == nil:
		c.taken[of] = a.Route
		return true
	case by != a.Route && of.host == "":
		a.Note(fmt.Sprintf("But the older %v gets the connections of port %d.", by, of.port))
	case by != a.Route:
		a.Note(fmt.Sprintf("But the older %v gets the connections for %s on port %d.", by, of.host, of.port))
	}
	return false
}

// tls makes the routes of a TLSRoute: connections for its hosts become tunnels. Whether weir
// terminates their TLS is a matter of the listener.
func (c *gatewayConversion) tls(a *gateway.Attachment) {
	for i := range a.TLS.Rules {
		rule := &a.TLS.Rules[i]
		to := map[bool]*config.Route{} // by whether the listener passes TLS through
		routeFor := func(passthrough bool) *config.Route {
			if to[passthrough] == nil {
				kind := forTunnels
				if passthrough {
					kind = forPassthrough
				}
				to[passthrough] = c.tunnelRoute(a, ruleName(a.Route, rule.Name, i), rule.BackendRefs, kind)
			}
			return to[passthrough]
		}
		if len(a.Bound) == 0 {
			routeFor(false) // the status names wrong references of routes that are not accepted too
		}
		for _, b := range a.Bound {
			r := routeFor(b.Passthrough)
			if c.ports[b.Port] == nil || !b.Serves() {
				continue
			}
			one := *r
			one.Listeners, one.TLSPolicy, one.TLS = c.ports[b.Port], c.policyOf(b.Listener), config.TLSTerminate
			if b.Passthrough {
				one.TLS = config.TLSPassthrough
			}
			for _, h := range b.Hostnames {
				if c.Covering(b.Port, h) == b.Listener && c.take(a, tunnelOf{b.Port, h}) {
					one.Hosts = append(one.Hosts, gateway.HostOf(h))
				}
			}
			if len(one.Hosts) == 0 {
				continue
			}
			if one.Hosts[0] == "" {
				one.Hosts = nil // every host
			}
			c.routes = append(c.routes, &one)
		}
	}
}

// tcpRoute makes the routes of a TCPRoute: the connections of its listeners become tunnels.
func (c *gatewayConversion) tcpRoute(a *gateway.Attachment) {
	for i := range a.TCP.Rules {
		rule := &a.TCP.Rules[i]
		r := c.tunnelRoute(a, ruleName(a.Route, rule.Name, i), rule.BackendRefs, forTunnels)
		for _, b := range a.Bound {
			of := tunnelOf{port: b.Port}
			if c.ports[b.Port] == nil || !b.Serves() || !c.take(a, of) {
				continue
			}
			one := *r
			one.Listeners = c.ports[b.Port]
			c.routes = append(c.routes, &one)
		}
	}
}

// tunnelRoute makes a route for connections, without listeners and hosts.
func (c *gatewayConversion) tunnelRoute(a *gateway.Attachment, name string, refs []gatewayv1.BackendRef, to traffic) *config.Route {
	r := &config.Route{Name: name, Namespace: a.Name.Namespace, TLS: config.TLSTerminate, TLSPolicy: config.DefaultTLSPolicy}
	var all []config.WeightedBackend
	some := false
	for i := range refs {
		b := config.WeightedBackend{Name: c.backendOf(a, &refs[i].BackendObjectReference, to), Weight: 1}
		if refs[i].Weight != nil {
			b.Weight = int(*refs[i].Weight)
		}
		some = some || b.Weight > 0
		all = append(all, b)
	}
	if !some {
		r.Backend = c.missingBackend(a, true)
		return r
	}
	shareBackends(r, all)
	return r
}

// closeUnknown makes weir close connections for hosts that no listener of a port has, if all
// listeners of the port have the protocol TLS and one passes TLS through. A client that expects
// the TLS of a backend must not get an alert of weir.
func (c *gatewayConversion) closeUnknown(port int) {
	passes := false
	for _, l := range c.Listeners {
		if l.Port != port || !l.Owns() {
			continue
		}
		if l.Protocol != gatewayv1.TLSProtocolType || l.Hostname == "" {
			return
		}
		passes = passes || l.Passthrough
	}
	if passes {
		c.routes = append(c.routes, &config.Route{Name: c.ports[port][0], Namespace: c.Object.Namespace, Listeners: c.ports[port],
			TLS: config.TLSPassthrough, TLSPolicy: noCertificates, Backend: c.closingBackend()})
	}
}

// closePorts makes routes for TCP listeners that have none: weir closes their connections.
func (c *gatewayConversion) closePorts() {
	closed := map[int]bool{}
	for _, l := range c.Listeners {
		of := tunnelOf{port: l.Port}
		if l.Protocol != gatewayv1.TCPProtocolType || c.ports[l.Port] == nil || !l.Serves() || c.taken[of] != nil || closed[l.Port] {
			continue
		}
		closed[l.Port] = true
		c.routes = append(c.routes, &config.Route{Name: c.nameOf(l), Namespace: c.Object.Namespace, Listeners: c.ports[l.Port],
			TLS: config.TLSTerminate, TLSPolicy: config.DefaultTLSPolicy, Backend: c.closingBackend()})
	}
}
