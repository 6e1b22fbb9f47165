package backend

import "golang.org/x/sys/unix"

// peerEnded reports whether the peer has closed the connection, even if unread bytes
// precede the end.
func peerEnded(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, _ := unix.Poll(p, 0)
	return n > 0
}
