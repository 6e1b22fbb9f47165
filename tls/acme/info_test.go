package acme

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
)

// failingStorage fails all reads after the first Lock.
type failingStorage struct {
	Storage
	locked atomic.Bool
	failed chan struct{} // has room for one element
}

func (s *failingStorage) Lock(ctx context.Context, name string) error {
	s.locked.Store(true)
	return s.Storage.Lock(ctx, name)
}

func (s *failingStorage) Load(ctx context.Context, key string) ([]byte, error) {
	if !s.locked.Load() {
		return s.Storage.Load(ctx, key)
	}
	select {
	case s.failed <- struct{}{}:
	default:
	}
	return nil, errors.New("the storage is gone")
}

// If the storage fails while weir fetches renewal information, the served certificate
// stays.
func TestStorageIsLostWhileInformationIsAskedFor(t *testing.T) {
	c := entryFor(t.TempDir(), "app.example.org")
	plant(t, c, "app.example.org", 24*time.Hour)
	s := &failingStorage{failed: make(chan struct{}, 1)}
	h := newHarness(t, func(path string) (Storage, error) {
		s.Storage = directory{&certmagic.FileStorage{Path: path}}
		return s, nil
	})
	e := h.use(c)[0]
	h.expect(Found, "app.example.org")
	select {
	case <-s.failed:
	case <-time.After(patience):
		t.Fatal("nobody took the lock and read")
	}
	h.Close() // waits for the keepers
	if e.Certificate("app.example.org") == nil {
		t.Error("the certificate is no longer served")
	}
}
