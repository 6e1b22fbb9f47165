package health

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// enoughAnswers is how many unhealthy answers a load balancer has to see before it may
	// be expected to send no new connections. Most need two.
	enoughAnswers = 2
	// askedWithin is how long ago the last check of a load balancer may be. Their intervals
	// are shorter than a minute.
	askedWithin = 2 * time.Minute
	// maxAskers limits the addresses that are remembered. Beyond it the one that has not
	// asked for longest is forgotten.
	maxAskers = 256
)

// askers remembers who asks for the verdict, and how often each was told that the node is
// unhealthy.
type askers struct {
	mu  sync.Mutex
	all map[netip.Addr]*loadBalancer
}

type loadBalancer struct {
	first, last time.Time
	unhealthy   int // answers in a row
}

// note records an answer.
func (a *askers) note(peer netip.Addr, healthy bool) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.all[peer]
	if one == nil || now.Sub(one.last) > askedWithin {
		if one == nil && len(a.all) >= maxAskers {
			a.forget()
		}
		if a.all == nil {
			a.all = map[netip.Addr]*loadBalancer{}
		}
		one = &loadBalancer{first: now}
		a.all[peer] = one
	}
	if one.last = now; healthy {
		one.unhealthy = 0
	} else {
		one.unhealthy++
	}
}

// forget removes the address that has not asked for longest.
func (a *askers) forget() {
	var oldest netip.Addr
	for peer, one := range a.all {
		if other := a.all[oldest]; other == nil || one.last.Before(other.last) {
			oldest = peer
		}
	}
	delete(a.all, oldest)
}

// untold returns the addresses that ask again and again and have not seen enough unhealthy answers,
// in order. An address that asked once is probably a person.
func (a *askers) untold() (all []netip.Addr) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for peer, one := range a.all {
		repeats, current := one.first != one.last, now.Sub(one.last) <= askedWithin
		if repeats && current && one.unhealthy < enoughAnswers {
			all = append(all, peer)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// UntoldLoadBalancers returns the addresses of the load balancers that ask the port, and have not
// seen two unhealthy answers in a row since their last healthy one. The order is that of addresses.
func (p *Port) UntoldLoadBalancers() []netip.Addr { return p.askers.untold() }
