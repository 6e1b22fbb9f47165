// Package freeport gives tests and benchmarks addresses to listen on before
// whoever listens there is started: ports below those that the kernel gives to
// connections, so that nobody takes one meanwhile.
//
// To listen on a port and close it again is no way to find one, where other
// tests start processes: until a process that was just forked has executed its
// program, it holds a copy of every socket, and the port stays taken.
package freeport

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// Range gives out the ports from First to Last, each once before any comes
// again. Packages whose tests run at the same time have ranges of their own.
type Range struct {
	First, Last int

	mu   sync.Mutex
	next int
}

// Ranges that are in use: of the tests of one package each, and of the benchmark.
var (
	Nobody    = &Range{First: 4000, Last: 4999}   // of any package: nobody is to listen on what it gives out
	Sockets   = &Range{First: 5000, Last: 5999}   // listener/sockets
	Node      = &Range{First: 10000, Last: 12499} // cmd/weir/node
	Weir      = &Range{First: 12500, Last: 12999} // cmd/weir
	ACME      = &Range{First: 13000, Last: 15999} // tls/acme
	Soak      = &Range{First: 16000, Last: 18999} // e2e/soak
	Benchmark = &Range{First: 19000, Last: 21999} // e2e/bench
	E2E       = &Range{First: 22000, Last: 31999} // e2e
)

// Take returns an address of the IP address host on which nothing listens. Where
// it begins depends on the process, for two of them at once to get on.
func (r *Range) Take(host string) (string, error) {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return "", fmt.Errorf("cannot look for a free port: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	size := r.Last - r.First + 1
	if r.next == 0 {
		r.next = r.First + os.Getpid()*31%size
	}
	for range size {
		address := netip.AddrPortFrom(ip, uint16(r.next))
		if r.next++; r.next > r.Last {
			r.next = r.First
		}
		err = Probe(address)
		if err == nil {
			return address.String(), nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return "", err
		}
	}
	return "", fmt.Errorf("there is no free port of %s between %d and %d", host, r.First, r.Last)
}

// Probe reports whether one can listen on an address, without listening: no client
// gets connected, and no process that is forked meanwhile keeps it.
func Probe(address netip.AddrPort) error {
	family, sa := syscall.AF_INET6, syscall.Sockaddr(&syscall.SockaddrInet6{Port: int(address.Port()), Addr: address.Addr().As16()})
	if address.Addr().Is4() {
		family, sa = syscall.AF_INET, &syscall.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()}
	}
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM, 0)
	if err != nil {
		return fmt.Errorf("cannot look whether %s is free: %w", address, err)
	}
	defer syscall.Close(fd)
	err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1) // as every listener of Go
	if err == nil {
		err = syscall.Bind(fd, sa)
	}
	if err != nil {
		return fmt.Errorf("%s is not free: %w", address, err)
	}
	return nil
}

// Listen listens on an address that was listened on before by this process. It
// tries for some seconds: see the package's comment for who may still hold it.
func Listen(address string) (net.Listener, error) {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		l, err := net.Listen("tcp", address)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) {
			return l, err
		}
	}
}
