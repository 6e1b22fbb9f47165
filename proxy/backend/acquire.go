package backend

import (
	"container/list"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weirproxy/weir/listener/conn"
)

// The errors of Acquire.
var (
	// ErrNoReady: no endpoint of the backend is ready. weir answers 503 at once.
	ErrNoReady = errors.New("no endpoint of the backend is ready")
	// ErrQueueFull: max_connections are in flight, and queue.size already wait. weir answers 503.
	ErrQueueFull = errors.New("the backend has all of its max_connections in use, and its queue is full (queue.size)")
	// ErrQueueTimeout: the wait for one of max_connections took too long. weir answers 503.
	ErrQueueTimeout = errors.New("the backend has all of its max_connections in use, and none became free in time (queue.timeout)")
)

// Acquire picks a ready endpoint. balance: hash chooses it by key, which is the client's address or a
// hash in the form of an address. tried are the endpoints that failed for the exchange, in that order;
// Acquire avoids them if there is another endpoint. The exchange or tunnel counts as in flight until
// the endpoint's Release. If max_connections are in flight, Acquire waits for its turn: for the queue's
// timeout, but at most until deadline (zero: only the timeout applies). If by leaves meanwhile,
// Acquire returns the error of its Wait.
func (b *Backend) Acquire(key netip.Addr, tried []*Endpoint, deadline time.Time, by Requester) (*Endpoint, error) {
	return b.acquire(nil, key, tried, deadline, by)
}

// Requester needs an endpoint, for a request or a tunnel.
type Requester interface {
	// Wait waits for turn, but no longer than patience. It returns true if turn came, and an
	// error if the requester has left.
	Wait(turn <-chan struct{}, patience time.Duration) (came bool, gone error)
}

// acquire is Acquire for a client that brought a cookie of a sticky session, or nil.
func (b *Backend) acquire(cookie []byte, client netip.Addr, tried []*Endpoint, deadline time.Time, by Requester) (*Endpoint, error) {
	v := b.view.Load()
	if len(v.tiers) == 0 {
		return nil, ErrNoReady
	}
	if !b.queue.take() {
		err := b.queue.wait(v.cfg.Queue.Size, v.cfg.Queue.Timeout, deadline, by)
		if err == ErrQueueTimeout && deadline.IsZero() {
			err = conn.Explain(err, "backend %q had all of its max_connections (%d) in use, and none became free within %v (queue.timeout)",
				b.name, v.cfg.MaxConnections, v.cfg.Queue.Timeout)
		}
		if err != nil {
			return nil, err
		}
		v = b.view.Load()
	}
	e := v.sticky.find(cookie)
	if e == nil {
		e = v.pick(client, tried, rand.Uint64())
	}
	if e == nil {
		b.queue.release()
		return nil, ErrNoReady
	}
	e.inFlight.Add(1)
	e.requests.Add(1)
	b.budget.attempts.Add(1)
	b.wake()
	return e, nil
}

// queue counts the exchanges and tunnels in flight. The others wait in the order in which
// they arrived.
type queue struct {
	taken   atomic.Int64
	limit   atomic.Int64 // 0: no limit
	waiting atomic.Int64

	mu      sync.Mutex
	waiters list.List // of chan struct{}, buffered; a value gives the waiter its slot
}

// take takes a slot. It returns false if the limit is reached or others wait already.
func (q *queue) take() bool {
	limit := q.limit.Load()
	if limit == 0 {
		q.taken.Add(1)
		return true
	}
	return q.waiting.Load() == 0 && q.takeBelow(limit)
}

func (q *queue) takeBelow(limit int64) bool {
	for {
		n := q.taken.Load()
		if limit != 0 && n >= limit {
			return false
		}
		if q.taken.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (q *queue) release() {
	q.taken.Add(-1)
	if q.waiting.Load() > 0 {
		q.dispatch()
	}
}

// dispatch gives the free slots to the waiters.
func (q *queue) dispatch() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dispatchLocked()
}

func (q *queue) dispatchLocked() {
	for e := q.waiters.Front(); e != nil && q.takeBelow(q.limit.Load()); e = q.waiters.Front() {
		q.waiters.Remove(e)
		q.waiting.Add(-1)
		e.Value.(chan struct{}) <- struct{}{}
	}
}

func (q *queue) setLimit(n int) {
	q.limit.Store(int64(n))
	q.dispatch()
}

func (q *queue) wait(size int, timeout time.Duration, deadline time.Time, by Requester) error {
	if !deadline.IsZero() {
		timeout = min(timeout, time.Until(deadline))
	}
	turn := make(chan struct{}, 1)
	q.mu.Lock()
	if q.waiters.Len() >= size {
		// A slot may have become free after take looked.
		free := q.waiters.Len() == 0 && q.takeBelow(q.limit.Load())
		q.mu.Unlock()
		if free {
			return nil
		}
		return ErrQueueFull
	}
	place := q.waiters.PushBack(turn)
	q.waiting.Add(1)
	q.dispatchLocked() // a slot may have become free before waiting was increased
	q.mu.Unlock()

	came, gone := by.Wait(turn, timeout)
	if came {
		return nil
	}
	late := !q.leave(place) // the slot came at the last moment
	switch {
	case gone == nil && late:
		return nil
	case gone == nil:
		return ErrQueueTimeout
	case late:
		q.release()
	}
	return gone
}

// leave removes a waiter from the queue. It returns false if the waiter has a slot already.
func (q *queue) leave(place *list.Element) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-place.Value.(chan struct{}):
		return false
	default:
		q.waiters.Remove(place)
		q.waiting.Add(-1)
		return true
	}
}

// RetryReason is the reason why weir retried an exchange.
type RetryReason int

// The reasons for a retry.
const (
	// RetryConnect: the connection to the endpoint, or its handshake, failed.
	RetryConnect RetryReason = iota
	// RetryClosed: a reused connection ended before any byte of the response.
	RetryClosed
	// RetryRefused: the endpoint did not process the request (REFUSED_STREAM or GOAWAY of
	// HTTP/2).
	RetryRefused
	// RetryTimeout: the endpoint sent no response within the time that the route allows.
	RetryTimeout
	// RetryStatus: the endpoint answered with a status after which the route repeats requests.
	RetryStatus
	numRetryReasons
)

func (r RetryReason) String() string {
	return [...]string{"connect", "closed", "refused", "timeout", "status"}[r]
}

const (
	budgetWindow = 10 // seconds
	budgetFloor  = 10 // retries that are always allowed within the window
	budgetUnit   = 1 << 20
)

// budget limits retries to a share of the exchanges within the window. So retries cannot
// double the load of a backend whose endpoints all fail.
type budget struct {
	attempts atomic.Uint64 // successful calls of Acquire and AcquireAt, including retries
	share    atomic.Int64  // in 1/budgetUnit
	reasons  [numRetryReasons]atomic.Uint64

	mu      sync.Mutex
	retries uint64
	base    attemptCounts                // the counts at each of the last seconds, if past is nil
	past    *[budgetWindow]attemptCounts // the counts at each of the last seconds; nil: there was no attempt
	at      int
}

type attemptCounts struct{ attempts, retries uint64 }

func (t *budget) tick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	if t.past == nil {
		if now == t.base {
			return
		}
		t.past, t.at = new([budgetWindow]attemptCounts), 0
		for i := range t.past {
			t.past[i] = t.base
		}
	}
	t.past[t.at] = now
	t.at = (t.at + 1) % budgetWindow
	if t.past[t.at] == now { // the oldest counts, so all are equal
		t.base, t.past = now, nil
	}
}

// now returns the counts. The caller holds t.mu.
func (t *budget) now() attemptCounts { return attemptCounts{t.attempts.Load(), t.retries} }

// moves returns true if the counts have changed within the window.
func (t *budget) moves() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.past != nil || t.now() != t.base
}

// AllowRetry reports whether the budget allows one more retry, and takes it from the
// budget. Within ten seconds the budget allows ten retries, plus Retries.Share of the
// exchanges. The caller calls it before the Acquire of the retry.
func (b *Backend) AllowRetry() bool {
	t := &b.budget
	t.mu.Lock()
	defer t.mu.Unlock()
	from := t.base
	if t.past != nil {
		from = t.past[t.at]
	}
	retries := t.retries - from.retries
	exchanges := max(0, int64(t.attempts.Load()-from.attempts)-int64(retries))
	if int64(retries) >= budgetFloor+exchanges*t.share.Load()/budgetUnit {
		return false
	}
	t.retries++
	b.wake()
	return true
}

const (
	// mostExcused limits how many absent endpoints AllowConnect excuses for one exchange.
	mostExcused = 10
	// atOnce is the time within which a connect must fail to be excused. If a machine is
	// off the network, EHOSTUNREACH comes only after seconds of ARP or neighbor discovery.
	atOnce = 500 * time.Millisecond
)

// AllowConnect reports whether an exchange may try another endpoint after those in tried.
// The connection to the last one failed with err after the time after; weir sent no
// request to it.
//
// A failed attempt is excused if the endpoint is absent, the failure was known at once,
// and other endpoints are left: the attempt cost almost nothing. An excused attempt counts
// neither for Retries.Attempts nor for the retry budget. So a backend loses no requests
// when half of its endpoints are gone. An attempt that ended with ErrOtherFamily is excused, too,
// even if there are to be no retries: it only found the better address. excused counts the excused attempts; it belongs to
// the exchange and begins at 0.
func (b *Backend) AllowConnect(tried []*Endpoint, excused *int, err error, after time.Duration) bool {
	if errors.Is(err, ErrOtherFamily) && *excused < mostExcused && b.Another(tried) {
		*excused++
		return true
	}
	most := b.Settings().Retries.Attempts
	if most > 1 && *excused < mostExcused && absent(err) && after < atOnce && b.Another(tried) {
		*excused++
		return true
	}
	return len(tried)-*excused < most && b.AllowRetry()
}

// absent reports whether a connect failed because no process listens at the address, or
// the address cannot be reached.
func absent(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH)
}

// Another reports whether the backend has an endpoint that is not in tried.
func (b *Backend) Another(tried []*Endpoint) bool { return b.view.Load().left(tried) }

// Retried counts a retry in the metrics.
func (b *Backend) Retried(why RetryReason) { b.budget.reasons[why].Add(1) }
