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
	all map[netip.Addr]*LoadBalancer
}

// LoadBalancer is an address that asks for the verdict. A new process gets those of the old one.
type LoadBalancer struct {
	Address   netip.Addr `json:"address"`
	Last      time.Time  `json:"last"`      // when it asked
	Healthy   bool       `json:"healthy"`   // it got a healthy answer, so it may send connections
	Unhealthy int        `json:"unhealthy"` // unhealthy answers in a row
}

// current reports whether it still counts as a load balancer.
func (one *LoadBalancer) current(now time.Time) bool { return now.Sub(one.Last) <= askedWithin }

// note records an answer.
func (a *askers) note(peer netip.Addr, healthy bool) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.all[peer]
	if one == nil || !one.current(now) {
		one = &LoadBalancer{Address: peer}
		a.keep(one)
	}
	if one.Last = now; healthy {
		one.Healthy, one.Unhealthy = true, 0
	} else {
		one.Unhealthy++
	}
}

// keep remembers a load balancer, in the place of another one if there are too many.
func (a *askers) keep(one *LoadBalancer) {
	if a.all[one.Address] == nil && len(a.all) >= maxAskers {
		a.forget()
	}
	if a.all == nil {
		a.all = map[netip.Addr]*LoadBalancer{}
	}
	a.all[one.Address] = one
}

// adopt remembers the load balancers that have asked another process. Their answers were earlier than
// those of this one.
func (a *askers) adopt(all []LoadBalancer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range all {
		if own := a.all[one.Address]; own != nil {
			own.Healthy = own.Healthy || one.Healthy
		} else {
			a.keep(&one)
		}
	}
}

// list returns all load balancers, in the order of their addresses.
func (a *askers) list() (all []LoadBalancer) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range a.all {
		if one.current(now) {
			all = append(all, *one)
		}
	}
	slices.SortFunc(all, func(a, b LoadBalancer) int { return a.Address.Compare(b.Address) })
	return all
}

// forget removes the address that has not asked for longest.
func (a *askers) forget() {
	var oldest netip.Addr
	for peer, one := range a.all {
		if other := a.all[oldest]; other == nil || one.Last.Before(other.Last) {
			oldest = peer
		}
	}
	delete(a.all, oldest)
}

// untold returns the addresses that got a healthy answer and have not seen enough unhealthy ones since,
// in order. One answer is enough: the first check of a load balancer may be the only one before a drain.
func (a *askers) untold() (all []netip.Addr) {
	for _, one := range a.list() {
		if one.Healthy && one.Unhealthy < enoughAnswers {
			all = append(all, one.Address)
		}
	}
	return all
}

// UntoldLoadBalancers returns the addresses of the load balancers that have asked the port, and have not
// seen two unhealthy answers in a row since their last healthy one. The order is that of addresses.
func (p *Port) UntoldLoadBalancers() []netip.Addr { return p.askers.untold() }

// LoadBalancers returns the load balancers that have asked the port within two minutes, in the order of their addresses.
func (p *Port) LoadBalancers() []LoadBalancer { return p.askers.list() }

// AskedWithin reports whether anybody has sent a request to the port within this time, whatever its
// path, or to that of the process from which this one took over.
func (p *Port) AskedWithin(d time.Duration) bool {
	return time.Since(time.Unix(0, p.asked.Load())) <= d
}

// AdoptLoadBalancers records who has asked the port of a process from which this one takes over.
func (p *Port) AdoptLoadBalancers(all []LoadBalancer) {
	p.askers.adopt(all)
	for _, one := range all {
		p.asked.Store(max(p.asked.Load(), one.Last.UnixNano()))
	}
}
