package node

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel says which user has connected to a Unix socket.
func TestPeerUser(t *testing.T) {
	ln, err := net.Listen("unix", "@weir-test-"+fmt.Sprint(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	accepted := func(want int) {
		t.Helper()
		nc, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if uid, known := PeerUser(nc); uid != want || !known {
			t.Errorf("the peer is %d, %v, want %d", uid, known, want)
		}
	}
	c, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	accepted(os.Geteuid())
	if _, known := PeerUser(c.(*net.UnixConn)); !known {
		t.Error("the server is not known")
	}
	if os.Geteuid() != 0 {
		return // only root can be another user
	}
	const other = 65532
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		_, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, other, other, other)
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if errno == 0 && err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: ln.Addr().String()})
		} else {
			err = fmt.Errorf("%v, %v", errno, err)
		}
		failed <- err
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	accepted(other)
}

// In a user namespace one user stands for all that the namespace does not have, so it is not trusted.
func TestUserThatStandsForOthers(t *testing.T) {
	f := func(uid int, overflow, ids string, want bool) {
		t.Helper()
		proc := t.TempDir()
		for name, text := range map[string]string{"sys/kernel/overflowuid": overflow, "self/uid_map": ids} {
			if text == "" {
				continue
			}
			path := filepath.Join(proc, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		if got := standsForOthers(uid, proc); got != want {
			t.Errorf("user %d, overflow %q, map %q: %v", uid, overflow, ids, got)
		}
	}
	const initial, inner = "         0          0 4294967295\n", "         0     100000      65536\n"
	f(65534, "65534\n", initial, false)
	f(65534, "65534\n", inner, true)
	f(65534, "65533\n", inner, false)
	f(65533, "65533\n", inner, true)
	f(0, "65534\n", inner, false)
	f(65534, "", "", true)
	f(0, "", "", false)
}
