package e2e

import (
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// On a terminal weir top shows the state of two weirs until its reader presses q. It obeys keys, and
// leaves the terminal as it was.
func TestTopOnATerminal(t *testing.T) {
	const config = `
node: %s
listeners: {web: {address: "@web", protocol: http}}
routes:
  - {name: first, listeners: [web], hosts: [a.example], respond: {status: 204}}
  - {name: second, listeners: [web], hosts: [b.example], respond: {status: 204}}
`
	one, two := newWeir(t).start(fmt.Sprintf(config, "edge-one")), newWeir(t).start(fmt.Sprintf(config, "edge-two"))
	control, terminal := openTerminal(t)
	if err := unix.IoctlSetWinsize(int(control.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 120}); err != nil {
		t.Fatal(err)
	}
	before, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	top := exec.Command(executable(t), "top", "--every", "500ms", one.at("admin"), two.at("admin"))
	top.Stdin, top.Stdout, top.Stderr = terminal, terminal, terminal
	top.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := top.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		top.Wait()
		close(exited)
	}()
	t.Cleanup(func() {
		top.Process.Kill()
		<-exited
	})
	var screen logBuffer
	go io.Copy(&screen, control)
	shows := func(text string) {
		t.Helper()
		eventually(t, "the terminal shows "+text, func() error {
			if got := screen.String(); !strings.Contains(got, text) {
				return fmt.Errorf("it shows %q", got)
			}
			return nil
		})
	}
	for _, text := range []string{"\x1b[?1049h", "2 of 2 healthy", "edge-one", "edge-two", "first", "routes by requests"} {
		shows(text)
	}
	if _, err := io.WriteString(control, "e"); err != nil {
		t.Fatal(err)
	}
	shows("routes by errors")
	two.terminate()
	shows("1 of 2 healthy")
	shows("cannot query the admin port")
	if _, err := io.WriteString(control, "q"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "top ends", func() error {
		select {
		case <-exited:
			return nil
		default:
			return errNotYet
		}
	})
	if status := top.ProcessState.ExitCode(); status != 0 {
		t.Errorf("top ended with status %d", status)
	}
	shows("\x1b[?1049l")
	if after, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS); err != nil || *after != *before {
		t.Errorf("the terminal was not restored: %v, %+v, %+v", err, before, after)
	}
}
