package listener

import (
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// What is set on the listening socket has to hold on those it accepts.
func TestKeepAliveIsInherited(t *testing.T) {
	ln, err := Bind("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	defer dial(t, ln).Close()
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
}

// Where the kernel lets us, new handshakes stop before the queue is emptied.
func TestNewHandshakesAreRefused(t *testing.T) {
	ln, err := Bind("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	before := dial(t, ln)
	defer before.Close()
	if refuseNew(ln) == 0 {
		t.Skip("no socket filters here")
	}
	if !somebodyWaits(ln, 0) {
		t.Error("who was there is not")
	}
	if c, err := net.DialTimeout("tcp", ln.Addr().String(), settleTime); err == nil {
		c.Close()
		t.Error("a new connection was begun")
	}
	nc, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	nc.Write([]byte("hello")) // a filter on the listening socket must not reach those it accepted
	wantEcho(t, before, "hello")
	nc.Close()
}
