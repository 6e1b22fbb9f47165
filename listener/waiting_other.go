//go:build !linux

package listener

import "net/netip"

// readyQueues does nothing.
func readyQueues() {}

// accepting returns false: this system does not report it.
func accepting(func(local, peer netip.AddrPort) bool) bool { return false }

// handshaking returns false: this system does not report it.
func handshaking(netip.AddrPort) (begun, known bool) { return false, false }
