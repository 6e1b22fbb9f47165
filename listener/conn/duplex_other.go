//go:build !linux

package conn

// receiver reads from a socket; only a read that would block tells that nothing is left.
type receiver struct{}

func (*receiver) receive(fd int, p []byte) (n int, more bool, err error) {
	n, err = readFD(fd, p)
	return n, true, err
}

func resetUnseen(int) bool { return false }
