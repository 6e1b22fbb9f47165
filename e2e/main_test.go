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

// scratch is a directory with the binary. It exists until the test run ends.
var scratch string

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		flag.Set("test.parallel", "4") // most tests wait most of the time, so more of them can run than there are CPUs
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

// build builds the binary once per test run. In CI it is static, as in a release. Elsewhere it uses the same
// settings as "go test", because otherwise a fresh clone would compile every package twice.
var build = sync.OnceValues(func() (string, error) {
	// go test caches a result until a file or folder changes that the test has read. It does not see what
	// child processes read, so the test itself reads all folders of the module.
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

// executable returns the path of the binary that the tests run.
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

// inCI returns true if every peer must be installed.
func inCI() bool { return os.Getenv("CI") == "true" }

// lacking skips a test because this machine lacks something; in CI the test fails.
func lacking(t *testing.T, format string, args ...any) {
	t.Helper()
	if inCI() {
		t.Fatalf(format+", and CI leaves nothing out", args...)
	}
	t.Skipf(format, args...)
}

// need returns the path of a peer. If the peer is not installed, the test is skipped; in CI it fails.
func need(t *testing.T, peer string) string {
	t.Helper()
	for _, name := range []string{peer, "/usr/sbin/" + peer, "/usr/local/sbin/" + peer} {
		if path, err := exec.LookPath(name); err == nil {
			if path, err = filepath.Abs(path); err == nil { // sshd requires an absolute path
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

// needLinux skips tests that read /proc, or that use loopback addresses other than 127.0.0.1.
func needLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux: /proc, or loopback addresses beside 127.0.0.1")
	}
}

// long skips a slow test outside of CI, so that "go test ./..." takes only a few minutes.
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

// eventually repeats f until it returns nil. It fails the test if that takes longer than patience.
func eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	within(t, patience, what, f)
}

// within is like eventually, with another timeout than patience.
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
