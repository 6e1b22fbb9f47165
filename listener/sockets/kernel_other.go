//go:build !linux

package sockets

import (
	"errors"
	"net"
	"syscall"
	"time"
)

func listenConfig() net.ListenConfig {
	return net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount,
	}}
}

// prepareInherited does nothing: connections do not inherit keep-alive here.
func prepareInherited(net.Listener) error { return nil }

// refuseNew does nothing: no system but Linux lets weir prevent new handshakes.
func refuseNew(syscall.Conn) time.Duration { return 0 }

// bindBeside is for Linux, where the kernel prefers the socket with the single address.
func bindBeside(string, string, []*Socket) (net.Listener, error) { return nil, errors.ErrUnsupported }
