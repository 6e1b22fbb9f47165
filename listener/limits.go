package listener

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

// Limits limit the connections of all listeners together: all open connections, and the
// pending ones (PROXY header or handshake is not complete), in total and per client
// network; and the open and the new connections per client network. 0: no limit.
type Limits struct {
	maxConnections, maxPending, maxPerSource atomic.Int64

	prefixes atomic.Pointer[conn.Prefixes] // the size of a client network

	connections, pending atomic.Int64
	clients              clients
	gate                 *gate

	mu        sync.Mutex
	listeners map[*Listener]struct{} // the listeners that accept
	sources   map[conn.Network]int64 // numbers of pending connections; no value is 0
}

// NewLimits makes Limits from their configuration.
func NewLimits(c config.Limits) *Limits {
	l := &Limits{sources: make(map[conn.Network]int64), gate: newGate(), listeners: make(map[*Listener]struct{})}
	l.Set(c)
	readyQueues()
	return l
}

// Set changes the limits for later connections.
func (l *Limits) Set(c config.Limits) {
	l.maxConnections.Store(int64(c.MaxConnections))
	l.maxPending.Store(int64(c.Pending))
	l.maxPerSource.Store(int64(c.PendingPerSource))
	l.clients.set(c.Clients)
	l.prefixes.Store(&conn.Prefixes{IPv4: uint8(c.Clients.PrefixIPv4), IPv6: uint8(c.Clients.PrefixIPv6)})
}

// open counts a connection as open and pending, or returns the limit that is reached.
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

// network returns the client network of an address, with the current prefix lengths.
func (l *Limits) network(a netip.Addr) conn.Network { return conn.NetworkOf(a, *l.prefixes.Load()) }

// countSource counts a pending connection of key, unless key has reached its limit.
// Connections of Unix sockets have no address and are not counted.
func (l *Limits) countSource(key conn.Network) bool {
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

func (l *Limits) dropSource(key conn.Network) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.sources[key]; n > 1 {
		l.sources[key] = n - 1
	} else {
		delete(l.sources, key)
	}
}
