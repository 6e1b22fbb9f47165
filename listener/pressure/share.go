package pressure

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// shares decides which new connections may come in although there is no room. The
// networks that hold most lose connections for them. Listeners call May; the Watch calls
// set and frees the room.
type shares struct {
	mu      sync.Mutex
	on      bool
	each    int64      // the amount that a new connection will hold
	fair    fairShares // of the last look
	of      map[conn.Network]int64
	owed    int64 // the amount for accepted connections, before weir freed it
	refused int   // new connections since the last takeRefused
	news    chan struct{}
}

// entitled returns true if a new connection of n is let in: with it, n or a network that contains n holds at most half
// of its fair share. With the whole share, networks of about the same size would close each
// other's connections in turn.
func (s *shares) entitled(n conn.Network) bool {
	share := s.fair.whole
	levels, count := n.Levels()
	for _, level := range levels[:count] {
		if 2*(s.of[level]+s.each) <= share {
			return true
		}
		if within, known := s.fair.within[level]; known {
			share = within
		}
	}
	return false
}

// leastShare is the least fair share of memory, in the unit of held. If all connections together hold little, they are
// not why memory is short, or it is not free yet.
const leastShare = 64

// May decides about a new connection.
func (s *shares) May(n conn.Network) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.on:
		return true
	case !s.entitled(n):
		s.refused++
		return false
	}
	levels, count := n.Levels()
	for _, level := range levels[:count] {
		s.of[level] += s.each
	}
	s.owed += s.each
	select {
	case s.news <- struct{}{}:
	default:
	}
	return true
}

// set replaces the holdings, and returns the amount owed since the last call.
func (s *shares) set(on bool, h *holdings, each int64) (owed int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	owed, s.owed = s.owed, 0
	s.on, s.each = on, each
	if on {
		s.fair = h.fair(h.other)
		s.of = maps.Clone(h.of)
	} else {
		s.fair, s.of = fairShares{}, nil
	}
	return owed
}

// takeRefused returns the number of refused connections since the last call.
func (s *shares) takeRefused() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, s.refused = s.refused, 0
	return n
}

// held returns how much of g's resource a connection holds, or will hold. In descriptors:
// its own, and one for an endpoint if the connection is not idle.
func (g *gauge) held(c *conn.Conn) int64 {
	switch {
	case g.Holds != nil:
		return g.Holds(c)
	case c.State() == conn.Idle:
		return 1
	}
	return 2
}

// newcomer returns the amount that a new connection takes, in the unit of held.
func (g *gauge) newcomer() int64 {
	if g.Holds != nil {
		return max(1, g.last.Each)
	}
	return 2
}

// holdings counts how much of g's resource the client networks hold.
func (w *Watch) holdings(g *gauge) *holdings {
	began, h := time.Now(), &w.held
	h.take(func(add func(conn.Network, int64)) {
		h.going = 0
		count := func(c *conn.Conn, held int64) {
			if c.WasCut() {
				h.going += held
			} else {
				add(c.Network(), held)
			}
		}
		w.o.Connections.Each(func(c *conn.Conn) { count(c, g.held(c)) })
		w.further(g, count)
	})
	h.other, h.least = g.unheld(h.total+h.going), 0
	if g.Ends && h.total+h.going < 4*leastShare {
		h.least = leastShare
	}
	w.walk = max(w.walk, time.Since(began))
	return h
}

// unheld returns the part of the resource that no connection holds, but that weir shares
// out, too. After client connections close, their connections to endpoints may stay open
// for a moment and belong to no client. At least half of all descriptors is for clients.
func (g *gauge) unheld(held int64) int64 {
	if g.Holds != nil || !g.Bounds {
		return 0
	}
	return max(0, g.last.Full/2-held)
}

// further calls f for the HTTP/2 connections with more than one exchange, with the
// descriptors that the additional exchanges hold.
func (w *Watch) further(g *gauge, f func(*conn.Conn, int64)) {
	if g.Holds != nil || w.o.Exchanges == nil {
		return
	}
	w.o.Exchanges(func(c *conn.Conn, running int, _ int64) {
		if running > 1 {
			f(c, int64(running-1))
		}
	})
}

// patience is how long new connections must wait without interruption before weir refuses
// new connections of the largest networks, and closes open ones, to make room for others.
const patience = 400 * time.Millisecond

// crowd records since when new connections have waited at every look.
func (w *Watch) crowd(now time.Time) {
	if w.o.Gate.Left() >= 0 {
		w.crowdedSince = time.Time{}
	} else if w.crowdedSince.IsZero() {
		w.crowdedSince = now
	}
}

// share decides whether weir shares out the resource that has no room among client
// networks, and closes connections to make room for those that were let in. short is the
// resource; nil: there is room.
func (w *Watch) share(short *gauge, now time.Time) {
	g := w.sharing
	if g == nil {
		g = short
	}
	if g == nil || w.sharing == nil && (w.crowdedSince.IsZero() || now.Sub(w.crowdedSince) < patience) {
		return
	}
	h := w.holdings(g)
	if short != nil && !w.crowdedSince.IsZero() && g.began[Cut].IsZero() && w.othersWait(h, g, now) { // in Cut, weir has no time to ask
		w.beginSharing(g, now)
	}
	on := !g.began[Share].IsZero()
	owed := w.shares.set(on, h, g.newcomer())
	if !on {
		w.sharing = nil
		w.o.Gate.Share(0, nil)
		return
	}
	g.refused += w.shares.takeRefused()
	g.endedBusy += w.endBusy(g, h, owed)
	w.o.Gate.Share(g.places(), w.shares.May)
}

// othersWait returns true if an entitled connection waits to be accepted, as far as weir
// can know. The check takes long if there are very many sockets.
func (w *Watch) othersWait(h *holdings, g *gauge, now time.Time) bool {
	if w.o.Waiting == nil {
		return true
	}
	if now.Before(w.askAgain) {
		return w.others
	}
	began := time.Now()
	// Without h.other: if endpoints hold most, weir does not limit a single network.
	s := shares{of: h.of, fair: h.fair(0), each: g.newcomer()}
	w.others = w.o.Waiting(s.entitled)
	w.askAgain = now.Add(min(max(patience/4, 10*time.Since(began)), interval/2))
	return w.others
}

func (w *Watch) beginSharing(g *gauge, now time.Time) {
	w.sharing, g.needed[Share] = g, now
	if g.began[Share].IsZero() {
		g.began[Share], g.refused, g.endedBusy = now, 0, 0
		w.tell(g, Event{Step: Share, Begins: true, Largest: w.held.largest()})
	}
}

// places returns how many new connections may be open that were not judged yet, or that
// have no room yet. They use a part of the reserve.
func (g *gauge) places() int64 {
	return min(256, max(1, g.last.Reserve/max(1, 2*g.last.Each)))
}

// overrun returns how much must be freed so that admitted connections do not use up the
// reserve. Their exchanges may grow, for example with HTTP/2 streams.
func (g *gauge) overrun() int64 {
	r := g.last
	if !g.Bounds || r.Full <= 0 || r.Used <= r.Full+r.Reserve/4*3 {
		return 0
	}
	return r.Used + g.expected - (r.Full + r.Reserve/2)
}

// curb closes connections of the largest networks if the reserve is nearly used up. If
// there is only one network, curb acts only while a connection of another network waits.
func (w *Watch) curb(now time.Time) {
	for _, g := range w.gauges {
		over := g.overrun()
		if over == 0 {
			continue
		}
		if h := w.holdings(g); over > h.going && (!h.alone() || w.othersWait(h, g, now)) {
			w.beginSharing(g, now)
			g.endedBusy += w.endBusy(g, h, over-h.going)
		}
	}
}

// endBusy closes connections that are not idle, until the largest networks hold less by
// amount. Idle connections were closed before, see shed.
//
// Within a network, it closes the newest connections first. They have done least so far,
// and clients that used the network before it grew so large keep their connections. Speed
// does not matter: a slow client need not be hostile, and a hostile client could simply
// be faster.
//
// A network loses nothing if it holds no more than a new connection may (see entitled).
// The amount may be more than the largest networks hold, because connections to endpoints
// stay open longer than those of their clients.
func (w *Watch) endBusy(g *gauge, h *holdings, amount int64) (n int) {
	if amount <= 0 {
		return 0
	}
	over := h.excess(amount, h.fair(h.other))
	running := make(map[*conn.Conn]int64) // of HTTP/2 connections
	w.further(g, func(c *conn.Conn, more int64) {
		if over[h.counted(c.Network())] > 0 {
			running[c] = more
		}
	})
	found := make(map[conn.Network]*newest)
	w.o.Connections.Each(func(c *conn.Conn) {
		n := h.counted(c.Network())
		if most := over[n]; most > 0 && c.State() != conn.Idle && !c.WasCut() {
			all := found[n]
			if all == nil {
				all = new(newest)
				found[n] = all
			}
			all.add(busyConn{c, g.held(c) + running[c]}, int(most))
		}
	})
	ended := Ended{}
	for n, all := range found {
		for _, one := range *all {
			if over[n] <= 0 {
				break
			}
			one.conn.Cut()
			over[n] -= one.held
			if ended.Busy++; ended.Busy%batch == 0 {
				time.Sleep(pause)
			}
		}
	}
	w.o.Metrics.count(ended)
	return ended.Busy
}

// busyConn is a connection that weir may close, and the amount that it holds.
type busyConn struct {
	conn *conn.Conn
	held int64
}

// newest keeps the newest of all added connections, sorted from the newest to the oldest.
type newest []busyConn

func (n *newest) add(c busyConn, most int) {
	at, _ := slices.BinarySearchFunc(*n, c, func(a, b busyConn) int { return b.conn.Accepted.Compare(a.conn.Accepted) })
	if at >= most {
		return
	}
	if len(*n) >= most {
		*n = (*n)[:most-1]
	}
	*n = slices.Insert(*n, at, c)
}
