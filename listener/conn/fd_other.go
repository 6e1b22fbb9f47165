//go:build !linux

package conn

import "syscall"

// readFD and writeFD are one system call on a non-blocking socket. They repeat the call
// only if a signal interrupted it. n is never negative.

func readFD(fd int, p []byte) (int, error) {
	for {
		n, err := syscall.Read(fd, p)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}

func writeFD(fd int, p []byte) (int, error) {
	for {
		n, err := syscall.Write(fd, p)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}

func closeFD(fd int) error { return syscall.Close(fd) }

// duplicate is never called on systems without a lot.
func duplicate(int) int { return -1 }
