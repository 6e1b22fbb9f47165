package conn

import "net/netip"

// Network is the client network of a connection. Limits and fair shares treat all clients of one network as one
// client. A Network is comparable, so it can be the key of a map. The zero Network stands for clients without an
// address (Unix sockets) and for connections whose client is not known yet.
type Network struct {
	addr [16]byte // masked; IPv4 as mapped into IPv6
	bits uint8    // prefix length plus 1; 0: the zero Network
}

// Prefixes are the prefix lengths of client networks, limits.clients.prefix in the configuration. With 0 all
// clients of the family are one network.
type Prefixes struct {
	IPv4 uint8 // 0 to 32
	IPv6 uint8 // 0 to 128
}

// DefaultPrefixes make each IPv4 address and each IPv6 /64 one network. One subscriber
// usually has an IPv6 /64.
var DefaultPrefixes = Prefixes{IPv4: 32, IPv6: 64}

// NetworkOf returns the network of an address. An IPv4 address that is mapped into IPv6
// counts as IPv4, and zones are ignored. It does not allocate.
func NetworkOf(a netip.Addr, p Prefixes) Network {
	if !a.IsValid() {
		return Network{}
	}
	a = a.Unmap()
	bits := p.IPv6
	if a.Is4() {
		bits = 96 + p.IPv4
	}
	return Network{addr: a.As16()}.widen(bits)
}

// Prefix returns the network as a prefix; invalid for the zero Network.
func (n Network) Prefix() netip.Prefix {
	if n.bits == 0 {
		return netip.Prefix{}
	}
	a, bits := netip.AddrFrom16(n.addr), int(n.bits-1)
	if a.Is4In6() && bits >= 96 {
		a, bits = a.Unmap(), bits-96
	}
	return netip.PrefixFrom(a, bits)
}

// IsValid returns false for the zero Network.
func (n Network) IsValid() bool { return n.bits != 0 }

// String returns the prefix; "unknown" for the zero Network.
func (n Network) String() string {
	if !n.IsValid() {
		return "unknown"
	}
	return n.Prefix().String()
}

// Identify declares that Client is final, and sets the prefix lengths for its network. The
// owner calls it once, after which no PROXY header can change Client.
func (c *Conn) Identify(p Prefixes) {
	c.prefixes.Store(1<<16 | uint32(p.IPv4)<<8 | uint32(p.IPv6))
}

// Network returns the client's network: the zero Network before Identify. A later change of the prefix lengths
// does not change it. Any goroutine may call it.
func (c *Conn) Network() Network {
	p := c.prefixes.Load()
	if p == 0 {
		return Network{}
	}
	return NetworkOf(c.Client.Addr(), Prefixes{IPv4: uint8(p >> 8), IPv6: uint8(p)})
}
