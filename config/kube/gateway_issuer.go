package kube

import (
	"slices"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// A listener of a Gateway may name an entry of the configuration file, the issuer, that orders its certificate. The
// file says which namespaces may order which hosts. Where it allows a host to several namespaces, the oldest object
// decides: see contestOrders.

func (e gatewayEnv) HasIssuer(name string) bool { return e.issuer(name) != nil }
func (e gatewayEnv) MayIssue(issuer, namespace, host string) error {
	return e.issuer(issuer).ACME.Refuses(namespace, host)
}

// issuer returns the entry of the file with an issuer; nil: there is none.
func (v *conversion) issuer(name string) *config.Certificate {
	for i := range v.file.Certificates {
		if c := &v.file.Certificates[i]; name != "" && c.ACME != nil && c.ACME.Issuer != nil && c.ACME.Issuer.Name == name {
			return c
		}
	}
	return nil
}

// order records the certificates that the listeners of a Gateway order, and drops those of hosts that belong
// to other namespaces.
func (c *gatewayConversion) order() {
	for _, l := range c.Listeners {
		if l.Issuer == "" || !l.Serves() || c.Rejected() {
			continue
		}
		by, host := c.ordererOf(l), l.Hostname
		c.part.ordered = append(c.part.ordered, namedHost{host, by})
		if mine := c.contests[by]; mine != nil {
			if owner, lost := mine.lost[host]; lost {
				l.LoseIssuer("the older %v of another namespace has the host %s; use another host, or a Secret.", owner, l.Hostname)
			}
		}
	}
}

// ordererOf is the object that has a listener.
func (c *gatewayConversion) ordererOf(l *gateway.Listener) namer {
	kind, name := l.Owner()
	if l.Set != nil {
		return namer{kind, name, l.Set.CreationTimestamp.Unix()}
	}
	return namer{kind, name, c.Object.CreationTimestamp.Unix()}
}

// contestOrders decides about the certificates that listeners order. A host belongs to the namespace of the oldest
// object that names it: an Ingress, a route of another Gateway, or a listener that orders its certificate. routes
// are the routes of each host.
func (u *updating) contestOrders(all contests, routes map[string][]namer) {
	orders := map[string][]namer{}
	for _, p := range u.gateways.parts {
		for _, o := range p.gateway.ordered {
			orders[o.host] = append(orders[o.host], o.by)
		}
	}
	for _, p := range u.gateways.parts {
		for _, o := range p.gateway.ordered {
			competing := slices.Concat(u.namersOf(o.host), orders[o.host], p.gateway.notOwn(o.host, routes[o.host]))
			if u.joints.owned { // a wildcard owns the younger names below it
				competing = append(competing, u.namersOf(claim.WildcardOf(o.host))...)
				for above := aboveOf(o.host); above != ""; above = aboveOf(above) {
					competing = append(competing, p.gateway.notOwn(above, routes[above])...)
				}
			}
			if owner := slices.MinFunc(competing, namer.compare); owner.name.Namespace != o.by.name.Namespace {
				all.lose(o.by, o.host, owner)
			}
		}
	}
}

// notOwn returns the routes that are not attached to the Gateway itself: its own routes use its certificates.
func (p *gatewayPart) notOwn(host string, routes []namer) []namer {
	return slices.DeleteFunc(slices.Clone(routes), func(n namer) bool { return slices.Contains(p.named, namedHost{host, n}) })
}
