package freeport

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
)

// forking starts processes without a pause until the test ends.
func forking(t *testing.T) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					exec.Command(program, "-test.run=^$").Run()
				}
			}
		})
	}
	t.Cleanup(func() { close(stop); all.Wait() })
}

// It is possible to listen on every address from a Range at once, and again after closing it, while other
// processes are started.
func TestListensWhileProcessesAreForked(t *testing.T) {
	forking(t)
	ports := &Range{First: 9000, Last: 9999}
	for range 2000 {
		address, err := ports.Take("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatalf("what was given out: %v", err)
		}
		l.Close()
		if l, err = Listen(address); err != nil {
			t.Fatalf("once more: %v", err)
		}
		l.Close()
	}
}

func TestTake(t *testing.T) {
	address, err := (&Range{First: 9000, Last: 9999}).Take("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).AddrPort()
	port := int(taken.Port())
	if err := Probe(taken); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("one that is listened on: %v", err)
	}
	if address, err := (&Range{First: port, Last: port}).Take("127.0.0.1"); err == nil {
		t.Errorf("%s is given out", address)
	}
	for _, host := range []string{"localhost", "192.0.2.1"} { // localhost is no IP address, 192.0.2.1 is not an address of this machine
		if address, err := (&Range{First: 9000, Last: 9999}).Take(host); err == nil {
			t.Errorf("%s is given out", address)
		}
	}
	r := &Range{First: 9990, Last: 9999}
	seen := map[string]bool{}
	for range 5 {
		address, err := r.Take("127.0.0.1")
		if err != nil || seen[address] {
			t.Errorf("%s, %v; %v were before", address, err, seen)
		}
		seen[address] = true
	}
}
