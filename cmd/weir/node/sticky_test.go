package node

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"testing"

	"github.com/weirproxy/weir/tls/certs"
)

// keyStorage is a storage with one value.
type keyStorage struct {
	certs.KeyStorage
	mu       sync.Mutex
	locked   sync.Mutex
	together sync.WaitGroup // the first calls of Load of all replicas
	loads    int
	value    []byte
	failure  error
	stores   int
}

func (k *keyStorage) Load(_ context.Context, key string) ([]byte, error) {
	k.awaitOthers()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failure != nil {
		return nil, k.failure
	}
	if k.value == nil || key != stickyObject {
		return nil, fs.ErrNotExist
	}
	return k.value, nil
}

// awaitOthers makes the first calls return together, so that each of them finds nothing.
func (k *keyStorage) awaitOthers() {
	k.mu.Lock()
	k.loads++
	first := k.loads <= replicas
	k.mu.Unlock()
	if first {
		k.together.Done()
		k.together.Wait()
	}
}

func (k *keyStorage) Store(_ context.Context, _ string, value []byte) error {
	if k.locked.TryLock() {
		return errors.New("a key was stored without the lock")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stores++
	k.value = value
	return nil
}

func (k *keyStorage) Lock(context.Context, string) error   { k.locked.Lock(); return nil }
func (k *keyStorage) Unlock(context.Context, string) error { k.locked.Unlock(); return nil }

const replicas = 20

// Replicas that ask at the same moment get the same key.
func TestSharedStickyKey(t *testing.T) {
	k, keys := new(keyStorage), make(chan string, replicas)
	k.together.Add(replicas)
	for range cap(keys) {
		go func() {
			key, err := sharedStickyKey(t.Context(), k)
			if err != nil {
				t.Error(err)
			}
			keys <- key
		}()
	}
	first := <-keys
	for range cap(keys) - 1 {
		if key := <-keys; key != first || len(key) < 32 {
			t.Errorf("got %q and %q", first, key)
		}
	}
	if k.stores != 1 {
		t.Errorf("%d keys were stored", k.stores)
	}
	k.value = []byte("short")
	if _, err := sharedStickyKey(t.Context(), k); err == nil {
		t.Error("a damaged key was accepted")
	}
	k.failure = errors.New("down")
	if _, err := sharedStickyKey(t.Context(), k); !errors.Is(err, k.failure) || k.stores != 1 {
		t.Errorf("while the storage is down: %v, %d keys stored", err, k.stores)
	}
}
