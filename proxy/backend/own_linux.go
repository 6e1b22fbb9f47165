package backend

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// onThisHost asks the kernel's routing table (RTM_GETROUTE of rtnetlink(7)) whether the
// route to an address ends on this host. So it also finds new addresses, and all addresses
// of a local network. If the kernel does not answer, onThisHost checks which source address
// the kernel would use.
func onThisHost(a netip.Addr) (bool, error) {
	kind, err := routeType(a)
	switch {
	case err == nil:
		return kind == unix.RTN_LOCAL || kind == unix.RTN_BROADCAST || kind == unix.RTN_ANYCAST, nil
	case ourOwn(err):
		return false, err
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return false, nil
	}
	return sourceIs(a)
}

// routeType returns the type of the route to an address, such as unix.RTN_LOCAL.
func routeType(a netip.Addr) (byte, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}) // the kernel answers within the system call
	if err := unix.Sendto(fd, routeQuestion(a), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return 0, os.NewSyscallError("recvfrom", err)
	}
	return parseRoute(answer[:n])
}

// routeQuestion returns an RTM_GETROUTE message: its header, an rtmsg, and the attribute
// RTA_DST.
func routeQuestion(a netip.Addr) []byte {
	family, dst := byte(unix.AF_INET), a.AsSlice()
	if a.Is6() {
		family = unix.AF_INET6
	}
	size := unix.SizeofNlMsghdr + unix.SizeofRtMsg + unix.SizeofRtAttr + len(dst)
	b := binary.NativeEndian.AppendUint32(make([]byte, 0, size), uint32(size))
	b = binary.NativeEndian.AppendUint16(b, unix.RTM_GETROUTE)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...)                                     // sequence number and port
	b = append(b, family, byte(a.BitLen()), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) // rtmsg
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(dst)))
	b = binary.NativeEndian.AppendUint16(b, unix.RTA_DST)
	return append(b, dst...)
}

// parseRoute returns the type of the route in the answer.
func parseRoute(b []byte) (byte, error) {
	if len(b) < unix.SizeofNlMsghdr+4 {
		return 0, errors.New("the kernel's answer about a network route is truncated")
	}
	body := b[unix.SizeofNlMsghdr:]
	switch kind := binary.NativeEndian.Uint16(b[4:]); {
	case kind == unix.NLMSG_ERROR:
		return 0, os.NewSyscallError("rtnetlink", unix.Errno(-int32(binary.NativeEndian.Uint32(body))))
	case kind == unix.RTM_NEWROUTE && len(body) >= unix.SizeofRtMsg:
		return body[7], nil // rtm_type
	default:
		return 0, fmt.Errorf("the kernel's answer about a network route has the unexpected type %d", kind)
	}
}
