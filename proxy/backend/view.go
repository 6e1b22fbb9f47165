package backend

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/weirproxy/weir/config"
)

// view is what Acquire looks at: the endpoints that may be used, as they were
// at one moment, the best first. It is never changed.
type view struct {
	cfg        *config.Backend
	tiers      []*tier // none is empty
	better     int     // of the tiers: those whose endpoints are not about to go away
	ready      int     // endpoints in those
	localReady int     // of them on this node
}

// distance is how far from this weir an endpoint is, where that counts.
type distance uint8

const (
	sameNode distance = iota
	sameZone
	anywhere
	distances
)

// newView sorts the endpoints that may be used into tiers.
func newView(cfg *config.Backend, use []*Endpoint, turn *atomic.Uint64) *view {
	v := &view{cfg: cfg}
	for _, leaving := range []bool{false, true} {
		var near [distances][]*Endpoint
		for _, e := range use {
			if e.cfg.Terminating != leaving {
				continue
			}
			d := sameNode // as good as any other
			if cfg.PreferLocal {
				d = e.distance
			}
			near[d] = append(near[d], e)
			if !leaving {
				v.ready++
			}
		}
		for _, group := range near {
			if len(group) > 0 {
				v.tiers = append(v.tiers, newTier(cfg.Balance, group, turn))
			}
		}
		if !leaving {
			v.better = len(v.tiers)
		}
	}
	return v
}

// used are the tiers that a first attempt may go to: endpoints that are about to
// go away serve where there is nobody else.
func (v *view) used() []*tier {
	if v.better > 0 {
		return v.tiers[:v.better]
	}
	return v.tiers
}

// pick chooses an endpoint for a client, another than those that it tried
// before where there is another one; nil where there is none at all. r is a
// random number.
func (v *view) pick(client netip.Addr, tried []*Endpoint, r uint64) *Endpoint {
	if len(tried) > 0 {
		return v.another(client, tried, r)
	}
	for i := range v.better - 1 {
		if t := v.tiers[i]; t.withheld == 0 || !t.withholds(i, client, r) {
			return t.pick(client, r)
		}
	}
	if len(v.tiers) == 0 {
		return nil
	}
	return v.tiers[max(0, v.better-1)].pick(client, r)
}

// withholds reports whether an exchange is among those that a tier, the i-th, of
// endpoints that all ramp up leaves to the next one.
func (t *tier) withholds(i int, client netip.Addr, r uint64) bool {
	if t.balance == config.Hash && client.IsValid() {
		r = hashOf(client) // a client is moved once and for all
	}
	return mix(r+uint64(i+1)*0x9e3779b97f4a7c15)%whole < uint64(t.withheld)
}

// another chooses for an attempt after the first. Of those that are tried in
// vain many may be on one node or in one zone, so the next tier's turn comes
// before that of others in the same.
func (v *view) another(client netip.Addr, tried []*Endpoint, r uint64) *Endpoint {
	last := tried[len(tried)-1]
	order := [...][]*tier{v.tiers[:v.better], v.tiers[v.better:]}
	for _, tiers := range order {
		at := slices.IndexFunc(tiers, func(t *tier) bool { return t.has(last) })
		for i := range tiers {
			if e := tiers[(at+1+i)%len(tiers)].pickBut(tried, client, r); e != nil {
				return e
			}
		}
	}
	for _, t := range v.used() {
		if e := t.pickBut(tried[len(tried)-1:], client, r); e != nil {
			return e
		}
	}
	if len(v.tiers) == 0 {
		return nil
	}
	return v.tiers[0].pick(client, r)
}

func (t *tier) has(e *Endpoint) bool {
	return slices.ContainsFunc(t.members, func(c candidate) bool { return c.e == e })
}

// left reports whether there is an endpoint that is not in tried.
func (v *view) left(tried []*Endpoint) bool {
	return slices.ContainsFunc(v.tiers, func(t *tier) bool { return t.from(0, tried) != nil })
}
