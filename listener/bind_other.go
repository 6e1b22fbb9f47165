//go:build !linux

package listener

import (
	"net"
	"time"
)

func listenConfig() net.ListenConfig {
	return net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount,
	}}
}

// refuseNew prevents new connections where the system allows it.
func refuseNew(ln net.Listener) time.Duration {
	unlink(ln)
	return 0
}
