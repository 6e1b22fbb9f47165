package kube

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// A host that both an Ingress and a route of a Gateway name belongs to one namespace: that of the
// oldest of these objects. The objects of the other kind in other namespaces do not get it. Among
// Ingresses host_ownership decides, and among routes the Gateway API does. An object without host
// names, which serves every host, owns no host.

// namer is an object that names hosts.
type namer struct {
	kind    string
	name    config.ObjectName
	created int64 // in seconds, as Kubernetes has it
}

func (n namer) String() string { return n.kind + " " + n.name.String() }

func (n namer) isIngress() bool { return n.kind == ingressKind.Name }

// compare compares two objects so that the older one comes first, in the order of claim.Decide.
func (n namer) compare(o namer) int {
	return cmp.Or(cmp.Compare(n.created, o.created), compareNames(n.name, o.name), strings.Compare(n.kind, o.kind))
}

func (m *member) namer() namer {
	return namer{ingressKind.Name, config.ObjectName{Namespace: m.Namespace, Name: m.Name}, m.CreationTimestamp.Unix()}
}

func namerOf(r *gateway.Route) namer { return namer{r.Kind, r.Name, r.Meta.CreationTimestamp.Unix()} }

// contest has the hosts of one object that objects of the other kind name too.
type contest struct {
	lost map[string]namer // by host that the object does not get: the owner
	won  map[string]namer // by host that the object owns: the oldest object that does not get it
	over map[string]int   // by host whose certificate the object may not order: max_names of the issuer, which older objects use up
}

// contests has the contest of each object that has one.
type contests map[namer]*contest

func (all contests) of(n namer) *contest {
	if all[n] == nil {
		all[n] = &contest{lost: map[string]namer{}, won: map[string]namer{}}
	}
	return all[n]
}

// lose records that an object does not get a host, because of its owner.
func (all contests) lose(n namer, host string, owner namer) {
	all.of(n).lost[host] = owner
	won := all.of(owner).won
	if before, told := won[host]; !told || n.compare(before) < 0 {
		won[host] = n
	}
}

// namedHost is a host of an accepted route of a Gateway.
type namedHost struct {
	host string
	by   namer
}

// contestHosts decides about the hosts that objects of both kinds name. It drops the results of
// Ingresses and of Gateways for which the decision has changed.
func (u *updating) contestHosts() {
	if !u.renamed {
		return
	}
	now := u.findContests()
	before := u.contests
	u.contests = now
	changed := map[namer]bool{}
	for _, all := range []contests{before, now} {
		for n := range all {
			if !reflect.DeepEqual(before[n], now[n]) {
				changed[n] = true
			}
		}
	}
	if len(changed) == 0 {
		return
	}
	isChanged := func(n namedHost) bool { return changed[n.by] }
	for _, m := range u.members {
		if m.ours && changed[m.namer()] {
			u.drop(m.part)
		}
	}
	for name, p := range u.gateways.parts {
		if slices.ContainsFunc(p.gateway.named, isChanged) || slices.ContainsFunc(p.gateway.ordered, func(o orderedHost) bool { return isChanged(o.namedHost) }) {
			u.redoGateway(name, p)
		}
	}
}

// findContests finds all contests.
func (u *updating) findContests() contests {
	if len(u.joints.hosts) == 0 && !u.gateways.order() { // only routes name hosts
		return contests{}
	}
	routes := map[string][]namer{}
	wild := false
	for _, p := range u.gateways.parts {
		for _, n := range p.gateway.named {
			routes[n.host] = append(routes[n.host], n.by)
			wild = wild || strings.HasPrefix(n.host, "*.")
		}
	}
	all := contests{}
	for host := range routes {
		u.contestHost(all, host, routes)
	}
	if wild && u.joints.owned {
		for host := range u.joints.hosts {
			if routes[host] == nil && host != "" {
				u.contestHost(all, host, routes)
			}
		}
	}
	u.contestOrders(all, routes)
	return all
}

// order reports whether a Gateway orders certificates.
func (k *gatewayConverter) order() bool {
	for _, p := range k.parts {
		if len(p.gateway.ordered) > 0 {
			return true
		}
	}
	return false
}

// contestHost decides about one host. routes are the routes of each host.
func (u *updating) contestHost(all contests, host string, routes map[string][]namer) {
	ingresses := u.namersOf(host)
	competing := slices.Concat(ingresses, routes[host])
	if u.joints.owned { // a wildcard owns the younger names below it
		competing = append(competing, u.namersOf(claim.WildcardOf(host))...)
		for above := aboveOf(host); above != ""; above = aboveOf(above) {
			competing = append(competing, routes[above]...)
		}
	}
	if len(competing) == 0 {
		return
	}
	owner := slices.MinFunc(competing, namer.compare)
	losing := ingresses
	if owner.isIngress() {
		losing = routes[host]
	}
	for _, n := range losing {
		if n.name.Namespace != owner.name.Namespace {
			all.lose(n, host, owner)
		}
	}
}

// namersOf are the Ingresses that name a host in a rule.
func (u *updating) namersOf(host string) (all []namer) {
	j := u.joints.hosts[host]
	if j == nil || host == "" {
		return nil
	}
	for _, m := range j.named {
		if slices.Contains(m.traits.hosts[:m.traits.ruled], host) {
			all = append(all, m.namer())
		}
	}
	return all
}

// aboveOf returns the longest wildcard that covers a host, except the host itself; "": none. A wildcard of the
// Gateway API stands for one label or more.
func aboveOf(host string) string {
	_, rest, ok := strings.Cut(strings.TrimPrefix(host, "*."), ".")
	if !ok {
		return ""
	}
	return "*." + rest
}

// ownedAcross explains in messages why an object of the other kind owns a host.
const ownedAcross = "A host that Ingresses and routes of Gateways name belongs to the namespace of the oldest of them."

// rivalOf returns the object of the other kind that owns a host of an Ingress; "": none.
func (v *conversion) rivalOf(o *claim.Owner, host string) string {
	c := v.contests[namerOfOwner(o)]
	if c == nil {
		return ""
	}
	if owner, lost := c.lost[host]; lost {
		return owner.String()
	}
	return ""
}

func namerOfOwner(o *claim.Owner) namer { return namer{o.Kind.Name, o.Name, o.Created.Unix()} }

// tellContests tells Ingresses about the routes that do not get their hosts.
func (v *conversion) tellContests(owners []*claim.Owner) {
	if len(v.contests) == 0 {
		return
	}
	for _, o := range owners {
		if c := v.contests[namerOfOwner(o)]; c != nil {
			for host, loser := range c.won {
				v.on(o, event.ReasonHostContested, "The younger %v of another namespace names the host %s, which belongs to this Ingress, and does not get it. %s", loser, host, ownedAcross)
			}
		}
	}
}

// contest removes the hosts of a route that belong to Ingresses of other namespaces, and reports
// them.
func (c *gatewayConversion) contest(a *gateway.Attachment) {
	by := namerOf(a.Route)
	for _, b := range a.Bound {
		for _, host := range b.Hostnames {
			if host != "" {
				c.part.named = append(c.part.named, namedHost{host, by})
			}
		}
	}
	mine := c.contests[by]
	if mine == nil {
		return
	}
	if text := c.contested(a, mine.won, "The host %s belongs to this route. The younger %v of another namespace names it too, and does not get it. "); text != "" {
		a.Contested = &gateway.Problem{Reason: "HostContested", Message: text + ownedAcross}
	}
	if text := c.contested(a, mine.lost, "The host %s belongs to the older %v of another namespace, so this route does not get it; use another host. "); text != "" {
		gateway.Drop(a, mine.lost, &gateway.Problem{Reason: "HostTaken", Message: text + ownedAcross})
	}
}

// contested returns a sentence for each of the hosts for which the route is attached.
func (c *gatewayConversion) contested(a *gateway.Attachment, hosts map[string]namer, format string) string {
	var b strings.Builder
	for _, host := range slices.Sorted(maps.Keys(hosts)) {
		if a.Has(host) {
			fmt.Fprintf(&b, format, host, hosts[host])
		}
	}
	return b.String()
}
