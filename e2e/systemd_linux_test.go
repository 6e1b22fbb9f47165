package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// systemdsCgroup is the script that moves itself into cgroups named $CGROUP, which become the root of all that
// systemd sees. So it cannot touch those of the machine, of which it could otherwise be the manager.
const systemdsCgroup = `set -e
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
	if [ -e $hierarchy/cgroup.procs ]; then
		mkdir $hierarchy/$CGROUP
		echo $$ >$hierarchy/$CGROUP/cgroup.procs
	fi
done
exec unshare --cgroup sh -c "$BOOT"
`

// systemdBoots is the script that starts a systemd in its own namespaces. Only $WORK and folders in memory
// can be written, so that no other unit of the machine changes anything: systemd-tmpfiles would empty /tmp.
const systemdBoots = `set -e
mount --make-rprivate /
if [ -e /sys/fs/cgroup/cgroup.procs ]; then
	umount -R /sys/fs/cgroup
	mount -t cgroup2 none /sys/fs/cgroup
else
	umount -R /sys/fs/cgroup
	mount -t tmpfs -o mode=755 none /sys/fs/cgroup
	mkdir /sys/fs/cgroup/systemd /sys/fs/cgroup/unified
	mount -t cgroup -o none,name=systemd none /sys/fs/cgroup/systemd
	mount -t cgroup2 none /sys/fs/cgroup/unified
fi
mount -t tmpfs none $WORK/etc
cp -a /etc/. $WORK/etc/
mount --move $WORK/etc /etc
for folder in /var/lib /var/log /var/tmp /usr/local/bin /run; do mount -t tmpfs -o mode=755 none $folder; done
mkdir -p /run/systemd/system /run/test
mount --bind $WORK /run/test
mount -t tmpfs -o mode=1777 none /tmp
cp /run/test/weir /usr/local/bin/weir
mkdir -p /etc/weir
cp /run/test/weir.yaml /etc/weir/
cd /run/systemd/system
cp /run/test/units/* .
for folder in /lib/systemd/system/*.target.wants /etc/systemd/system/*.target.wants; do
	for unit in $(ls $folder); do ln -sf /dev/null $unit; done
done
for unit in systemd-remount-fs.service systemd-journald.socket dbus.socket tmp.mount swap.target; do ln -sf /dev/null $unit; done
mount -t proc proc /proc
mount -o remount,ro,bind /
exec /lib/systemd/systemd --system --unit=test.target --log-target=console --show-status=no
`

// systemd is a real one, with the unit of deploy/systemd.
type systemd struct {
	t    *testing.T
	work string // $WORK, which systemd sees as /run/test
	pid  int
	url  string // of weir
}

func startSystemd(t *testing.T) *systemd {
	t.Helper()
	s := &systemd{t: t, work: t.TempDir()}
	address := freePort(t)
	s.url = "http://" + address
	s.write("weir.yaml", fmt.Sprintf(`listeners: {web: {address: %q, protocol: http}}
health: {address: %q}
admin: {address: %q}
storage: /var/lib/weir
access_log: {path: /var/log/weir/access.log}
drain: {lame_duck: 0s, timeout: 5s}
routes: [{name: hello, listeners: [web], respond: {status: 200, body: hello}}]
`, address, freePort(t), freePort(t)))
	unit, err := os.ReadFile("../deploy/systemd/weir.service")
	if err != nil {
		t.Fatal(err)
	}
	s.write("units/weir.service", string(unit))
	s.write("units/weir-web.socket", "[Unit]\nDefaultDependencies=no\n[Socket]\nListenStream="+address+"\nFileDescriptorName=web\nService=weir.service\n")
	s.write("units/test.target", "[Unit]\nDefaultDependencies=no\n")
	s.write("etc/empty", "")               // the folder for /etc
	binary, err := os.ReadFile(shipped(t)) // the unit's limits are for it
	if err != nil {
		t.Fatal(err)
	}
	s.write("weir", string(binary))

	cgroup := fmt.Sprintf("weir-test-%d", os.Getpid())
	cmd := exec.Command("sh", "-c", systemdsCgroup)
	cmd.Env = append(os.Environ(), "WORK="+s.work, "CGROUP="+cgroup, "BOOT="+systemdBoots, "container=weir-test")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC, Pdeathsig: syscall.SIGKILL}
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.pid = cmd.Process.Pid
	t.Cleanup(func() {
		cmd.Process.Kill() // and with it all processes of the namespace
		cmd.Wait()
		if t.Failed() {
			own, _ := os.ReadFile(filepath.Join(s.work, "log"))
			t.Logf("systemd's log, and weir's:\n%s\n%s", log.String(), own[max(0, len(own)-8<<10):])
		}
		eventually(t, "the cgroups of systemd are gone", func() error { return removeCgroups(cgroup) })
	})
	eventually(t, "systemd starts", func() error {
		_, err := s.try("systemctl", "is-active", "test.target")
		return err
	})
	return s
}

// removeCgroups removes the cgroups of this name with those below them. It fails while the kernel has not
// yet taken away the last process.
func removeCgroups(name string) error {
	var errs []error
	for _, hierarchy := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"} {
		var folders []string
		filepath.WalkDir(filepath.Join(hierarchy, name), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				folders = append(folders, path)
			}
			return nil
		})
		for _, folder := range slices.Backward(folders) {
			errs = append(errs, os.Remove(folder))
		}
	}
	return errors.Join(errs...)
}

func (s *systemd) write(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.work, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
		s.t.Fatal(err)
	}
}

// try runs a command beside systemd.
func (s *systemd) try(command ...string) (string, error) {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	out, err := exec.CommandContext(ctx, "nsenter", append([]string{"-t", fmt.Sprint(s.pid), "-m", "-p", "-u", "-i", "--"}, command...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}

func (s *systemd) run(command ...string) string {
	s.t.Helper()
	out, err := s.try(command...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// dropIn changes the unit.
func (s *systemd) dropIn(name, text string) {
	s.t.Helper()
	s.write(name, text)
	const folder = "/run/systemd/system/weir.service.d/"
	s.run("mkdir", "-p", folder)
	s.run("cp", "/run/test/"+name, folder)
	s.run("systemctl", "daemon-reload")
}

// property returns what systemd knows about the unit.
func (s *systemd) property(name string) string {
	s.t.Helper()
	return s.run("systemctl", "show", "weir", "--property="+name, "--value")
}

// awaitProcess waits until the unit is active with another main process than before, which answers.
func (s *systemd) awaitProcess(before string) string {
	s.t.Helper()
	eventually(s.t, "another process than "+before, func() error {
		if now := s.property("MainPID"); now == before || now == "0" || s.property("ActiveState") != "active" {
			return fmt.Errorf("the main process is %s, and the unit %s", now, s.property("ActiveState"))
		}
		return s.ask()
	})
	return s.property("MainPID")
}

// ask sends a request over a new connection.
func (s *systemd) ask() error {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(s.url)
	if err != nil {
		return err
	}
	r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return errors.New(r.Status)
	}
	return nil
}

// asking sends requests while f runs. None may fail.
func (s *systemd) asking(f func()) {
	s.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var beside sync.WaitGroup
	beside.Go(func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			if err := s.ask(); err != nil {
				s.t.Errorf("request %d failed: %v", n, err)
				return
			}
		}
		s.t.Logf("%d requests", n)
	})
	defer beside.Wait()
	defer stop()
	f()
}

// TestSystemd: with the shipped unit and a real systemd weir starts, reloads, upgrades itself and recovers,
// and systemd knows its main process at any time. No request fails that a process could answer.
func TestSystemd(t *testing.T) {
	t.Parallel()
	needRoot(t)
	need(t, "systemctl")
	if _, err := os.Stat("/lib/systemd/systemd"); err != nil {
		lacking(t, "needs systemd: %v", err)
	}
	for _, peer := range []string{"unshare", "nsenter"} {
		need(t, peer)
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err != nil {
		if _, err := os.Stat("/sys/fs/cgroup/systemd/cgroup.procs"); err != nil {
			lacking(t, "needs the cgroups of systemd: %v", err)
		}
	}
	s := startSystemd(t)
	s.run("systemctl", "start", "weir")
	first := s.awaitProcess("0")

	s.asking(func() {
		s.run("systemctl", "reload", "weir")
		if now := s.property("MainPID"); now != first {
			t.Errorf("a reload replaced process %s by %s", first, now)
		}
	})

	s.dropIn("upgrade.conf", "[Service]\nExecReload=\nExecReload=/bin/kill -USR2 $MAINPID\nWatchdogSec=4\nStandardError=append:/run/test/log\n")
	s.run("systemctl", "restart", "weir") // so that its log is a file
	first = s.awaitProcess(first)
	var second string
	s.asking(func() {
		s.run("systemctl", "reload", "weir")
		second = s.awaitProcess(first)
	})

	s.run("sh", "-c", "echo 'unknown: 1' >> /etc/weir/weir.yaml")
	s.asking(func() {
		s.run("systemctl", "reload", "weir")
		eventually(t, "the upgrade fails", func() error {
			log, err := os.ReadFile(filepath.Join(s.work, "log"))
			if err == nil && !strings.Contains(string(log), "the upgrade failed, and this process continues") {
				err = errNotYet
			}
			return err
		})
	})
	if now := s.property("MainPID"); now != second {
		t.Errorf("a failed upgrade replaced process %s by %s", second, now)
	}
	s.run("cp", "/run/test/weir.yaml", "/etc/weir/weir.yaml")

	// The watchdog restarts a process that stands still, also one that came by an upgrade.
	s.run("systemctl", "reload", "weir")
	third := s.awaitProcess(second)
	s.run("kill", "-STOP", third)
	s.awaitProcess(third)
	if n := s.property("NRestarts"); n != "1" {
		t.Errorf("systemd restarted weir %s times", n)
	}
	s.run("systemctl", "stop", "weir")
	if state := s.property("ActiveState") + " " + s.property("Result"); state != "inactive success" {
		t.Errorf("weir has stopped, and systemd says %s", state)
	}

	// With socket activation, a restart loses nothing, and a death only what the process had accepted. The watchdog
	// is off: on a machine that stands still for seconds it would kill weir with a client.
	s.dropIn("without-watchdog.conf", "[Service]\nWatchdogSec=0\nSockets=weir-web.socket\n")
	s.run("systemctl", "start", "weir-web.socket")
	if err := s.ask(); err != nil {
		t.Fatalf("the first client did not start weir: %v", err)
	}
	before := s.awaitProcess("0")
	s.asking(func() {
		// The upgrade (reload) comes after the restart. In a container with cgroup v1, systemd does not wait for the end
		// of a process that another one has started, and kills it at once.
		for _, change := range []string{"restart", "reload"} {
			s.run("systemctl", change, "weir")
			before = s.awaitProcess(before)
		}
		s.run("systemctl", "kill", "--signal=TERM", "--kill-who=main", "weir")
		before = s.awaitProcess(before)
	})
	s.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", "weir")
	if err := s.ask(); err != nil {
		t.Errorf("after kill -9 a client was refused: %v", err)
	}
	s.awaitProcess(before)
	s.run("systemctl", "stop", "weir-web.socket", "weir")
}
