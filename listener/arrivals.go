package listener

import (
	"net/netip"
	"sync/atomic"
	"time"
)

// Arrivals says when new connections came during a drain. Load balancers go on to send them
// until they notice the drain.
type Arrivals struct {
	Since time.Time     // when the drain began; zero: there is none
	New   int           // the connections that were accepted since then
	Last  time.Duration // from Since to the last of them; 0: there was none
	From  netip.Addr    // who opened the last of them; zero: there was none, or it came by a Unix socket
}

// Quiet returns how long no connection has been accepted, since the last one or the beginning
// of the drain.
func (a Arrivals) Quiet() time.Duration { return time.Since(a.Since) - a.Last }

// arrivals counts new connections during a drain. Without a drain a connection costs one load.
type arrivals struct {
	since atomic.Pointer[time.Time] // nil: there is no drain
	count atomic.Int64
	last  atomic.Pointer[arrival]
}

// arrival is the last new connection.
type arrival struct {
	after time.Duration // since the beginning of the drain
	from  netip.Addr
}

func (a *arrivals) note(from netip.Addr) {
	if since := a.since.Load(); since != nil {
		a.count.Add(1)
		a.last.Store(&arrival{max(time.Since(*since), 1), from})
	}
}

// WatchArrivals begins to count the connections that are accepted during a drain. It continues
// to count if it does so already.
func (t *Tracker) WatchArrivals() {
	if t.arrivals.since.Load() == nil {
		t.arrivals.count.Store(0)
		t.arrivals.last.Store(new(arrival))
		t.arrivals.since.Store(new(time.Now()))
	}
}

// EndArrivals ends the count: the drain was taken back.
func (t *Tracker) EndArrivals() { t.arrivals.since.Store(nil) }

// Arrivals returns the connections that were accepted during the drain.
func (t *Tracker) Arrivals() Arrivals {
	since := t.arrivals.since.Load()
	if since == nil {
		return Arrivals{}
	}
	last := t.arrivals.last.Load()
	return Arrivals{*since, int(t.arrivals.count.Load()), last.after, last.from}
}
