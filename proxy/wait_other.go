//go:build !linux

package proxy

import "syscall"

// hungUp reports whether the other end of a socket sent its end of stream or a reset. It cannot
// see them behind unread bytes.
func hungUp(fd int) bool {
	var b [1]byte
	n, _, err := syscall.Recvfrom(fd, b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return err == nil && n == 0 || err != nil && err != syscall.EAGAIN && err != syscall.EINTR
}
