package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/weirproxy/weir/disk"
)

// The directory contains private keys, so no other user may access it.
const (
	folderMode = 0o700
	fileMode   = 0o600
	// maxFile limits a file in bytes, so that a foreign one cannot use up the memory.
	maxFile = 16 << 20
)

// directory is a storage in files. certmagic reads and writes the files; weir sets their
// permissions and has its own locks (lock.go).
type directory struct {
	files certmagic.FileStorage

	closed atomic.Bool
	mu     sync.Mutex
	locks  map[string]*os.File // by name; nil while tryLock takes the lock
}

func openDirectory(path string, log *zap.Logger) (Storage, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("storage %s: it is not an absolute directory", path)
	}
	d := &directory{files: certmagic.FileStorage{Path: path}, locks: make(map[string]*os.File)}
	if err := makeFolders(path); err != nil {
		return nil, fmt.Errorf("storage %s: cannot create the directory: %w", path, err)
	}
	if err := d.checkMode(log); err != nil {
		return nil, err
	}
	probe, err := os.CreateTemp(path, ".probe")
	if err != nil {
		return nil, fmt.Errorf("storage %s: cannot write there: %w; let storage name a directory that the user of this process may write to", path, err)
	}
	probe.Close()
	if err := os.Remove(probe.Name()); err != nil {
		return nil, fmt.Errorf("storage %s: cannot remove a file there: %w", path, err)
	}
	return d, nil
}

// checkMode refuses a directory in which all users can replace keys. A directory that
// others can list only shows them host names, because only the owner can read the files.
// systemd and Kubernetes create such directories.
func (d *directory) checkMode(log *zap.Logger) error {
	info, err := os.Stat(d.files.Path)
	if err != nil {
		return fmt.Errorf("storage %s: %w", d, err)
	}
	switch mode := info.Mode().Perm(); {
	case !info.IsDir():
		return fmt.Errorf("storage %s: it is not a directory", d)
	case mode&0o002 != 0:
		return fmt.Errorf("storage %s: all users can write to it (mode %04o), and could replace private keys; chmod it to 0700 or name a directory below it", d, mode)
	case mode&0o077 != 0:
		log.Warn("other users than its owner can access the storage directory with the private keys; chmod it to 0700 (systemd: StateDirectoryMode=0700)",
			zap.String("storage", d.String()), zap.String("mode", fmt.Sprintf("%04o", mode)))
	}
	return nil
}

// makeFolders is like os.MkdirAll, but the umask does not change its result.
func makeFolders(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		return fmt.Errorf("%s is a file", path)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeFolders(filepath.Dir(path)); err != nil {
		return err
	}
	if err := os.Mkdir(path, folderMode); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil // another process made it meanwhile
		}
		return err
	}
	f, err := disk.OpenFolder(path) // by the descriptor: something else may take the place meanwhile
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(folderMode), f.Close())
}

func (d *directory) String() string { return d.files.Path }

// key checks that the storage is open and that key is a valid key of a file.
func (d *directory) key(ctx context.Context, operation, key string) (string, error) {
	k, err := d.path(ctx, operation, key)
	if err == nil && k == "." {
		err = failed(d, operation, `""`, fs.ErrInvalid)
	}
	return k, err
}

// path is like key, but also accepts the storage itself.
func (d *directory) path(ctx context.Context, operation, key string) (string, error) {
	k, err := clean(key)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil && d.closed.Load() {
		err = errClosed
	}
	if err != nil {
		return "", failed(d, operation, key, err)
	}
	return k, nil
}

// Store implements certmagic.Storage.
func (d *directory) Store(ctx context.Context, key string, value []byte) error {
	k, err := d.key(ctx, "store", key)
	if err != nil {
		return err
	}
	if err = makeFolders(filepath.Dir(d.files.Filename(k))); err == nil {
		err = d.files.Store(ctx, k, value)
	}
	if err != nil {
		return failed(d, "store", key, err)
	}
	return nil
}

// Load implements certmagic.Storage.
func (d *directory) Load(ctx context.Context, key string) ([]byte, error) {
	k, err := d.key(ctx, "load", key)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(d.files.Filename(k))
	if err == nil && info.IsDir() {
		err = fs.ErrNotExist // there is no file with this key
	}
	if err == nil && info.Mode().Perm()&^fileMode != 0 {
		// For example, a user copied it here. If this process may not change the mode, it
		// still reads the file.
		if f, err := disk.OpenOwn(d.files.Filename(k), os.O_RDONLY, 0); err == nil {
			f.Chmod(fileMode)
			f.Close()
		}
	}
	var value []byte
	if err == nil {
		value, err = disk.Read(d.files.Filename(k), maxFile)
	}
	if err != nil {
		return nil, failed(d, "load", key, notExist(err))
	}
	return value, nil
}

// Delete implements certmagic.Storage.
func (d *directory) Delete(ctx context.Context, key string) error {
	k, err := d.key(ctx, "delete", key)
	if err != nil {
		return err
	}
	if err := d.files.Delete(ctx, k); err != nil {
		return failed(d, "delete", key, err)
	}
	return nil
}

// Exists implements certmagic.Storage.
func (d *directory) Exists(ctx context.Context, key string) bool {
	_, err := d.Stat(ctx, key)
	return err == nil
}

// List implements certmagic.Storage.
func (d *directory) List(ctx context.Context, key string, recursive bool) ([]string, error) {
	k, err := d.path(ctx, "list", key)
	if err != nil {
		return nil, err
	}
	below := k
	if k == "." {
		below = ""
	}
	keys, err := d.files.List(ctx, below, recursive)
	if err != nil {
		return nil, failed(d, "list", key, notExist(err))
	}
	if k == "." {
		keys = withoutLocks(keys)
	}
	return keys, nil
}

// Stat implements certmagic.Storage.
func (d *directory) Stat(ctx context.Context, key string) (certmagic.KeyInfo, error) {
	k, err := d.path(ctx, "look at", key)
	if err != nil {
		return certmagic.KeyInfo{}, err
	}
	info, err := d.files.Stat(ctx, k)
	if err != nil {
		return certmagic.KeyInfo{}, failed(d, "look at", key, notExist(err))
	}
	info.Key = key
	if !info.IsTerminal {
		info.Size, info.Modified = 0, time.Time{}
	}
	return info, nil
}

// Close implements io.Closer.
func (d *directory) Close() error {
	d.closed.Store(true)
	d.mu.Lock()
	locks := d.locks
	d.locks = make(map[string]*os.File)
	d.mu.Unlock()
	var errs []error
	for name, f := range locks {
		if f == nil {
			continue // tryLock sees that the storage was closed
		}
		if err := unlockFile(f); err != nil {
			errs = append(errs, failed(d, "unlock", name, err))
		}
	}
	return errors.Join(errs...)
}

// notExist adds fs.ErrNotExist to the error for a path that leads through a file.
func notExist(err error) error {
	if isNotDir(err) {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}
