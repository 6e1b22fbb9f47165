package soak

import (
	"fmt"
	"math/big"
	"net/netip"
	"runtime"
	"strings"
)

// loopbackIsWide: a client can connect from any address of 127.0.0.0/8, so that it does
// not run out of local ports.
const loopbackIsWide = runtime.GOOS == "linux"

// ParsePrefixes parses networks and single addresses.
func ParsePrefixes(texts []string) (all []netip.Prefix, err error) {
	for _, s := range texts {
		p, err := netip.ParsePrefix(s)
		if a, single := netip.ParseAddr(s); single == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("%q is neither an address nor a network like 10.0.0.0/8", s)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

// nth returns address i of prefixes, which take turns. After the last address it begins
// again. It omits the first and the last address of an IPv4 network.
func nth(prefixes []netip.Prefix, i int64) netip.Addr {
	p := prefixes[i%int64(len(prefixes))]
	i /= int64(len(prefixes))
	first, n := int64(0), int64(1)<<min(40, p.Addr().BitLen()-p.Bits())
	if p.Addr().Is4() && n > 2 {
		first, n = 1, n-2
	}
	at := new(big.Int).SetBytes(p.Addr().AsSlice())
	at.Add(at, big.NewInt(first+i%n))
	a, _ := netip.AddrFromSlice(at.FillBytes(make([]byte, p.Addr().BitLen()/8)))
	return a
}

// parseSeen parses an address as the other side reports it: alone, with a port, in
// brackets, in quotes, or as the first in a list.
func parseSeen(s string) (netip.Addr, bool) {
	s, _, _ = strings.Cut(s, ",")
	s = strings.Trim(strings.TrimSpace(s), `"`)
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone(""), true
	}
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return a.Unmap().WithZone(""), err == nil
}
