package pressure

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
)

// The step Cut is below the memory accounts. They know what each connection holds, and keep their sum to a part of
// the memory. If memory runs out nevertheless, the accounts do not know of something. Then weir ends what it can
// count without them.

// beyond returns true if the process takes more memory than it ever should, so that it may end before the next
// garbage collection shows how much of it is in use.
func (g *gauge) beyond() bool { return g.last.Peak >= peakBeyond }

// runsOut returns true if memory is short although more than half of it is unexplained, or if half of the reserve is
// used, whoever holds it.
func (g *gauge) runsOut() bool {
	r := g.last
	return r.Full > 0 && !r.Small && (r.ratio() >= g.Shed && g.unexplained >= r.Full/2 || r.Used >= r.Full+r.Reserve/2)
}

// freed is the share of Full that is in use after connections were cut. It leaves room for what comes until the
// next garbage collection.
const freed = 0.5

// Each exchange that ends needs a turn of the processor. If all ended at once, other clients would wait for all of
// these turns.
const (
	endedAtOnce = 1024 // exchanges
	endInterval = 50 * time.Millisecond
)

// tight returns true while nothing more may come in because of Cut, except from networks that hold little.
func (g *gauge) tight() bool {
	return !g.began[Cut].IsZero() && (g.beyond() || g.last.ratio() >= g.Calm)
}

// watched is how long connections with many exchanges go on if the next look is late: on a busy machine, memory may
// run out before it.
const watched = 150 * time.Millisecond

// allow decides whether connections with many exchanges may go on.
func (w *Watch) allow(g *gauge) {
	switch {
	case g.tight(), g.beyond():
		w.o.Allow(-1)
	case g.last.Peak >= peakSoon:
		w.o.Allow(watched)
	default:
		w.o.Allow(memory.NoRation)
	}
}

// cutBusiest ends connections until a resource is likely to be at the share freed of Full. Meanwhile it holds back
// all connections with many exchanges.
func (w *Watch) cutBusiest(now time.Time) {
	for _, g := range w.gauges {
		if !g.Ends {
			continue
		}
		if !g.tight() {
			g.toEnd, g.vain = 0, 0
			continue
		}
		h := w.holdings(g)
		w.beginSharing(g, now)
		r := g.last
		if g.toEnd <= 0 && !r.Stale && g.runsOut() && !g.inVain(now) {
			if g.vain++; r.Used < g.decidedUsed/16*15 {
				g.vain = 0
			}
			g.decidedAt, g.decidedUsed = now, r.Used
			g.each = r.Used / max(1, int64(w.o.Connections.Open()))
			g.toEnd = int64((1-freed*float64(r.Full)/float64(r.Used))*float64(h.total+h.going)) - h.going
		}
		most := min(g.toEnd, endedAtOnce)
		if r.Peak >= peakUrgent && h.going == 0 {
			most = max(g.toEnd, h.total/4)
		}
		if most > 0 && now.Sub(g.cutAt) >= endInterval {
			g.cutAt = now
			w.endMost(g, most)
		}
	}
}

// inVain returns true if the last three cuts freed hardly anything: something else than connections holds the memory. Then weir
// tries again after a while.
func (g *gauge) inVain(now time.Time) bool {
	return g.vain >= 3 && now.Sub(g.decidedAt) < calmTime && !g.beyond()
}

// endMost ends connections that run this many exchanges: first those that run more than a few, in the order of
// their exchanges and of the bytes that these have received; then those of the networks that hold most.
func (w *Watch) endMost(g *gauge, amount int64) {
	all := w.busiest[:0]
	w.o.Exchanges(func(c *conn.Conn, running int, received int64) {
		if running > memory.Few && !c.WasCut() {
			all = append(all, busiest{c, int64(running), received})
		}
	})
	slices.SortFunc(all, func(a, b busiest) int {
		return cmp.Or(cmp.Compare(b.running, a.running), cmp.Compare(b.received, a.received))
	})
	w.busiest = all
	n, left := 0, amount
	for ; n < len(all) && left > 0; n++ {
		all[n].conn.Cut()
		left -= all[n].running + 1
	}
	w.o.Metrics.count(Ended{Busy: n})
	if left > 0 {
		n += w.endBusy(g, w.holdings(g), left)
		left = 0
	}
	clear(all) // ended connections can be collected
	g.toEnd -= amount - left
	g.endedMost += n
}

// busiest is a connection that runs more than a few exchanges.
type busiest struct {
	conn              *conn.Conn
	running, received int64
}
