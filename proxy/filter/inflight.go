package filter

import (
	"hash/maphash"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
)

// inFlight refuses requests and tunnels while too many others are open (in_flight of a route).
type inFlight struct {
	slots    *slots
	most     int
	client   bool // each client network counts on its own
	prefixes conn.Prefixes
	refusal  message.Refusal
}

func newInFlight(c *config.InFlight, s *slots, prefixes conn.Prefixes) *inFlight {
	return &inFlight{slots: s, most: c.Most, client: c.Per == config.PerClient, prefixes: prefixes,
		refusal: message.Refusal{Status: c.Status, Reason: "in_flight", Detail: "too many requests at the same time"}}
}

// GuardName returns the key of a route with this limit.
func (f *inFlight) GuardName() string { return "in_flight" }

// Answer takes a slot for the request, or refuses it.
func (f *inFlight) Answer(x Exchange) bool {
	if f.take(x.Client().Addr(), x.State()) {
		return false
	}
	x.Refuse(&f.refusal)
	return true
}

// GuardTunnel takes a slot for a tunnel, or refuses its connection.
func (f *inFlight) GuardTunnel(client netip.AddrPort, s *State) *message.Refusal {
	if f.take(client.Addr(), s) {
		return nil
	}
	return &f.refusal
}

func (f *inFlight) take(client netip.Addr, s *State) bool {
	slot := Slot{of: f.slots, client: f.client}
	if f.client {
		slot.network = conn.NetworkOf(client, f.prefixes)
	}
	if !slot.take(f.most) {
		return false
	}
	s.slot = slot
	return true
}

// slots counts what is open on a route. Reloads keep it while a route has the name. It has a key
// only for a client network with an open request or tunnel, so their number limits the keys.
type slots struct {
	all    atomic.Int64 // of routes that count all clients together
	shards [slotShards]slotShard
}

// slotShards is the number of parts of slots, so that cores rarely wait for each other.
const slotShards = 16

type slotShard struct {
	mu      sync.Mutex
	open    map[conn.Network]int
	largest int // number of networks since open was made
}

// manyNetworks is the size from which an empty map is dropped: a map never shrinks.
const manyNetworks = 1 << 10

// Slot is the place of one request or tunnel. The zero Slot is none.
type Slot struct {
	of      *slots
	network conn.Network
	client  bool // the slot is of the network; otherwise it is of the route
}

// take counts the slot, unless most slots are taken.
func (s *Slot) take(most int) bool {
	if !s.client {
		if s.of.all.Add(1) > int64(most) {
			s.of.all.Add(-1)
			return false
		}
		return true
	}
	shard := s.of.shard(s.network)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	n := shard.open[s.network]
	if n >= most {
		return false
	}
	if shard.open == nil {
		shard.open = make(map[conn.Network]int)
	}
	shard.open[s.network] = n + 1
	shard.largest = max(shard.largest, len(shard.open))
	return true
}

// Release gives the slot back. Further calls do nothing. s may be nil.
func (s *Slot) Release() {
	if s == nil || s.of == nil {
		return
	}
	of := s.of
	s.of = nil
	if !s.client {
		of.all.Add(-1)
		return
	}
	shard := of.shard(s.network)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if n := shard.open[s.network]; n > 1 {
		shard.open[s.network] = n - 1
		return
	}
	delete(shard.open, s.network)
	if len(shard.open) == 0 && shard.largest >= manyNetworks {
		shard.open, shard.largest = nil, 0
	}
}

// count returns the number of taken slots.
func (s *slots) count() int64 {
	n := s.all.Load()
	for i := range s.shards {
		shard := &s.shards[i]
		shard.mu.Lock()
		for _, taken := range shard.open {
			n += int64(taken)
		}
		shard.mu.Unlock()
	}
	return n
}

func (s *slots) shard(n conn.Network) *slotShard {
	return &s.shards[maphash.Comparable(hashSeed, n)%slotShards]
}
