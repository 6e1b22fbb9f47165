package kube

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// A listener of a Gateway may name an entry of the configuration file, the issuer, that orders its certificate. The
// file says which namespaces may order which hosts. Where it allows a host to several namespaces, the oldest object
// decides: see contestOrders.

func (e gatewayEnv) HasIssuer(name string) bool { return e.issuer(name) != nil }
func (e gatewayEnv) RefusesHost(namespace, host string) string {
	return e.settings.RefusesHost(namespace, gateway.HostOf(host))
}
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
		issuer := c.issuer(l.Issuer).ACME.Issuer
		c.part.ordered = append(c.part.ordered, orderedHost{namedHost{host: host, by: by}, issuer.Name, issuer.MaxNames})
		if mine := c.contests[by]; mine != nil {
			if owner, lost := mine.lost[host]; lost {
				l.LoseIssuer("the older %v%s has the host %s; use another host, or a Secret.", owner, c.elsewhere(), l.Hostname)
			} else if most, over := mine.over[host]; over {
				l.LoseIssuer("older objects of the namespace have the %d names that it may request (max_names of the issuer); remove some, or use a Secret.", most)
			}
		}
	}
}

// ordererOf is the object that has a listener.
func (c *gatewayConversion) ordererOf(l *gateway.Listener) namer {
	kind, name := l.Owner()
	if l.Set != nil {
		return namer{kind: kind, name: name, created: l.Set.CreationTimestamp.Unix()}
	}
	return namer{kind: kind, name: name, created: c.Object.CreationTimestamp.Unix()}
}

// orderedHost is the host of a certificate that a listener orders.
type orderedHost struct {
	namedHost
	issuer string
	most   int // max_names of the issuer
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
		var own map[namedHost]bool
		if len(p.gateway.ordered) > 0 {
			own = setOfNamed(p.gateway.named)
		}
		for _, o := range p.gateway.ordered {
			competing := slices.Concat(u.namersOf(all, o.host), orders[o.host], oldestBut(own, o.host, routes[o.host]))
			if u.joints.owned { // a wildcard owns the younger names below it
				competing = append(competing, u.rulersOf(claim.WildcardOf(o.host))...)
				for above := aboveOf(o.host); above != ""; above = aboveOf(above) {
					competing = append(competing, oldestBut(own, above, routes[above])...)
				}
			}
			if owner := slices.MinFunc(competing, namer.compare); owner.name.Namespace != o.by.name.Namespace {
				all.lose(o.by, o.host, owner)
			}
		}
	}
	u.limitOrders(all)
}

// limitOrders limits the names that a namespace orders from an issuer. all has the hosts that objects have lost.
func (u *updating) limitOrders(all contests) {
	type customer struct{ issuer, namespace string }
	orders := map[customer]map[string]orderedHost{} // by host: the order of the oldest object
	each := func(f func(of customer, o orderedHost)) {
		for _, p := range u.gateways.parts {
			for _, o := range p.gateway.ordered {
				if _, lost := all.lostBy(o.namedHost); !lost {
					f(customer{o.issuer, o.by.name.Namespace}, o)
				}
			}
		}
	}
	each(func(of customer, o orderedHost) {
		if orders[of] == nil {
			orders[of] = map[string]orderedHost{}
		}
		if oldest, known := orders[of][o.host]; !known || o.by.compare(oldest.by) < 0 {
			orders[of][o.host] = o
		}
	})
	over := map[customer]map[string]bool{}
	for of, hosts := range orders {
		inOrder := slices.SortedFunc(maps.Values(hosts), func(a, b orderedHost) int { return cmp.Or(a.by.compare(b.by), strings.Compare(a.host, b.host)) })
		for _, o := range inOrder[min(inOrder[0].most, len(inOrder)):] {
			if over[of] == nil {
				over[of] = map[string]bool{}
			}
			over[of][o.host] = true
		}
	}
	each(func(of customer, o orderedHost) {
		if over[of][o.host] {
			c := all.of(o.by)
			if c.over == nil {
				c.over = map[string]int{}
			}
			c.over[o.host] = o.most
		}
	})
}

// lostBy returns the owner of a host that an object has lost.
func (all contests) lostBy(n namedHost) (owner namer, lost bool) {
	c := all[n.by]
	if c == nil {
		return namer{}, false
	}
	owner, lost = c.lost[n.host]
	return owner, lost
}

func setOfNamed(all []namedHost) map[namedHost]bool {
	set := make(map[namedHost]bool, len(all))
	for _, n := range all {
		set[n] = true
	}
	return set
}

// oldestBut returns the oldest route that names a host and is not attached to the Gateway itself, whose routes use its
// certificates; none of none. own are the hosts of the routes of the Gateway. The routes are in the order of their age.
func oldestBut(own map[namedHost]bool, host string, routes []namer) []namer {
	at := slices.IndexFunc(routes, func(n namer) bool { return !own[namedHost{host: host, by: n}] })
	if at < 0 {
		return nil
	}
	return routes[at : at+1]
}
