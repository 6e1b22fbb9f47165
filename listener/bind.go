package listener

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"
)

// Keep-alive probes find clients that are gone without a word: three minutes
// after their last byte at the latest. Idle lies below the 350 seconds after
// which common load balancers forget a silent connection.
const (
	keepAliveIdle     = 2 * time.Minute
	keepAliveInterval = 15 * time.Second
	keepAliveCount    = 4
)

// Bind opens the socket for a listener: network "tcp" with host:port (without
// host for IPv4 and IPv6), or "unix" with a path. The socket file of a process
// that is gone is replaced; that of one that answers is an error. The backlog
// is what the kernel allows.
func Bind(network, address string) (net.Listener, error) {
	lc := listenConfig()
	// A multipath socket costs every connection, and few clients of a proxy use it.
	lc.SetMultipathTCP(false)
	ln, err := lc.Listen(context.Background(), network, address)
	if network == "unix" && errors.Is(err, syscall.EADDRINUSE) {
		if err = removeStale(address); err == nil {
			ln, err = lc.Listen(context.Background(), network, address)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	return ln, nil
}

// removeStale removes a socket file that nobody answers on.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("the file is there and is no socket")
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("another process listens there: %w", syscall.EADDRINUSE)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}
