package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// OpenOwn opens a regular file to write it, and creates it with the mode if flag has os.O_CREATE. It
// follows no symbolic link at the path, and opens no file that has another name too: both may stand for a
// file that weir must not change.
func OpenOwn(path string, flag int, mode fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flag|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, mode)
	if errors.Is(err, syscall.ELOOP) {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("it is a symbolic link, and weir writes through none here; remove it, or name the file itself")}
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		of, known := info.Sys().(*syscall.Stat_t)
		switch {
		case !info.Mode().IsRegular():
			err = &fs.PathError{Op: "open", Path: path, Err: ErrKind}
		case known && of.Nlink > 1:
			err = &fs.PathError{Op: "open", Path: path, Err: errors.New("the file has another name (a hard link), and weir writes to none such; remove this name")}
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// OpenFolder opens a folder, to change its mode or its owner. It follows no symbolic link at the path.
func OpenFolder(path string) (*os.File, error) {
	return os.OpenFile(path, syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
}

// Replace gives the file at path another content, by a new file that takes its place. What is at the
// path, such as a symbolic link, does not change where weir writes.
func Replace(path string, text []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// maxLinks limits the symbolic links on the way to a file, as the kernel does.
const maxLinks = 40

// OpenFile is os.OpenFile, but follows a symbolic link at the path only if it belongs to root or to the user
// of this process, and so do further links: another user could name any file by one.
func OpenFile(path string, flag int, mode fs.FileMode) (*os.File, error) {
	for range maxLinks {
		info, err := os.Lstat(path)
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			return os.OpenFile(path, flag|syscall.O_NOFOLLOW, mode)
		}
		if of, known := info.Sys().(*syscall.Stat_t); known && of.Uid != 0 && int(of.Uid) != os.Geteuid() {
			return nil, &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("it is a symbolic link of another user (%d), who could name any file by it; name the file itself", of.Uid)}
		}
		if folder, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil && strings.HasPrefix(folder, "/proc/") {
			return os.OpenFile(path, flag, mode) // what /dev/stdout names: an open file
		}
		to, err := os.Readlink(path)
		if err != nil {
			return nil, err
		}
		if now, err := os.Lstat(path); err != nil || !os.SameFile(info, now) {
			continue // replaced meanwhile
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
}
