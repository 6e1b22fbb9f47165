package pressure

import (
	"cmp"
	"slices"

	"github.com/weirproxy/weir/listener/conn"
)

// maxNetworks limits the client networks that are counted separately, so that counting
// needs limited memory. A network that holds less than 1/maxNetworks of all never has to
// make room by itself, but the networks that contain it may have to.
const maxNetworks = 1024

// holdings are the amounts of a resource that the client networks hold, and the networks that contain them (see
// conn.Network.Levels): the total, and separate amounts for the largest networks. A network that holds more than a 1024th of
// the total is counted separately (the heavy hitters algorithm of Misra and Gries, with a
// second walk for exact counts).
type holdings struct {
	of     map[conn.Network]int64
	total  int64
	going  int64 // held by connections that were cut and are not closed yet; not in the other sums
	other  int64 // further amounts that weir shares out, see unheld
	least  int64 // the least share of the widest networks
	exact  bool  // every network is counted separately
	groups []group
	at     map[conn.Network]int // indexes of groups
}

// group is a network that is counted separately. The first group stands for all networks.
type group struct {
	network conn.Network
	held    int64
	inner   []int // the next smaller networks in it that are counted separately; the largest first
}

// add counts what one connection holds.
func (h *holdings) add(n conn.Network, held int64) {
	h.total += held
	levels, count := n.Levels()
	for _, level := range levels[:count] {
		h.addTo(level, held)
	}
}

func (h *holdings) addTo(n conn.Network, held int64) {
	if _, known := h.of[n]; known || len(h.of) < conn.MaxLevels*maxNetworks {
		h.of[n] += held
		return
	}
	h.exact = false
	least := held
	for _, v := range h.of {
		least = min(least, v)
	}
	for n, v := range h.of { // as in Misra and Gries, each network loses as much as the new one
		if v -= least; v > 0 {
			h.of[n] = v
		} else {
			delete(h.of, n)
		}
	}
	if held > least {
		h.of[n] = held - least
	}
}

// recount computes exact numbers for the networks that are counted separately.
func (h *holdings) recount(walk func(func(conn.Network, int64))) {
	for n := range h.of {
		h.of[n] = 0
	}
	walk(func(n conn.Network, held int64) {
		levels, count := n.Levels()
		for _, level := range levels[:count] {
			if v, known := h.of[level]; known {
				h.of[level] = v + held
			}
		}
	})
}

// take counts what walk reports. It calls walk again if one walk is not enough.
func (h *holdings) take(walk func(func(conn.Network, int64))) {
	if h.of == nil {
		h.of, h.at = make(map[conn.Network]int64), make(map[conn.Network]int)
	}
	clear(h.of)
	h.total, h.exact = 0, true
	walk(h.add)
	if !h.exact {
		h.recount(walk)
	}
	h.group()
}

// group makes groups of the networks.
func (h *holdings) group() {
	clear(h.at)
	h.groups = slices.Grow(h.groups[:0], len(h.of)+1)[:len(h.of)+1]
	h.groups[0] = group{held: h.total, inner: h.groups[0].inner[:0]}
	next := 1
	for n, held := range h.of {
		h.groups[next] = group{network: n, held: held, inner: h.groups[next].inner[:0]}
		h.at[n] = next
		next++
	}
	for i := range h.groups[1:] {
		outer := &h.groups[h.around(h.groups[i+1].network)]
		outer.inner = append(outer.inner, i+1)
	}
	for _, g := range h.groups {
		slices.SortFunc(g.inner, func(a, b int) int { return cmp.Compare(h.groups[b].held, h.groups[a].held) })
	}
}

// around returns the group of the smallest network that contains n and is counted separately.
func (h *holdings) around(n conn.Network) int {
	levels, count := n.Levels()
	for i := count - 2; i >= 0; i-- {
		if at, known := h.at[levels[i]]; known {
			return at
		}
	}
	return 0
}

// counted returns n if it is counted separately, or else the smallest network around it that is. If there is none, it
// returns n.
func (h *holdings) counted(n conn.Network) conn.Network {
	if _, known := h.at[n]; known {
		return n
	}
	if at := h.around(n); at > 0 {
		return h.groups[at].network
	}
	return n
}

// fairShares are the shares of the widest networks, and of the networks within others.
type fairShares struct {
	whole  int64
	within map[conn.Network]int64
}

// fair returns the share of each network if one more network comes, first among the widest networks, then within the share of
// each. Networks that hold less than the share keep their holdings, and all others get the same amount. Connections
// that were cut will be free soon, so their holdings are shared as well, and so is other.
func (h *holdings) fair(other int64) fairShares {
	f := fairShares{whole: max(h.least, h.fairIn(0, h.total+h.going+other)), within: make(map[conn.Network]int64)}
	h.fairWithin(0, f.whole, f.within)
	return f
}

func (h *holdings) fairWithin(at int, share int64, within map[conn.Network]int64) {
	for _, i := range h.groups[at].inner {
		n := h.groups[i].network
		within[n] = h.fairIn(i, share)
		h.fairWithin(i, within[n], within)
	}
}

// fairIn divides an amount among the networks of a group and one more.
func (h *holdings) fairIn(at int, amount int64) int64 {
	free := amount - h.groups[at].held
	share := free
	for k, i := range h.groups[at].inner {
		held := h.groups[i].held
		if held <= share {
			break
		}
		free += held
		share = free / int64(k+2)
	}
	return max(0, share)
}

// level returns how much each of the largest networks of a group may keep if their sum must become
// smaller by amount.
func (h *holdings) level(at int, amount int64) int64 {
	sum, level := int64(0), int64(0)
	for k, i := range h.groups[at].inner {
		held := h.groups[i].held
		if k > 0 && held <= level {
			break
		}
		sum += held
		level = (sum - amount) / int64(k+1)
	}
	return max(0, level)
}

// excess returns how much the largest networks have to give so that the total becomes smaller by amount: first the widest, and
// within them the largest. Every network keeps half of its fair share; with the zero fairShares, nothing. What a
// network with smaller networks in it gives is held by those that are not counted separately.
func (h *holdings) excess(amount int64, fair fairShares) map[conn.Network]int64 {
	over := make(map[conn.Network]int64)
	h.split(0, amount, fair.whole/2, fair, over)
	return over
}

func (h *holdings) split(at int, amount, least int64, fair fairShares, over map[conn.Network]int64) {
	g := &h.groups[at]
	rest := g.held
	for _, i := range g.inner {
		rest -= h.groups[i].held
	}
	level := max(least, h.level(at, amount))
	if rest > 0 {
		level = max(level, h.total/maxNetworks)
	}
	for _, i := range g.inner {
		one := &h.groups[i]
		gives := min(one.held-level, amount) // not more in all: level is rounded
		if gives <= 0 {
			break
		}
		amount -= gives
		if len(one.inner) == 0 {
			over[one.network] = gives
		} else {
			h.split(i, gives, fair.within[one.network]/2, fair, over)
		}
	}
	if rest = min(rest, amount); rest > 0 && at > 0 {
		over[g.network] = rest
	}
}

// alone returns true if there is only one network.
func (h *holdings) alone() bool {
	if !h.exact {
		return false
	}
	at := 0
	for len(h.groups[at].inner) > 0 {
		first := h.groups[at].inner[0]
		if h.groups[first].held < h.groups[at].held {
			return false
		}
		at = first
	}
	return true
}

// largest returns the largest of the widest networks, or the smallest network in it that holds most of what it holds.
func (h *holdings) largest() conn.Network {
	at := 0
	for _, i := range h.groups[0].inner {
		if h.groups[i].network.IsValid() {
			at = i
			break
		}
	}
	for len(h.groups[at].inner) > 0 {
		first := h.groups[at].inner[0]
		if at == 0 || 2*h.groups[first].held <= h.groups[at].held {
			break
		}
		at = first
	}
	return h.groups[at].network
}
