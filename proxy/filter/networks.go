package filter

import (
	"net/netip"
	"slices"
)

// networks is a set of networks: ranges of addresses that do not overlap, in ascending order. A
// lookup takes the logarithm of their number.
type networks []addressRange

type addressRange struct{ first, last netip.Addr }

func newNetworks(prefixes []netip.Prefix) networks {
	var all networks
	for _, p := range slices.SortedFunc(slices.Values(prefixes), netip.Prefix.Compare) {
		one := addressRange{p.Masked().Addr(), lastOf(p)}
		// If two prefixes overlap, one contains the other. The sorted list has the larger one first.
		if len(all) == 0 || all[len(all)-1].last.Less(one.first) {
			all = append(all, one)
		}
	}
	return slices.Clip(all)
}

// lastOf returns the last address of a network.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := range b {
		b[i] |= ^byte(0) >> min(8, max(0, p.Bits()-8*i))
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// contain reports whether an address is in one of the networks. IPv4 addresses that are mapped
// into IPv6 count as IPv4, and zones are ignored. An invalid address is in no network.
func (n networks) contain(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	i, found := slices.BinarySearchFunc(n, a, func(r addressRange, a netip.Addr) int { return r.first.Compare(a) })
	return found || i > 0 && a.Compare(n[i-1].last) <= 0
}
