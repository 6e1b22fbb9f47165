package kube

import (
	"slices"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// Gateways can share listeners of the file with Ingresses and the routes of the file (kubernetes.gateways.addresses.shared).
// A host on these listeners belongs to the file, to Ingresses, or to one Gateway, because it can have only one TLS
// policy, and because each kind has rules of its own for requests that no path matches.

// shares reports whether Gateways share listeners of the file.
func (v *conversion) shares() bool {
	return v.settings.Gateways != nil && len(v.settings.Gateways.Addresses.Shared) > 0
}

// sharedListeners are the listeners of the file that serve Gateways.
func (v *conversion) sharedListeners() (all []gateway.SharedListener) {
	for i := range v.file.Listeners {
		if l := &v.file.Listeners[i]; slices.Contains(v.settings.Gateways.Addresses.Shared, l.Name) {
			all = append(all, gateway.SharedListener{Name: l.Name, Port: l.ClientPort(), Secure: l.Protocol == config.ProtocolTLS, HeaderPolicy: l.HeaderPolicy})
		}
	}
	return all
}

// reasonHostTaken is the reason of conditions of routes with hosts that belong to others.
const reasonHostTaken = "HostTaken"

// keptByFile is why the file keeps a host on the port of a listener of a Gateway; nil: it does not.
func (c *gatewayConversion) keptByFile(l *gateway.Listener, host string) *gateway.Problem {
	taken := func(text string) *gateway.Problem { return &gateway.Problem{Reason: reasonHostTaken, Message: text} }
	if host == "" && l.TLSPort() {
		return taken("The " + l.String() + " shares its port, and there TLS without a hostname belongs to weir's configuration: clients without SNI, and names that nobody has. Give the listener or the route a hostname.")
	}
	for _, name := range c.Assigned.SharedBy(l) {
		for _, written := range hostsLike(host) {
			if c.seen.hosts[hostOn{name, written}] {
				return taken("weir's configuration has routes for " + claim.HostText(written) + " on the listener " + name + ", and so keeps these requests; use another host, or change the configuration.")
			}
		}
	}
	if p := c.fileProtection(gateway.HostOf(host)); p.below {
		return taken("weir's configuration requires client certificates for " + claim.HostText(host) + ", or for a host that this includes, and listeners of Gateways must not avoid them; use another host, or change tls_policy of the routes there.")
	}
	return nil
}

// hostsLike are the hosts of the file that are the same as a host of a Gateway. A wildcard of the file may stand
// for one label only.
func hostsLike(host string) []string {
	if deep := gateway.HostOf(host); deep != host {
		return []string{host, deep}
	}
	return []string{host}
}

// yieldToFile removes the hosts of a route that the file keeps.
func (c *gatewayConversion) yieldToFile(a *gateway.Attachment) {
	if c.shares() {
		a.DropEach(func(l *gateway.Listener, host string) *gateway.Problem {
			if !c.claims(l, host) {
				return nil
			}
			return c.keptByFile(l, host)
		})
	}
}

// claims reports whether a route on a listener names a host, for which another object may compete. On shared
// listeners the empty host is one too, but not over TLS while the listener serves nothing: nobody else loses it then.
func (c *gatewayConversion) claims(l *gateway.Listener, host string) bool {
	if !c.shares() {
		return host != ""
	}
	return l.Owns() && len(c.Assigned.SharedBy(l)) > 0 && (host != "" || !l.TLSPort() || l.Serves())
}

// isolates reports whether the hostname of a listener gets a route that answers 404, so that no other listener of the
// Gateway gets its requests. On a shared port it gets no such route if the host belongs to another object. A listener
// without a hostname needs none: the answer to an unknown host is already 404.
func (c *gatewayConversion) isolates(l *gateway.Listener) bool {
	if !c.shares() {
		if l.Hostname != "" {
			c.part.named = append(c.part.named, namedHost{host: l.Hostname, by: c.ordererOf(l), weak: true})
		}
		return true
	}
	if l.Hostname == "" || c.keptByFile(l, l.Hostname) != nil {
		return false
	}
	by := c.isolatorOf(l)
	c.part.named = append(c.part.named, namedHost{host: l.Hostname, by: by, weak: true})
	_, lost := c.contests.lostBy(namedHost{host: l.Hostname, by: by})
	return !lost
}

// isolatorOf is a listener of a Gateway as an object that names hosts.
func (c *gatewayConversion) isolatorOf(l *gateway.Listener) namer {
	n := c.ordererOf(l)
	n.gateway = gateway.NameOf(c.Object)
	return n
}

// namerOf is a route of the Gateway as an object that names hosts.
func (c *gatewayConversion) namerOf(r *gateway.Route) namer {
	n := namerOf(r)
	if c.shares() {
		n.gateway = gateway.NameOf(c.Object)
	}
	return n
}

// ownedOnce explains in messages why a host has another owner.
const ownedOnce = "On listeners that Gateways share (kubernetes.gateways.addresses.shared), a host belongs to Ingresses or to one Gateway: to the oldest object that names it."

// sharedHosts are the objects that name each host: routes of Gateways, and with less weight their listeners.
type sharedHosts struct{ routes, listeners map[string][]namer }

// contestShared decides about all hosts that Gateways name on shared listeners. routes and listeners are those of
// each host, and wild means that a route has a wildcard.
func (u *updating) contestShared(all contests, routes, listeners map[string][]namer, wild bool) {
	s := sharedHosts{routes, listeners}
	for host := range routes {
		u.contestSharedHost(all, host, &s)
	}
	for host := range s.listeners {
		if routes[host] == nil {
			u.contestSharedHost(all, host, &s)
		}
	}
	if !wild || !u.joints.owned {
		return
	}
	for host := range u.joints.hosts {
		if routes[host] == nil && s.listeners[host] == nil && host != "" {
			u.contestSharedHost(all, host, &s)
		}
	}
}

// contestSharedHost decides about one host. Routes and Ingresses go before listeners of Gateways, so that a listener
// without routes takes nothing. Ingresses without a host go before all routes without one.
func (u *updating) contestSharedHost(all contests, host string, s *sharedHosts) {
	ingresses := u.namersOf(all, host)
	if host == "" {
		ingresses = u.namersOfEvery()
	}
	here, weak := slices.Concat(ingresses, s.routes[host]), s.listeners[host]
	if u.joints.owned && host != "" { // a wildcard owns the younger names below it, of other namespaces
		here, weak = u.contestBelow(all, host, here, weak, s)
	}
	candidates := here
	switch {
	case host == "" && len(ingresses) > 0:
		candidates = ingresses
	case len(here) == 0:
		candidates = weak
	}
	if len(candidates) == 0 {
		return
	}
	owner := slices.MinFunc(candidates, namer.compare)
	for _, n := range here {
		if n.gateway != owner.gateway {
			all.lose(n, host, owner)
		}
	}
	for _, n := range weak {
		if n.gateway != owner.gateway {
			all.of(n).lost[host] = owner
		}
	}
}

// contestBelow takes a host from the objects that name it if a wildcard above it is older, and belongs to another
// namespace. It returns the objects that are left.
func (u *updating) contestBelow(all contests, host string, here, weak []namer, s *sharedHosts) (_, _ []namer) {
	above := u.rulersOf(claim.WildcardOf(host))
	for wildcard := aboveOf(host); wildcard != ""; wildcard = aboveOf(wildcard) {
		above = append(above, oldest(s.routes[wildcard])...)
	}
	if len(above) == 0 {
		return here, weak
	}
	owner := slices.MinFunc(above, namer.compare)
	if len(here) > 0 && slices.MinFunc(here, namer.compare).compare(owner) < 0 {
		return here, weak
	}
	loses := func(n namer) bool { return n.gateway != owner.gateway && n.name.Namespace != owner.name.Namespace }
	for _, n := range here {
		if loses(n) {
			all.lose(n, host, owner)
		}
	}
	for _, n := range weak {
		if loses(n) {
			all.of(n).lost[host] = owner
		}
	}
	return slices.DeleteFunc(slices.Clone(here), loses), slices.DeleteFunc(slices.Clone(weak), loses)
}

// namersOfEvery are the Ingresses with a rule, or a default backend, for every host.
func (u *updating) namersOfEvery() (all []namer) {
	j := u.joints.hosts[""]
	if j == nil {
		return nil
	}
	for _, m := range j.named {
		if slices.Contains(m.traits.hosts[:m.traits.own], "") && u.settings.RefusesHost(m.Namespace, "") == "" {
			all = append(all, m.namer())
		}
	}
	return all
}
