package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// A lock in a storage over a network is something there that holds a random
// token and expires: a holder that died blocks the others for no longer than a
// lease. One that lives extends it often enough for some attempts to fail. A
// Redis that forgets (one without persistence that restarts, a replica that
// takes over before it was told) forgets locks, too: two may then have one for
// as long as an extension takes to find out. What certmagic does under a lock
// bears that.
const (
	leaseTime   = 20 * time.Second
	extendEvery = 4 * time.Second
)

// deed is what is done to a lock.
type deed int

const (
	// take makes the token the lock's, for as long as a lease, unless another
	// token has it. It may be repeated: an attempt whose answer got lost is not
	// in the way of the next.
	take deed = iota
	// extend makes the lock last for a lease from now if the token has it.
	extend
	// drop gives the lock back if the token has it.
	drop
)

// ask is do under the deadline of an operation.
func (r *remote) ask(ctx context.Context, what deed, name, token string) (ok bool, err error) {
	err = r.bounded(ctx, func(ctx context.Context) error {
		ok, err = r.do(ctx, what, name, token)
		return err
	})
	return ok, err
}

// lease is a lock that this process holds.
type lease struct {
	name, token string
	stop        context.CancelFunc
	done        chan struct{} // closed when nobody extends it any more
}

// Lock implements certmagic.Locker.
func (r *remote) Lock(ctx context.Context, name string) error {
	token := rand.Text() // one for all attempts
	err := await(ctx, func(ctx context.Context) (bool, error) { return r.tryLock(ctx, name, token) })
	if err != nil {
		return failed(r, "lock", name, err)
	}
	return nil
}

// TryLock implements certmagic.TryLocker.
func (r *remote) TryLock(ctx context.Context, name string) (bool, error) {
	got, err := r.tryLock(ctx, name, rand.Text())
	if err != nil {
		return false, failed(r, "lock", name, err)
	}
	return got, nil
}

func (r *remote) tryLock(ctx context.Context, name, token string) (bool, error) {
	got, err := r.ask(ctx, take, name, token)
	if err != nil {
		// The storage may have done it all the same.
		go r.ask(context.WithoutCancel(ctx), drop, name, token)
		return false, err
	}
	if !got {
		return false, nil
	}
	if r.hold(name, token, nil) {
		return true, nil
	}
	// Closed meanwhile; the lease ends by itself.
	return false, errClosed
}

// hold extends a lock until it is given back. With renewed it does so only if
// that lease is still the one.
func (r *remote) hold(name, token string, renewed *lease) bool {
	ctx, cancel := context.WithCancel(context.Background())
	l := &lease{name: name, token: token, stop: cancel, done: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.leases[name]
	if r.closed || renewed != nil && before != renewed {
		cancel()
		return false
	}
	if before != nil {
		before.stop() // it was lost, or another has it now
	}
	r.leases[name] = l
	go r.keep(ctx, l)
	return true
}

// keep extends a lease until ctx ends or the lease is lost.
func (r *remote) keep(ctx context.Context, l *lease) {
	defer close(l.done)
	ticker := time.NewTicker(r.extend)
	defer ticker.Stop()
	for until := time.Now().Add(r.lease); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		asked := time.Now()
		ok, err := r.ask(ctx, extend, l.name, l.token)
		switch {
		case ctx.Err() != nil:
			return
		case ok:
			until = asked.Add(r.lease)
			continue
		case err == nil:
			err = errors.New("another process holds it, or the storage lost it")
		case time.Now().Before(until):
			continue
		}
		r.log.Warn("a lock in the storage was lost; another process may do the same work at the same time",
			zap.String("storage", r.name), zap.String("lock", l.name), zap.Error(err))
		return
	}
}

// Unlock implements certmagic.Locker.
func (r *remote) Unlock(ctx context.Context, name string) error {
	r.mu.Lock()
	l := r.leases[name]
	delete(r.leases, name)
	r.mu.Unlock()
	if l == nil {
		return failed(r, "unlock", name, errors.New("it is not locked"))
	}
	if err := r.giveBack(context.WithoutCancel(ctx), l); err != nil { // also when the work under it was given up
		return failed(r, "unlock", name, err)
	}
	return nil
}

func (r *remote) giveBack(ctx context.Context, l *lease) error {
	l.stop()
	<-l.done
	ok, err := r.ask(ctx, drop, l.name, l.token)
	if err == nil && !ok {
		err = ErrLockLost
	}
	return err
}

// RenewLockLease implements certmagic.LockLeaseRenewer. Locks that are held are
// extended anyway, and only for as long as a dead process may block others, so
// how long it is wanted does not matter. A lock that was lost is taken again
// where it is free, so that what goes on for days gets over a storage that restarts.
func (r *remote) RenewLockLease(ctx context.Context, name string, _ time.Duration) error {
	r.mu.Lock()
	l := r.leases[name]
	r.mu.Unlock()
	if l == nil {
		return failed(r, "renew the lock", name, errors.New("it is not locked"))
	}
	ok, err := r.ask(ctx, take, name, l.token)
	if err == nil && !ok {
		err = fmt.Errorf("%w: another process holds it", ErrLockLost)
	}
	if err != nil {
		return failed(r, "renew the lock", name, err)
	}
	select {
	case <-l.done:
		r.hold(name, l.token, l)
	default:
	}
	return nil
}

// end gives back what is held. After it every operation fails.
func (r *remote) end() {
	r.mu.Lock()
	leases := r.leases
	r.leases = make(map[string]*lease)
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	for _, l := range leases {
		r.giveBack(ctx, l) // those that are not end with their lease
	}
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
}
