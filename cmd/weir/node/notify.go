package node

import (
	"fmt"
	"net"
	"os"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// The states that weir reports to systemd (sd_notify(3)). With Type=notify, systemd starts
// units that need weir once weir serves.
const (
	notifyReady    = "READY=1"
	notifyStopping = "STOPPING=1"
)

// notifyReloading returns the state for the beginning of a reload. weir sends notifyReady
// after the reload, even if it failed.
func notifyReloading() string {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000)
}

// notify reports a state to systemd, if systemd asks for it.
func notify(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	c, err := net.Dial("unixgram", path) // "@..." is an abstract socket for systemd and for net.Dial
	if err != nil {
		return fmt.Errorf("cannot tell systemd %s: %w", state, err)
	}
	defer c.Close()
	_, err = c.Write([]byte(state))
	return err
}

// notify reports a state, and logs an error.
func (s *server) notify(state string) {
	if err := notify(state); err != nil {
		s.log.Warn("cannot notify systemd", zap.Error(err))
	}
}
