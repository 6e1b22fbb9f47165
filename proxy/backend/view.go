package backend

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/weirproxy/weir/config"
)

// view contains the endpoints that Acquire may use at one moment, in tiers, the best first.
// It never changes.
type view struct {
	cfg        *config.Backend
	tiers      []*tier // none is empty
	better     int     // number of tiers without terminating endpoints; they come first
	ready      int     // number of endpoints in these tiers
	localReady int     // see Backend.LocalReady
	sticky     *stickyTable
}

// distance is the distance of an endpoint from this node. It counts with PreferLocal.
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
	for _, terminating := range []bool{false, true} {
		var near [distances][]*Endpoint
		for _, e := range use {
			if e.cfg.Terminating != terminating {
				continue
			}
			d := sameNode // the same for all endpoints
			if cfg.PreferLocal {
				d = e.distance
			}
			near[d] = append(near[d], e)
			if !terminating {
				v.ready++
			}
		}
		for _, group := range near {
			if len(group) > 0 {
				v.tiers = append(v.tiers, newTierOf(cfg, group, turn))
			}
		}
		if !terminating {
			v.better = len(v.tiers)
		}
	}
	return v
}

// used returns the tiers for a first attempt. Terminating endpoints are used only if there
// are no others.
func (v *view) used() []*tier {
	if v.better > 0 {
		return v.tiers[:v.better]
	}
	return v.tiers
}

// pick chooses an endpoint for a client. It avoids the endpoints in tried if there is another
// one. It returns nil if there is no endpoint at all. r is a random number.
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

// withholds reports whether tier t, the i-th, leaves an exchange to the next tier. It does
// that for a part of the exchanges while all its endpoints are in their slow start.
func (t *tier) withholds(i int, client netip.Addr, r uint64) bool {
	if t.balance == config.Hash && client.IsValid() {
		r = hashOf(client) // each client moves only once
	}
	return mix(r+uint64(i+1)*0x9e3779b97f4a7c15)%whole < uint64(t.withheld)
}

// another chooses an endpoint for an attempt after the first. It begins with the tier after
// the one of the last attempt: the other endpoints of that tier are on the same node or in
// the same zone, and may have failed, too.
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

// left reports whether the view has an endpoint that is not in tried.
func (v *view) left(tried []*Endpoint) bool {
	return slices.ContainsFunc(v.tiers, func(t *tier) bool { return t.from(0, tried) != nil })
}
