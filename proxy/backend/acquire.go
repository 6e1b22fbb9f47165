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
	// ErrNoReady: no endpoint of the backend is ready. 503 at once.
	ErrNoReady = errors.New("no endpoint of the backend is ready")
	// ErrQueueFull: max_connections are in flight and queue.size wait already. 503.
	ErrQueueFull = errors.New("the backend has all of its max_connections in use, and its queue is full (queue.size)")
	// ErrQueueTimeout: the wait for one of max_connections took too long. 503.
	ErrQueueTimeout = errors.New("the backend has all of its max_connections in use, and none became free in time (queue.timeout)")
)

// Acquire picks a ready endpoint for a client, another than those that it tried
// in vain where there is another, the last of which was the last to be tried,
// and counts what is to come as in flight until the endpoint's Release. Where max_connections are in flight it waits its turn, for
// the queue's timeout and no longer than until deadline (zero: the timeout alone).
func (b *Backend) Acquire(client netip.Addr, tried []*Endpoint, deadline time.Time) (*Endpoint, error) {
	v := b.view.Load()
	if len(v.tiers) == 0 {
		return nil, ErrNoReady
	}
	if !b.queue.take() {
		err := b.queue.wait(v.cfg.Queue.Size, v.cfg.Queue.Timeout, deadline)
		if err == ErrQueueTimeout && deadline.IsZero() {
			err = conn.Explain(err, "backend %q had all of its max_connections (%d) in use, and none became free within %v (queue.timeout)",
				b.name, v.cfg.MaxConnections, v.cfg.Queue.Timeout)
		}
		if err != nil {
			return nil, err
		}
		v = b.view.Load()
	}
	e := v.pick(client, tried, rand.Uint64())
	if e == nil {
		b.queue.release()
		return nil, ErrNoReady
	}
	e.inFlight.Add(1)
	e.requests.Add(1)
	b.budget.attempts.Add(1)
	return e, nil
}

// queue counts what is in flight and lets the rest wait, first come first served.
type queue struct {
	taken   atomic.Int64
	limit   atomic.Int64 // 0: none
	waiting atomic.Int64

	mu      sync.Mutex
	waiters list.List // of chan struct{}, buffered; a value means: your turn
}

// take counts one more, unless that would be too many or others wait already.
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

// dispatch gives what is free to those who wait.
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

func (q *queue) wait(size int, timeout time.Duration, deadline time.Time) error {
	if !deadline.IsZero() {
		timeout = min(timeout, time.Until(deadline))
	}
	turn := make(chan struct{}, 1)
	q.mu.Lock()
	if q.waiters.Len() >= size {
		// A slot may have come free since take looked.
		free := q.waiters.Len() == 0 && q.takeBelow(q.limit.Load())
		q.mu.Unlock()
		if free {
			return nil
		}
		return ErrQueueFull
	}
	place := q.waiters.PushBack(turn)
	q.waiting.Add(1)
	q.dispatchLocked() // for one that was released before waiting was counted
	q.mu.Unlock()

	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-turn:
		return nil
	case <-timer.C:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-turn: // it came at the last moment
		return nil
	default:
		q.waiters.Remove(place)
		q.waiting.Add(-1)
		return ErrQueueTimeout
	}
}

// RetryReason says why an exchange was tried once more.
type RetryReason int

// The reasons for a retry.
const (
	// RetryConnect: the endpoint did not connect, or its handshake failed.
	RetryConnect RetryReason = iota
	// RetryClosed: a reused connection ended before any byte of the response.
	RetryClosed
	// RetryRefused: the endpoint did not act on the request (HTTP/2's
	// REFUSED_STREAM, or GOAWAY).
	RetryRefused
	numRetryReasons
)

func (r RetryReason) String() string { return [...]string{"connect", "closed", "refused"}[r] }

const (
	budgetWindow = 10 // seconds
	budgetFloor  = 10 // retries within the window that are always allowed
	budgetUnit   = 1 << 20
)

// budget bounds retries to a share of what was acquired within the window, so
// that retries cannot double the load of a backend that is down.
type budget struct {
	attempts atomic.Uint64 // all that was acquired, retries too
	share    atomic.Int64  // in 1/budgetUnit
	reasons  [numRetryReasons]atomic.Uint64

	mu      sync.Mutex
	retries uint64
	past    [budgetWindow]mark // what the counts were in each of the last seconds
	at      int
}

type mark struct{ attempts, retries uint64 }

func (t *budget) tick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.past[t.at] = mark{t.attempts.Load(), t.retries}
	t.at = (t.at + 1) % budgetWindow
}

// AllowRetry reports whether one more retry is within the budget, and spends it:
// retries may be Retries.Share of the exchanges of the last ten seconds, and
// ten beside. It is called before the Acquire of the retry.
func (b *Backend) AllowRetry() bool {
	t := &b.budget
	t.mu.Lock()
	defer t.mu.Unlock()
	from := t.past[t.at]
	retries := t.retries - from.retries
	exchanges := max(0, int64(t.attempts.Load()-from.attempts)-int64(retries))
	if int64(retries) >= budgetFloor+exchanges*t.share.Load()/budgetUnit {
		return false
	}
	t.retries++
	return true
}

const (
	// mostExcused bounds the endpoints that one exchange may find absent.
	mostExcused = 10
	// atOnce is how soon that has to be known. A machine that is off the network
	// is unreachable only after its neighbours asked for it, for seconds.
	atOnce = 500 * time.Millisecond
)

// AllowConnect reports whether another endpoint may be tried after those in tried,
// of which the last one's connection failed with err, after a time: nothing was
// sent to it. Where nobody was there at all and that was known at once, it cost
// nobody anything; and where there are endpoints left, it is neither one of the
// attempts nor one of the retries that are bounded: so a backend half of whose
// endpoints are gone loses nothing. excused counts those attempts; it belongs to
// the exchange and begins at 0.
func (b *Backend) AllowConnect(tried []*Endpoint, excused *int, err error, after time.Duration) bool {
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

// Another reports whether there is an endpoint that is not in tried.
func (b *Backend) Another(tried []*Endpoint) bool { return b.view.Load().left(tried) }

// Retried counts a retry in the metrics.
func (b *Backend) Retried(why RetryReason) { b.budget.reasons[why].Add(1) }
