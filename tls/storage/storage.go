// Package storage is where replicas keep what they share: ACME accounts, keys
// and certificates, challenges, session ticket keys. Open makes a Storage of a
// directory, of a Redis or of a cluster's Secrets; one of another kind is a file
// of its own here and a case in open, and has to pass the same conformance tests.
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

// Storage keeps values by key, and locks by name. Keys are paths with slashes;
// a key that others lie below is a directory. Load, List and Stat of a key that
// does not exist fail with fs.ErrNotExist; Delete of one does not. List gives
// directories as well as files: of one level, or with recursive of all below.
//
// Lock waits until it has the lock or its context ends. A lock outlives the
// context that it was taken with; it is held until Unlock, Close, or the end of
// the process. Names of locks are apart from keys. Unlock fails with
// [ErrLockLost] where somebody else may have had the lock meanwhile.
//
// All methods may be called at the same time. What they return as errors names
// the storage and the key, and never a password.
type Storage interface {
	certmagic.Storage
	certmagic.TryLocker
	// Closer gives back locks that are still held, and closes connections, with
	// the last Close of those who opened the storage. After it every method fails.
	io.Closer
	// Stringer names the storage in messages, without a password.
	fmt.Stringer
}

// ErrLockLost is in the error of Unlock when the lock could not be kept for all
// of the time, so that somebody else may have had it, too.
var ErrLockLost = errors.New("this process lost the lock")

// errClosed is what a closed storage answers.
var errClosed = errors.New("the storage was closed")

// shared are the storages that are open, by URL.
var shared struct {
	sync.Mutex
	storages map[string]*handle
}

// Open opens the storage at url: an absolute directory, made if it is missing,
// or redis://USER:PASSWORD@HOST:PORT/DB?prefix=PREFIX (rediss:// with TLS; every
// part but the host may be left out; all keys begin with the prefix, "weir"
// where none is given), or secrets://NAMESPACE?prefix=PREFIX&kubeconfig=FILE (the
// service account's cluster where no kubeconfig is given). A Redis or an API
// server that is down is no error until it is needed; a directory that cannot
// be written to, or that everybody can, is one.
//
// Opening what is open gives the same storage; it is closed when it was closed
// as often as it was opened. log hears what happens between calls: locks that
// are lost, and permissions that are wider than they should be.
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

// open is the one place that knows which kinds of storage there are.
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

// handle is one storage and how often it is open.
type handle struct {
	url   string
	open  func() (Storage, error) // the same each time
	users int
}

// enter returns the handle of a URL with one more user. What hangs while it is
// opened or closed keeps nobody from other storages.
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

// forget makes the next Open of the URL begin anew.
func (h *handle) forget() {
	shared.Lock()
	defer shared.Unlock()
	if shared.storages[h.url] == h {
		delete(shared.storages, h.url)
	}
}

// leave reports whether that was the last user.
func (h *handle) leave() bool {
	shared.Lock()
	defer shared.Unlock()
	h.users--
	if h.users == 0 && shared.storages[h.url] == h {
		delete(shared.storages, h.url)
	}
	return h.users == 0
}

// once is what Open returns: a storage that is given back once.
type once struct {
	Storage
	close func() error
}

// renewer is a once whose storage has leases.
type renewer struct {
	*once
	certmagic.LockLeaseRenewer
}

func wrap(h *handle, s Storage) Storage {
	o := &once{Storage: s, close: sync.OnceValue(func() error {
		if h.leave() {
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

// clean checks a key and returns it without slashes around it. A key that leads
// out of the storage is refused; "." is the storage itself.
func clean(key string) (string, error) {
	k := path.Clean(strings.Trim(key, "/"))
	if !fs.ValidPath(k) || strings.ContainsRune(k, 0) {
		return "", fmt.Errorf("%q is not a key: %w", key, fs.ErrInvalid)
	}
	return k, nil
}

// failed makes one sentence of a failure.
func failed(s fmt.Stringer, operation, key string, err error) error {
	return fmt.Errorf("storage %s: cannot %s %s: %w", s, operation, key, err)
}
