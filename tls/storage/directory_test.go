package storage

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// holdAndWait makes a process of this test binary hold a lock of a directory until it is
// killed.
const holdAndWait = "WEIR_STORAGE_TEST_HOLD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdAndWait); dir != "" {
		s, err := open(dir, zap.NewNop())
		if err == nil {
			err = s.Lock(context.Background(), "x")
		}
		if err != nil {
			os.Stdout.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Stdout.WriteString("locked\n")
		os.Stdin.Read(make([]byte, 1)) // ends with the test
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func opened(t *testing.T, url string) Storage {
	t.Helper()
	s, err := open(url, zap.NewNop())
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func private(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "storage") // Open creates it
}

func TestDirectoryConforms(t *testing.T) {
	conform(t, func(t *testing.T) kind {
		dir := private(t)
		return kind{
			open: func(t *testing.T) Storage { return opened(t, dir) },
			kill: func(t *testing.T, s Storage) {
				for _, f := range s.(*directory).locks { // as the kernel does
					must(t, f.Close())
				}
				clear(s.(*directory).locks)
			},
		}
	})
}

// modes returns the files and folders in dir with a wrong mode.
func modes(t *testing.T, dir string) (wrong []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(fileMode)
		if d.IsDir() {
			want = folderMode
		}
		if info.Mode().Perm() != want {
			wrong = append(wrong, path+" "+info.Mode().String())
		}
		return nil
	}))
	return wrong
}

// TestPermissions changes the umask of the process, so it must not run beside others.
func TestPermissions(t *testing.T) {
	for _, umask := range []int{0, 0o022, 0o277} {
		dir := filepath.Join(t.TempDir(), "made", "too")
		old := syscall.Umask(umask)
		s := opened(t, dir)
		err := errors.Join(s.Store(t.Context(), "certificates/ca/a.key", []byte("secret")), s.Lock(t.Context(), "x"))
		syscall.Umask(old)
		must(t, err)
		if wrong := modes(t, filepath.Dir(dir)); len(wrong) > 0 {
			t.Errorf("umask %04o: %q", umask, wrong)
		}
	}
}

func TestDirectoriesThatOthersReach(t *testing.T) {
	f := func(mode fs.FileMode, warns bool, want string) {
		t.Helper()
		dir := t.TempDir()
		must(t, os.Chmod(dir, mode))
		core, logged := observer.New(zapcore.WarnLevel)
		s, err := open(dir, zap.New(core))
		if err == nil {
			s.Close()
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("mode %04o: %v, want %q", mode, err, want)
		}
		if got := logged.Len() > 0; got != warns {
			t.Errorf("mode %04o: it warns: %v, want %v", mode, got, warns)
		}
	}
	f(0o700, false, "")
	f(0o750, true, "")
	f(0o755, true, "")
	f(0o770, true, "") // a Kubernetes volume with fsGroup
	f(0o777, false, "all users can write to it (mode 0777)")
}

func TestDirectoriesThatAreNone(t *testing.T) {
	f := func(path, want string) {
		t.Helper()
		s, err := open(path, zap.NewNop())
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("open(%q) = %v, want an error with %q", path, err, want)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	f(file, "is a file")
	f(file+"/below", "not a directory")
	f("relative", "absolute")
	if os.Getuid() != 0 {
		sealed := t.TempDir()
		must(t, os.Chmod(sealed, 0o500))
		f(sealed, "cannot write")
	}
}

// Load makes a file private again that a user copied here by hand.
func TestLoadTightens(t *testing.T) {
	dir := private(t)
	s := opened(t, dir)
	must(t, s.Store(t.Context(), "a.key", []byte("secret")))
	must(t, os.Chmod(filepath.Join(dir, "a.key"), 0o644))
	if _, err := s.Load(t.Context(), "a.key"); err != nil {
		t.Fatal(err)
	}
	if wrong := modes(t, dir); len(wrong) > 0 {
		t.Errorf("%q", wrong)
	}
}

// The content that a dead process left in a lock file does not matter, and weir does not
// log it.
func TestLeftLockFiles(t *testing.T) {
	for _, content := range []string{"", "{", "\x00\x00\x00", `{"created":"2031-01-01T00:00:00Z","updated":"2031-01-01T00:00:00Z"}`} {
		dir := private(t)
		core, logged := observer.New(zapcore.DebugLevel)
		s, err := open(dir, zap.New(core))
		must(t, err)
		must(t, os.Mkdir(filepath.Join(dir, locksFolder), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, locksFolder, "x.lock"), []byte(content), 0o600))
		must(t, s.Lock(within(t), "x"))
		must(t, s.Unlock(t.Context(), "x"))
		must(t, s.Close())
		if logged.Len() > 0 {
			t.Errorf("%d lines were logged", logged.Len())
		}
		if left, err := os.ReadDir(filepath.Join(dir, locksFolder)); err != nil || len(left) > 0 {
			t.Errorf("%d files of locks are left, %v", len(left), err)
		}
	}
}

func TestLockFileThatVanished(t *testing.T) {
	dir := private(t)
	a, b := opened(t, dir), opened(t, dir)
	must(t, a.Lock(within(t), "x"))
	must(t, os.RemoveAll(filepath.Join(dir, locksFolder)))
	must(t, b.Lock(within(t), "x"))
	if err := a.Unlock(t.Context(), "x"); !errors.Is(err, ErrLockLost) {
		t.Errorf("Unlock = %v, want ErrLockLost", err)
	}
	if try(t, a, "x") {
		t.Error("the lock of another was given back")
	}
	must(t, b.Unlock(t.Context(), "x"))
}

// Two processes exclude each other. After one is killed, its lock is free at once.
func TestTwoProcesses(t *testing.T) {
	dir := private(t)
	s := opened(t, dir)
	cmd := exec.CommandContext(within(t), os.Args[0])
	cmd.Env = append(os.Environ(), holdAndWait+"="+dir)
	stdin, err := cmd.StdinPipe()
	must(t, err)
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || line != "locked\n" {
		t.Fatalf("the other process: %q, %v", line, err)
	}
	if try(t, s, "x") {
		t.Error("two processes have one lock")
	}
	must(t, cmd.Process.Kill())
	cmd.Wait()
	must(t, s.Lock(within(t), "x"))
}

func TestOpenShares(t *testing.T) {
	dir := private(t)
	a, err := Open(dir, zap.NewNop())
	must(t, err)
	b, err := Open(dir+"/", zap.NewNop())
	must(t, err)
	if a.(*once).Storage != b.(*once).Storage {
		t.Error("one directory was opened twice")
	}
	must(t, a.Close())
	must(t, a.Close()) // the second Close has no effect
	if err := b.Store(t.Context(), "a", nil); err != nil {
		t.Errorf("the other user's Close closed it: %v", err)
	}
	must(t, b.Close())
	if err := b.Store(t.Context(), "a", nil); err == nil {
		t.Error("it is open after the last Close")
	}
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	if _, err := Open(file, zap.NewNop()); err == nil {
		t.Error("a file was opened as a storage")
	}
	if len(shared.storages) != 0 {
		t.Error("what is closed, or was never open, is held on to")
	}
	must(t, os.Remove(file))
	again, err := Open(dir, zap.NewNop())
	must(t, err)
	must(t, again.Store(t.Context(), "a", nil))
	must(t, again.Close())
}
