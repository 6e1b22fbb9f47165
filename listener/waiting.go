package listener

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

func (l *Limits) listen(one *Listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listeners[one] = struct{}{}
}

func (l *Limits) unlisten(one *Listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.listeners, one)
}

// Waiting returns true if a connection in the kernel's queue is, or may be, of a client network for which entitled
// returns true. The kernel knows the peer. Behind a PROXY header the client is unknown, so any network is
// possible.
func (l *Limits) Waiting(entitled func(conn.Network) bool) bool {
	l.mu.Lock()
	all := slices.Collect(maps.Keys(l.listeners))
	l.mu.Unlock()
	waits := false
	known := accepting(func(local, peer netip.AddrPort) bool {
		waits = slices.ContainsFunc(all, func(one *Listener) bool {
			return one.owns(local) && one.mayBe(peer.Addr(), entitled)
		})
		return !waits
	})
	return waits || !known
}

// owns returns true if connections to this address come to the listener.
func (l *Listener) owns(local netip.AddrPort) bool {
	mine, err := netip.ParseAddrPort(l.ln.Addr().String())
	return err == nil && owns(mine, local)
}

// owns returns true if connections to local come to the socket that listens at mine.
func owns(mine, local netip.AddrPort) bool {
	return mine.Port() == local.Port() && (mine.Addr().IsUnspecified() || mine.Addr().Unmap().WithZone("") == local.Addr())
}

// mayBe returns true if a connection of peer may be of a client network for which entitled
// returns true.
func (l *Listener) mayBe(peer netip.Addr, entitled func(conn.Network) bool) bool {
	switch l.settings.Load().Policy.rule(peer).mode {
	case config.HeaderRequire, config.HeaderOptional:
		if *l.limits.prefixes.Load() == (conn.Prefixes{}) { // all clients of a family are one network
			return entitled(l.limits.network(netip.IPv4Unspecified())) || entitled(l.limits.network(netip.IPv6Unspecified()))
		}
		return true
	case config.HeaderNone, config.HeaderDiscard:
		return entitled(l.limits.network(peer))
	}
	return false
}
