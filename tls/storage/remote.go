package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"go.uber.org/zap"
)

// operationTimeout limits the time of one call to a storage over a network. It includes
// the dialling and a second attempt.
const operationTimeout = 5 * time.Second

// remote is the common part of storages over a network: time limits and locks.
type remote struct {
	name string // without a password
	who  string // subject of "did not answer" in errors
	log  *zap.Logger
	// do does an operation on a lock. It returns false if another token has the lock, or
	// none has it.
	do func(ctx context.Context, what deed, name, token string) (bool, error)

	// Equal to the constants, except in tests.
	timeout, lease, extend time.Duration

	mu     sync.Mutex
	leases map[string]*lease // by name of the lock
	closed bool
}

func newRemote(name, who string, log *zap.Logger) remote {
	return remote{name: name, who: who, log: log, leases: make(map[string]*lease), timeout: operationTimeout, lease: leaseTime, extend: extendEvery}
}

func (r *remote) String() string { return r.name }

// on runs one operation on a key with a time limit, and completes its error. root: the
// operation also accepts the storage itself, whose key is "".
func (r *remote) on(ctx context.Context, operation, key string, root bool, f func(ctx context.Context, key string) error) error {
	k, err := clean(key)
	if k == "." {
		if k = ""; !root {
			err = fs.ErrInvalid
		}
	}
	if err == nil {
		err = r.bounded(ctx, func(ctx context.Context) error { return f(ctx, k) })
	}
	if err != nil {
		return failed(r, operation, key, err)
	}
	return nil
}

// bounded calls f with the time limit of one operation. Its error shows whether ctx ended
// or the storage did not answer in time.
func (r *remote) bounded(ctx context.Context, f func(context.Context) error) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	closed := r.closed
	r.mu.Unlock()
	if closed {
		return errClosed
	}
	limited, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	err := f(limited)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if end, _ := limited.Deadline(); !time.Now().Before(end) {
		<-limited.Done() // f may be the first to notice: a socket has a timer of its own for the same time
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case limited.Err() != nil:
		return fmt.Errorf("%s did not answer within %s", r.who, r.timeout)
	}
	return err
}
