//go:build !linux

package soak

import (
	"syscall"
	"time"
)

// control prepares a socket before it connects: a slow reader has a small receive window
// from the start.
func control(slow bool) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			if slow {
				syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, slowWindow)
			}
		})
	}
}

// nap is nil: timetables use timers instead.
var nap func(time.Duration)
