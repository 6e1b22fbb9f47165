package memory

import (
	"cmp"
	"container/heap"
	"net/netip"
	"slices"
	"time"
)

const (
	// tidyInterval is the shortest time between two collections of unused grains from all
	// accounts.
	tidyInterval = 10 * time.Millisecond
	// checkInterval is the time between two checks during a shortage.
	checkInterval = 20 * time.Millisecond
	// few is the memory that a few exchanges take, in bytes. weir cuts a connection that
	// holds no more only if its network holds more than others.
	few = 4 * Exchange
	// loweredFor is the longest time that the account may need to get from a higher limit
	// to a lower one.
	loweredFor = 5 * time.Second
	// calmTime is how long there must be enough memory until a shortage is over.
	calmTime = 10 * time.Second
)

// tidy takes back the unused grains of all accounts. The caller holds the lock.
func (p *Process) tidy() {
	now := time.Now()
	if now.Sub(p.tidied) < tidyInterval {
		return
	}
	p.tidied = now
	for _, n := range p.networks {
		for a := n.first; a != nil; {
			next := a.next // takeBack may remove a from the list
			p.takeBack(a)
			a = next
		}
	}
}

// watch starts a goroutine that handles a shortage until it is over. The caller holds the lock.
func (p *Process) watch() {
	if p.watching {
		return
	}
	p.watching = true
	p.short.Store(true)
	go p.endLargest(p.allRefused(), p.Ended())
}

// endLargest cuts the largest holders until there is enough memory. It returns when there
// has been enough for calmTime.
//
// refused and ended are the counts from before the shortage.
func (p *Process) endLargest(refused, ended int64) {
	began := time.Now()
	e := Event{Begins: true, Limit: p.Limit()}
	e.Network, e.Holds, e.Used = p.largest()
	p.tell(e)
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for needed := began; ; {
		short := p.endSome()
		now := time.Now()
		if short {
			needed = now
		}
		if now.Sub(needed) >= calmTime && p.calmed() {
			p.tell(Event{Limit: p.Limit(), Used: p.Used(), Lasted: now.Sub(began), Refused: p.allRefused() - refused, Ended: p.Ended() - ended})
			return
		}
		select {
		case <-tick.C:
		case <-p.closed:
			p.mu.Lock()
			p.watching = false
			p.short.Store(false)
			p.mu.Unlock()
			return
		}
	}
}

func (p *Process) tell(e Event) {
	if p.Notify != nil {
		p.Notify(e)
	}
}

func (p *Process) allRefused() (n int64) {
	for i := range p.refused {
		n += p.refused[i].Load()
	}
	return n
}

// largest returns the network that holds most, how much it holds, and how much all
// networks hold: the largest of the widest networks, or the smallest network in it that holds most of that.
func (p *Process) largest() (key netip.Prefix, holds, all int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := &p.whole
	for {
		var inner *group
		for _, one := range p.wider {
			inner = g.largerIn(one, inner)
		}
		for _, one := range p.networks {
			inner = g.largerIn(&one.group, inner)
		}
		if inner == nil || g != &p.whole && 2*inner.granted <= g.granted {
			return g.key.Prefix(), g.granted, p.granted
		}
		g = inner
	}
}

// largerIn returns one if it is directly in g and holds more than other, else other.
func (g *group) largerIn(one, other *group) *group {
	if one.around == g && (other == nil || one.granted > other.granted) {
		return one
	}
	return other
}

// calmed ends the shortage, unless it has begun again.
func (p *Process) calmed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if limit := p.limit.Load(); limit > 0 && p.granted >= full(limit) {
		return false
	}
	p.watching = false
	p.short.Store(false)
	return true
}

// endSome cuts connections if the account is full, and returns whether it was full. It cuts
// the largest connection of the largest network, and so on, until there is room again.
func (p *Process) endSome() (needed bool) {
	p.mu.Lock()
	limit := p.limit.Load()
	if limit == 0 || p.granted < full(limit) {
		p.mu.Unlock()
		return false
	}
	p.tidy()
	var doomed []Holder
	if left := p.granted - p.doomed; left >= full(limit) {
		doomed = p.doom(left - calm(limit))
	}
	p.mu.Unlock()
	for _, h := range doomed {
		h.Cut()
	}
	p.ended.Add(int64(len(doomed)))
	return true
}

// doom chooses connections that hold this many bytes together: those that hold more than a
// few exchanges need, and all of a network that holds more than its share. If only many
// small connections are left, it chooses none of them. It begins with the widest network that holds most, and
// there with the smaller network that holds most. The caller holds the lock.
func (p *Process) doom(bytes int64) (holders []Holder) {
	whole := p.candidates()
	for bytes > 0 {
		a := whole.next()
		if a == nil {
			break
		}
		holds := a.granted.Load()
		a.doomed = true
		a.network.doomed += holds
		p.doomed += holds
		holders = append(holders, a.holder)
		bytes -= holds
	}
	return holders
}

// candidate is a network whose connections may be cut, or a network around such networks.
type candidate struct {
	holds    int64
	inner    candidates // a heap
	accounts []*Account // sorted; the largest is the last
	small    bool       // of these, only those are cut that hold more than a few exchanges need
}

// candidates makes the tree of all candidates, and returns its root.
func (p *Process) candidates() *candidate {
	limit, alone := p.limit.Load(), p.clientNetworks() <= 1
	of := map[*group]*candidate{&p.whole: {}}
	for _, n := range p.networks {
		c := &candidate{holds: n.granted - n.doomed}
		c.small = alone || c.holds <= n.share(limit)
		for a := n.first; a != nil; a = a.next {
			if !a.doomed && a.holder != nil {
				c.accounts = append(c.accounts, a)
			}
		}
		if len(c.accounts) == 0 {
			continue
		}
		slices.SortFunc(c.accounts, func(a, b *Account) int { return cmp.Compare(a.granted.Load(), b.granted.Load()) })
		holds, inner := c.holds, c
		for g := n.around; g != nil; g = g.around {
			outer := of[g]
			known := outer != nil
			if !known {
				outer = new(candidate)
				of[g] = outer
			}
			if outer.holds += holds; inner != nil {
				outer.inner = append(outer.inner, inner)
			}
			if inner = outer; known {
				inner = nil
			}
		}
	}
	for _, c := range of {
		heap.Init(&c.inner)
	}
	return of[&p.whole]
}

// next takes the next account out of c; nil: none may be cut.
func (c *candidate) next() (a *Account) {
	for len(c.inner) > 0 {
		if a = c.inner[0].next(); a != nil {
			heap.Fix(&c.inner, 0)
			break
		}
		heap.Pop(&c.inner)
	}
	if last := len(c.accounts) - 1; last >= 0 && (!c.small || c.accounts[last].granted.Load() > few) {
		a, c.accounts = c.accounts[last], c.accounts[:last]
	}
	if a != nil {
		c.holds -= a.granted.Load()
	}
	return a
}

// candidates is a heap with the largest network first.
type candidates []*candidate

func (c candidates) Len() int           { return len(c) }
func (c candidates) Less(i, j int) bool { return c[i].holds > c[j].holds }
func (c candidates) Swap(i, j int)      { c[i], c[j] = c[j], c[i] }
func (c *candidates) Push(x any)        { *c = append(*c, x.(*candidate)) }
func (c *candidates) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}
