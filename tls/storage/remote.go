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

// operationTimeout bounds all that one call asks of a storage over a network, with the dialling
// and a second attempt.
const operationTimeout = 5 * time.Second

// remote is what storages over a network have in common: bounded calls, locks.
type remote struct {
	name string // without a password
	who  string // does not answer, in messages
	log  *zap.Logger
	// do does something to a lock; false: another token has it, or none.
	do func(ctx context.Context, what deed, name, token string) (bool, error)

	// What the constants say, but in tests.
	timeout, lease, extend time.Duration

	mu     sync.Mutex
	leases map[string]*lease // by name of the lock
	closed bool
}

func newRemote(name, who string, log *zap.Logger) remote {
	return remote{name: name, who: who, log: log, leases: make(map[string]*lease), timeout: operationTimeout, lease: leaseTime, extend: extendEvery}
}

func (r *remote) String() string { return r.name }

// on runs one operation on a key under its deadline and makes a sentence of its
// error. root says that the storage itself may be meant, whose key is "".
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

// bounded calls f under the deadline of an operation. What f fails with because
// of ctx is told apart from what it fails with because of the storage.
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
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case limited.Err() != nil:
		return fmt.Errorf("%s did not answer within %s", r.who, r.timeout)
	}
	return err
}
