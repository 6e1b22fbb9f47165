package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// A lock in a storage over a network is an object that holds a random token and expires.
// So a holder that died blocks others for one lease at most. A live holder extends the
// lease often enough that a few attempts may fail. A Redis can lose data: without
// persistence at a restart, or when a replica takes over that has not received the latest
// writes. Then it also loses locks. Two processes may then hold one lock until the next
// extension detects that. certmagic's work under a lock tolerates this.
const (
	leaseTime   = 20 * time.Second
	extendEvery = 4 * time.Second
)

// deed is an operation on a lock.
type deed int

const (
	// take gives the lock to the token for one lease, unless another token has it. The
	// caller may repeat it: an attempt whose answer was lost does not block the next
	// attempt.
	take deed = iota
	// extend extends the lock to one lease from now, if the token has it.
	extend
	// drop releases the lock, if the token has it.
	drop
)

// ask calls do with the time limit of one operation.
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
	done        chan struct{} // closed when keep has ended
}

// Lock implements certmagic.Locker.
func (r *remote) Lock(ctx context.Context, name string) error {
	token := rand.Text() // the same for all attempts
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
		// The storage may have taken the lock in spite of the error.
		go r.ask(context.WithoutCancel(ctx), drop, name, token)
		return false, err
	}
	if !got {
		return false, nil
	}
	if r.hold(name, token, nil) {
		return true, nil
	}
	// The storage was closed meanwhile; the lease expires by itself.
	return false, errClosed
}

// hold starts to extend a lock, until Unlock. If renewed is not nil, hold does so only
// while renewed is the current lease of the name.
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
		before.stop() // it was lost, or another holder has it now
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
	if err := r.giveBack(context.WithoutCancel(ctx), l); err != nil { // also if the caller's ctx was canceled
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

// RenewLockLease implements certmagic.LockLeaseRenewer. keep extends held locks anyway,
// and only so far that a dead process does not block others for long. So the requested
// duration does not matter. RenewLockLease takes a lost lock again if it is free, so that
// work of days survives a restart of the storage.
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

// end releases all locks. After it, every operation fails.
func (r *remote) end() {
	r.mu.Lock()
	leases := r.leases
	r.leases = make(map[string]*lease)
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	for _, l := range leases {
		r.giveBack(ctx, l) // a lock that cannot be released expires with its lease
	}
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
}
