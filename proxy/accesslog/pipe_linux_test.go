package accesslog

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// A pipe that weir may only write to needs a reader first. Otherwise weir says so instead of waiting.
func TestPipeOnlyToWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pipe")
	err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755), syscall.Mkfifo(path, 0o600), os.Chmod(path, 0o222))
	if err != nil {
		t.Fatal(err)
	}
	if f, err := openUnprivileged(path); err == nil || !strings.Contains(err.Error(), "start the reader first") {
		t.Errorf("without a reader: %v, %v", f, err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err == nil {
		err = os.Chmod(path, 0o222)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	f, err := openUnprivileged(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("a line\n"); err != nil {
		t.Error(err)
	}
	b := make([]byte, 100)
	if n, err := reader.Read(b); string(b[:n]) != "a line\n" {
		t.Errorf("the pipe has %q, %v", b[:n], err)
	}
}

// openUnprivileged calls OpenFile without root's right to open every file, if this is root.
func openUnprivileged(path string) (f *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		if err = syscall.Setfsuid(65534); err == nil {
			f, err = OpenFile(path)
		}
	}()
	<-done
	return f, err
}
