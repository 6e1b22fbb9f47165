package node

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// The states that weir reports to systemd (sd_notify(3)). With Type=notify, systemd starts
// units that need weir once weir serves.
const (
	notifyReady    = "READY=1"
	notifyStopping = "STOPPING=1"
	notifyAlive    = "WATCHDOG=1"
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

// watchdogInterval returns how often systemd expects notifyAlive at least, or 0 if it expects
// none from this process (sd_watchdog_enabled(3)).
func watchdogInterval(lookup func(string) (string, bool), pid int) time.Duration {
	if of, given := lookup("WATCHDOG_PID"); given && of != strconv.Itoa(pid) {
		return 0
	}
	text, _ := lookup("WATCHDOG_USEC")
	us, err := strconv.ParseUint(text, 10, 63)
	if err != nil || us > uint64(1<<63-1)/1000 {
		return 0
	}
	return time.Duration(us) * time.Microsecond
}

// watchdog reports to systemd that weir is alive, twice in each interval, until ctx ends. It
// needs the lock change for that: a process in which no configuration and no endpoint
// can take effect any more is not alive, although it may still serve.
func (s *server) watchdog(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(max(interval/2, time.Millisecond))
	defer tick.Stop()
	for {
		s.change.Lock()
		s.change.Unlock() //lint:ignore SA2001 it waits for the lock only
		if s.hasLeft() {  // systemd watches the new process
			return
		}
		s.notify(notifyAlive)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
