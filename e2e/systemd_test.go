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
