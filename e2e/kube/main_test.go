//go:build linux

package kube

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Variables by which the process that makes the namespace configures the process in it.
const (
	kitVariable    = "WEIR_KUBE_KIT"
	binaryVariable = "WEIR_KUBE_BINARY"
	insideVariable = "WEIR_KUBE_INSIDE"
)

// The paths of programs and folders. In the namespace all of them are set.
var (
	kit      string // the folder with etcd, kube-apiserver and so on
	weirFile string // the weir binary
	helm     string // empty: helm is not installed
	scratch  string // exists until the test run ends
)

// whySkip is the reason for which no test can run; empty: the tests can run.
var whySkip string

func TestMain(m *testing.M) {
	runtime.LockOSThread() // Pdeathsig sends its signal when the parent thread ends
	os.Exit(run(m))
}

func run(m *testing.M) int {
	kit, scratch = os.Getenv(kitVariable), os.Getenv(insideVariable)
	weirFile = cmp.Or(os.Getenv(binaryVariable), os.Getenv("WEIR_E2E_BINARY"))
	helm, _ = exec.LookPath(filepath.Join(kit, "helm"))
	if scratch != "" {
		return runInside(m)
	}
	if kit == "" {
		whySkip = kitVariable + " names no folder with a control plane; e2e/kube/kit/build FOLDER makes one"
	} else if _, err := os.Stat(filepath.Join(kit, "kube-apiserver")); err != nil {
		whySkip = fmt.Sprintf("there is no control plane in %s: %v; e2e/kube/kit/build FOLDER makes one", kitVariable, err)
	}
	if whySkip == "" {
		code, err := runOutside()
		if err == nil {
			return code
		}
		whySkip = err.Error()
	}
	if os.Getenv("CI") == "true" {
		fmt.Fprintln(os.Stderr, "in CI every peer has to be there:", whySkip)
		return 1
	}
	return m.Run()
}

// runOutside builds the binaries, which may need the internet, and then runs the tests in a namespace.
func runOutside() (code int, err error) {
	if kit, err = filepath.Abs(kit); err != nil {
		return 0, err
	}
	if scratch, err = os.MkdirTemp("", "weir-kube"); err != nil {
		return 0, err
	}
	defer os.RemoveAll(scratch)
	if weirFile == "" {
		if err := build(); err != nil {
			return 0, err
		}
	}
	if err := compilePackages(); err != nil {
		return 0, err
	}
	err = runInNamespace(os.Geteuid() != 0)
	if errors.Is(err, syscall.EPERM) { // in a container, root may not have the right
		err = runInNamespace(true)
	}
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended):
		return max(1, ended.ExitCode()), nil
	case err != nil:
		return 0, fmt.Errorf("cannot make a network namespace: %w", err)
	}
	return 0, nil
}

// runInNamespace runs the tests in a network namespace and a mount namespace. If users is true, it also makes
// a user namespace, in which the tests are root.
func runInNamespace(users bool) error {
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), insideVariable+"="+scratch, kitVariable+"="+kit, binaryVariable+"="+weirFile, "HOME="+scratch)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if users {
		c.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	return c.Run()
}

// build builds weir. In CI it is static, as in a release. Elsewhere it uses the same settings as "go test",
// which takes only seconds.
func build() error {
	// go test caches a result until a file or folder changes that the test has read. It does not see what
	// child processes read, so the test itself reads all folders of the module.
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		return err
	}
	weirFile = filepath.Join(scratch, "weir")
	c := exec.Command("go", "build", "-o", weirFile, "github.com/weirproxy/weir/cmd/weir")
	if os.Getenv("CI") == "true" {
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build weir: %w\n%s", err, out)
	}
	return nil
}

// layout configures the network. Every address of nodes and Pods belongs to this machine, and clients that
// choose no address use 10.10.0.100. /run belongs to the tests alone, because a Pod has its service account
// token there. So does the hosts file: it has a name for the address of each weir, as DNS would.
const layout = `set -e
PATH=$PATH:/usr/sbin:/sbin
ip link set lo up
ip addr add 10.10.0.100/32 dev lo
ip route add local 10.10.0.0/16 dev lo src 10.10.0.100
ip route add local 10.244.0.0/16 dev lo src 10.10.0.100
mount -t tmpfs none /run
{ cat /etc/hosts; for i in $(seq 250); do echo "10.10.1.$i weir-$i.pods.test"; done; } >$WEIR_KUBE_INSIDE/hosts
mount --bind $WEIR_KUBE_INSIDE/hosts /etc/hosts
`

func runInside(m *testing.M) int {
	if out, err := exec.Command("sh", "-c", layout).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot prepare the network namespace: %v\n%s", err, out)
		return 1
	}
	code := m.Run()
	theCluster.stop()
	return code
}

// starts runs functions that start processes, on a thread that lives as long as this process. Child processes
// get a signal when the thread ends that started them.
var starts = sync.OnceValue(func() chan<- func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
})

// process is a child process that ends with the tests at the latest.
type process struct {
	name   string
	cmd    *exec.Cmd
	log    string        // path of the log
	exited chan struct{} // closed when the process has ended
}

func start(name, log string, cmd *exec.Cmd) (*process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	starts() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	p := &process{name, cmd, log, make(chan struct{})}
	go func() {
		cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// kill ends the process at once.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.exited
}

// said returns the last n bytes of the process's log.
func (p *process) said(n int) string {
	text, _ := os.ReadFile(p.log)
	return string(text[max(0, len(text)-n):])
}

// patience is the timeout of each wait in a test. It is generous: only a broken weir
// makes a test wait so long.
const patience = 90 * time.Second

// soon repeats f until it returns nil.
func soon(f func() error) (err error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = f(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("not within %s: %w", patience, err)
}

// eventually repeats f until it returns nil. It fails the test if that takes longer than patience.
func eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	if err := soon(f); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
