package e2e

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// needRoot skips a test that must start weir as root.
func needRoot(t *testing.T) {
	t.Helper()
	needLinux(t)
	if os.Geteuid() != 0 {
		lacking(t, "needs root, to have something to drop")
	}
}

// privilege is what the kernel reports about one thread.
type privilege struct {
	uid, capabilities, bounding, newPrivs, seccomp string
}

// privileges returns the privileges of each thread of weir.
func (w *weir) privileges() (all []privilege) {
	w.t.Helper()
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", w.cmd.Process.Pid))
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		of := func(key string) string {
			_, rest, _ := strings.Cut(string(text), "\n"+key+":\t")
			value, _, _ := strings.Cut(rest, "\n")
			return value
		}
		all = append(all, privilege{of("Uid"), of("CapPrm") + of("CapEff"), of("CapBnd"), of("NoNewPrivs"), of("Seccomp")})
	}
	if len(all) < 2 {
		w.t.Fatalf("weir has %d threads", len(all))
	}
	return all
}

// filtered is what the kernel reports for a thread with a filter of system calls.
const filtered = "2"

// onlyCapabilities returns true if a hexadecimal set of capabilities contains only these.
func onlyCapabilities(t *testing.T, set string, numbers ...uint) bool {
	t.Helper()
	v, err := strconv.ParseUint(set, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range numbers {
		v &^= 1 << n
	}
	return v == 0
}

// Capabilities and their numbers.
const (
	dacOverride    = 1
	dacReadSearch  = 2
	netBindService = 10
)

// nextLowPort counts the ports that were tried, down from 1023, so that no two tests get
// the same.
var nextLowPort atomic.Int32

// lowPort returns an address with a port that only privileged processes may listen on.
func lowPort(t *testing.T) string {
	t.Helper()
	for port := 1024 - nextLowPort.Add(1); port > 600; port = 1024 - nextLowPort.Add(1) {
		// The address belongs to this process alone: tests of another process may run at
		// the same time.
		address := fmt.Sprintf("127.83.%d.%d:%d", os.Getpid()>>8&255, 1+os.Getpid()%254, port)
		if ln, err := net.Listen("tcp", address); err == nil {
			ln.Close()
			return address
		}
	}
	lacking(t, "no free port below 1024")
	return ""
}

const confinedConfig = `
listeners:
  web: {address: '@web', protocol: http}
  secure: {address: '@secure', protocol: tls}
certificates: [{cert: '@@dir/app.crt', key: '@@dir/app.key'}]
routes: [{listeners: [web, secure], backend: app}]
backends: {app: {endpoints: ['@app']}}
`

// If root starts weir with the key user, weir runs as that user with at most two
// capabilities. A reload can still bind a port below 1024 and read a key that only root may
// read.
func TestRootBecomesTheUser(t *testing.T) {
	needRoot(t)
	t.Parallel()
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.address["web"], w.address["low"] = lowPort(t), ""
	onlyRoot := func(name string) certificate {
		c := writeCertificate(t, w.dir, name, false, "app.example.org")
		if err := os.Chmod(c.key, 0o600); err != nil {
			t.Fatal(err)
		}
		return c
	}
	onlyRoot("app")
	more := "user: '65534:65534'\nstorage: '@@dir/state/weir'\n"
	w.start(confinedConfig + more)
	for _, p := range w.privileges() {
		if p.uid != "65534\t65534\t65534\t65534" || p.newPrivs != "1" || p.seccomp != filtered || !onlyCapabilities(t, p.capabilities[:16], netBindService, dacReadSearch) ||
			!onlyCapabilities(t, p.bounding, netBindService, dacReadSearch) {
			t.Errorf("a thread has %+v", p)
		}
	}
	w.log.awaits(t, `"msg":"privileges given up","uid":65534,"gid":65534,"user":"65534 (65534:65534)","capabilities":["CAP_NET_BIND_SERVICE","CAP_DAC_READ_SEARCH"`)
	get := func(name string) {
		t.Helper()
		if status, _, err := w.get(name, "/"); err != nil || status != 200 {
			t.Errorf("%s: %d, %v", name, status, err)
		}
	}
	get("web")

	second := onlyRoot("app") // replaced
	w.address["low"] = lowPort(t)
	w.reload(strings.ReplaceAll(confinedConfig, "'@web'", "'@low'") + more)
	get("low")
	eventually(t, "the new certificate is served", func() error {
		c, err := tls.Dial("tcp", w.at("secure"), anyCertificate("app.example.org"))
		if err != nil {
			return err
		}
		defer c.Close()
		if c.ConnectionState().PeerCertificates[0].SerialNumber.Cmp(second.serial) != 0 {
			return errors.New("it is the old one")
		}
		return nil
	})
	eventually(t, "the storage is written to", func() error {
		keys, _ := filepath.Glob(w.dir + "/state/weir/tickets/*")
		if len(keys) == 0 {
			return errNotYet
		}
		info, err := os.Stat(keys[0])
		if err == nil && info.Sys().(*syscall.Stat_t).Uid != 65534 {
			t.Errorf("%s belongs to %d", keys[0], info.Sys().(*syscall.Stat_t).Uid)
		}
		return err
	})
	w.signal(syscall.SIGHUP) // opens the access log again
	eventually(t, "requests are logged", func() error {
		if info, err := os.Stat(w.access); err != nil || info.Size() == 0 {
			return fmt.Errorf("%v, %w", info, err)
		}
		return nil
	})
	if strings.Contains(w.log.String(), "weir cannot open the access log again, and continues in the old file") {
		t.Error("the access log cannot be opened anew")
	}
	if n := w.metric("process_open_fds"); n == 0 {
		t.Error("weir cannot count its descriptors")
	}
}

// If root starts weir with the key user, weir makes pid_file for that user, and everybody may read it. A weir that
// did not start or has ended leaves no file. If the folder is not of that user, it leaves an empty file, never an id
// that the system may give to another process.
func TestPIDFileOfTheUser(t *testing.T) {
	needRoot(t)
	for owner, want := range map[string]error{"the user": fs.ErrNotExist, "root": nil} {
		t.Run("in a folder of "+owner, func(t *testing.T) {
			t.Parallel()
			w := newConfined(t)
			folder := filepath.Join(w.dir, "pid")
			path, other := filepath.Join(folder, "weir.pid"), filepath.Join(folder, "other")
			if err := errors.Join(os.Mkdir(folder, 0o755), os.WriteFile(other, nil, 0o644)); err != nil {
				t.Fatal(err)
			}
			if owner == "the user" {
				if err := os.Chown(folder, 65534, 65534); err != nil {
					t.Fatal(err)
				}
			}
			noID := func(when string) {
				t.Helper()
				if text, err := os.ReadFile(path); !errors.Is(err, want) || len(text) != 0 {
					t.Errorf("%s the file has %q, %v", when, text, err)
				}
			}
			const config = confinedConfig + "user: '65534:65534'\npid_file: '@@dir/pid/weir.pid'\n"
			taken, err := net.Listen("tcp", w.at("web"))
			if err != nil {
				t.Fatal(err)
			}
			defer taken.Close()
			w.write(config)
			w.launch()
			if status := w.wait(); status != 1 {
				t.Errorf("with a port that is taken the exit status is %d", status)
			}
			noID("without a start")

			taken.Close()
			w.start(config)
			eventually(t, "the file has the id", func() error {
				if text, err := os.ReadFile(path); err != nil || string(text) != fmt.Sprintln(w.cmd.Process.Pid) {
					return fmt.Errorf("%q, %w", text, cmp.Or(err, errNotYet))
				}
				return nil
			})
			if is, want := mode(t, path), mode(t, other); is != want {
				t.Errorf("the mode is %v, want %v", is, want)
			}
			w.signal(syscall.SIGTERM)
			if status := w.wait(); status != 0 {
				t.Errorf("the exit status is %d", status)
			}
			noID("after the end")
		})
	}
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode()
}

// ownSeccomp returns the seccomp mode of the test process. A container may have set it.
func ownSeccomp(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nSeccomp:\t")
	mode, _, _ := strings.Cut(rest, "\n")
	return mode
}

// newConfined returns a weir that is not started yet, and makes the files that
// confinedConfig names.
func newConfined(t *testing.T) *weir {
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	writeCertificate(t, w.dir, "app", false, "app.example.org")
	return w
}

// If root starts weir without the key user, weir stays root and gives up the capabilities
// that it does not need.
func TestRootDropsCapabilities(t *testing.T) {
	needRoot(t)
	t.Parallel()
	w := newConfined(t)
	w.start(confinedConfig)
	for _, p := range w.privileges() {
		if p.newPrivs != "1" || p.seccomp != filtered || !onlyCapabilities(t, p.capabilities[:16], netBindService, dacReadSearch, dacOverride) ||
			!onlyCapabilities(t, p.bounding, netBindService, dacReadSearch, dacOverride) {
			t.Errorf("a thread has %+v", p)
		}
	}
	w.address["low"] = lowPort(t)
	w.reload(strings.ReplaceAll(confinedConfig, "'@web'", "'@low'"))
	if status, _, err := w.get("low", "/"); err != nil || status != 200 {
		t.Errorf("a port below 1024 after a reload: %d, %v", status, err)
	}
}

// An attacker who takes weir over can write only below the folders that the configuration
// named at the start. weir refuses a reload that writes elsewhere, with the reason, and the
// kernel refuses all other writes.
func TestWritesElsewhereAreRefused(t *testing.T) {
	needRoot(t)
	t.Parallel()
	w := newConfined(t)
	outside, err := os.MkdirTemp("/var/lib", "weir-e2e") // /var/lib, because weir may write below /tmp
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(outside) })
	logs := filepath.Join(w.dir, "logs")
	if err := errors.Join(os.Mkdir(logs+".a", 0o755), os.Symlink(logs+".a", logs)); err != nil {
		t.Fatal(err)
	}
	w.start(confinedConfig + "access_log: {path: '" + logs + "/access.log'}\n")
	if strings.Contains(w.log.String(), "landlock: the kernel") {
		lacking(t, "this kernel has no Landlock, or an old one: %s", w.log.tail(2<<10))
	}

	before := w.reloads("failure")
	w.write(confinedConfig + "storage: '" + outside + "/state'\n")
	w.signal(syscall.SIGHUP)
	eventually(t, "the reload fails", func() error {
		if w.reloads("failure") == before {
			return errNotYet
		}
		return nil
	})
	eventually(t, "the log says why", func() error { // the metric changes before the log
		if !strings.Contains(w.log.String(), "storage: weir cannot write to") {
			return errNotYet
		}
		return nil
	})
	if err := errors.Join(os.Remove(logs), os.Symlink(outside, logs)); err != nil {
		t.Fatal(err)
	}
	w.signal(syscall.SIGHUP)
	eventually(t, "the kernel refuses the log", func() error {
		if !strings.Contains(w.log.String(), "weir cannot open the access log again, and continues in the old file") {
			return errNotYet
		}
		return nil
	})
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("weir wrote %q", left[0].Name())
	}

	free := newWeir(t)
	free.address["app"] = w.address["app"]
	writeCertificate(t, free.dir, "app", false, "app.example.org")
	const off = "landlock: false\nseccomp: false\n"
	free.start(confinedConfig + off)
	free.reload(confinedConfig + off + "storage: '" + outside + "/state'\n")
	if now, own := free.privileges()[0].seccomp, ownSeccomp(t); now != own {
		t.Errorf("seccomp is off, and a thread has the mode %s, not that of the test, %s", now, own)
	}
}

// weir runs with the restrictions of deploy/systemd/weir.service: a user with one capability, and a file
// system that is read-only except for the storage and the log.
func TestUnprivilegedInAReadOnlySystem(t *testing.T) {
	needRoot(t)
	t.Parallel()
	w := newConfined(t)
	state := filepath.Join(w.dir, "state")
	binary := filepath.Join(w.dir, "weir")
	data, err := os.ReadFile(executable(t))
	if err := errors.Join(err, os.WriteFile(binary, data, 0o755), os.Mkdir(state, 0o700), os.Chown(state, 65534, 65534), os.Chmod(filepath.Dir(w.dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	w.binary, w.access = binary, filepath.Join(state, "access.log")
	w.env = []string{"STATE_DIRECTORY=" + state}
	if out, err := exec.Command("unshare", "--mount", "mount", "-o", "remount,ro,bind", "/").CombinedOutput(); err != nil {
		lacking(t, "no mount namespaces here: %v: %s", err, out)
	}
	w.before = []string{need(t, "unshare"), "--mount", "sh", "-c",
		"mount --bind " + state + " " + state + " && mount -o remount,ro,bind / && exec setpriv --reuid 65534 --regid 65534 --clear-groups " +
			`--inh-caps -all,+net_bind_service --ambient-caps +net_bind_service --bounding-set -all,+net_bind_service --no-new-privs -- "$@"`, "sh"}
	w.address["web"] = lowPort(t)
	more := "storage: '" + state + "/storage'\n"
	w.start(confinedConfig + more)
	for _, p := range w.privileges() {
		if p.uid != "65534\t65534\t65534\t65534" || p.newPrivs != "1" || p.seccomp != filtered || !onlyCapabilities(t, p.capabilities[:16], netBindService) {
			t.Errorf("a thread has %+v", p)
		}
	}
	w.address["low"] = lowPort(t)
	w.reload(strings.ReplaceAll(confinedConfig, "'@web'", "'@low'") + more)
	if status, _, err := w.get("low", "/"); err != nil || status != 200 {
		t.Errorf("a port below 1024 after a reload: %d, %v", status, err)
	}
	eventually(t, "the storage is written to", func() error {
		if keys, _ := filepath.Glob(state + "/storage/tickets/*"); len(keys) == 0 {
			return errNotYet
		}
		return nil
	})
	if os.WriteFile(filepath.Join(w.dir, "x"), nil, 0o644) != nil {
		t.Error("the test's own file system is read-only")
	}
}

// A confined weir can also read its configuration from standard input, and from another pipe.
func TestConfinedWithStandardInput(t *testing.T) {
	needLinux(t)
	for name, arguments := range map[string]string{"standard input": "- <<END", "another pipe": "/dev/fd/3 3<<END"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newConfined(t)
			w.write(confinedConfig)
			w.before = []string{"sh", "-c", "exec \"$1\" \"$2\" \"$3\" " + arguments + "\n$(cat \"$4\")\nEND\n", "sh"}
			w.start(confinedConfig)
			if status, _, err := w.get("web", "/"); err != nil || status != 200 {
				t.Errorf("%d, %v", status, err)
			}
		})
	}
}

// As root, weir does not write its id into the file that a symbolic link names, nor makes that file.
func TestPIDFileIsNoLink(t *testing.T) {
	needRoot(t)
	for _, user := range []string{"", "user: '65534:65534'\n"} {
		for name, missing := range map[string]bool{"a file": false, "nothing": true} {
			t.Run(user+"a link to "+name, func(t *testing.T) {
				t.Parallel()
				w := newConfined(t)
				victim := filepath.Join(w.dir, "victim")
				if !missing {
					if err := os.WriteFile(victim, []byte("precious\n"), 0o666); err != nil {
						t.Fatal(err)
					}
					if err := os.Chmod(victim, 0o666); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.Symlink(victim, filepath.Join(w.dir, "weir.pid")); err != nil {
					t.Fatal(err)
				}
				w.write(confinedConfig + user + "pid_file: '@@dir/weir.pid'\n")
				w.launch()
				eventually(t, "weir says that it writes to no link", func() error {
					if !strings.Contains(w.log.String(), "pid_file: ") {
						return errNotYet
					}
					return nil
				})
				text, err := os.ReadFile(victim)
				if missing && !errors.Is(err, fs.ErrNotExist) || !missing && string(text) != "precious\n" {
					t.Errorf("the file has %q, %v", text, err)
				}
			})
		}
	}
}
