package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func fifo(t *testing.T, path string) string {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func wantError(t *testing.T, what string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "file"), "text")
	link := filepath.Join(dir, "link")
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link} {
		if text, err := Read(path, 4); string(text) != "text" || err != nil {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	_, err := Read(write(t, filepath.Join(dir, "large"), strings.Repeat("a", 1<<20+1)), 1<<20)
	wantError(t, "large", err, "larger than 1 MiB")
	if _, err = Read(filepath.Join(dir, "none"), 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	for _, path := range []string{fifo(t, filepath.Join(dir, "fifo")), dir, os.DevNull} {
		if _, err = Read(path, 4); !errors.Is(err, ErrKind) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A disk that does not answer costs ten seconds once, and the error names the file. The file can be read when
// the disk has answered.
func TestReadHasADeadline(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "file"), "text")
	synctest.Test(t, func(t *testing.T) {
		answers, began := make(chan struct{}), time.Now()
		_, err := With(path, func(*os.File) (int, error) {
			<-answers
			return 1, nil
		})
		wantError(t, "the first", err, path+": it did not end within 10s")
		if took := time.Since(began); took != patience {
			t.Errorf("it took %v", took)
		}
		_, err = Read(path, 4)
		wantError(t, "the second", err, "has not answered an earlier read yet")
		close(answers)
		synctest.Wait()
		if text, err := Read(path, 4); string(text) != "text" || err != nil {
			t.Errorf("at the end: %q, %v", text, err)
		}
	})
}

func TestReadStream(t *testing.T) {
	dir := t.TempDir()
	pipe := fifo(t, filepath.Join(dir, "fifo"))
	go func() {
		if f, err := os.OpenFile(pipe, os.O_WRONLY, 0); err == nil {
			f.WriteString("text")
			f.Close()
		}
	}()
	for _, path := range []string{pipe, write(t, filepath.Join(dir, "file"), "text")} {
		if text, err := ReadStream(nil, path, 4); string(text) != "text" || err != nil {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close() // so that the read ends with the test
	synctest.Test(t, func(t *testing.T) {
		silent := make(chan struct{})
		_, err := within("-", pipePatience, func() ([]byte, error) { <-silent; return nil, nil })
		wantError(t, "a silent program", err, "it did not end within 1m0s")
		close(silent)
	})
	w.WriteString("text")
	w.Close()
	if text, err := ReadStream(r, "-", 4); string(text) != "text" || err != nil {
		t.Errorf("an open pipe: %q, %v", text, err)
	}
}

// weir writes through no link to another file, and makes none.
func TestOpenOwn(t *testing.T) {
	dir := t.TempDir()
	other := write(t, filepath.Join(dir, "other"), "precious")
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Symlink(other, at("link")), os.Symlink(at("missing"), at("dangling")), os.Link(other, at("hard"))); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{at("link"): "symbolic link", at("dangling"): "symbolic link", at("hard"): "hard link",
		dir: "is a directory", fifo(t, at("fifo")): "no such device", os.DevNull: "not a regular file"} {
		_, err := OpenOwn(path, os.O_CREATE|os.O_WRONLY, 0o600)
		wantError(t, path, err, want)
	}
	if text, err := os.ReadFile(other); string(text) != "precious" || err != nil {
		t.Errorf("the other file: %q, %v", text, err)
	}
	if _, err := os.Lstat(at("missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was made through a link: %v", err)
	}
	for range 2 { // made, and there
		f, err := OpenOwn(at("own"), os.O_CREATE|os.O_WRONLY, 0o640)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	if _, err := OpenFolder(at("link")); err == nil {
		t.Error("a link is a folder")
	}
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	other, link := write(t, filepath.Join(dir, "other"), "precious"), filepath.Join(dir, "link")
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	if err := Replace(link, []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(link)
	text, err2 := os.ReadFile(link)
	precious, err3 := os.ReadFile(other)
	if err := errors.Join(err, err2, err3); err != nil || string(text) != "new" || info.Mode() != 0o644 || string(precious) != "precious" {
		t.Errorf("%q with %v, and %q: %v", text, info, precious, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("%d files", len(left))
	}
	if err := Replace(filepath.Join(dir, "none", "file"), nil, 0o644); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
}

// A link to a log file may be the operator's. Another user's link is none of weir's business.
func TestOpenFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Symlink(at("b"), at("a")), os.Symlink("log", at("b")), os.Symlink("loop", at("loop"))); err != nil {
		t.Fatal(err)
	}
	open := func(path string) error {
		f, err := OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err == nil {
			f.Close()
		}
		return err
	}
	for range 2 {
		if err := open(at("a")); err != nil {
			t.Error(err)
		}
	}
	if info, err := os.Lstat(at("log")); err != nil || !info.Mode().IsRegular() {
		t.Errorf("%v, %v", info, err)
	}
	wantError(t, "a loop", open(at("loop")), "too many levels")
	f, err := os.Create(at("open"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := os.Stat("/proc/self/fd"); err == nil {
		if err := os.Symlink(fmt.Sprint("/proc/self/fd/", f.Fd()), at("stream")); err != nil {
			t.Fatal(err)
		}
		if err := open(at("stream")); err != nil { // as /dev/stdout is one
			t.Error(err)
		}
	}
	if os.Geteuid() != 0 {
		return // only root makes links of others
	}
	if err := os.Lchown(at("b"), 12345, 12345); err != nil {
		t.Fatal(err)
	}
	wantError(t, "a link of another user", open(at("a")), "b: it is a symbolic link of another user (12345)")
}
