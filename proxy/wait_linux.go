package proxy

import "golang.org/x/sys/unix"

// hungUp reports whether the other end of a socket sent its end of stream or a reset. It sees
// them even behind unread bytes, for example behind a close_notify.
func hungUp(fd int) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds[:], 0)
	return err == nil && n > 0
}
