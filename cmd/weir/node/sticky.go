package node

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/tls/certs"
)

// stickyKeys brings the backends the key for the cookies of sticky sessions: from the storage, so
// that all replicas have the same, or one of the process if there is no storage.
type stickyKeys struct {
	own string // the key of the process
	// shared is the key from a storage. A new process begins with the key of the former process, and asks the storage
	// again. So sessions survive an upgrade while the storage is down.
	shared string
	from   *lateStorage       // the storage that the key is from, or will be; nil: none
	stop   context.CancelFunc // ends the requests to the storage
	done   chan struct{}      // closed when the key has come from the storage
}

const (
	stickyObject     = "sticky/key" // in the storage
	stickyRetryFirst = time.Second
	stickyRetryMost  = time.Minute
)

func hasSticky(cfg *config.Config) bool {
	for _, b := range cfg.Backends {
		if b.Sticky != nil && b.Sticky.Key == "" {
			return true
		}
	}
	return false
}

// shareStickyKey sets the key that a configuration requires. It does not wait for the storage:
// until the key has come, there are no sticky sessions. The caller holds change.
func (s *server) shareStickyKey(cfg *config.Config) {
	k := &s.sticky
	switch from := s.shared.storage; {
	case !hasSticky(cfg):
		return
	case from == nil:
		k.end()
		if k.own == "" {
			k.own = newStickyKey()
		}
		s.backends.SetStickyKey(k.own)
	case k.from != from:
		k.end()
		ctx, stop := context.WithCancel(s.ctx)
		k.from, k.stop, k.done = from, stop, make(chan struct{})
		s.backends.SetStickyKey(k.shared)
		go s.fetchStickyKey(ctx, from, k.done, k.shared != "")
	}
}

// end ends the requests to a storage, and forgets its key.
func (k *stickyKeys) end() {
	if k.stop != nil {
		k.stop()
		k.shared = ""
	}
	k.from, k.stop, k.done = nil, nil, nil
}

// fetchStickyKey asks the storage until it has the key, or until ctx ends. former means that the key of the former
// process is in use meanwhile.
func (s *server) fetchStickyKey(ctx context.Context, from certs.KeyStorage, done chan<- struct{}, former bool) {
	for wait, failed := stickyRetryFirst, false; ; wait = min(2*wait, stickyRetryMost) {
		key, err := sharedStickyKey(ctx, from)
		switch {
		case err == nil:
			s.adoptStickyKey(ctx, key)
			if close(done); failed && ctx.Err() == nil {
				s.log.Info("the key for sticky sessions has come from the storage")
			}
			return
		case !failed && ctx.Err() == nil:
			failed = true
			line := "there are no sticky sessions yet, because the storage has not given the key; weir tries again"
			if former {
				line = "the storage has not given the key for sticky sessions; the key of the old process stays in use, and weir tries again"
			}
			s.log.Error(line, zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// adoptStickyKey sets a key from a storage, unless a configuration has replaced the storage since.
func (s *server) adoptStickyKey(ctx context.Context, key string) {
	s.change.Lock()
	defer s.change.Unlock()
	if ctx.Err() == nil {
		s.sticky.shared = key
		s.backends.SetStickyKey(key)
	}
}

// awaitStickyKey waits a short time for the key, so that the first requests after a start keep
// their endpoints.
func (s *server) awaitStickyKey() {
	s.change.Lock()
	done := s.sticky.done
	s.change.Unlock()
	if done == nil {
		return
	}
	timer := time.NewTimer(syncTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-s.waits.Done():
	}
}

// sharedStickyKey returns the key in a storage. The first replica that asks makes it.
func sharedStickyKey(ctx context.Context, from certs.KeyStorage) (key string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if key, err = loadStickyKey(ctx, from); !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := from.Lock(ctx, stickyObject); err != nil {
		return "", fmt.Errorf("locking %s: %w", stickyObject, err)
	}
	defer from.Unlock(context.WithoutCancel(ctx), stickyObject)
	if key, err = loadStickyKey(ctx, from); !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	key = newStickyKey()
	if err := from.Store(ctx, stickyObject, []byte(key)); err != nil {
		return "", fmt.Errorf("storing %s: %w", stickyObject, err)
	}
	return key, nil
}

func loadStickyKey(ctx context.Context, from certs.KeyStorage) (string, error) {
	key, err := from.Load(ctx, stickyObject)
	if err != nil {
		return "", fmt.Errorf("loading %s: %w", stickyObject, err)
	}
	if len(key) < 32 {
		return "", fmt.Errorf("%s in the storage is damaged; delete it, so that weir makes a new one", stickyObject)
	}
	return string(key), nil
}

func newStickyKey() string {
	key := make([]byte, 32)
	rand.Read(key) // never fails
	return base64.RawURLEncoding.EncodeToString(key)
}
