package pressure

import (
	"slices"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// kind is what an idle connection is, in the order in which they are ended:
// a client between two requests loses less than a tunnel does.
type kind int

const (
	client kind = iota
	tunnel
	numKinds
	other = -1
)

// least is for how long a connection of a kind has to have been idle: one that
// has only just become so is mostly about to be used again.
var least = [numKinds]time.Duration{client: time.Second, tunnel: 10 * time.Second}

// idle says what c is, and for how long it has had nothing to do; false: nobody
// said so, as with a client of HTTP/2 that was told to go.
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

// survey is what there is to be ended.
type survey struct {
	ages  [numKinds][]time.Duration
	going int // clients that were told or cut before and are still there
	young int // clients that only just became idle
}

func (v *survey) take(all Connections, now time.Time) {
	for k := range v.ages {
		v.ages[k] = v.ages[k][:0]
	}
	v.going, v.young = 0, 0
	all.Each(func(c *conn.Conn) {
		k, age, known := idle(c, now)
		switch {
		case k == other:
		case !known || c.WasCut():
			v.going++
		case age >= least[k]:
			v.ages[k] = append(v.ages[k], age)
		case k == client:
			v.young++
		}
	})
}

// shed sees to it that n connections end, those that were idle for longest.
// Those that are about to end count, and where clients will do that will soon
// have been idle for long enough, tunnels stay: but while it is urgent, for no
// longer than such a client takes.
func (w *Watch) shed(n int, urgent bool, now time.Time) (ended Ended) {
	v := &w.survey
	v.take(w.o.Connections, now)
	if !urgent || w.urgent.IsZero() {
		w.urgent = now
	}
	if now.Sub(w.urgent) >= leaveTime {
		w.urgent, v.going, v.young = now, 0, 0
	}
	n -= v.going
	for k := range numKinds {
		if k == tunnel {
			n = (n - v.young + 1) / 2 // each is two connections, or about that over HTTP/2
		}
		ages := v.ages[k]
		if m := min(n, len(ages)); m > 0 {
			slices.Sort(ages)
			ended.add(w.end(k, ages[len(ages)-m], m, now))
			n -= m
		}
	}
	return ended
}

// leaveTime is what a client of HTTP/2 that is told to go takes at most, or nearly.
const leaveTime = 4 * time.Second

// A connection that ends takes a goroutine for that, and over TLS memory: they
// are not all to end at once.
const (
	batch = 512
	pause = 10 * time.Millisecond
)

// end ends up to n connections of a kind that were idle for limit or longer.
func (w *Watch) end(k kind, limit time.Duration, n int, now time.Time) (ended Ended) {
	is := func(c *conn.Conn) bool {
		got, age, known := idle(c, now)
		return n > 0 && got == k && known && age >= limit && !c.WasCut()
	}
	if k == client {
		w.o.Leave(func(c *conn.Conn) bool {
			if !is(c) {
				return false
			}
			c.Unquiet() // it was told, and is not to be told or cut again
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

// endOne returns false where the connection is not idle after all.
func (w *Watch) endOne(k kind, c *conn.Conn) bool {
	if k == client {
		return w.o.EndIdle(c)
	}
	c.Cut()
	return true
}
