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

// awaitTurn waits until an API server that is away may be tried again, or until another request was answered.
func (r *Retry) awaitTurn(ctx context.Context, answered <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-answered:
		sleep(ctx, rand.N(spread), nil)
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
		rest(ctx, r.failed(), answered)
	}
}

// rest waits after a number of failures, but not long after another request was answered.
func rest(ctx context.Context, failures int, answered <-chan struct{}) {
	longest := min(lastDelay, firstDelay<<min(failures, 10))
	if sleep(ctx, longest/2+rand.N(longest/2), answered) {
		sleep(ctx, rand.N(spread), nil)
	}
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

// attempts calls f until it succeeds. It returns the errors that client-go handles without a delay. optional: that
// includes every error that is an answer.
func attempts[T any](ctx context.Context, i *Informer, f func() (T, error), optional bool) (T, error) {
	for failures := 0; ; failures++ {
		answered := i.opts.Retry.next()
		result, err := f()
		away := api.IsAway(err)
		switch {
		case err == nil:
			i.opts.Retry.Answered()
			return result, nil
		case ctx.Err() != nil, relists(err), optional && !away:
			return result, err
		}
		i.opts.Trouble(err)
		if away {
			i.opts.Retry.awaitTurn(ctx, answered)
		} else {
			rest(ctx, failures, answered)
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
