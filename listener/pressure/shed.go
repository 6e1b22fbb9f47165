package pressure

import (
	"slices"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// kind is the kind of an idle connection. weir closes kinds in this order, because a
// client between two requests loses less than a tunnel.
type kind int

const (
	client kind = iota
	tunnel
	numKinds
	other = -1
)

// least is how long a connection of a kind must have been idle. A connection that has
// just become idle is usually about to be used again.
var least = [numKinds]time.Duration{client: time.Second, tunnel: 10 * time.Second}

// idle returns the kind of c, and how long it has been idle. known is false if the owner
// did not record this, as for an HTTP/2 client that was told to go away.
func idle(c *conn.Conn, now time.Time) (k kind, age time.Duration, known bool) {
	switch c.State() {
	case conn.Idle:
		k = client
	case conn.Tunnel:
		k = tunnel
	default:
		return other, 0, false
	}
	age, known = c.QuietFor(now)
	return k, age, known
}

// survey lists the connections that weir may close.
type survey struct {
	ages  [numKinds][]time.Duration
	large [numKinds][]time.Duration // of networks that hold more than their share
	going int                       // clients that weir told to go away, or cut, and that are still open
	young int                       // clients that have just become idle
}

// over are the networks that hold more than their share, and h says which connections they are of.
func (v *survey) take(all Connections, h *holdings, over map[conn.Network]int64, now time.Time) {
	for k := range v.ages {
		v.ages[k], v.large[k] = v.ages[k][:0], v.large[k][:0]
	}
	v.going, v.young = 0, 0
	all.Each(func(c *conn.Conn) {
		k, age, known := idle(c, now)
		switch {
		case k == other:
		case !known || c.WasCut():
			v.going++
		case age >= least[k] && len(over) > 0 && over[h.counted(c.Network())] > 0:
			v.large[k] = append(v.large[k], age)
		case age >= least[k]:
			v.ages[k] = append(v.ages[k], age)
		case k == client:
			v.young++
		}
	})
}

// weir closes the idle connections of a network before older ones of other networks only
// if the network holds at least 1/large of everything.
const large = 64

// larger returns the networks that would hold more than their share if the number of
// connections fell by n, with the excess of each, and the sum of all.
func (w *Watch) larger(g *gauge, n int) (over map[conn.Network]int64, sum int) {
	h := w.holdings(g)
	if h.alone() || g.Holds != nil {
		return nil, 0
	}
	over = h.excess(int64(n), fairShares{})
	for network, more := range over {
		if levels, _ := network.Levels(); h.of[levels[0]] < h.total/large {
			delete(over, network)
		} else {
			sum += int(more)
		}
	}
	return over, sum
}

// shed closes n connections: first those of client networks that hold more than their
// share, then those of all. Each time it closes the connections that have been idle for
// longest. Connections that are about to close count towards n. Tunnels stay open if
// enough clients will soon have been idle for long enough. If the shortage is urgent,
// shed waits only as long as such a client needs.
func (w *Watch) shed(g *gauge, n int, now time.Time) (ended Ended) {
	v := &w.survey
	over, excess := w.larger(g, n)
	v.take(w.o.Connections, &w.held, over, now)
	if urgent := g.last.room() == 0; !urgent || w.urgent.IsZero() {
		w.urgent = now
	}
	if now.Sub(w.urgent) >= goAwayTime {
		w.urgent, v.going, v.young = now, 0, 0
	}
	n -= v.going
	excess = min(excess, n)
	for k := range numKinds {
		if k == tunnel {
			n = (n - v.young + 1) / 2 // a tunnel is two connections, or about that over HTTP/2
			excess = min(excess, n)
		}
		first := min(excess, len(v.large[k]))
		if first > 0 {
			ended.add(w.endOldest(k, v.large[k], first, over, now))
			excess -= first
			n -= first
		}
		rest := append(v.ages[k], v.large[k][:len(v.large[k])-max(0, first)]...)
		if m := min(n, len(rest)); m > 0 {
			ended.add(w.endOldest(k, rest, m, nil, now))
			n -= m
		}
		v.ages[k] = rest
	}
	return ended
}

// endOldest closes the m oldest connections of a kind, whose ages are given. It sorts the
// ages, so that those of the remaining connections come first.
func (w *Watch) endOldest(k kind, ages []time.Duration, m int, of map[conn.Network]int64, now time.Time) Ended {
	slices.Sort(ages)
	return w.end(k, ages[len(ages)-m], m, of, now)
}

// goAwayTime is about the longest time that an HTTP/2 client needs to go away.
const goAwayTime = 4 * time.Second

// A connection that ends needs a goroutine, and with TLS also memory. Therefore not all
// connections end at once: there is a pause after each batch.
const (
	batch = 512
	pause = 10 * time.Millisecond
)

// end closes up to n connections of a kind that were idle for limit or longer. If of is not
// nil, it closes only connections of these networks.
func (w *Watch) end(k kind, limit time.Duration, n int, of map[conn.Network]int64, now time.Time) (ended Ended) {
	is := func(c *conn.Conn) bool {
		got, age, known := idle(c, now)
		return n > 0 && got == k && known && age >= limit && !c.WasCut() && (of == nil || of[w.held.counted(c.Network())] > 0)
	}
	if k == client {
		w.o.GoAway(func(c *conn.Conn) bool {
			if !is(c) {
				return false
			}
			c.Unquiet() // it goes away, and must not be told or cut again
			ended.HTTP2++
			n--
			return true
		})
	}
	cut := 0
	if k == tunnel {
		w.o.CutTunnels(func(c *conn.Conn) bool {
			if !is(c) {
				return false
			}
			c.Unquiet() // until its tunnels have ended
			cut++
			n--
			return true
		})
	}
	w.o.Connections.Each(func(c *conn.Conn) {
		if !is(c) || !w.endOne(k, c) {
			return
		}
		n--
		if cut++; cut%batch == 0 {
			time.Sleep(pause)
		}
	})
	if k == tunnel {
		ended.Tunnels = cut
	} else {
		ended.HTTP1 = cut
	}
	return ended
}

// endOne returns false if the connection is no longer idle.
func (w *Watch) endOne(k kind, c *conn.Conn) bool {
	if k == client {
		return w.o.EndIdle(c)
	}
	c.Cut()
	return true
}
