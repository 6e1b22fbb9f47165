package certs

import (
	"context"
	"io/fs"
	"path"
	"sync"
)

// fakeStorage is a KeyStorage in memory that can fail.
type fakeStorage struct {
	lock chan struct{}

	mu      sync.Mutex
	objects map[string][]byte
	down    error
	hang    chan struct{} // until it is closed, no call returns, even after its context ends
	loads   int
}

func newFakeStorage() *fakeStorage {
	return &fakeStorage{lock: make(chan struct{}, 1), objects: make(map[string][]byte)}
}

func (f *fakeStorage) set(down error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

func (f *fakeStorage) put(key, value string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects[key] = []byte(value)
}

func (f *fakeStorage) do(g func() error) error {
	if f.hang != nil {
		<-f.hang
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down != nil {
		return f.down
	}
	return g()
}

func (f *fakeStorage) Load(_ context.Context, key string) (value []byte, err error) {
	err = f.do(func() error {
		f.loads++
		if value = f.objects[key]; value == nil {
			return fs.ErrNotExist
		}
		return nil
	})
	return value, err
}

func (f *fakeStorage) Store(_ context.Context, key string, value []byte) error {
	return f.do(func() error { f.objects[key] = value; return nil })
}

func (f *fakeStorage) Delete(_ context.Context, key string) error {
	return f.do(func() error { delete(f.objects, key); return nil })
}

func (f *fakeStorage) List(_ context.Context, folder string, _ bool) (keys []string, err error) {
	err = f.do(func() error {
		for k := range f.objects {
			if path.Dir(k) == folder {
				keys = append(keys, k)
			}
		}
		return nil
	})
	return keys, err
}

func (f *fakeStorage) Lock(ctx context.Context, _ string) error {
	if err := f.do(func() error { return nil }); err != nil {
		return err
	}
	select {
	case f.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fakeStorage) Unlock(context.Context, string) error { <-f.lock; return nil }
