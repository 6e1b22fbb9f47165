package sockets

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
)

// The error of bind names the address once, and says what to change.
func TestBindErrors(t *testing.T) {
	f := func(network, address string, cause syscall.Errno, want string) {
		t.Helper()
		err := bindError(network, address, &net.OpError{Op: "listen", Net: network, Err: os.NewSyscallError("bind", cause)})
		if err.Error() != want || !errors.Is(err, cause) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
	f("tcp", ":443", syscall.EACCES, "cannot bind :443: permission denied; ports below 1024 need privileges: give weir the capability CAP_NET_BIND_SERVICE, start it as root, or use a port from 1024")
	f("tcp", ":8443", syscall.EACCES, "cannot bind :8443: permission denied")
	f("unix", "/run/x", syscall.EACCES, "cannot bind /run/x: permission denied; weir may not create files in the folder; give its user the right to write there, or use another path")
	f("unix", "/run/absent/x", syscall.ENOENT, "cannot bind /run/absent/x: no such file or directory; the folder does not exist; make it, or use another path")
	f("tcp", "192.0.2.1:8443", syscall.EADDRNOTAVAIL, "cannot bind 192.0.2.1:8443: "+syscall.EADDRNOTAVAIL.Error()+"; this machine does not have the address; use one of its own, or leave the host out to bind them all")

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	want := "cannot bind " + address + ": address already in use; another process has the port; stop that process, or use another address"
	if _, err := bind("tcp", address); err == nil || err.Error() != want {
		t.Errorf("a port that is taken: %v, want %q", err, want)
	}
}

func TestBindUnix(t *testing.T) {
	path := t.TempDir() + "/socket"
	first, err := bind("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bind("unix", path); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a socket that answers was replaced: %v", err)
	}
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	first.Close()
	second, err := bind("unix", path)
	if err != nil {
		t.Fatalf("a stale socket is in the way: %v", err)
	}
	second.Close()
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := bind("unix", path); err == nil {
		t.Error("a file was replaced")
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Error("a file was removed")
	}
}

func TestBindIsDualStack(t *testing.T) {
	ln, err := bind("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	for _, host := range []string{"127.0.0.1", "::1"} {
		c, err := net.Dial("tcp", net.JoinHostPort(host, port))
		if err != nil {
			if host == "::1" && os.Getenv("CI") != "true" {
				t.Skip("no IPv6 here")
			}
			t.Fatal(err)
		}
		nc, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if a := nc.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(); a.String() != host {
			t.Errorf("the peer is %v", a)
		}
		c.Close()
		nc.Close()
	}
	if _, err := bind("tcp", ln.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Error(err)
	}
}
