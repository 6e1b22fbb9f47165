package sockets

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"
)

// Keep-alive probes find clients that disappeared without closing the connection, at most
// three minutes after their last byte. Idle is below 350 seconds: after that time common
// load balancers forget a silent connection.
const (
	keepAliveIdle     = 2 * time.Minute
	keepAliveInterval = 15 * time.Second
	keepAliveCount    = 4
)

// Available returns true if a new socket could be opened now. It is false for an address
// on which this process listens.
func Available(network, address string) bool {
	ln, err := bind(network, address)
	if err == nil {
		ln.Close()
	}
	return err == nil
}

// Loopback opens a socket on a free port of the loopback address, for clients within this
// process. No configuration names it, so it is in no Set. The caller closes it.
func Loopback() (net.Listener, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		ln, err = net.Listen("tcp", "[::1]:0")
	}
	return ln, err
}

// bind opens a socket. It replaces the socket file of a process that has ended. If a
// process still answers on the socket file, bind returns an error. The backlog is the
// largest that the kernel allows.
func bind(network, address string) (net.Listener, error) {
	lc := listenConfig()
	// A multipath socket adds cost to every connection, and few clients of a proxy use
	// it.
	lc.SetMultipathTCP(false)
	ln, err := lc.Listen(context.Background(), network, address)
	if network == "unix" && address[0] != '@' && errors.Is(err, syscall.EADDRINUSE) {
		if err = removeStale(address); err == nil {
			ln, err = lc.Listen(context.Background(), network, address)
		}
	}
	if err != nil {
		return nil, bindError(network, address, err)
	}
	return ln, nil
}

// bindError returns an error that contains the reason why weir could not bind the
// address, and what to change.
func bindError(network, address string, err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	var call *os.SyscallError
	if errors.As(err, &call) {
		err = call.Err
	}
	if help := bindHelp(network, address, err); help != "" {
		return fmt.Errorf("cannot bind %s: %w; %s", address, err, help)
	}
	return fmt.Errorf("cannot bind %s: %w", address, err)
}

// lowPorts is the first port that needs no privileges: most systems give lower ports only
// to root.
const lowPorts = 1024

func bindHelp(network, address string, err error) string {
	_, port, _ := net.SplitHostPort(address)
	number, _ := strconv.Atoi(port)
	switch {
	case errors.Is(err, syscall.EADDRINUSE) && network == "tcp":
		return "another process has the port; stop that process, or use another address"
	case errors.Is(err, syscall.EACCES) && network == "tcp" && number < lowPorts:
		return "ports below 1024 need privileges: give weir the capability CAP_NET_BIND_SERVICE, start it as root, or use a port from 1024"
	case errors.Is(err, syscall.EACCES) && network == "unix" && address[0] != '@':
		return "weir may not create files in the folder; give its user the right to write there, or use another path"
	case errors.Is(err, syscall.ENOENT) && network == "unix":
		return "the folder does not exist; make it, or use another path"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "this machine does not have the address; use one of its own, or leave the host out to bind them all"
	}
	return ""
}

// removeStale removes a socket file on which no process answers.
func removeStale(path string) error {
	if err := stale(path); err != nil {
		return err
	}
	return os.Remove(path)
}

// stale returns nil if a socket file is at the path on which no process answers.
func stale(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("a file exists there that is not a socket")
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("another process listens on it: %w", syscall.EADDRINUSE)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return nil
}
