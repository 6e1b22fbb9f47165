// Package freeport gives tests and benchmarks free addresses, before the process starts that listens on them.
// The ports are below the range from which the kernel takes ports for outgoing connections, so no connection
// uses one meanwhile.
//
// A test could also listen on a port that the kernel chooses, and close it again. That fails if other tests
// start processes at the same time: a new process has a copy of every socket until it executes its program,
// so the port stays in use.
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

// Range gives out the ports from First to Last. It gives out every port once before it repeats one. Packages
// whose tests run at the same time have different ranges.
type Range struct {
	First, Last int

	mu   sync.Mutex
	next int
}

// The ranges of ports. Each belongs to the tests of one package, or to the benchmark.
var (
	Nobody    = &Range{First: 4000, Last: 4999}   // for all packages: ports on which nothing must listen
	Sockets   = &Range{First: 5000, Last: 5999}   // listener/sockets
	Compare   = &Range{First: 6000, Last: 6999}   // e2e/compare
	Node      = &Range{First: 10000, Last: 12499} // cmd/weir/node
	Weir      = &Range{First: 12500, Last: 12999} // cmd/weir
	ACME      = &Range{First: 13000, Last: 15999} // tls/acme
	Soak      = &Range{First: 16000, Last: 18999} // e2e/soak
	Benchmark = &Range{First: 19000, Last: 21999} // e2e/bench
	E2E       = &Range{First: 22000, Last: 31999} // e2e
)

// Take returns an address with the IP address host on which nothing listens. The first port depends on the
// process, so that two processes rarely try the same one.
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

// Probe returns nil if it is possible to listen on an address. It does not listen, so no client can connect,
// and a process that is started meanwhile does not keep the port in use.
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
	err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1) // Go sets this for every listener, too
	if err == nil {
		err = syscall.Bind(fd, sa)
	}
	if err != nil {
		return fmt.Errorf("%s is not free: %w", address, err)
	}
	return nil
}

// Listen listens on an address on which this process listened before. It tries for some seconds, because a
// new process may still have a copy of the old socket (see the comment of the package).
func Listen(address string) (net.Listener, error) {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		l, err := net.Listen("tcp", address)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) {
			return l, err
		}
	}
}
