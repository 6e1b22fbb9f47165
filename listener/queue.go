package listener

import (
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unlink removes the socket file of a Unix listener, so that no further client connects.
// It reports whether ln is a Unix listener.
func unlink(ln net.Listener) bool {
	u, ok := ln.(*net.UnixListener)
	if !ok {
		return false
	}
	if path := u.Addr().String(); path != "" && path[0] != '@' && path[0] != 0 {
		os.Remove(path)
	}
	u.SetUnlinkOnClose(false)
	return true
}

// somebodyWaits reports whether a connection is in the accept queue of the socket, or
// arrives there within the given time.
func somebodyWaits(ln net.Listener, within time.Duration) bool {
	s, ok := ln.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	until := time.Now().Add(within)
	waits := false
	raw.Control(func(fd uintptr) {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			n, err := unix.Poll(polled, max(0, int(time.Until(until).Milliseconds())))
			if err != unix.EINTR {
				waits = n > 0
				return
			}
		}
	})
	return waits
}
