package listener

import (
	"net/netip"
	"slices"
	"time"

	"github.com/weirproxy/weir/config"
)

// Policy decides which peers have to, may or must not send a PROXY header. It never
// changes. With a nil Policy weir looks for no header.
type Policy struct {
	name    string
	timeout time.Duration
	rules   []rule // the longest prefix first
}

type rule struct {
	from  netip.Prefix
	mode  config.HeaderMode
	mixed bool // accept header.ErrMixedFamilies
}

// NewPolicy makes a Policy from its configuration.
func NewPolicy(p config.HeaderPolicy) *Policy {
	c := &Policy{name: p.Name, timeout: p.HeaderTimeout}
	for _, r := range p.Rules {
		for _, from := range r.From {
			c.rules = append(c.rules, rule{unmapPrefix(from), r.Mode, r.MixedFamilies})
		}
	}
	slices.SortStableFunc(c.rules, func(a, b rule) int { return b.from.Bits() - a.from.Bits() })
	return c
}

// unmapPrefix converts a prefix of IPv4 addresses that are mapped into IPv6 to a prefix
// of IPv4, because peer addresses are never mapped.
func unmapPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

// rule returns the rule for a peer: that of the longest prefix that contains it, or one that
// denies. Peers on Unix sockets have no address that a rule could name. The mode of the
// socket file decides which processes may connect, and a policy on such a listener means
// that a PROXY header is required.
func (p *Policy) rule(peer netip.Addr) rule {
	switch {
	case p == nil:
		return rule{mode: config.HeaderNone}
	case !peer.IsValid():
		return rule{mode: config.HeaderRequire}
	}
	peer = peer.Unmap().WithZone("") // no prefix contains an address with a zone
	for _, r := range p.rules {
		if r.from.Contains(peer) {
			return r
		}
	}
	return rule{mode: config.HeaderDeny}
}
