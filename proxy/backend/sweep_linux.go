package backend

import "golang.org/x/sys/unix"

// peerEnded reports whether the peer has closed the connection, even if there are bytes
// before that which nobody has read.
func peerEnded(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, _ := unix.Poll(p, 0)
	return n > 0
}
