package soak

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// control prepares a socket before it connects. connect then chooses the local port,
// instead of bind: connect knows the remote address, and can use the same port for
// another one. A slow reader has a small receive window from the start.
func control(slow bool) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
			if slow {
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, slowWindow)
			}
		})
	}
}

// nap sleeps for d. A timer of an idle process can be a millisecond late, because epoll
// counts in milliseconds.
func nap(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	for unix.Nanosleep(&t, &t) == unix.EINTR { // a signal ended the sleep early
	}
}
