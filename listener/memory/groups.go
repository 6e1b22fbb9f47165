package memory

import "github.com/weirproxy/weir/listener/conn"

// group is a network, or a wider one around it: see conn.Network.Levels. Shares are divided first among the widest
// networks, and then within each. So a client with an IPv6 /48 is not 65,536 clients.
type group struct {
	key     conn.Network // zero: of endpoints, or of all networks
	around  *group       // nil: these are all networks
	granted int64
	inner   int64 // the number of next smaller networks; without the network of endpoints
}

func (g *group) add(granted int64) {
	for ; g != nil; g = g.around {
		g.granted += granted
	}
}

// share returns the part of limit that is for a group.
func (g *group) share(limit int64) int64 {
	if g.around == nil {
		return limit
	}
	return g.around.share(limit) / max(1, g.around.inner)
}

// newNetwork makes the account of a network. The caller holds the lock.
func (p *Process) newNetwork(key conn.Network) *network {
	n := &network{group: group{key: key, around: &p.whole}}
	p.networks[key] = n
	if !key.IsValid() {
		return n
	}
	all, count := key.Levels()
	for _, level := range all[:count-1] {
		g := p.wider[level]
		if g == nil {
			g = &group{key: level, around: n.around}
			p.wider[level] = g
			n.around.inner++
		}
		n.around = g
	}
	n.around.inner++
	return n
}

// remove removes the account of a network. The caller holds the lock.
func (p *Process) remove(n *network) {
	delete(p.networks, n.key)
	if !n.key.IsValid() {
		return
	}
	for g := n.around; ; g = g.around {
		if g.inner--; g.inner > 0 || g == &p.whole {
			return
		}
		delete(p.wider, g.key)
	}
}

// within returns the share of limit that a network has, or would have with one more connection, and whether it, or a
// network around it, holds no more than its share if it gets need. The caller holds the lock.
func (p *Process) within(key conn.Network, need, limit int64) (share int64, within bool) {
	share = limit
	all, count := key.Levels()
	around := &p.whole
	for i, level := range all[:count] {
		g := p.wider[level]
		if i == count-1 {
			if g = nil; p.networks[key] != nil {
				g = &p.networks[key].group
			}
		}
		var inner int64
		if around != nil {
			inner = around.inner
		}
		held := need
		if g == nil {
			inner++
		} else {
			held += g.granted
		}
		share /= max(1, inner)
		within = within || held <= share
		around = g
	}
	return share, within
}
