package config

import (
	"net/netip"
	"slices"
)

// Clients are the clients that may use a route. A client whose address is in Deny is refused. If
// Allow has networks, a client outside of them is refused as well.
type Clients struct {
	Allow, Deny []netip.Prefix
}

func (r *Route) clientsKey() value {
	return optional(&r.Clients, func() *Clients { return &Clients{} }, func(c *Clients) section {
		return section{object: &r.Clients, rules: clientsRules, check: checkSomeClients, keys: []key{
			{"allow", list(&c.Allow, prefix.at).byDefault("every client"), "Only clients in these networks may use the route."},
			{"deny", list(&c.Deny, prefix.at).byDefault("no client"), "Clients in these networks may not use the route, even if allow has them."},
		}}
	})
}

var clientsRules = []*schema{hasAny("allow", "deny")}

func checkSomeClients(v *draft, there keySet, n *Tree, p path) {
	if len(there) == 0 && n.Shape == ShapeMapping && len(n.Parts) == 0 {
		v.fail(n, p, "is empty; give it allow or deny, or take the key out")
	}
}

// equal reports whether two routes name the same clients; each may be nil.
func (c *Clients) equal(o *Clients) bool {
	if c == nil || o == nil {
		return c == o
	}
	return slices.Equal(c.Allow, o.Allow) && slices.Equal(c.Deny, o.Deny)
}

// covers reports whether c refuses every client that o refuses; each may be nil. It compares
// networks one by one, so it may return false for lists that say the same in different networks.
func (c *Clients) covers(o *Clients) bool {
	switch {
	case o == nil:
		return true
	case c == nil:
		return false
	}
	if len(o.Allow) > 0 && (len(c.Allow) == 0 || !allWithin(c.Allow, o.Allow)) {
		return false
	}
	for _, denied := range o.Deny {
		reachable := len(c.Allow) == 0 || slices.ContainsFunc(c.Allow, denied.Overlaps)
		if reachable && !allWithin([]netip.Prefix{denied}, c.Deny) {
			return false
		}
	}
	return true
}

// allWithin reports whether each network is a part of one of the others.
func allWithin(networks, others []netip.Prefix) bool {
	for _, n := range networks {
		if !slices.ContainsFunc(others, func(o netip.Prefix) bool { return o.Bits() <= n.Bits() && o.Contains(n.Addr()) }) {
			return false
		}
	}
	return true
}
