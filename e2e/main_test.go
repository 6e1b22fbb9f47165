package e2e

import (
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/e2e/freeport"
)

// scratch lives as long as the test run and holds the binary.
var scratch string

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		flag.Set("test.parallel", "4") // the tests mostly wait, whatever the number of CPUs is
	}
	var err error
	if scratch, err = os.MkdirTemp("", "weir-e2e"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(scratch)
	os.Exit(code)
}

// build makes the binary once per run: in CI static, as it is shipped; elsewhere as
// "go test" compiles packages. A fresh clone would compile everything twice.
var build = sync.OnceValues(func() (string, error) {
	// go test remembers which folders of the module a test has read, and runs it
	// again when something in them has changed; what a child reads it does not see.
	if err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		return err
	}); err != nil {
		return "", err
	}
	path := filepath.Join(scratch, "weir")
	cmd := exec.Command("go", "build", "-o", path, "github.com/weirproxy/weir/cmd/weir")
	if inCI() {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build weir: %w\n%s", err, out)
	}
	return path, nil
})

// executable is the binary that the tests drive.
func executable(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("WEIR_E2E_BINARY"); path != "" {
		return path
	}
	return shipped(t)
}

// shipped is the binary without the race detector, even if the other tests use it: the race
// detector needs several times the memory outside of the heap.
func shipped(t *testing.T) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// races returns true if the tested binary has the race detector.
var races = sync.OnceValue(func() bool {
	info, err := buildinfo.ReadFile(os.Getenv("WEIR_E2E_BINARY"))
	return err == nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
})

// inCI says that every peer has to be there.
func inCI() bool { return os.Getenv("CI") == "true" }

// lacking skips a test because this machine lacks something; in CI the test fails.
func lacking(t *testing.T, format string, args ...any) {
	t.Helper()
	if inCI() {
		t.Fatalf(format+", and CI leaves nothing out", args...)
	}
	t.Skipf(format, args...)
}

// need returns the path of a peer. Without it the test is skipped, in CI it fails.
func need(t *testing.T, peer string) string {
	t.Helper()
	for _, name := range []string{peer, "/usr/sbin/" + peer, "/usr/local/sbin/" + peer} {
		if path, err := exec.LookPath(name); err == nil {
			if path, err = filepath.Abs(path); err == nil { // sshd insists on a whole path
				return path
			}
		}
	}
	if inCI() {
		t.Fatalf("%s is not installed, and in CI every peer has to be there", peer)
	}
	t.Skipf("%s is not installed; .ci/run says where it is from", peer)
	return ""
}

// needLinux skips tests that look into /proc or use loopback addresses beside 127.0.0.1.
func needLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux: /proc, or loopback addresses beside 127.0.0.1")
	}
}

// long skips tests of many seconds outside of CI, so that "go test ./..." takes a
// few minutes.
func long(t *testing.T) {
	t.Helper()
	if !inCI() {
		t.Skip("takes long: runs where CI=true, as in .ci/run")
	}
}

// freePort returns an address on which nothing listens.
func freePort(t testing.TB) string {
	t.Helper()
	address, err := freeport.E2E.Take("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// patience is the timeout of each wait in a test. It is generous: only a broken weir
// makes a test wait so long.
const patience = 20 * time.Second

// eventually tries f until it succeeds, and fails the test when it does not in time.
func eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	within(t, patience, what, f)
}

// within is eventually for what may take longer.
func within(t testing.TB, d time.Duration, what string, f func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(d); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("%s: not within %s: %v", what, d, err)
}

var errNotYet = errors.New("not yet")
