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

// idle says what c is, and for how long it has had nothing to do.
func idle(c *conn.Conn, now time.Time) (kind, time.Duration) {
	k := kind(other)
	switch c.State() {
	case conn.Idle, conn.Pending:
		k = client
	case conn.Tunnel:
		k = tunnel
	}
	age, known := c.QuietFor(now)
	if k == other || !known || age < least[k] || c.WasCut() {
		return other, 0
	}
	return k, age
}

// shed ends n connections, those that were idle for longest.
func (w *Watch) shed(n int, now time.Time) (ended Ended) {
	w.survey(now)
	for k := range numKinds {
		ages := w.ages[k]
		if k == tunnel {
			n = (n + 1) / 2 // each is two connections
		}
		if m := min(n, len(ages)); m > 0 {
			slices.Sort(ages)
			ended.add(w.end(k, ages[len(ages)-m], m, now))
			n -= m
		}
	}
	return ended
}

// survey notes for how long connections were idle, by kind.
func (w *Watch) survey(now time.Time) {
	for k := range w.ages {
		w.ages[k] = w.ages[k][:0]
	}
	w.o.Connections.Each(func(c *conn.Conn) {
		if k, age := idle(c, now); k != other {
			w.ages[k] = append(w.ages[k], age)
		}
	})
}

// A connection that ends takes a goroutine for that, and over TLS memory: they
// are not all to end at once.
const (
	batch = 512
	pause = 10 * time.Millisecond
)

// end ends up to n connections of a kind that were idle for limit or longer.
func (w *Watch) end(k kind, limit time.Duration, n int, now time.Time) (ended Ended) {
	is := func(c *conn.Conn) bool {
		got, age := idle(c, now)
		return n > 0 && got == k && age >= limit
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
	w.o.Connections.Each(func(c *conn.Conn) {
		if !is(c) {
			return
		}
		c.Cut()
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
