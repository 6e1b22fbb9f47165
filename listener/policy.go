package listener

import (
	"net/netip"
	"slices"
	"time"

	"github.com/weirproxy/weir/config"
)

// Policy says which peers have to, may and must not send a PROXY header. It
// never changes. A nil Policy does not look for headers.
type Policy struct {
	name    string
	timeout time.Duration
	rules   []rule // the longest prefix first
}

type rule struct {
	from netip.Prefix
	mode config.HeaderMode
}

// NewPolicy makes a Policy of its configuration.
func NewPolicy(p config.HeaderPolicy) *Policy {
	c := &Policy{name: p.Name, timeout: p.HeaderTimeout}
	for _, r := range p.Rules {
		for _, from := range r.From {
			c.rules = append(c.rules, rule{unmapPrefix(from), r.Mode})
		}
	}
	slices.SortStableFunc(c.rules, func(a, b rule) int { return b.from.Bits() - a.from.Bits() })
	return c
}

// unmapPrefix turns a prefix of IPv4 addresses mapped into IPv6 into one of IPv4,
// as peers are never mapped.
func unmapPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

// mode decides for a peer: the longest prefix that holds it, or deny. Peers on
// Unix sockets have no address that a rule could name; who may open the socket
// is up to its file's mode, and a policy on such a listener means that a header
// is required.
func (p *Policy) mode(peer netip.Addr) config.HeaderMode {
	switch {
	case p == nil:
		return config.HeaderNone
	case !peer.IsValid():
		return config.HeaderRequire
	}
	peer = peer.Unmap().WithZone("") // no prefix holds an address with a zone
	for _, r := range p.rules {
		if r.from.Contains(peer) {
			return r.mode
		}
	}
	return config.HeaderDeny
}
