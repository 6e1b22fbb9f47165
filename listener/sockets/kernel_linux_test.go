package sockets

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Accepted sockets must have the options that are set on the listening socket.
func TestKeepAliveIsInherited(t *testing.T) {
	w := newWorld(t, "tcp")
	w.commit(w.plan("web:a"))
	ln := w.owners["web"]
	w.dial("a")
	nc, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	f := func(level, option, want int) {
		t.Helper()
		raw.Control(func(fd uintptr) {
			if got, err := unix.GetsockoptInt(int(fd), level, option); got != want || err != nil {
				t.Errorf("option %d is %d, %v; want %d", option, got, err, want)
			}
		})
	}
	f(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	f(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAliveIdle.Seconds()))
	f(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAliveInterval.Seconds()))
	f(unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAliveCount)
	f(unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if raw, err = ln.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	f(unix.SOL_SOCKET, unix.SO_PROTOCOL, unix.IPPROTO_TCP) // not MPTCP
}

// A socket for all addresses opens while another owner still has a socket for a single address. That socket
// gets the connections to its address until it is closed, so an abandoned plan changes nothing. Afterwards no
// other process can listen on the port.
func TestWiden(t *testing.T) {
	w := newWorld(t, "tcp")
	w.commit(w.plan("web:a"))
	_, port, _ := net.SplitHostPort(w.address("a"))
	w.names["all"] = ":" + port
	old := w.owners["web"]
	for _, commit := range []bool{false, true} {
		p := w.plan("web:all")
		if err := p.Err("web"); err != nil {
			t.Fatal(err)
		}
		wantAccepted(t, old, w.dial("a"))
		if _, err := bind("tcp", ":"+port); err == nil {
			t.Error("another process may listen beside weir")
		}
		if !commit {
			p.Abandon()
			wantAccepted(t, old, w.dial("a"))
			continue
		}
		queued := w.dial("a") // this connection is in the old socket's queue
		p.Commit()
		old.RefuseNew()
		wantAccepted(t, old, queued)
		w.commit(p) // commit closes the old socket
		wantAccepted(t, w.owners["web"], w.dial("a"))
	}
	w.names["other"] = "127.0.0.2:" + port
	wantAccepted(t, w.owners["web"], w.dial("other"))
	if _, err := bind("tcp", "127.0.0.1:"+port); err == nil {
		t.Error("another process may listen beside weir")
	}
}

// New handshakes stop before the listener empties the queue, with a packet filter and
// without one.
func TestNewHandshakesAreRefused(t *testing.T) {
	f := func(name string, refuse func(*Socket) bool) {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "tcp")
			w.commit(w.plan("web:a"))
			ln, before := w.owners["web"], w.dial("a")
			if !refuse(ln) {
				t.Fatal("the kernel does not let us")
			}
			if !ln.Waits(0) {
				t.Error("who was there is not")
			}
			if c, err := net.DialTimeout("tcp", ln.Addr().String(), handshakeTime); err == nil {
				c.Close()
				t.Error("a new connection was begun")
			}
			nc, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			nc.Write([]byte("hello")) // accepted connections must still work
			wantEcho(t, before, "hello")
			nc.Close()
		})
	}
	f("as the kernel lets us", func(ln *Socket) bool { return ln.RefuseNew() > 0 })
	f("without a filter", func(ln *Socket) bool {
		raw, err := ln.SyscallConn()
		if err == nil {
			raw.Control(func(fd uintptr) { err = answerSYN(int(fd)) })
		}
		return err == nil
	})
}

// The same without capabilities: weir has dropped them already, or never had them.
func TestRefuseWithoutCapabilities(t *testing.T) {
	c := exec.Command("/proc/self/exe", "-test.v", "-test.run", "^TestNewHandshakesAreRefused$")
	c.Dir = "/"
	if os.Getuid() == 0 {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := c.CombinedOutput()
	if err != nil || bytes.Count(out, []byte("\n--- PASS")) != 1 {
		t.Errorf("%v:\n%s", err, out)
	}
}

// An abstract address of a Unix socket has no file that could be removed.
func TestAbstractAddress(t *testing.T) {
	w := newWorld(t, "unix")
	w.names["a"] = "@" + t.TempDir()
	w.commit(w.plan("web:a"))
	if got := w.fate(w.plan("web:a"), "web"); got != "kept" || w.owners["web"].Waits(0) {
		t.Error(got)
	}
	w.commit(w.plan("api:a"))
	wantAccepted(t, w.owners["api"], w.dial("a"))
}

// A process that is too busy to accept has a full queue. Its socket file stays.
func TestBindLeavesTheFileOfABusyProcess(t *testing.T) {
	path := t.TempDir() + "/socket"
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for {
		c, err := net.Dial("unix", path)
		if err != nil {
			break
		}
		defer c.Close()
	}
	if _, err := bind("unix", path); !errors.Is(err, unix.EAGAIN) {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

// A Unix socket without a file has no stale file, and no folder.
func TestBindAbstract(t *testing.T) {
	name := fmt.Sprintf("@weir-test-%d", os.Getpid())
	first, err := bind("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bind("unix", name); !errors.Is(err, syscall.EADDRINUSE) || err.Error() != "cannot bind "+name+": address already in use" {
		t.Errorf("a name that is taken: %v", err)
	}
	first.Close()
	second, err := bind("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
}
