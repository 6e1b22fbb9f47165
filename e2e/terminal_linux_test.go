package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openTerminal opens both ends of a pseudo-terminal.
func openTerminal(t *testing.T) (control, terminal *os.File) {
	t.Helper()
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		lacking(t, "this machine has no pseudo-terminals: %v", err)
	}
	t.Cleanup(func() { control.Close() })
	n, err := unix.IoctlGetInt(int(control.Fd()), unix.TIOCGPTN)
	err = errors.Join(err, unix.IoctlSetPointerInt(int(control.Fd()), unix.TIOCSPTLCK, 0))
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		lacking(t, "the pseudo-terminal cannot be opened: %v", err)
	}
	return control, terminal
}

// On a terminal weir writes its log as text, and shows each address and all requests. After Ctrl-C weir shows
// what it waits for. A second Ctrl-C ends it.
func TestTerminal(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	w.address["app"], w.address["echo"] = newWebBackend(t, "app").address, newEchoBackend(t).address
	// The test does not use w.write, which would add sections that a user's first configuration does not
	// have.
	text := fmt.Sprintf(`
listeners:
  web: {address: '%s', protocol: http}
  raw: {address: '%s', protocol: tcp}
routes:
  - {listeners: [web], backend: app}
  - {listeners: [raw], backend: echo}
backends:
  app: {endpoints: ['%s']}
  echo: {protocol: tcp, endpoints: ['%s']}
admin: {address: '%s'}
`, w.at("web"), w.at("raw"), w.at("app"), w.at("echo"), w.at("admin"))
	if err := os.WriteFile(w.config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	control, terminal := openTerminal(t)
	cmd := exec.Command(executable(t), "run", w.config)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	terminal.Close()
	var screen logBuffer
	go io.Copy(&screen, control)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer cmd.Process.Kill()
	defer func() {
		if t.Failed() {
			t.Logf("the terminal shows:\n%s", screen.String())
		}
	}()
	shows := func(all ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("a line has %q", all), func() error {
			for line := range strings.Lines(screen.String()) {
				missing := false
				for _, part := range all {
					missing = missing || !strings.Contains(line, part)
				}
				if !missing {
					return nil
				}
			}
			return errNotYet
		})
	}
	press := func() {
		t.Helper()
		if _, err := control.Write([]byte{3}); err != nil {
			t.Fatal(err)
		}
	}
	shows("INFO\tlistening", w.at("web"), `"web"`)
	shows("INFO\tlistening", w.at("raw"), `"raw"`)
	shows("INFO\tlistening", w.at("admin"), `"admin"`)
	shows("INFO\tserving")
	if _, err := askSeen(dial(t, w.at("web")), "a", "/seen"); err != nil {
		t.Error(err)
	}
	shows(`{"time":`, `"target":"/seen"`)
	tunnel := openTunnel(t, w)
	press()
	shows("draining", `"lame_duck": 0`)
	shows("all ports are closed")
	shows("waiting", "press Ctrl-C again", `"connections": `, `"tunnels": 1`)
	tunnel.Write([]byte("y"))
	if _, err := io.ReadFull(tunnel, make([]byte, 1)); err != nil {
		t.Errorf("the tunnel does not go on: %v", err)
	}
	press()
	select {
	case err := <-ended:
		if e, ok := err.(*exec.ExitError); !ok || e.ExitCode() != 1 {
			t.Errorf("a tunnel was cut, and it ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("a second Ctrl-C does not end weir")
	}
	shows("1 active requests or tunnels aborted before the end of drain.timeout")
}

// weir run and weir check accept the file as an argument; weir check accepts several.
func TestFileAsArgument(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	w.address["app"] = "127.0.0.1:1"
	w.write(webConfig)
	f := func(status int, want string, args ...string) {
		t.Helper()
		out, err := exec.Command(executable(t), args...).CombinedOutput()
		got := 0
		if e, ok := err.(*exec.ExitError); ok {
			got = e.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if got != status || !strings.Contains(string(out), want) {
			t.Errorf("weir %s: status %d, %s", strings.Join(args, " "), got, out)
		}
	}
	f(0, w.config+": ok", "check", w.config)
	f(0, w.config+": ok", "check", "-c", w.config)
	f(0, w.config+": ok", "check", w.config, w.config)
	f(2, "write one configuration file: weir run FILE", "run", w.config, w.config)
	for _, command := range []string{"check", "run"} {
		f(2, "two configuration files:", command, "-c", w.config, w.config)
		f(2, "write weir "+command+" FILE", command) // this folder has no weir.yaml
		f(1, "absent.yaml", command, "absent.yaml")
	}
}
