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
	"github.com/weirproxy/weir/pause"
)

// A host that both an Ingress and a route of a Gateway name belongs to one namespace: that of the
// oldest of these objects. The objects of the other kind in other namespaces do not get it. Among
// Ingresses host_ownership decides, and among routes the Gateway API does. An object without host
// names, which serves every host, owns no host. Gateways that share listeners of the file have stricter rules, see
// gateway_shared.go.

// namer is an object that names hosts.
type namer struct {
	kind    string
	name    config.ObjectName
	created int64 // in seconds, as Kubernetes has it
	// gateway is the Gateway that has the object, if Gateways share listeners; otherwise empty.
	gateway config.ObjectName
}

func (n namer) String() string {
	text := n.kind + " " + n.name.String()
	if n.gateway != (config.ObjectName{}) && n.kind != gateway.KindGateway {
		text += " of the Gateway " + n.gateway.String()
	}
	return text
}

func (n namer) isIngress() bool { return n.kind == ingressKind.Name }

// compare compares two objects so that the older one comes first, in the order of claim.Decide.
func (n namer) compare(o namer) int {
	return cmp.Or(cmp.Compare(n.created, o.created), compareNames(n.name, o.name), strings.Compare(n.kind, o.kind), compareNames(n.gateway, o.gateway))
}

func (m *member) namer() namer {
	return namer{kind: ingressKind.Name, name: config.ObjectName{Namespace: m.Namespace, Name: m.Name}, created: m.CreationTimestamp.Unix()}
}

func namerOf(r *gateway.Route) namer {
	return namer{kind: r.Kind, name: r.Name, created: r.Meta.CreationTimestamp.Unix()}
}

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
	weak bool // by is a listener, whose hostname takes nothing from others but further names of Ingresses
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
	if len(u.joints.hosts) == 0 && !u.gateways.order() && !u.shares() { // only routes name hosts
		return contests{}
	}
	routes, listeners := map[string][]namer{}, map[string][]namer{}
	wild := false
	for _, p := range u.gateways.parts {
		for i, n := range p.gateway.named {
			pause.InLoop(i)
			if n.weak {
				listeners[n.host] = append(listeners[n.host], n.by)
				continue
			}
			routes[n.host] = append(routes[n.host], n.by)
			wild = wild || strings.HasPrefix(n.host, "*.")
		}
	}
	for _, of := range routes {
		slices.SortFunc(of, namer.compare)
	}
	all := contests{}
	u.contestFurther(all, routes, listeners)
	if u.shares() {
		u.contestShared(all, routes, listeners, wild)
		u.contestOrders(all, routes)
		return all
	}
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
	pause.IfDue()
	ingresses := u.namersOf(all, host)
	competing := slices.Concat(ingresses, routes[host])
	if u.joints.owned { // a wildcard owns the younger names below it
		competing = append(competing, u.rulersOf(claim.WildcardOf(host))...)
		for above := aboveOf(host); above != ""; above = aboveOf(above) {
			competing = append(competing, oldest(routes[above])...)
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

// oldest returns the first of some objects in the order of findContests, which is the oldest one; none of none.
func oldest(all []namer) []namer { return all[:min(len(all), 1)] }

// contestFurther takes further names from Ingresses, if a route or a listener of another namespace has them or a
// wildcard above them, whatever the ages.
func (u *updating) contestFurther(all contests, routes, listeners map[string][]namer) {
	if len(routes)+len(listeners) == 0 {
		return
	}
	for _, m := range u.members {
		if !m.ours {
			continue
		}
		for _, host := range m.traits.further() {
			var owners []namer
			for name := host; name != ""; name = aboveOf(name) {
				owners = slices.Concat(owners, routes[name], listeners[name])
			}
			owners = slices.DeleteFunc(owners, func(n namer) bool { return n.name.Namespace == m.Namespace })
			if len(owners) > 0 {
				all.of(m.namer()).lost[host] = slices.MinFunc(owners, namer.compare)
			}
		}
	}
}

// namersOf are the Ingresses that name a host in a rule. If there is none, they are those that have it as a further
// name. all has the further names that Ingresses have lost.
func (u *updating) namersOf(all contests, host string) []namer {
	if rulers := u.rulersOf(host); len(rulers) > 0 {
		return rulers
	}
	return u.naming(host, func(m *member) bool {
		_, lost := all.lostBy(namedHost{host: host, by: m.namer()})
		return !lost && slices.Contains(m.traits.further(), host)
	})
}

// rulersOf are the Ingresses that name a host in a rule of their own.
func (u *updating) rulersOf(host string) []namer {
	return u.naming(host, func(m *member) bool { return slices.Contains(m.traits.hosts[:m.traits.own], host) })
}

// naming are those Ingresses with a host for which is returns true.
func (u *updating) naming(host string, is func(*member) bool) (all []namer) {
	j := u.joints.hosts[host]
	if j == nil || host == "" {
		return nil
	}
	for _, m := range j.named {
		if is(m) && u.settings.RefusesHost(m.Namespace, host) == "" {
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

// elsewhere says in messages that another object is in another namespace. On shared listeners it need not be.
func (v *conversion) elsewhere() string {
	if v.shares() {
		return ""
	}
	return " of another namespace"
}

// whyOwned is the sentence about the owners of hosts.
func (v *conversion) whyOwned() string {
	if v.shares() {
		return ownedOnce
	}
	return ownedAcross
}

// refuses returns why the configuration does not give a host to an object; "": it does.
func (v *conversion) refuses(o *claim.Owner, host string) string {
	return v.settings.RefusesHost(o.Name.Namespace, host)
}

// rivalOf returns the object of the other kind that owns a host of an Ingress; "": none.
func (v *conversion) rivalOf(o *claim.Owner, host string) string {
	c := v.contests[namerOfOwner(o)]
	if c == nil {
		return ""
	}
	if owner, lost := c.lost[host]; lost {
		return owner.String() + v.elsewhere()
	}
	return ""
}

func namerOfOwner(o *claim.Owner) namer {
	return namer{kind: o.Kind.Name, name: o.Name, created: o.Created.Unix()}
}

// tellContests tells Ingresses about the routes that do not get their hosts.
func (v *conversion) tellContests(owners []*claim.Owner) {
	if len(v.contests) == 0 {
		return
	}
	for _, o := range owners {
		if c := v.contests[namerOfOwner(o)]; c != nil {
			for host, loser := range c.won {
				if host == "" {
					v.on(o, event.ReasonHostContested, "The %v has no hostname, and requests for hosts that nobody names belong to this Ingress, which has none either. %s", loser, v.whyOwned())
					continue
				}
				v.on(o, event.ReasonHostContested, "The younger %v%s names the host %s, which belongs to this Ingress, and does not get it. %s", loser, v.elsewhere(), host, v.whyOwned())
			}
		}
	}
}

// contest removes the hosts of a route that belong to Ingresses of other namespaces, and reports
// them.
func (c *gatewayConversion) contest(a *gateway.Attachment) {
	c.yieldToList(a)
	c.yieldToFile(a)
	by := c.namerOf(a.Route)
	for _, b := range a.Bound {
		for _, host := range b.Hostnames {
			if c.claims(b.Listener, host) {
				c.part.named = append(c.part.named, namedHost{host: host, by: by})
			}
		}
	}
	mine := c.contests[by]
	if mine == nil {
		return
	}
	won := c.contested(a, mine.won, "The host %s belongs to this route. The younger %v%s names it too, and does not get it. ",
		"Requests for hosts that nobody names belong to this route. The %v has no hostname either, and does not get them. ")
	if won != "" {
		a.Contested = &gateway.Problem{Reason: "HostContested", Message: won + c.whyOwned()}
	}
	lost := c.contested(a, mine.lost, "The host %s belongs to the older %v%s, so this route does not get it; use another host. ",
		"Requests for hosts that nobody names belong to the %v, so this route, which has no hostname, does not get them; give it a hostname. ")
	if lost != "" {
		gateway.Drop(a, mine.lost, &gateway.Problem{Reason: reasonHostTaken, Message: lost + c.whyOwned()})
	}
}

// yieldToList removes the hosts of a route that the configuration does not give to its namespace.
func (c *gatewayConversion) yieldToList(a *gateway.Attachment) {
	if len(c.settings.Hosts) == 0 || a.Kind == gateway.KindTCPRoute {
		return
	}
	a.DropEach(func(_ *gateway.Listener, host string) *gateway.Problem {
		why := c.settings.RefusesHost(a.Name.Namespace, gateway.HostOf(host))
		if why == "" {
			return nil
		}
		what := "The host " + host
		if host == "" {
			what = "The catch-all, a route without a hostname,"
		}
		return &gateway.Problem{Reason: reasonHostTaken, Message: what + " " + why + "; use another host, or change the list."}
	})
}

// contested returns a sentence for each of the hosts for which the route is attached. every is the format for
// the empty host.
func (c *gatewayConversion) contested(a *gateway.Attachment, hosts map[string]namer, format, every string) string {
	var b strings.Builder
	for _, host := range slices.Sorted(maps.Keys(hosts)) {
		switch {
		case !a.Has(host):
		case host == "":
			fmt.Fprintf(&b, every, hosts[host])
		default:
			fmt.Fprintf(&b, format, host, hosts[host], c.elsewhere())
		}
	}
	return b.String()
}
