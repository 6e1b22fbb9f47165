package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// peerProcess is a server that a test runs beside weir.
type peerProcess struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	log  logBuffer
	done chan struct{} // closed when the process has ended
}

// runPeer runs a server until the test ends.
func runPeer(t *testing.T, name string, args ...string) *peerProcess {
	t.Helper()
	return runPeerWith(t, nil, name, args...)
}

// runPeerWith is like runPeer, with additional environment variables.
func runPeerWith(t *testing.T, env []string, name string, args ...string) *peerProcess {
	t.Helper()
	p := &peerProcess{t: t, name: filepath.Base(name), done: make(chan struct{})}
	p.cmd = exec.Command(name, args...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	// The server gets its own process group, so that its workers end with it. A worker that stays keeps our
	// ends of the output open, and Wait would wait for it.
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

// nginxConfig is the part of nginx's configuration outside of its servers, with the paths of its files.
const nginxConfig = `
daemon off;
master_process off; # killed as one
pid %[1]s/nginx.pid;
error_log %[1]s/nginx.log;
events {}
http {
    access_log off;
    client_body_temp_path %[1]s/body;
    proxy_temp_path %[1]s/proxy;
    fastcgi_temp_path %[1]s/fastcgi;
    uwsgi_temp_path %[1]s/uwsgi;
    scgi_temp_path %[1]s/scgi;
%[2]s}
`

// runProxy runs HAProxy with a configuration, or nginx with the content of its http section.
func runProxy(t *testing.T, name, dir, config string) *peerProcess {
	t.Helper()
	path, args := need(t, name), []string{"-db", "-f"}
	if name == "nginx" {
		args, config = []string{"-c"}, fmt.Sprintf(nginxConfig, dir, config)
	}
	file := filepath.Join(dir, name+".conf")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	return runPeer(t, path, append(args, file)...)
}

// kill ends the server and its workers at once.
func (p *peerProcess) kill() {
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// listening waits until the server accepts connections. It fails the test if the server ends.
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
