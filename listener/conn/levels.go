package conn

// MaxLevels is the largest number of levels of a network.
const MaxLevels = 4

// The prefix lengths at which things are shared out fairly, apart from the client network itself. A provider
// usually delegates an IPv6 /48, /56 or /64 to one customer. Otherwise a client with a /48 would count as
// 65,536 clients. Those of IPv4 are in the form of Network.bits.
var (
	levelsIPv4 = [...]uint8{96 + 24, 96 + 32}
	levelsIPv6 = [...]uint8{48, 56, 64}
)

// Levels returns the networks that contain n: the widest first, n itself last. Fair shares are decided first
// among the widest networks, then within each of them. The levels are /48, /56 and /64 of IPv6 and /24 and /32 of
// IPv4, as far as they are wider than n. The zero Network is its own only level. Levels does not allocate.
func (n Network) Levels() (levels [MaxLevels]Network, count int) {
	if n.IsValid() {
		wider := levelsIPv6[:]
		if n.bits > 96 && n.addr[10] == 0xff && n.addr[11] == 0xff && [10]byte(n.addr[:10]) == [10]byte{} {
			wider = levelsIPv4[:]
		}
		for _, bits := range wider {
			if bits+1 < n.bits {
				levels[count] = n.widen(bits)
				count++
			}
		}
	}
	levels[count] = n
	return levels, count + 1
}

// widen returns the network of this prefix length that contains n.
func (n Network) widen(bits uint8) Network {
	n.bits = bits + 1
	for i := range n.addr {
		n.addr[i] &= ^byte(0) << (8 - min(8, max(0, int(bits)-8*i)))
	}
	return n
}
