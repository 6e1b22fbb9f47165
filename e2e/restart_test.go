package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A new process binds every port while the old one still has a tunnel, and no request on an
// open connection is lost.
func TestRestartBesideATunnel(t *testing.T) {
	t.Parallel()
	app := newWebBackend(t, "app")
	old := newWeir(t)
	old.address["app"], old.address["echo"] = app.address, newEchoBackend(t).address
	config := fmt.Sprintf(drainConfig, "0s", "1h") + "metrics: {address: '@metrics'}\n"
	old.start(config)
	tunnel := openTunnel(t, old)

	stop, lost := make(chan struct{}), make(chan error, 4)
	for range cap(lost) {
		go func() { lost <- askUntil(stop, old.at("web")) }()
	}
	old.signal(syscall.SIGTERM)
	for _, name := range []string{"web", "raw", "health", "metrics", "admin"} {
		eventually(t, "the "+name+" port closes", func() error { return refuses(old.at(name)) })
	}
	eventually(t, "weir says that they can be bound", func() error { // shortly before that, weir refuses connections
		if !strings.Contains(old.log.String(), "all ports are closed") {
			return errNotYet
		}
		return nil
	})
	successor := newWeir(t)
	successor.address = old.address
	successor.start(config)
	for _, name := range []string{"health", "metrics", "admin"} {
		if status, _, err := successor.get(name, "/metrics"); status != 200 {
			t.Errorf("the %s port of the successor answers %d, %v", name, status, err)
		}
	}
	close(stop)
	for range cap(lost) {
		if err := <-lost; err != nil {
			t.Errorf("a request was lost: %v", err)
		}
	}
	old.stillRunning(0)
	tunnel.Write([]byte("y"))
	if _, err := io.ReadFull(tunnel, make([]byte, 1)); err != nil {
		t.Errorf("the tunnel through the old process: %v", err)
	}
	tunnel.Close()
	if status := old.wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	openTunnel(t, successor)
}

// askUntil sends requests, each on a new connection, until stop is closed. If a connection is refused, it
// tries again.
func askUntil(stop <-chan struct{}, address string) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		c, err := net.DialTimeout("tcp", address, patience)
		if errors.Is(err, syscall.ECONNREFUSED) {
			time.Sleep(time.Millisecond) // lets other processes run
			continue
		}
		if err != nil {
			return err
		}
		_, _, err = ask(c, bufio.NewReader(c), "GET", "a", "/")
		c.Close()
		if err != nil {
			return err
		}
	}
}
