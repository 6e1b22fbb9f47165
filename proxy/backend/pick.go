package backend

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/weirproxy/weir/config"
)

// tier is a group of endpoints of equal preference at one moment. Only the counters of
// round robin change.
type tier struct {
	balance  config.Balance
	subset   int // the number of endpoints among which Hash chooses; 0: one
	members  []candidate
	total    int64 // of the weights
	equal    bool  // all weights are the same
	ramping  bool  // some endpoints are in their slow start: their weights grow
	withheld int   // the smallest Endpoint.withheld of the members, in percent
	turn     *atomic.Uint64

	smoothMu sync.Mutex
	smooth   []int64 // round robin over unequal weights
}

// candidate is an endpoint with the values for a pick, side by side in memory.
type candidate struct {
	e      *Endpoint
	weight int64
	upTo   int64 // the sum of the weights up to and including this one
	seed   uint64
}

func newTier(balance config.Balance, use []*Endpoint, turn *atomic.Uint64) *tier {
	t := &tier{balance: balance, members: make([]candidate, len(use)), turn: turn, equal: true, withheld: whole}
	ramping := false
	for _, e := range use {
		t.withheld = min(t.withheld, int(e.withheld))
		ramping = ramping || e.withheld > 0
	}
	for i, e := range use {
		w := int64(max(1, e.cfg.Weight))
		if ramping {
			w *= int64(whole - int64(e.withheld))
		}
		t.total += w
		t.members[i] = candidate{e: e, weight: w, upTo: t.total, seed: e.seed}
		t.equal = t.equal && w == t.members[0].weight
	}
	if t.ramping = ramping; !t.equal && !ramping && balance == config.RoundRobin {
		t.smooth = make([]int64, len(use))
	}
	return t
}

// inTurn reports whether pick takes the endpoints in turn. It does not during a slow start:
// weights change each second, the turns would begin again each time, and the endpoint with
// the least weight would never get its turn.
func (t *tier) inTurn() bool { return t.balance == config.RoundRobin && !t.ramping }

// pick chooses an endpoint. r is a random number.
func (t *tier) pick(client netip.Addr, r uint64) *Endpoint {
	switch {
	case len(t.members) == 1:
		return t.members[0].e
	case t.inTurn():
		return t.members[t.next()].e
	case t.balance == config.Hash && client.IsValid():
		if t.subset > 1 {
			return t.fromSubset(client, r)
		}
		return t.rendezvous(client, nil)
	}
	return t.leastRequests(r)
}

// pickBut is pick among the endpoints that are not in tried; nil if all are in tried.
func (t *tier) pickBut(tried []*Endpoint, client netip.Addr, r uint64) *Endpoint {
	switch {
	case t.inTurn():
		return t.from(t.next(), tried)
	case t.balance == config.Hash && client.IsValid():
		return t.rendezvous(client, tried)
	}
	return t.from(t.draw(uint32(r)), tried)
}

// from returns the first endpoint from index i on, wrapping around, that is not in tried;
// nil if all are in tried.
func (t *tier) from(i int, tried []*Endpoint) *Endpoint {
	for n := range t.members {
		if e := t.members[(i+n)%len(t.members)].e; !slices.Contains(tried, e) {
			return e
		}
	}
	return nil
}

// leastRequests draws two endpoints by weight, and returns the one with fewer exchanges in
// flight relative to its weight. If both have none in flight it returns the first one, so
// slow traffic is spread by weight, too. It draws both by weight because an idle endpoint
// of small weight wins every comparison: weight must limit how often it is drawn.
func (t *tier) leastRequests(r uint64) *Endpoint {
	i := t.draw(uint32(r))
	a, b := &t.members[i], &t.members[t.drawOther(i, r)]
	if a.e.inFlight.Load()*b.weight <= b.e.inFlight.Load()*a.weight {
		return a.e
	}
	return b.e
}

// draw turns 32 random bits into an index. Its probability is proportional to the weight.
func (t *tier) draw(r uint32) int {
	if t.equal {
		return int(uint64(r) * uint64(len(t.members)) >> 32)
	}
	at := int64(uint64(r) * uint64(t.total) >> 32)
	return sort.Search(len(t.members), func(i int) bool { return t.members[i].upTo > at })
}

// drawOther draws an index other than i. With unequal weights it tries twice, and may then
// return i. Otherwise weir would compare a light endpoint with a heavy one each time; see
// leastRequests.
func (t *tier) drawOther(i int, r uint64) int {
	if t.equal {
		j := int((r >> 32) * uint64(len(t.members)-1) >> 32)
		if j >= i {
			j++
		}
		return j
	}
	j := t.draw(uint32(r >> 32))
	if j == i {
		j = t.draw(uint32(mix(r)))
	}
	return j
}

// next takes the endpoints in turn. Endpoints of greater weight get more turns, spread
// evenly.
func (t *tier) next() int {
	if t.equal {
		return int((t.turn.Add(1) - 1) % uint64(len(t.members)))
	}
	// Smooth weighted round robin: each endpoint gains its weight. The endpoint with the
	// greatest sum gets the turn, and pays the total of the weights.
	t.smoothMu.Lock()
	defer t.smoothMu.Unlock()
	best := 0
	for i := range t.smooth {
		t.smooth[i] += t.members[i].weight
		if t.smooth[i] > t.smooth[best] {
			best = i
		}
	}
	t.smooth[best] -= t.total
	return best
}

// rendezvous hashes the client's address with the address of each endpoint, and returns the
// endpoint with the greatest score. If endpoints are added or removed, only the clients of
// these endpoints move. Every weir process picks the same endpoint for a client.
func (t *tier) rendezvous(client netip.Addr, tried []*Endpoint) *Endpoint {
	h := hashOf(client)
	var best *Endpoint
	var bestScore float64
	for i := range t.members {
		c := &t.members[i]
		if len(tried) > 0 && slices.Contains(tried, c.e) {
			continue
		}
		score := float64(mix(h^c.seed)>>11+1) / (1 << 53) // in (0, 1]
		if !t.equal {
			// The greatest u^(1/w) wins: so the probability is proportional to the weight.
			score = math.Log(score) / float64(c.weight)
		}
		if best == nil || score > bestScore {
			best, bestScore = c.e, score
		}
	}
	return best
}

// fromSubset returns one of the endpoints with the greatest scores. r is a random number.
func (t *tier) fromSubset(client netip.Addr, r uint64) *Endpoint {
	var buf [8]*Endpoint
	better := buf[:0]
	for range int(r % uint64(min(t.subset, len(t.members)))) {
		better = append(better, t.rendezvous(client, better))
	}
	return t.rendezvous(client, better)
}

func hashOf(a netip.Addr) uint64 {
	b := a.As16()
	return mix(binary.LittleEndian.Uint64(b[:8])) ^ mix(binary.LittleEndian.Uint64(b[8:])+0x9e3779b97f4a7c15)
}

func seedOf(address string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(address))
	return mix(h.Sum64())
}

// mix spreads the bits of x over all of the result (the finalizer of
// SplitMix64; Steele, Lea and Flood 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// newTierOf is newTier with the settings of a backend.
func newTierOf(cfg *config.Backend, use []*Endpoint, turn *atomic.Uint64) *tier {
	t := newTier(cfg.Balance, use, turn)
	t.subset = cfg.HashSubset
	return t
}
