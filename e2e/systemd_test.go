package e2e

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// systemd accepts the shipped unit without warnings, and rates its exposure as low.
func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	analyze := need(t, "systemd-analyze")
	text, err := os.ReadFile("../deploy/systemd/weir.service")
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "weir.service")
	if err := os.WriteFile(unit, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/weir", executable(t))), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "security", "--offline=true", "--threshold=20", unit).CombinedOutput(); err != nil {
		t.Errorf("it is exposed: %v\n%s", err, out)
	}
	if out, err := exec.Command(analyze, "verify", unit).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd does not like it: %v\n%s", err, out)
	}
}

// fakeSystemd is the test in the place of systemd: processes report their states to its socket.
type fakeSystemd struct {
	t      *testing.T
	path   string
	socket *net.UnixConn
}

func listenAsSystemd(t *testing.T) *fakeSystemd {
	t.Helper()
	path := filepath.Join(t.TempDir(), "n")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	return &fakeSystemd{t, path, socket}
}

// env is the variable that tells a process where to report its states.
func (f *fakeSystemd) env() string { return "NOTIFY_SOCKET=" + f.path }

// hear returns the next state that a process reports.
func (f *fakeSystemd) hear() string {
	f.t.Helper()
	buf := make([]byte, 1<<10)
	f.socket.SetReadDeadline(time.Now().Add(time.Minute)) // an upgrade may take longer than patience
	n, err := f.socket.Read(buf)
	if err != nil {
		f.t.Fatalf("systemd hears nothing: %v", err)
	}
	return string(buf[:n])
}

// awaitState skips states until one begins with these words.
func (f *fakeSystemd) awaitState(words string) {
	f.t.Helper()
	for !strings.HasPrefix(f.hear(), words) {
	}
}

// TestSystemdWatchdog: systemd's watchdog restarts a weir that stands still, and no other. So
// weir tells systemd that it is alive, also during a drain, and not at all if the watchdog is
// for another process.
func TestSystemdWatchdog(t *testing.T) {
	t.Parallel()
	systemd := listenAsSystemd(t)
	w := newWeir(t)
	w.env = []string{systemd.env(), "WATCHDOG_USEC=200000"}
	w.address["app"] = newWebBackend(t, "app").address
	const config = "drain: {lame_duck: 1h}\nlisteners: {web: {address: '@web', protocol: http}}\nroutes: [{listeners: [web], backend: app}]\nbackends: {app: {endpoints: ['@app']}}\n"
	w.start(config)
	alive := 0
	for alive < 5 {
		if systemd.hear() == "WATCHDOG=1" {
			alive++
		}
	}
	w.signal(syscall.SIGTERM)
	systemd.awaitState("STOPPING=1")
	for range 3 {
		if text := systemd.hear(); text != "WATCHDOG=1" {
			t.Errorf("during the drain systemd hears %q", text)
		}
	}
	w.signal(syscall.SIGTERM) // the second one ends the drain
	w.wait()

	other := newWeir(t)
	other.env = []string{systemd.env(), "WATCHDOG_USEC=1000", "WATCHDOG_PID=1"}
	other.address["app"] = w.address["app"]
	other.start(config)
	systemd.awaitState("READY=1")
	other.signal(syscall.SIGTERM)
	if text := systemd.hear(); text != "STOPPING=1" {
		t.Errorf("systemd hears %q, although its watchdog is for another process", text)
	}
}

// weir notifies systemd when it serves, reloads and ends.
func TestSystemdIsNotified(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	systemd := listenAsSystemd(t)
	heard := func(want string) {
		t.Helper()
		if text := systemd.hear(); !strings.HasPrefix(text, want) {
			t.Fatalf("systemd hears %q; want %s", text, want)
		}
	}
	w.env = []string{systemd.env()}
	w.address["app"] = newWebBackend(t, "app").address
	config := "listeners: {web: {address: '@web', protocol: http}}\nroutes: [{listeners: [web], backend: app}]\nbackends: {app: {endpoints: ['@app']}}\n"
	w.start(config)
	heard("READY=1")
	w.signal(syscall.SIGHUP)
	heard("RELOADING=1\nMONOTONIC_USEC=")
	heard("READY=1")
	w.signal(syscall.SIGTERM)
	heard("STOPPING=1")
	if status := w.wait(); status != 0 {
		t.Error(errors.New("it ended in disorder"), status)
	}
}
