package filter

import (
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/ratelimit"
)

// mostObjectKeys limits the keys of the limits of all Ingresses together, and so their memory to
// 24 MiB: authors of objects can create any number of limits.
const mostObjectKeys = 1 << 19

// objectLimits refuses requests beyond the limits of an Ingress (limit-rps and its family), as
// nginx does: the rates first, then the requests that are open.
type objectLimits struct {
	table    *ratelimit.Table  // of all Ingresses
	rates    []ratelimit.Count // without the client in their hashes
	slots    *slots            // of the Ingress
	open     int               // 0: no limit
	except   networks
	prefixes conn.Prefixes

	refuseRate, refuseOpen message.Refusal
}

func newObjectLimits(c *config.ObjectLimits, shared *SharedPlan) *objectLimits {
	f := &objectLimits{table: shared.objectRates, slots: shared.slots[objectSlots(c.Name)], open: c.InFlight, except: newNetworks(c.Except), prefixes: shared.prefixes,
		refuseRate: message.Refusal{Status: c.RateStatus, Reason: "rate_limited", Detail: "too many requests"},
		refuseOpen: message.Refusal{Status: c.OpenStatus, Reason: "in_flight", Detail: "too many requests at the same time"}}
	for _, r := range c.Rates {
		f.rates = append(f.rates, ratelimit.Count{Limit: ratelimit.Limit{Every: r.Every(), Burst: r.Burst + 1}, Hash: maphash.String(hashSeed, c.Name+"/"+r.Rate.String())})
	}
	return f
}

// objectSlots is the name of the slots of an Ingress. No route has it.
func objectSlots(name string) string { return objectSlotsOf + name }

const objectSlotsOf = "limits of "

// GuardName returns the key for metrics.
func (f *objectLimits) GuardName() string { return "rate_limit" }

// Answer counts the request, or refuses it.
func (f *objectLimits) Answer(x Exchange) bool {
	if refusal := f.count(x.Client().Addr(), x.Started(), x.State()); refusal != nil {
		x.Refuse(refusal)
		return true
	}
	return false
}

// GuardTunnel counts a connection, or refuses it.
func (f *objectLimits) GuardTunnel(client netip.AddrPort, s *State) *message.Refusal {
	return f.count(client.Addr(), time.Now(), s)
}

func (f *objectLimits) count(client netip.Addr, now time.Time, s *State) *message.Refusal {
	if f.except.contain(client) {
		return nil
	}
	var all [2]ratelimit.Count
	n := copy(all[:], f.rates)
	network := networkHash(client, f.prefixes)
	for i := range n {
		all[i].Hash = maphash.Comparable(hashSeed, [2]uint64{all[i].Hash, network})
	}
	if !f.table.AdmitAll(all[:n], now) {
		return &f.refuseRate
	}
	if f.open == 0 {
		return nil
	}
	slot := Slot{of: f.slots, client: true, network: conn.NetworkOf(client, f.prefixes)}
	if !slot.take(f.open) {
		return &f.refuseOpen
	}
	s.slot = slot
	return nil
}
