package node

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// machineMemory returns the memory of the machine in bytes; 0: unknown.
func machineMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// PeerUser returns the user of the process at the other end of a Unix socket, when it connected.
func PeerUser(nc net.Conn) (uid int, known bool) {
	u, ok := nc.(*net.UnixConn)
	if !ok {
		return 0, false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, false
	}
	raw.Control(func(fd uintptr) {
		var c *syscall.Ucred
		if c, err = syscall.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid, known = int(c.Uid), true
		}
	})
	return uid, known
}
