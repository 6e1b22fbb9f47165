package backend

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"net/netip"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/weirproxy/weir/config"
)

// view is what a pick looks at: the endpoints that are ready, as they were at
// one moment. It is never changed but for the counters of round robin.
type view struct {
	cfg        *config.Backend
	ready      []candidate
	total      int64 // of the weights
	equal      bool  // all weights are the same
	localReady int
	turn       *atomic.Uint64

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

func newView(cfg *config.Backend, use []*Endpoint, localReady int, turn *atomic.Uint64) *view {
	v := &view{cfg: cfg, ready: make([]candidate, len(use)), localReady: localReady, turn: turn, equal: true}
	for i, e := range use {
		w := int64(max(1, e.cfg.Weight))
		v.total += w
		v.ready[i] = candidate{e: e, weight: w, upTo: v.total, seed: e.seed}
		v.equal = v.equal && w == v.ready[0].weight
	}
	if !v.equal && cfg.Balance == config.RoundRobin {
		v.smooth = make([]int64, len(use))
	}
	return v
}

// pick chooses a ready endpoint, another than avoid where there is another; nil
// where none is ready. r is a random number.
func (v *view) pick(client netip.Addr, avoid *Endpoint, r uint64) *Endpoint {
	switch len(v.ready) {
	case 0:
		return nil
	case 1:
		return v.ready[0].e
	}
	switch {
	case v.cfg.Balance == config.RoundRobin:
		return v.roundRobin(avoid)
	case v.cfg.Balance == config.Hash && client.IsValid():
		return v.rendezvous(client, avoid)
	}
	return v.leastRequests(avoid, r)
}

// leastRequests draws two endpoints by weight and takes the one with less in
// flight for its weight. With nothing in flight the first stands, so that slow
// traffic is spread by weight too. Both are drawn by weight because an
// endpoint of small weight that is idle wins every comparison: it must not be
// drawn more often than its weight says.
func (v *view) leastRequests(avoid *Endpoint, r uint64) *Endpoint {
	i := v.draw(uint32(r))
	j := v.drawOther(i, r)
	if i == j && v.ready[i].e == avoid {
		j = (i + 1) % len(v.ready)
	}
	a, b := &v.ready[i], &v.ready[j]
	switch {
	case a.e == avoid:
		return b.e
	case b.e == avoid:
		return a.e
	case a.e.inFlight.Load()*b.weight <= b.e.inFlight.Load()*a.weight:
		return a.e
	}
	return b.e
}

// draw turns 32 random bits into an index, by weight.
func (v *view) draw(r uint32) int {
	if v.equal {
		return int(uint64(r) * uint64(len(v.ready)) >> 32)
	}
	at := int64(uint64(r) * uint64(v.total) >> 32)
	return sort.Search(len(v.ready), func(i int) bool { return v.ready[i].upTo > at })
}

// drawOther draws once more, another than i. Between unequal weights it gives
// up after the second try and returns i, or a light endpoint would be compared
// with a heavy one each time; see leastRequests.
func (v *view) drawOther(i int, r uint64) int {
	if v.equal {
		j := int((r >> 32) * uint64(len(v.ready)-1) >> 32)
		if j >= i {
			j++
		}
		return j
	}
	j := v.draw(uint32(r >> 32))
	if j == i {
		j = v.draw(uint32(mix(r)))
	}
	return j
}

// roundRobin takes the endpoints in turn, those of more weight more often and
// spread evenly.
func (v *view) roundRobin(avoid *Endpoint) *Endpoint {
	i := v.next()
	if v.ready[i].e == avoid {
		i = (i + 1) % len(v.ready)
	}
	return v.ready[i].e
}

func (v *view) next() int {
	if v.equal {
		return int((v.turn.Add(1) - 1) % uint64(len(v.ready)))
	}
	// Smooth weighting: everybody gains its weight, the richest goes and pays for all.
	v.smoothMu.Lock()
	defer v.smoothMu.Unlock()
	best := 0
	for i := range v.smooth {
		v.smooth[i] += v.ready[i].weight
		if v.smooth[i] > v.smooth[best] {
			best = i
		}
	}
	v.smooth[best] -= v.total
	return best
}

// rendezvous gives each endpoint a number from the client's address and its
// own, and takes the greatest. Where endpoints come and go only the clients of
// those move, and every weir gives a client the same endpoint.
func (v *view) rendezvous(client netip.Addr, avoid *Endpoint) *Endpoint {
	h := hashOf(client)
	var best *Endpoint
	var bestScore float64
	for i := range v.ready {
		c := &v.ready[i]
		if c.e == avoid {
			continue
		}
		score := float64(mix(h^c.seed)>>11+1) / (1 << 53) // in (0, 1]
		if !v.equal {
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
