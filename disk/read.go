// Package disk reads and writes files whose place others may fill with something else: a pipe that
// never ends, a symbolic link to another file, or a file on a server that does not answer.
package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// patience limits the time to read a file: a disk takes a second for the largest ones.
	patience = 10 * time.Second
	// pipePatience limits the time to read a pipe. A program may make its content.
	pipePatience = time.Minute
)

// ErrKind means that the path leads to something else than a regular file.
var ErrKind = errors.New("it is not a regular file")

// hung are the paths whose reading has not ended in time. Each holds a goroutine until the system
// answers, so it is not read again before.
var hung sync.Map

// Read returns the content of a regular file of at most size bytes. It returns an error after ten seconds.
func Read(path string, size int64) ([]byte, error) {
	return With(path, func(f *os.File) ([]byte, error) { return all(f, size) })
}

// With opens a regular file, calls read on another goroutine, and closes the file. It returns an error
// after ten seconds; read then runs on, and its result is lost.
func With[T any](path string, read func(f *os.File) (T, error)) (result T, err error) {
	if _, is := hung.Load(path); is {
		return result, &fs.PathError{Op: "read", Path: path, Err: errors.New("the system has not answered an earlier read yet; check the disk or the file server")}
	}
	return within(path, patience, func() (result T, err error) {
		f, err := open(path)
		if err != nil {
			return result, err
		}
		defer f.Close()
		return read(f)
	})
}

// open opens a regular file. A pipe that comes there meanwhile does not block it.
func open(path string) (*os.File, error) {
	info, err := os.Stat(path) // opening a device may have an effect
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: path, Err: ErrKind}
	}
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: path, Err: ErrKind}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ReadStream is Read, but the file may also be a pipe, a terminal or another stream. It returns an error
// after a minute; then nothing else may use the stream. A nil f is the file at path.
func ReadStream(f *os.File, path string, size int64) ([]byte, error) {
	if f == nil {
		if info, err := os.Stat(path); err != nil || info.Mode().IsRegular() {
			return Read(path, size)
		}
	}
	return within(path, pipePatience, func() ([]byte, error) {
		if f != nil {
			return all(f, size)
		}
		f, err := os.Open(path) // waits until a program writes to the pipe
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return all(f, size)
	})
}

// within runs read, and returns an error if it does not end in time.
func within[T any](path string, limit time.Duration, read func() (T, error)) (result T, err error) {
	type both struct {
		result T
		err    error
	}
	done := make(chan both, 1)
	go func() {
		result, err := read()
		done <- both{result, err}
	}()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case b := <-done:
		return b.result, b.err
	case <-t.C:
	}
	hung.Store(path, true)
	go func() {
		<-done
		hung.Delete(path)
	}()
	return result, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("it did not end within %v; check the disk, the file server or the program that writes it", limit)}
}

// all returns the content of f, of at most size bytes.
func all(f *os.File, size int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(f, size+1))
	if err == nil && int64(len(text)) > size {
		return nil, fmt.Errorf("it is larger than %d MiB", size>>20)
	}
	return text, err
}
