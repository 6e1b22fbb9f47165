package soak

import (
	"context"
	"sync"
	"time"
)

// In an open loop, the times of all requests are fixed before the run. A slow target does
// not reduce the load: due requests wait for a connection, and their latency begins when
// they were due.

// An arrival is one request of an open loop.
type arrival struct{ due time.Time }

// A seat is a connection that waits for arrivals.
type seat struct {
	since   time.Time // when the connection became free
	waiting bool
	given   *arrival
	wake    func()
}

// A queue assigns arrivals to free connections. The arrival and the connection that have
// waited longest come first.
type queue struct {
	lock     sync.Mutex
	arrivals []arrival // empty if a connection is free
	seats    []*seat   // some may have left
	open     int64     // arrivals that have not ended
	changed  chan struct{}
}

func newQueue() *queue { return &queue{changed: make(chan struct{}, 1)} }

// offer adds an arrival that is due.
func (q *queue) offer(a arrival) {
	q.lock.Lock()
	defer q.lock.Unlock()
	q.open++
	if !q.give(a) {
		q.arrivals = append(q.arrivals, a)
	}
}

// back returns an arrival that the target did not process.
func (q *queue) back(a arrival) {
	q.lock.Lock()
	defer q.lock.Unlock()
	if !q.give(a) {
		q.arrivals = append([]arrival{a}, q.arrivals...)
	}
}

func (q *queue) give(a arrival) bool {
	for len(q.seats) > 0 {
		s := q.seats[0]
		q.seats = q.seats[1:]
		if s.waiting {
			s.waiting, s.given = false, &a
			s.wake()
			return true
		}
	}
	return false
}

// take returns a waiting arrival. If there is none, s waits for one.
func (q *queue) take(s *seat) (a arrival, ok bool) {
	q.lock.Lock()
	defer q.lock.Unlock()
	s.since = time.Now()
	if len(q.arrivals) > 0 {
		a = q.arrivals[0]
		q.arrivals = q.arrivals[1:]
		return a, true
	}
	s.waiting = true
	q.seats = append(q.seats, s)
	return a, false
}

// cancel ends the wait of a connection. It returns the arrival that the connection got
// meanwhile, if any.
func (q *queue) cancel(s *seat) (a arrival, ok bool) {
	q.lock.Lock()
	defer q.lock.Unlock()
	s.waiting = false // give skips it
	if s.given == nil {
		return a, false
	}
	a, s.given = *s.given, nil
	return a, true
}

// ended records that n arrivals have ended.
func (q *queue) ended(n int) {
	q.lock.Lock()
	defer q.lock.Unlock()
	q.open -= int64(n)
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// expire removes the arrivals that were due before t, and returns their number.
func (q *queue) expire(t time.Time) (n int) {
	q.lock.Lock()
	defer q.lock.Unlock()
	for n < len(q.arrivals) && q.arrivals[n].due.Before(t) {
		n++
	}
	q.arrivals = q.arrivals[n:]
	return n
}

// empty waits until all arrivals have ended, or ctx ends.
func (q *queue) empty(ctx context.Context) {
	for {
		q.lock.Lock()
		open := q.open
		q.lock.Unlock()
		if open <= 0 {
			return
		}
		select {
		case <-q.changed:
		case <-ctx.Done():
			return
		}
	}
}

// A timetable has the times of the requests of one runner: every step-th of all planned
// requests, beginning with first.
type timetable struct {
	start             time.Time // of request 0
	rate              Rate
	first, step, ends int64
	// nap sleeps for a short time more precisely than a timer; nil: timers are used.
	nap func(time.Duration)
}

// napLength is longer than the maximum delay of a timer in an idle process.
const napLength = 2 * time.Millisecond

// due returns the time of request i.
func (t *timetable) due(i int64) time.Time {
	return t.start.Add(time.Duration(float64(i) / float64(t.rate) * float64(time.Second)))
}

// run passes every request to offer when it is due, or as soon as this machine can. It
// returns false if it was stopped before the last one.
func (t *timetable) run(ctx context.Context, offer func(arrival)) bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := t.first; i < t.ends; i += t.step {
		due := t.due(i)
		if !t.sleep(ctx, timer, due) {
			return false
		}
		offer(arrival{due})
	}
	return true
}

// sleep waits until due. It returns false if the run has ended.
func (t *timetable) sleep(ctx context.Context, timer *time.Timer, due time.Time) bool {
	short := time.Duration(0)
	if t.nap != nil {
		short = napLength
	}
	if wait := time.Until(due) - short; wait > 0 {
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false
		}
	}
	if wait := time.Until(due); wait > 0 && t.nap != nil {
		t.nap(wait)
	}
	return ctx.Err() == nil
}

// lateLimit is how late this machine may begin requests. If more than one in a hundred is
// later, this machine could not keep up with the rate.
const lateLimit = 10 * time.Millisecond

// OpenLoop is the part of a report about an open loop.
type OpenLoop struct {
	Rate    float64 `json:"requests_per_second"` // the requested rate
	Planned int64   `json:"planned"`
	Due     int64   `json:"due"`    // requests that were due before the run ended
	Unsent  int64   `json:"unsent"` // no connection was free for them within the timeout
	// Waited is how long requests waited for a free connection. Behind is how late this
	// machine began them although a connection was free. Latencies include both.
	Waited Percentiles `json:"waited_for_connection"`
	Behind Percentiles `json:"generator_behind"`
	KeptUp bool        `json:"generator_kept_up"`
}

func newOpenLoop(o *Options, s *Snapshot, planned int64) *OpenLoop {
	if o.Rate == 0 {
		return nil
	}
	l := &OpenLoop{
		Planned: planned, Due: s.Due, Waited: s.Waited.Percentiles(), Behind: s.Behind.Percentiles(),
		Rate: float64(planned) / o.Duration.Seconds(),
	}
	if a := s.Anomalies[Unsent]; a != nil {
		l.Unsent = a.Count
	}
	l.KeptUp = l.Behind.P99 <= lateLimit.Seconds()
	return l
}
