package gateway

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
)

// Assigned is the addresses of a Gateway.
type Assigned struct {
	// Addresses are those of a pool: weir listens on them, on the ports of the Gateway.
	Addresses []netip.Addr
	// Behind is the Service whose addresses the Gateway has instead; nil: it has addresses of a pool.
	Behind *Behind
	// Shared are the listeners of the configuration file that serve all Gateways; empty: the Gateway has
	// listeners of its own.
	Shared []SharedListener
	// Rejected is why the Gateway is not accepted: it asks for a type of address that weir does
	// not support. nil: it does not.
	Rejected *Problem
	// Missing is why the Gateway is not programmed: it has no address, or lacks an address that it
	// asks for. nil: it lacks none.
	Missing *Problem
}

// Socket is where weir listens for a port of a Gateway.
type Socket struct {
	Name    string // of weir's listener
	Address string // host:port
	// PublicPort is the port that clients use; 0: that of Address.
	PublicPort int
}

// Sockets returns where weir listens for a port of a Gateway; none: nowhere, or nowhere yet.
func (a *Assigned) Sockets(g config.ObjectName, port int) (all []Socket) {
	name := fmt.Sprintf("gateway/%s/%s/%d", g.Namespace, g.Name, port)
	if a.Behind != nil {
		if own := a.Behind.Listens[int32(port)]; own != 0 {
			all = append(all, Socket{name, ":" + strconv.Itoa(int(own)), port})
		}
		return all
	}
	for _, address := range a.Addresses {
		one := Socket{Name: name, Address: netip.AddrPortFrom(address, uint16(port)).String()}
		if len(a.Addresses) > 1 {
			one.Name += "/" + address.String()
		}
		all = append(all, one)
	}
	return all
}

// pending is why weir does not listen on a port of the Gateway; nil: it does.
func (a *Assigned) pending(port int) *Problem {
	switch {
	case len(a.Shared) > 0:
		return nil
	case a.Behind != nil:
		return a.Behind.pending(int32(port))
	case len(a.Addresses) == 0:
		return problem(gatewayv1.ListenerReasonPending, "The Gateway has no address.")
	}
	return nil
}

// shown are the addresses in the status.
func (a *Assigned) shown() (all []gatewayv1.GatewayStatusAddress) {
	add := func(kind gatewayv1.AddressType, value string) {
		all = append(all, gatewayv1.GatewayStatusAddress{Type: &kind, Value: value})
	}
	for _, address := range a.Addresses {
		add(gatewayv1.IPAddressType, address.String())
	}
	if a.Behind == nil {
		return all
	}
	for _, text := range a.Behind.Public {
		if _, err := netip.ParseAddr(text); err == nil {
			add(gatewayv1.IPAddressType, text)
		} else {
			add(gatewayv1.HostnameAddressType, text)
		}
	}
	return all
}

// Equal reports whether both are the same.
func (a *Assigned) Equal(b *Assigned) bool {
	return slices.Equal(a.Addresses, b.Addresses) && a.Behind.equal(b.Behind) && slices.Equal(a.Shared, b.Shared) && equalProblem(a.Rejected, b.Rejected) && equalProblem(a.Missing, b.Missing)
}

func equalProblem(a, b *Problem) bool { return a == b || a != nil && b != nil && *a == *b }

// FromPool gives each Gateway addresses of its own from a pool. First, each Gateway keeps the addresses of its status: those
// that its spec asks for, or else one. The others get the addresses of their spec, or else an address that they had before,
// or else any free address. If two Gateways want the same address, the older Gateway gets it. So all replicas decide
// alike. No Gateway, however old, can ask for the address of another one: names in DNS may lead to that address, and
// the requests for these names would reach the wrong Gateway.
//
// before returns what a Gateway was assigned last; nil: nothing. It knows the address until the status, which the
// leader writes, has come back from the cluster. Without it, a Gateway that was created in the same second could get
// the address meanwhile.
func FromPool(gateways []*gatewayv1.Gateway, pool []netip.Prefix, before func(*gatewayv1.Gateway) *Assigned) map[config.ObjectName]*Assigned {
	p := &poolState{pool: pool, taken: map[netip.Addr]*gatewayv1.Gateway{}}
	all := make(map[config.ObjectName]*Assigned, len(gateways))
	for _, g := range gateways {
		a := &Assigned{Rejected: unsupportedAddress(g)}
		all[NameOf(g)] = a
		if p.hold(g, a); a.wantsAny(g) {
			p.keep(g, a, statusAddresses(g))
		}
	}
	for _, g := range gateways {
		p.static(g, all[NameOf(g)])
	}
	for _, g := range gateways {
		if a, was := all[NameOf(g)], before(g); was != nil && a.wantsAny(g) {
			p.keep(g, a, was.Addresses)
		}
	}
	for _, g := range gateways {
		if a := all[NameOf(g)]; a.wantsAny(g) {
			p.dynamic(g, a)
		}
	}
	return all
}

// wantsAny reports whether the Gateway needs an address, and accepts any.
func (a *Assigned) wantsAny(g *gatewayv1.Gateway) bool {
	return a.Rejected == nil && len(a.Addresses) == 0 && asksForAny(g)
}

type poolState struct {
	pool  []netip.Prefix
	taken map[netip.Addr]*gatewayv1.Gateway
	next  []netip.Addr // of each network: where to look for a free address
}

// hold takes the addresses that a Gateway asks for and has in its status.
func (p *poolState) hold(g *gatewayv1.Gateway, a *Assigned) {
	had := statusAddresses(g)
	for i := range g.Spec.Addresses {
		addr, err := netip.ParseAddr(g.Spec.Addresses[i].Value)
		if err == nil && a.Rejected == nil && slices.Contains(had, addr) && p.has(addr) && p.taken[addr] == nil {
			p.taken[addr] = g
		}
	}
}

// static gives a Gateway the addresses that it asks for.
func (p *poolState) static(g *gatewayv1.Gateway, a *Assigned) {
	if a.Rejected != nil {
		return
	}
	for i := range g.Spec.Addresses {
		asked := &g.Spec.Addresses[i]
		if asked.Value == "" {
			continue
		}
		addr, err := netip.ParseAddr(asked.Value)
		switch {
		case err != nil || !p.has(addr):
			a.Missing = cmp.Or(a.Missing, problem(gatewayv1.GatewayReasonAddressNotUsable, "The address %q is in none of the networks under kubernetes.gateways.addresses.pool in weir's configuration.", asked.Value))
		case p.taken[addr] != nil && p.taken[addr] != g:
			a.Missing = cmp.Or(a.Missing, problem(gatewayv1.GatewayReasonAddressNotUsable, "The Gateway %s has the address %s; ask for another one.", NameOf(p.taken[addr]), addr))
		case !slices.Contains(a.Addresses, addr):
			p.taken[addr] = g
			a.Addresses = append(a.Addresses, addr)
		}
	}
}

// unsupportedAddress is why the spec asks for an address that no Gateway can have; nil: it does not.
func unsupportedAddress(g *gatewayv1.Gateway) *Problem {
	for i := range g.Spec.Addresses {
		asked := &g.Spec.Addresses[i]
		if kind := value(asked.Type, gatewayv1.IPAddressType); kind != gatewayv1.IPAddressType {
			return problem(gatewayv1.GatewayReasonUnsupportedAddress, "The address %q has the type %s, but weir gives Gateways only addresses of the type IPAddress.", asked.Value, kind)
		}
	}
	return nil
}

// asksForAny reports whether a Gateway accepts any address.
func asksForAny(g *gatewayv1.Gateway) bool {
	for i := range g.Spec.Addresses {
		if g.Spec.Addresses[i].Value != "" {
			return false
		}
	}
	return true
}

// statusAddresses are the IP addresses in the status of a Gateway.
func statusAddresses(g *gatewayv1.Gateway) (all []netip.Addr) {
	for i := range g.Status.Addresses {
		if addr, err := netip.ParseAddr(g.Status.Addresses[i].Value); err == nil {
			all = append(all, addr)
		}
	}
	return all
}

// keep gives a Gateway the first of these addresses that is free and in the pool.
func (p *poolState) keep(g *gatewayv1.Gateway, a *Assigned, had []netip.Addr) {
	for _, addr := range had {
		if p.has(addr) && p.taken[addr] == nil {
			p.taken[addr], a.Addresses = g, []netip.Addr{addr}
			return
		}
	}
}

// dynamic gives a Gateway a free address.
func (p *poolState) dynamic(g *gatewayv1.Gateway, a *Assigned) {
	if addr, ok := p.free(); ok {
		p.taken[addr], a.Addresses = g, []netip.Addr{addr}
		return
	}
	a.Missing = problem(gatewayv1.GatewayReasonAddressNotAssigned, "All addresses of the networks under kubernetes.gateways.addresses.pool in weir's configuration belong to other Gateways; add a network there, or delete a Gateway.")
}

// has reports whether the pool has an address.
func (p *poolState) has(addr netip.Addr) bool {
	for _, network := range p.pool {
		if network.Contains(addr) && isHost(network, addr) {
			return true
		}
	}
	return false
}

// isHost reports whether an address is not that of the network itself, or of all its hosts.
func isHost(network netip.Prefix, addr netip.Addr) bool {
	if !addr.Is4() || network.Bits() >= 31 {
		return true
	}
	return addr != network.Masked().Addr() && network.Contains(addr.Next())
}

// free returns the first address of the pool that no Gateway has.
func (p *poolState) free() (netip.Addr, bool) {
	if p.next == nil {
		for _, network := range p.pool {
			p.next = append(p.next, network.Masked().Addr())
		}
	}
	for i, network := range p.pool {
		for ; network.Contains(p.next[i]); p.next[i] = p.next[i].Next() {
			if addr := p.next[i]; p.taken[addr] == nil && isHost(network, addr) {
				return addr, true
			}
		}
	}
	return netip.Addr{}, false
}
