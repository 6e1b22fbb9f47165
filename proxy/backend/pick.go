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

// tier are endpoints that are as good as each other, as they were at one
// moment. It is never changed but for the counters of round robin.
type tier struct {
	balance  config.Balance
	members  []candidate
	total    int64 // of the weights
	equal    bool  // all weights are the same
	ramping  bool  // some weights grow with time
	withheld int   // percent of its share that every one of them does without for now, see Endpoint.withheld
	turn     *atomic.Uint64

	smoothMu sync.Mutex
	smooth   []int64 // round robin over unequal weights
}

// candidate is an endpoint with what a pick needs of it side by side in memory.
type candidate struct {
	e      *Endpoint
	weight int64
	upTo   int64 // weights up to and with this one
	seed   uint64
}

func newTier(balance config.Balance, use []*Endpoint, turn *atomic.Uint64) *tier {
	t := &tier{balance: balance, members: make([]candidate, len(use)), turn: turn, equal: true, withheld: whole}
	ramping := false
	for _, e := range use {
		t.withheld = min(t.withheld, e.withheld)
		ramping = ramping || e.withheld > 0
	}
	for i, e := range use {
		w := int64(max(1, e.cfg.Weight))
		if ramping {
			w *= int64(whole - e.withheld)
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

// inTurn reports whether endpoints are taken in turn. While some ramp up, weights
// change each second, and turns that begin anew as often would never come to the
// lightest.
func (t *tier) inTurn() bool { return t.balance == config.RoundRobin && !t.ramping }

// pick chooses an endpoint. r is a random number.
func (t *tier) pick(client netip.Addr, r uint64) *Endpoint {
	switch {
	case len(t.members) == 1:
		return t.members[0].e
	case t.inTurn():
		return t.members[t.next()].e
	case t.balance == config.Hash && client.IsValid():
		return t.rendezvous(client, nil)
	}
	return t.leastRequests(r)
}

// pickBut is pick among those that are not in tried; nil where all are.
func (t *tier) pickBut(tried []*Endpoint, client netip.Addr, r uint64) *Endpoint {
	switch {
	case t.inTurn():
		return t.from(t.next(), tried)
	case t.balance == config.Hash && client.IsValid():
		return t.rendezvous(client, tried)
	}
	return t.from(t.draw(uint32(r)), tried)
}

// from is the first endpoint from i on that is not in tried, nil where all are.
func (t *tier) from(i int, tried []*Endpoint) *Endpoint {
	for n := range t.members {
		if e := t.members[(i+n)%len(t.members)].e; !slices.Contains(tried, e) {
			return e
		}
	}
	return nil
}

// leastRequests draws two endpoints by weight and takes the one with less in
// flight for its weight. With nothing in flight the first stands, so that slow
// traffic is spread by weight too. Both are drawn by weight because an
// endpoint of small weight that is idle wins every comparison: it must not be
// drawn more often than its weight says.
func (t *tier) leastRequests(r uint64) *Endpoint {
	i := t.draw(uint32(r))
	a, b := &t.members[i], &t.members[t.drawOther(i, r)]
	if a.e.inFlight.Load()*b.weight <= b.e.inFlight.Load()*a.weight {
		return a.e
	}
	return b.e
}

// draw turns 32 random bits into an index, by weight.
func (t *tier) draw(r uint32) int {
	if t.equal {
		return int(uint64(r) * uint64(len(t.members)) >> 32)
	}
	at := int64(uint64(r) * uint64(t.total) >> 32)
	return sort.Search(len(t.members), func(i int) bool { return t.members[i].upTo > at })
}

// drawOther draws once more, another than i. Between unequal weights it gives
// up after the second try and returns i, or a light endpoint would be compared
// with a heavy one each time; see leastRequests.
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

// next takes the endpoints in turn, those of more weight more often and
// spread evenly.
func (t *tier) next() int {
	if t.equal {
		return int((t.turn.Add(1) - 1) % uint64(len(t.members)))
	}
	// Smooth weighting: everybody gains its weight, the richest goes and pays for all.
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

// rendezvous gives each endpoint a number from the client's address and its
// own, and takes the greatest. Where endpoints come and go only the clients of
// those move, and every weir gives a client the same endpoint.
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
			// Maximal u^(1/w): each wins with a probability in proportion to its weight.
			score = math.Log(score) / float64(c.weight)
		}
		if best == nil || score > bestScore {
			best, bestScore = c.e, score
		}
	}
	return best
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
