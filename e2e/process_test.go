package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// peerProcess is a server beside weir.
type peerProcess struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	log  logBuffer
	done chan struct{} // closed when it has ended
}

// runPeer runs a server until the test ends.
func runPeer(t *testing.T, name string, args ...string) *peerProcess {
	t.Helper()
	return runPeerWith(t, nil, name, args...)
}

// runPeerWith is runPeer with more in the environment.
func runPeerWith(t *testing.T, env []string, name string, args ...string) *peerProcess {
	t.Helper()
	p := &peerProcess{t: t, name: filepath.Base(name), done: make(chan struct{})}
	p.cmd = exec.Command(name, args...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	// In a group of its own, for its workers to end with it: one that lives on
	// holds our ends of its output open, and Wait would wait for them.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s said:\n%s", p.name, p.log.tail(4<<10))
		}
	})
	return p
}

// kill ends the server and its workers at once.
func (p *peerProcess) kill() {
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// listening waits until the server accepts connections, and fails the test when it ends instead.
func (p *peerProcess) listening(addresses ...string) {
	p.t.Helper()
	for _, address := range addresses {
		eventually(p.t, p.name+" listens on "+address, func() error {
			select {
			case <-p.done:
				p.t.Fatalf("%s ended at once:\n%s", p.name, p.log.tail(4<<10))
			default:
			}
			c, err := net.Dial("tcp", address)
			if err == nil {
				c.Close()
			}
			return err
		})
	}
}
