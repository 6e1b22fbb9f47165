package informer

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config/kube/api"
)

const (
	// firstDelay and lastDelay are the longest times before the first and the last of many attempts. The shortest are
	// half as long, so that replicas do not try at the same time.
	firstDelay = 500 * time.Millisecond
	lastDelay  = 5 * time.Second
	// spread is the time over which waiting attempts begin after the API server has answered again.
	spread = time.Second
	// longestSuggested limits a delay that the API server suggests by Retry-After.
	longestSuggested = time.Minute
)

// Retry decides when to try again. While the API server is away, one attempt at a time tries; the others wait for its
// success. So hundreds of replicas send a few requests a second to an API server that starts.
type Retry struct {
	turn chan struct{} // held by the attempt that tries next

	mu       sync.Mutex
	failures int // since the last answer
	answered chan struct{}
}

// NewRetry makes a Retry.
func NewRetry() *Retry {
	return &Retry{turn: make(chan struct{}, 1), answered: make(chan struct{})}
}

// Answered wakes all attempts that wait. It is for each successful request to the API server.
func (r *Retry) Answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = 0
	close(r.answered)
	r.answered = make(chan struct{})
}

// next is closed by the next call of Answered.
func (r *Retry) next() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answered
}

// failed counts a failure, and returns how many there were before.
func (r *Retry) failed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures++
	return r.failures - 1
}

// await waits until a failed attempt may be repeated: in its turn, or after another request was answered. It reports
// whether the latter came first; woken is how often that was in vain before, because this attempt failed all the same.
func (r *Retry) await(ctx context.Context, answered <-chan struct{}, woken int) bool {
	select {
	case <-ctx.Done():
		return false
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
		if !sleep(ctx, delay(r.failed()), answered) {
			return false
		}
	case <-answered:
	}
	sleep(ctx, rand.N(spread<<min(woken, 2)), nil)
	return true
}

// delay is the delay after a number of failures.
func delay(failures int) time.Duration {
	longest := min(lastDelay, firstDelay<<min(failures, 10))
	return longest/2 + rand.N(longest/2)
}

// sleep waits for d or for sooner, and reports whether sooner came first.
func sleep(ctx context.Context, d time.Duration, sooner <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-sooner:
		return true
	}
	return false
}

// attempts calls f until it succeeds. It returns the errors that client-go handles without a delay, and a refusal after
// this many attempts.
func attempts[T any](ctx context.Context, i *Informer, most int, f func() (T, error)) (T, error) {
	for refusals, busy, woken := 0, 0, 0; ; {
		answered := i.opts.Retry.next()
		result, err := f()
		away := api.IsAway(err)
		if refusals++; away {
			refusals = 0
		}
		switch {
		case err == nil:
			i.opts.Retry.Answered()
			return result, nil
		case ctx.Err() != nil, relists(err), refusals >= most:
			return result, err
		}
		i.trouble(err)
		if seconds, told := apierrors.SuggestsClientDelay(err); told { // answers to other requests do not change this one
			d := max(delay(busy), min(time.Duration(seconds)*time.Second, longestSuggested))
			sleep(ctx, d+rand.N(d/2), nil)
			busy++
		} else if !away { // the same
			sleep(ctx, delay(refusals-1), nil)
		} else if i.opts.Retry.await(ctx, answered, woken) {
			woken++
		}
		if ctx.Err() != nil {
			return result, ctx.Err()
		}
	}
}

// relists reports whether client-go lists all objects after this error, because the API server does not have the
// resource version.
func relists(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}
