// Package storage stores the data that replicas share: ACME accounts, keys and
// certificates, challenges, session ticket keys. Open opens a directory, a Redis or the
// Secrets of a cluster as a Storage. A new kind of storage needs its own file in this
// package and a case in open, and must pass the same conformance tests.
package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
)

// Storage keeps values by key, and locks by name. Keys are paths with slashes. A key with
// other keys below it is a directory. Load, List and Stat of a key that does not exist
// fail with fs.ErrNotExist; Delete of such a key succeeds. List returns directories as
// well as files: of one level, or of all levels if recursive is true.
//
// Lock waits until it has the lock or its context ends. A lock outlives the context of
// the Lock call: it is held until Unlock, Close, or the end of the process. The names of
// locks are separate from keys. Unlock fails with [ErrLockLost] if another process may
// have had the lock meanwhile.
//
// All methods are safe for concurrent use. Their errors name the storage and the key, and
// never contain a password.
type Storage interface {
	certmagic.Storage
	certmagic.TryLocker
	// Closer releases locks that are still held, and closes connections, at the last
	// Close of all users that opened the storage. After Close, every method fails.
	io.Closer
	// Stringer names the storage in messages, without a password.
	fmt.Stringer
}

// ErrLockLost is in the error of Unlock if this process did not hold the lock all the
// time, so that another process may have held it, too.
var ErrLockLost = errors.New("this process lost the lock")

// errClosed is the error of a closed storage.
var errClosed = errors.New("the storage was closed")

// shared has the open storages, by URL.
var shared struct {
	sync.Mutex
	storages map[string]*handle
}

// Open opens the storage at url, which has one of these forms:
//
//   - an absolute directory. Open creates it if it is missing.
//   - redis://USER:PASSWORD@HOST:PORT/DB?prefix=PREFIX, or rediss:// with TLS. Every part
//     except the host is optional. All keys begin with the prefix, "weir" by default.
//   - secrets://NAMESPACE?prefix=PREFIX&kubeconfig=FILE. Without kubeconfig, Open uses the
//     cluster of the service account.
//
// Open does not fail if a Redis or an API server is down; the first operation does. Open
// fails for a directory that weir cannot write to, or that all users can write to.
//
// If the storage is already open, Open returns the same storage again. The last Close
// closes it. log receives messages about events between calls: lost locks, and
// permissions that are too wide.
func Open(url string, log *zap.Logger) (Storage, error) {
	if !strings.Contains(url, "://") {
		url = filepath.Clean(url)
	}
	h := enter(url, log)
	s, err := h.open()
	if err != nil {
		h.forget()
		return nil, err
	}
	return wrap(h, s), nil
}

// open is the only place that knows the kinds of storages.
func open(url string, log *zap.Logger) (Storage, error) {
	scheme, _, isURL := strings.Cut(url, "://")
	switch {
	case !isURL:
		return openDirectory(url, log)
	case scheme == "redis" || scheme == "rediss":
		return openRedis(url, log)
	case scheme == "secrets":
		return openSecrets(url, log)
	}
	return nil, errors.New("storage is neither an absolute directory nor a redis://, rediss:// or secrets:// URL (it is not shown, as it may hold a password)")
}

// handle is one storage and the number of its users.
type handle struct {
	url   string
	open  func() (Storage, error) // the same result for each call
	users int
}

// enter returns the handle of a URL with one more user. It does not open the storage, so
// a storage that hangs while it is opened or closed does not block others.
func enter(url string, log *zap.Logger) *handle {
	shared.Lock()
	defer shared.Unlock()
	h := shared.storages[url]
	if h == nil {
		h = &handle{url: url, open: sync.OnceValues(func() (Storage, error) { return open(url, log) })}
		if shared.storages == nil {
			shared.storages = make(map[string]*handle)
		}
		shared.storages[url] = h
	}
	h.users++
	return h
}

// forget makes the next Open of the URL open the storage again.
func (h *handle) forget() {
	shared.Lock()
	defer shared.Unlock()
	if shared.storages[h.url] == h {
		delete(shared.storages, h.url)
	}
}

// release removes one user. It reports whether that was the last one.
func (h *handle) release() bool {
	shared.Lock()
	defer shared.Unlock()
	h.users--
	if h.users == 0 && shared.storages[h.url] == h {
		delete(shared.storages, h.url)
	}
	return h.users == 0
}

// once is the result of Open: a storage whose Close has an effect only once.
type once struct {
	Storage
	close func() error
}

// renewer is a once for a storage with leases.
type renewer struct {
	*once
	certmagic.LockLeaseRenewer
}

func wrap(h *handle, s Storage) Storage {
	o := &once{Storage: s, close: sync.OnceValue(func() error {
		if h.release() {
			return s.Close()
		}
		return nil
	})}
	if r, ok := s.(certmagic.LockLeaseRenewer); ok {
		return renewer{o, r}
	}
	return o
}

func (o *once) Close() error { return o.close() }

// clean checks a key and returns it without leading and trailing slashes. It refuses a
// key that leads out of the storage. "." is the storage itself.
func clean(key string) (string, error) {
	k := path.Clean(strings.Trim(key, "/"))
	if !fs.ValidPath(k) || strings.ContainsRune(k, 0) {
		return "", fmt.Errorf("%q is not a key: %w", key, fs.ErrInvalid)
	}
	return k, nil
}

// failed adds the storage, the operation and the key to err.
func failed(s fmt.Stringer, operation, key string, err error) error {
	return fmt.Errorf("storage %s: cannot %s %s: %w", s, operation, key, err)
}
