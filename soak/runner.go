package soak

import (
	"context"
	"crypto/tls"
	"sync"
	"sync/atomic"
	"time"
)

// The phases of a run.
const (
	running  = iota
	stopping // requests may finish, everything else ends
	over     // everything ends
)

// grace is how long requests may take after the end of the load.
const grace = 5 * time.Second

// A runner holds the connections of one process to one target.
type runner struct {
	*plan
	*counts
	unit, units int64 // this runner has every units-th connection, and every units-th request of an open loop
	connections int   // the number of connections of this runner
	connectRate float64
	start       time.Time
	life        context.Context // ends when the phase is no longer running
	die         func()
	phase       atomic.Int32
	links       sync.WaitGroup
	queue       *queue // nil: a closed loop

	lock sync.Mutex
	live map[*link]struct{}

	tls  *tls.Config // nil: none
	head []byte      // the head of an HTTP/1 request
	body []byte
}

// newRunner makes the runner of one target in one of several processes.
func newRunner(p *plan, target, targets, part, parts int, start time.Time) *runner {
	r := &runner{
		plan: p, counts: newCounts(start, p.interval()),
		unit: int64(part*targets + target), units: int64(parts * targets),
		connections: portion(portion(p.Connections, target, targets), part, parts),
		connectRate: float64(p.ConnectRate) / float64(parts*targets),
		start:       start, live: map[*link]struct{}{}, tls: p.tlsConfig(),
	}
	r.life, r.die = context.WithCancel(context.Background())
	if p.Rate > 0 {
		r.queue = newQueue()
	}
	if p.Protocol == HTTP1 {
		r.head = r.requestHead()
	}
	r.body = make([]byte, p.Body)
	for i := range r.body {
		r.body[i] = 'a' + byte(i%26)
	}
	if p.Protocol == GRPC {
		r.body = emptyMessage
	}
	return r
}

func (r *runner) running() bool { return r.phase.Load() == running }

// run opens and holds connections until the time is over or ctx ends, and returns when the
// last connection has ended.
func (r *runner) run(ctx context.Context) *Snapshot {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var arriving sync.WaitGroup
	if r.queue == nil {
		defer time.AfterFunc(r.Duration, cancel).Stop()
	} else {
		arriving.Go(func() {
			r.arrive(ctx)
			cancel()
		})
	}
	r.open(ctx)
	elapsed := time.Since(r.start)
	arriving.Wait()
	r.finish()
	return r.whole(elapsed)
}

// arrive makes the requests of an open loop, and waits until all have ended.
func (r *runner) arrive(ctx context.Context) {
	expired := time.NewTicker(tick)
	defer expired.Stop()
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer close(done)
		t := timetable{r.start.Add(r.ramp()), r.Rate, r.unit, r.units, r.planned(), nap}
		if t.run(ctx, r.offer) {
			// A connection may become free within the timeout, and the response may take
			// another timeout.
			ctx, cancel := context.WithTimeout(ctx, 2*r.Timeout+grace)
			defer cancel()
			r.queue.empty(ctx)
		}
	}()
	for {
		select {
		case now := <-expired.C:
			r.expire(now)
		case <-done:
			return
		}
	}
}

func (r *runner) offer(a arrival) {
	r.due.Add(1)
	r.queue.offer(a)
}

// expire removes requests from the queue that no connection was free to send in time.
func (r *runner) expire(now time.Time) {
	if n := r.queue.expire(now.Add(-r.Timeout)); n > 0 {
		r.unsent(n, r.Timeout)
		r.queue.ended(n)
	}
}

// open opens connections at the rate until ctx ends, while there are fewer than wanted.
// After failures it does not open many at once.
func (r *runner) open(ctx context.Context) {
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	due, number, last := 1.0, int64(0), time.Now()
	for {
		for ; due >= 1 && r.alive() < r.connections; due-- {
			r.begin(r.unit + number*r.units)
			number++
		}
		due = min(due, 1+r.connectRate/20)
		select {
		case <-ctx.Done():
			return
		case now := <-pace.C:
			due += now.Sub(last).Seconds() * r.connectRate
			last = now
		}
	}
}

func (r *runner) alive() int {
	r.lock.Lock()
	defer r.lock.Unlock()
	return len(r.live)
}

func (r *runner) begin(number int64) {
	l := newLink(r, number)
	r.lock.Lock()
	r.live[l] = struct{}{}
	r.lock.Unlock()
	r.opened.Add(1)
	r.links.Go(func() {
		l.live()
		r.lock.Lock()
		delete(r.live, l)
		r.lock.Unlock()
	})
}

// finish ends all connections: idle connections at once, connections with requests within
// the grace period.
func (r *runner) finish() {
	gone := make(chan struct{})
	r.end(stopping)
	r.die()
	go func() {
		r.links.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return
	case <-time.After(min(grace, r.Timeout)):
	}
	r.end(over)
	<-gone
}

func (r *runner) end(phase int32) {
	r.phase.Store(phase)
	r.lock.Lock()
	all := make([]*link, 0, len(r.live))
	for l := range r.live {
		all = append(all, l)
	}
	r.lock.Unlock()
	for _, l := range all {
		l.hurry()
	}
}

// sleep waits for d. It returns false if the run has ended.
func (r *runner) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return r.running()
	case <-r.life.Done():
		return false
	}
}
