package storage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/weirproxy/weir/disk"
)

// certmagic's own locks are files: a lock is held while its file exists and has a recent
// time. If the owner leaves the file empty or cut short, it blocks all other processes,
// or fills the log. If two processes find a stale file at the same time, both may get the
// lock (caddyserver/caddy#4448, certmagic#232). weir uses files that the kernel locks
// instead. Their content does not matter, and the kernel releases the lock when the
// process ends, for whatever reason.
//
// Between machines, these locks are as good as flock(2) of the file system: correct on
// NFS version 4 and CephFS, without effect on file systems that keep flock to one
// machine, such as object stores mounted as files. There a Redis is the better storage.

// locksFolder is the folder of the lock files. It is not a key.
const locksFolder = ".locks"

// The limits of the pause between attempts to get a lock that is held.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// await calls try until try gets the lock or fails, or ctx ends.
func await(ctx context.Context, try func(context.Context) (bool, error)) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if got, err := try(ctx); got || err != nil {
			return err
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// Lock implements certmagic.Locker.
func (d *directory) Lock(ctx context.Context, name string) error {
	err := await(ctx, func(ctx context.Context) (bool, error) { return d.tryLock(ctx, name) })
	if err != nil {
		return failed(d, "lock", name, err)
	}
	return nil
}

// TryLock implements certmagic.TryLocker.
func (d *directory) TryLock(ctx context.Context, name string) (bool, error) {
	got, err := d.tryLock(ctx, name)
	if err != nil {
		return false, failed(d, "lock", name, err)
	}
	return got, nil
}

func (d *directory) tryLock(ctx context.Context, name string) (bool, error) {
	if err := context.Cause(ctx); err != nil {
		return false, err
	}
	if d.closed.Load() {
		return false, errClosed
	}
	if !d.reserve(name) {
		return false, nil
	}
	f, err := lockFile(d.lockName(name)) // may hang; then only callers for this lock wait
	d.mu.Lock()
	defer d.mu.Unlock()
	if f != nil && d.closed.Load() {
		unlockFile(f)
		f, err = nil, errClosed
	}
	if f == nil || err != nil {
		delete(d.locks, name)
		return false, err
	}
	d.locks[name] = f
	return true, nil
}

// reserve reserves a lock for the caller. It returns false if another goroutine of this
// process has the lock or has reserved it.
func (d *directory) reserve(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, taken := d.locks[name]; taken {
		return false
	}
	d.locks[name] = nil
	return true
}

// Unlock implements certmagic.Locker.
func (d *directory) Unlock(_ context.Context, name string) error {
	d.mu.Lock()
	f := d.locks[name]
	if f != nil {
		delete(d.locks, name)
	}
	d.mu.Unlock()
	if f == nil {
		return failed(d, "unlock", name, errors.New("it is not locked"))
	}
	if err := unlockFile(f); err != nil {
		return failed(d, "unlock", name, err)
	}
	return nil
}

// lockName returns the path of the lock file. Names for which Safe returns the same text
// share a lock; that costs time only.
func (d *directory) lockName(name string) string {
	safe := certmagic.StorageKeys.Safe(name)
	if len(safe) > 200 { // file systems allow 255 bytes, and a host name may have 253
		safe = fmt.Sprintf("%x", sha256.Sum256([]byte(safe)))
	}
	return filepath.Join(d.files.Path, locksFolder, safe+".lock")
}

// lockFile returns the locked file at path, or nil if another process holds the lock.
func lockFile(path string) (*os.File, error) {
	if err := makeFolders(filepath.Dir(path)); err != nil {
		return nil, err
	}
	f, err := disk.OpenOwn(path, os.O_CREATE|os.O_RDWR, fileMode)
	if err != nil {
		return nil, err
	}
	f.Chmod(fileMode) // independent of the umask
	switch err := flock(f); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		f.Close()
		return nil, nil
	case err != nil:
		f.Close()
		return nil, fmt.Errorf("cannot lock the file %s: %w; let storage name a directory on a file system with locks", path, err)
	}
	// The previous holder removed the file before it released the lock. So the file
	// locked here may no longer be at path.
	mine, err := f.Stat()
	if err == nil {
		var there os.FileInfo
		if there, err = os.Stat(path); err == nil && os.SameFile(mine, there) {
			return f, nil
		}
	}
	f.Close()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return nil, nil // the caller tries again
}

// unlockFile releases a lock and removes its file. It returns ErrLockLost if the file at
// the path is no longer this file.
func unlockFile(f *os.File) error {
	defer f.Close() // releases the lock
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Stat(f.Name())
	if errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(mine, there) {
		return fmt.Errorf("%w: another process removed %s", ErrLockLost, f.Name())
	}
	if err == nil {
		err = os.Remove(f.Name())
	}
	return err
}

// flock locks this open file, without waiting.
func flock(f *os.File) error {
	for {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != syscall.EINTR {
			return err
		}
	}
}

func isNotDir(err error) bool { return errors.Is(err, syscall.ENOTDIR) }

// withoutLocks removes the lock files from a list of keys.
func withoutLocks(keys []string) []string {
	kept := keys[:0]
	for _, k := range keys {
		if k != locksFolder && !strings.HasPrefix(k, locksFolder+"/") {
			kept = append(kept, k)
		}
	}
	return kept
}
