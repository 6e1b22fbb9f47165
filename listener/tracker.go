package listener

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// shards divide the connections, so that a scrape of a hundred thousand connections does
// not delay new and ending ones.
const shards = 32

// Tracker knows every open connection of all listeners. The zero value is ready for use.
type Tracker struct {
	open     atomic.Int64
	former   atomic.Int64 // connections that other processes still have; SetFormer sets it
	next     atomic.Uint32
	draining atomic.Bool
	none     atomic.Pointer[chan struct{}] // gets a value when no connection is left, while draining
	arrivals arrivals
	shards   [shards]shard
}

// shard is a list of connections. A list in the connections themselves allocates nothing.
type shard struct {
	mu    sync.Mutex
	first *admission
}

// expect counts a connection as open before its goroutine runs, so that a drain waits for it.
func (t *Tracker) expect() { t.open.Add(1) }

// add puts a connection into the list. expect has counted it.
func (t *Tracker) add(a *admission) {
	s := &t.shards[t.next.Add(1)%shards]
	a.shard = s
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.next = s.first; a.next != nil {
		a.next.prev = a
	}
	s.first = a
}

func (t *Tracker) remove(a *admission) {
	a.shard.unlink(a)
	if t.open.Add(-1) == 0 {
		if none := t.none.Load(); none != nil {
			select {
			case *none <- struct{}{}:
			default:
			}
		}
	}
}

func (s *shard) unlink(a *admission) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.prev != nil {
		a.prev.next = a.next
	} else {
		s.first = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	}
	a.next, a.prev = nil, nil
}

// Open returns the number of open connections.
func (t *Tracker) Open() int { return int(t.open.Load()) }

// Each calls f with every open connection, and does not delay other connections. A
// connection may end while f uses it.
func (t *Tracker) Each(f func(*conn.Conn)) {
	var some []*conn.Conn
	for i := range t.shards {
		some = some[:0]
		t.shards[i].each(func(a *admission) { some = append(some, a.c) })
		for _, c := range some {
			f(c)
		}
	}
}

func (s *shard) each(f func(*admission)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := s.first; a != nil; a = a.next {
		f(a)
	}
}

// SetDraining records that the process ends, for the metric of the remaining connections.
func (t *Tracker) SetDraining() { t.draining.Store(true) }

// SetFormer records how many connections are still open in the old processes of upgrades, for the same
// metric.
func (t *Tracker) SetFormer(open int) { t.former.Store(int64(open)) }

// Draining reports whether SetDraining was called.
func (t *Tracker) Draining() bool { return t.draining.Load() }

// cutTime is how long a drain waits for the owners of connections that were cut.
const cutTime = 2 * time.Second

// Drain waits until no connection is open. When ctx ends, it cuts the remaining
// connections and waits a moment until their owners close them. It returns how many of
// them ran an exchange or a tunnel; idle and pending connections lose nothing. The caller
// must close the listeners first, and must not call Drain twice at the same time.
func (t *Tracker) Drain(ctx context.Context) (cut int) {
	none := make(chan struct{}, 1)
	t.none.Store(&none)
	t.SetDraining()
	defer t.none.Store(nil)
	if t.wait(ctx.Done(), none) {
		return 0
	}
	t.Each(func(c *conn.Conn) {
		if s := c.State(); s == conn.Active || s == conn.Tunnel {
			cut++
		}
		c.Cut()
	})
	grace, end := context.WithTimeout(context.Background(), cutTime)
	defer end()
	t.wait(grace.Done(), none)
	return cut
}

// wait returns true when no connection is open, or false if stop closes first.
func (t *Tracker) wait(stop <-chan struct{}, none <-chan struct{}) bool {
	for t.open.Load() > 0 {
		select {
		case <-none:
		case <-stop:
			return false
		}
	}
	return true
}
