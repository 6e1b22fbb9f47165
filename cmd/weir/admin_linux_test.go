package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/cmd/weir/node"
)

// needRoot skips a test that opens sockets as other users; in CI it fails without root.
func needRoot(t *testing.T) {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("CI") == "true":
		t.Fatal("CI does not run as root, and only root can be another user")
	default:
		t.Skip("only root can be another user")
	}
}

// The kernel says who opened a port.
func TestPortUser(t *testing.T) {
	for listen, asked := range map[string]string{"127.0.0.1:0": "127.0.0.1", "0.0.0.0:0": "127.0.0.1", "[::]:0": "127.0.0.1", "[::1]:0": "::1"} {
		ln, err := net.Listen("tcp", listen)
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(ln.Addr().String())
		if uid := portUser(net.JoinHostPort(asked, port)); uid != os.Geteuid() {
			t.Errorf("%s is open, and for %s the user is %d", listen, asked, uid)
		}
		ln.Close()
		if uid := portUser(net.JoinHostPort(asked, port)); uid != -1 {
			t.Errorf("the closed port has the user %d", uid)
		}
	}
}

// Another user may take the name of the socket beside the port. Root does not ask that user, unless the port has the same user.
func TestForeignAdminSocket(t *testing.T) {
	needRoot(t)
	const weir, other = 65531, 65532
	for user, want := range map[uint32]string{weir: "unix", other: "tcp", 0: "unix"} {
		port := listenAs(t, weir, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
		at, err := unix.Getsockname(port)
		if err != nil {
			t.Fatal(err)
		}
		address := fmt.Sprint("localhost:", at.(*unix.SockaddrInet4).Port)
		listenAs(t, user, &unix.SockaddrUnix{Name: node.AdminSocket(strings.Replace(address, "localhost", "127.0.0.1", 1))})
		c, err := new(besideSocket).dial(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if got := c.RemoteAddr().Network(); got != want {
			t.Errorf("the socket is of user %d, and the command uses %s", user, got)
		}
	}
}

// If another user has taken the name of the socket, the refusal of the port names that user.
func TestRefusalNamesForeignSocket(t *testing.T) {
	needRoot(t)
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "root needs no token", http.StatusForbidden)
	}))
	defer admin.Close()
	address := admin.Listener.Addr().String()
	_, errs, _ := weir("drain", address)
	if strings.Contains(errs, "Unix socket") {
		t.Errorf("without a socket: %s", errs)
	}
	const other = 65532
	socket := node.AdminSocket(address)
	listenAs(t, other, &unix.SockaddrUnix{Name: socket})
	want := fmt.Sprintf("; the command did not use the Unix socket beside the port: user %d opened %s, and another user the port; ss -xlp shows the process\n", other, socket)
	if _, errs, status := weir("drain", address); status != statusError || !strings.Contains(errs, "root needs no token") || !strings.HasSuffix(errs, want) {
		t.Errorf("status %d: %s", status, errs)
	}
}

// listenAs opens a listener as another user. It is closed at the end of the test.
func listenAs(t *testing.T, user uint32, at unix.Sockaddr) (fd int) {
	t.Helper()
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		_, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, uintptr(user), uintptr(user), uintptr(user))
		family := unix.AF_UNIX
		if _, ok := at.(*unix.SockaddrInet4); ok {
			family = unix.AF_INET
		}
		var err error
		if errno != 0 {
			err = errno
		} else if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
			if err = unix.Bind(fd, at); err == nil {
				err = unix.Listen(fd, 8)
			}
		}
		failed <- err
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}
