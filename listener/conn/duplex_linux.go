package conn

import (
	"encoding/binary"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// receiver reads from a socket, and learns in the same system call whether something is
// left. With TCP_INQ, recvmsg(2) returns the number of queued bytes, or 1 if only the end
// of the stream is left (tcp_inq_hint, Linux 5.1 and later).
type receiver struct {
	hint hintState
	msg  unix.Msghdr
	iov  unix.Iovec
	ctl  [controlSize]byte
}

type hintState uint8

const (
	hintUntried hintState = iota
	hintOn
	hintNone // for example a Unix socket: only a read that would block shows that it is empty
)

// controlSize holds one control message of an int32: a cmsghdr of 16 bytes (12
// on 32-bit systems) and the number, aligned.
const controlSize = 24

// receive reads once. more means that another read may return something at once. n is
// never negative; 0 without an error is the end of the stream.
func (r *receiver) receive(fd int, p []byte) (n int, more bool, err error) {
	if r.hint == hintUntried {
		r.hint = hintNone
		if unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_INQ, 1) == nil {
			r.hint = hintOn
		}
	}
	if r.hint == hintNone {
		n, err = readFD(fd, p)
		return n, true, err
	}
	r.iov.Base = &p[0]
	r.iov.SetLen(len(p))
	r.msg.Iov = &r.iov
	r.msg.SetIovlen(1)
	r.msg.Control = &r.ctl[0]
	for {
		r.msg.SetControllen(len(r.ctl))
		got, _, errno := syscall.RawSyscall6(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&r.msg)), 0, 0, 0, 0)
		if errno == syscall.EINTR {
			continue
		}
		r.iov.Base = nil // the buffer goes back to its pool
		if errno != 0 {
			return 0, false, errno
		}
		return int(got), r.left() != 0, nil
	}
}

// left returns the number in the control message of the last recvmsg, or 1 without such a
// message.
func (r *receiver) left() uint32 {
	const data = unix.SizeofCmsghdr
	if r.msg.Controllen < data+4 {
		return 1
	}
	return binary.NativeEndian.Uint32(r.ctl[data:])
}

// resetUnseen reports whether a socket that reported the end of its stream is closed
// completely, by a reset. After an orderly end the connection stays half open until weir
// sends its own end. The kernel reports the error of a reset only once, to the first
// system call. Every later call reads an end of stream.
func resetUnseen(fd int) bool {
	const tcpClose = 7 // TCP_CLOSE in the kernel's tcp_states.h
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.State == tcpClose
}
