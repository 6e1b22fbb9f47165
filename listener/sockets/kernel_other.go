//go:build !linux

package sockets

import (
	"net"
	"syscall"
	"time"
)

func listenConfig() net.ListenConfig {
	return net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount,
	}}
}

// refuseNew does nothing: no system but Linux lets weir prevent new handshakes.
func refuseNew(syscall.Conn) time.Duration { return 0 }
