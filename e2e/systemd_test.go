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

// TestSystemdWatchdog: systemd's watchdog restarts a weir that stands still, and no other. So
// weir tells systemd that it is alive, also during a drain, and not at all if the watchdog is
// for another process.
func TestSystemdWatchdog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "n")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	heard := func() string {
		t.Helper()
		buf := make([]byte, 1<<10)
		socket.SetReadDeadline(time.Now().Add(patience))
		n, err := socket.Read(buf)
		if err != nil {
			t.Fatalf("systemd hears nothing: %v", err)
		}
		return string(buf[:n])
	}
	w := newWeir(t)
	w.env = []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=200000"}
	w.address["app"] = newWebBackend(t, "app").address
	const config = "drain: {lame_duck: 1h}\nlisteners: {web: {address: '@web', protocol: http}}\nroutes: [{listeners: [web], backend: app}]\nbackends: {app: {endpoints: ['@app']}}\n"
	w.start(config)
	alive := 0
	for alive < 5 {
		if heard() == "WATCHDOG=1" {
			alive++
		}
	}
	w.signal(syscall.SIGTERM)
	for heard() != "STOPPING=1" {
	}
	for range 3 {
		if text := heard(); text != "WATCHDOG=1" {
			t.Errorf("during the drain systemd hears %q", text)
		}
	}
	w.signal(syscall.SIGTERM) // the second one ends the drain
	w.wait()

	other := newWeir(t)
	other.env = []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=1000", "WATCHDOG_PID=1"}
	other.address["app"] = w.address["app"]
	other.start(config)
	for text := ""; text != "READY=1"; {
		text = heard()
	}
	other.signal(syscall.SIGTERM)
	if text := heard(); text != "STOPPING=1" {
		t.Errorf("systemd hears %q, although its watchdog is for another process", text)
	}
}

// weir notifies systemd when it serves, reloads and ends.
func TestSystemdIsNotified(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	path := filepath.Join(t.TempDir(), "n")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	heard := func(want string) {
		t.Helper()
		buf := make([]byte, 1<<10)
		socket.SetReadDeadline(time.Now().Add(patience))
		n, err := socket.Read(buf)
		if err != nil || !strings.HasPrefix(string(buf[:n]), want) {
			t.Fatalf("systemd hears %q, %v; want %s", buf[:n], err, want)
		}
	}
	w.env = []string{"NOTIFY_SOCKET=" + path}
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
