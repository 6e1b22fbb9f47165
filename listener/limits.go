package listener

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/weirproxy/weir/config"
)

// Limits bound the connections of all listeners together: all that are open,
// and those that are pending (header or handshake is not through), in all and
// per source. A bound of 0 is none. An IPv4 source is an address, an IPv6
// source a /64, which is what one subscriber has.
type Limits struct {
	maxConnections, maxPending, maxPerSource atomic.Int64

	connections, pending atomic.Int64
	gate                 *gate

	mu      sync.Mutex
	sources map[netip.Addr]int64 // pending connections; never 0
}

// NewLimits makes Limits of their configuration.
func NewLimits(c config.Limits) *Limits {
	l := &Limits{sources: make(map[netip.Addr]int64), gate: newGate()}
	l.Set(c)
	return l
}

// Set changes the bounds for the connections to come.
func (l *Limits) Set(c config.Limits) {
	l.maxConnections.Store(int64(c.MaxConnections))
	l.maxPending.Store(int64(c.Pending))
	l.maxPerSource.Store(int64(c.PendingPerSource))
}

// open counts a connection as open and pending, or names the limit that is reached.
func (l *Limits) open() (Reason, bool) {
	if n, most := l.connections.Add(1), l.maxConnections.Load(); most > 0 && n > most {
		l.connections.Add(-1)
		return ReasonMaxConnectionsAll, false
	}
	if n, most := l.pending.Add(1), l.maxPending.Load(); most > 0 && n > most {
		l.pending.Add(-1)
		l.connections.Add(-1)
		return ReasonPending, false
	}
	return 0, true
}

func sourceKey(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if a.Is6() {
		p, _ := a.Prefix(64)
		return p.Addr()
	}
	return a
}

// countSource counts a pending connection of key, unless key has as many as it
// may. Unix sockets have no address and are not counted.
func (l *Limits) countSource(key netip.Addr) bool {
	if !key.IsValid() {
		return true
	}
	most := l.maxPerSource.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.sources[key]
	if most > 0 && n >= most {
		return false
	}
	l.sources[key] = n + 1
	return true
}

func (l *Limits) dropSource(key netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.sources[key]; n > 1 {
		l.sources[key] = n - 1
	} else {
		delete(l.sources, key)
	}
}
