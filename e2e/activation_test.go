package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// activate makes the test the service manager of w: it has opened the sockets, and keeps them.
// names is LISTEN_FDNAMES.
func (w *weir) activate(names string, sockets ...net.Listener) {
	w.t.Helper()
	for _, ln := range sockets {
		f, err := ln.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { f.Close() })
		w.files = append(w.files, f)
	}
	w.env = append(w.env, fmt.Sprint("LISTEN_FDS=", len(sockets)), "LISTEN_FDNAMES="+names)
	w.before = []string{"/bin/sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh"}
}

const activationConfig = `
listeners:
  web: {address: '@web', protocol: http}
  local: {address: 'unix:@@dir/local.sock', protocol: http}
routes: [{listeners: [web, local], backend: app}]
backends: {app: {endpoints: ['@app']}}
`

// A service manager opens the sockets before weir starts, and keeps them when weir ends. So clients that
// connect between two processes wait, and the next process serves them.
func TestSocketActivation(t *testing.T) {
	long(t)
	t.Parallel()
	needLinux(t)
	app := newWebBackend(t, "app")
	sockets := map[string]net.Listener{}
	open := func(network, name, address string) net.Listener {
		t.Helper()
		ln, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		sockets[name] = ln
		return ln
	}
	dir := t.TempDir()
	local := filepath.Join(dir, "local.sock")
	open("tcp", "web", "127.0.0.1:0")
	open("tcp", "health", "127.0.0.1:0")
	open("unix", "local", local).(*net.UnixListener).SetUnlinkOnClose(false)
	start := func() *weir {
		t.Helper()
		w := newWeir(t)
		w.address["app"] = app.address
		for _, name := range []string{"web", "health"} {
			w.address[name] = sockets[name].Addr().String()
		}
		w.activate("web:local:health", sockets["web"], sockets["local"], sockets["health"])
		return w.start(strings.ReplaceAll(activationConfig, "@@dir", dir))
	}
	ask := func(c net.Conn) {
		t.Helper()
		if _, err := askSeen(c, "app.example.org", "/"); err != nil {
			t.Errorf("a client that waited: %v", err)
		}
	}
	for range 2 {
		early := dial(t, sockets["web"].Addr().String())
		w := start()
		ask(early)
		for _, network := range []string{"tcp", "unix"} {
			client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
				if network == "unix" {
					return net.Dial("unix", local)
				}
				return net.Dial("tcp", w.at("web"))
			}}}
			resp, err := client.Get("http://app.example.org/")
			if err != nil || resp.StatusCode != 200 {
				t.Fatalf("%s: %v, %v", network, resp, err)
			}
			resp.Body.Close()
		}
		if status := w.terminate(); status != 0 {
			t.Errorf("it ended with status %d", status)
		}
		if _, err := os.Lstat(local); err != nil {
			t.Errorf("the socket file of the service manager is gone: %v", err)
		}
	}
}

// If no listener has the name of a socket, its clients would never get an answer. If the listener has another
// address, weir would serve the wrong clients. So weir does not start, and says what to change.
func TestSocketActivationErrors(t *testing.T) {
	t.Parallel()
	needLinux(t)
	f := func(names, want string) {
		t.Helper()
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		w := newWeir(t)
		w.address["app"] = "127.0.0.1:9"
		w.activate(names, ln)
		w.write(activationConfig)
		w.launch()
		if status := w.wait(); status != 1 {
			t.Errorf("%s: it ended with status %d", names, status)
		}
		want = strings.NewReplacer("INHERITED", ln.Addr().String(), "CONFIGURED", w.at("web")).Replace(want)
		if !strings.Contains(w.log.String(), want) {
			t.Errorf("%s: the log has no %q:\n%s", names, want, w.log.String())
		}
	}
	f("web", `listeners.web.address: the inherited socket "web" listens on INHERITED, and the configuration says CONFIGURED; write the same address in both`)
	f("weir.socket", `the inherited socket "weir.socket" (INHERITED) belongs to no listener; its name in LISTEN_FDNAMES`)
	f("a:b", "LISTEN_FDNAMES has 2 names (a:b), but LISTEN_FDS says 1 sockets")
}

// systemd's own tool starts weir for the first client.
func TestSystemdSocketActivate(t *testing.T) {
	t.Parallel()
	needLinux(t)
	tool := need(t, "systemd-socket-activate")
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.before = []string{tool, "-l", w.at("web"), "-l", w.at("health"), "--fdname=web:health"}
	w.start(activationConfig) // its first check of the health port
	if status, _, err := w.get("web", "/"); status != 200 {
		t.Errorf("%d, %v", status, err)
	}
	if n := w.linesWith("listening", `"web"`); n != 1 {
		t.Errorf("%d lines for web", n)
	}
	if status := w.terminate(); status != 0 {
		t.Errorf("it ended with status %d", status)
	}
}
