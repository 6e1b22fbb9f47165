//go:build !linux

package conn

// receiver reads from a socket. Only a read that would block shows that the socket is
// empty.
type receiver struct{}

func (*receiver) receive(fd int, p []byte) (n int, more bool, err error) {
	n, err = readFD(fd, p)
	return n, true, err
}

func resetUnseen(int) bool { return false }
