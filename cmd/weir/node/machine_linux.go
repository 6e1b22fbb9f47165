package node

import (
	"net"
	"os"
	"strconv"
	"strings"
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

// PeerUser returns the user of the process at the other end of a Unix socket, when it connected or listened.
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
			uid, known = int(c.Uid), !standsForOthers(int(c.Uid), "/proc")
		}
	})
	return uid, known
}

// standsForOthers returns true for the user that the kernel reports in place of all users that this user namespace does
// not have (user_namespaces(7)). proc is the folder /proc.
func standsForOthers(uid int, proc string) bool {
	overflow, err := os.ReadFile(proc + "/sys/kernel/overflowuid")
	if err != nil {
		overflow = []byte("65534")
	}
	if strconv.Itoa(uid) != strings.TrimSpace(string(overflow)) {
		return false
	}
	ids, _ := os.ReadFile(proc + "/self/uid_map")
	return strings.Join(strings.Fields(string(ids)), " ") != "0 0 4294967295" // all users have numbers here
}
