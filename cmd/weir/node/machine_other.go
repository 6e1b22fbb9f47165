//go:build !linux

package node

import "net"

// machineMemory returns the memory of the machine in bytes; 0: unknown.
func machineMemory() int64 { return 0 }

// PeerUser returns the user of the process at the other end of a Unix socket. It is known on Linux only.
func PeerUser(net.Conn) (uid int, known bool) { return 0, false }
