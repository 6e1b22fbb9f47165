package filter

import (
	"slices"

	"github.com/weirproxy/weir/listener/conn"
)

// turns are the checks that wait, as a tree of their clients' networks (conn.Network.Levels): the widest networks
// take turns, and so do the networks inside each. So a client waits for one check of an attacker, however
// many addresses a network gives the attacker.
type turns struct {
	network conn.Network
	above   *turns
	waiting int      // checks
	row     []*turns // the networks inside that wait; the first one is next
	queue   []*turn  // of a client network
}

// A turn is the place of a check that waits.
type turn struct {
	come    chan struct{} // closed when the check may run, or was dropped
	dropped bool          // because the queue was full
	of      *turns
}

// add puts a check behind the others of its client network. It returns false if most of them wait already.
func (g *turns) add(t *turn, client conn.Network, most int) bool {
	levels, count := client.Levels()
	for _, n := range levels[:count] {
		i := slices.IndexFunc(g.row, func(in *turns) bool { return in.network == n })
		if i < 0 {
			i = len(g.row)
			g.row = append(g.row, &turns{network: n, above: g})
		}
		g = g.row[i]
	}
	if len(g.queue) >= most {
		return false
	}
	g.queue = append(g.queue, t)
	for t.of = g; g != nil; g = g.above {
		g.waiting++
	}
	return true
}

// remove takes a check out. It returns false if the check is not there.
func (g *turns) remove(t *turn) bool {
	at := t.of
	i := slices.Index(at.queue, t)
	if i < 0 {
		return false
	}
	at.queue = slices.Delete(at.queue, i, i+1)
	for ; at != g; at = at.above {
		if at.waiting--; at.waiting == 0 {
			i := slices.Index(at.above.row, at)
			at.above.row = slices.Delete(at.above.row, i, i+1)
		}
	}
	g.waiting--
	return true
}

// next returns the check whose turn it is. Its networks go to the end of their rows. There must be one.
func (g *turns) next() *turn {
	at := g
	for len(at.row) > 0 {
		first := at.row[0]
		at.row = append(at.row[1:], first)
		at = first
	}
	return at.queue[0]
}

// newestOfLargest returns the check that came last in the network with the most waiting checks. There
// must be one.
func (g *turns) newestOfLargest() *turn {
	for len(g.row) > 0 {
		largest := g.row[0]
		for _, in := range g.row {
			if in.waiting >= largest.waiting { // among equals the one that came last
				largest = in
			}
		}
		g = largest
	}
	return g.queue[len(g.queue)-1]
}
