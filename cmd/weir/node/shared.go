package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/tls/certs"
	"github.com/weirproxy/weir/tls/storage"
)

// syncTimeout limits how long a configuration waits for the ticket keys of other replicas.
const syncTimeout = 3 * time.Second

// closeTimeout limits how long weir waits until a storage is closed: like every other
// call, giving a lock back may hang.
const closeTimeout = 5 * time.Second

// sharedTickets is the storage in which replicas share session ticket keys, if there is
// one.
type sharedTickets struct {
	url     config.Secret
	storage *lateStorage // nil: keys are not shared
}

// shareAhead gets the key for sticky sessions before the first file takes effect, and exchanges ticket keys with other replicas before a file takes effect, so
// that their sessions resume from the first handshake on. It returns false if the file
// names a different storage than the file in effect. Then the caller must use
// shareTickets and syncTickets after the change, because a failed change must not have
// changed the storage.
func (s *server) shareAhead(file *config.Config) bool {
	if s.effect.Load() == nil {
		s.shareTickets(file)
		s.change.Lock()
		s.shareStickyKey(file)
		s.change.Unlock()
		s.awaitStickyKey()
	}
	if file.Storage != s.shared.url {
		return false
	}
	s.syncTickets()
	return true
}

// shareTickets makes the storage of a configuration the place where ticket keys are shared.
// It does not wait for the storage.
func (s *server) shareTickets(cfg *config.Config) {
	if cfg.Storage == s.shared.url {
		return
	}
	before := s.shared.storage
	s.shared = sharedTickets{url: cfg.Storage}
	if cfg.Storage == "" {
		s.tickets.Share(nil, nil)
	} else {
		s.shared.storage = &lateStorage{open: func() (storage.Storage, error) {
			return storage.Open(string(cfg.Storage), s.log.Named("storage"))
		}}
		s.tickets.Share(s.shared.storage, s.ticketsShared)
	}
	if before != nil {
		go before.close()
	}
}

// syncTickets exchanges ticket keys with other replicas.
func (s *server) syncTickets() {
	if s.shared.storage == nil {
		return
	}
	ctx, cancel := context.WithTimeout(s.waits, syncTimeout)
	defer cancel()
	if err := s.tickets.Sync(ctx); err != nil && s.waits.Err() == nil {
		s.log.Error("session ticket keys are not shared", zap.Error(err))
	}
}

// ticketsShared logs that the storage of ticket keys fails, and that it works again.
func (s *server) ticketsShared(err error) {
	if err != nil {
		s.log.Error("session ticket keys are not shared", zap.Error(err))
		return
	}
	s.log.Info("session ticket keys are shared again")
}

// lateStorage opens a storage when it is first needed, and tries again until it succeeds:
// weir must start even if a directory is not mounted yet.
type lateStorage struct {
	open func() (storage.Storage, error)

	mu     sync.Mutex // never held during a call to the storage, because the call may hang
	opened storage.Storage
	closed bool
}

var errStorageClosed = errors.New("the storage was closed")

func (l *lateStorage) get() (storage.Storage, error) {
	if s, closed := l.state(); s != nil || closed {
		if closed {
			return nil, errStorageClosed
		}
		return s, nil
	}
	s, err := l.open()
	if err != nil {
		return nil, err
	}
	used := l.keep(s)
	if used != s {
		s.Close()
	}
	if used == nil {
		return nil, errStorageClosed
	}
	return used, nil
}

func (l *lateStorage) state() (opened storage.Storage, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opened, l.closed
}

// keep returns the storage to use: s, or the storage that another goroutine opened
// meanwhile; nil if all was closed meanwhile.
func (l *lateStorage) keep(s storage.Storage) storage.Storage {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	if l.opened == nil {
		l.opened = s
	}
	return l.opened
}

// close closes the storage. It waits no longer than closeTimeout.
func (l *lateStorage) close() {
	l.mu.Lock()
	s := l.opened
	l.closed, l.opened = true, nil
	l.mu.Unlock()
	if s == nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Close()
	}()
	select {
	case <-done:
	case <-time.After(closeTimeout):
	}
}

func (l *lateStorage) Load(ctx context.Context, key string) ([]byte, error) {
	s, err := l.get()
	if err != nil {
		return nil, err
	}
	return s.Load(ctx, key)
}

func (l *lateStorage) Store(ctx context.Context, key string, value []byte) error {
	s, err := l.get()
	if err != nil {
		return err
	}
	return s.Store(ctx, key, value)
}

func (l *lateStorage) Delete(ctx context.Context, key string) error {
	s, err := l.get()
	if err != nil {
		return err
	}
	return s.Delete(ctx, key)
}

func (l *lateStorage) List(ctx context.Context, path string, recursive bool) ([]string, error) {
	s, err := l.get()
	if err != nil {
		return nil, err
	}
	return s.List(ctx, path, recursive)
}

func (l *lateStorage) Lock(ctx context.Context, name string) error {
	s, err := l.get()
	if err != nil {
		return err
	}
	return s.Lock(ctx, name)
}

func (l *lateStorage) Unlock(ctx context.Context, name string) error {
	s, err := l.get()
	if err != nil {
		return err
	}
	return s.Unlock(ctx, name)
}

var _ certs.KeyStorage = (*lateStorage)(nil)
