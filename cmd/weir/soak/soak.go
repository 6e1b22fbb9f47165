// Package soak opens, holds and churns many connections to any address, with
// PROXY headers of made-up clients and faults where the user puts them, and
// says of every connection what was not as it has to be.
//
// A run is one or several processes, each with a runner; a link is one of its
// connections and lives in a goroutine, from top to bottom of link.live.
package soak

import (
	"context"
	"fmt"
	"runtime/debug"
	"syscall"
	"time"
)

// tick is how often a run is looked at. Tests have less time.
var tick = 500 * time.Millisecond

// Run does what o, which is prepared, says, and ends early with ctx. Where it
// takes several processes, they are started with the command line worker,
// which has to call Work. show, if it is not nil, is called with how things
// are, about twice a second.
func Run(ctx context.Context, o *Options, worker []string, show func(*Snapshot)) (*Report, error) {
	if show == nil {
		show = func(*Snapshot) {}
	}
	processes := min(o.Connections, max(o.Processes, processesFor(o.Connections, descriptors())))
	if processes > maxProcesses {
		return nil, fmt.Errorf("%d connections at %d descriptors a process take %d processes, which is more than %d: raise the limit of open files (ulimit -n)",
			o.Connections, descriptors(), processes, maxProcesses)
	}
	start := time.Now()
	var (
		last *Snapshot
		err  error
	)
	if processes > 1 {
		last, err = runWorkers(ctx, o, processes, worker, show)
	} else {
		r := newRunner(o, 0, 1)
		last = r.run(ctx, show)
	}
	if err != nil {
		return nil, err
	}
	return newReport(o, last, start, processes, ctx.Err() != nil), nil
}

// reserved descriptors are for all that is no connection.
const reserved = 64

func processesFor(connections, descriptors int) int {
	each := max(1, descriptors-reserved)
	return (connections + each - 1) / each
}

// descriptors is how many this process may have open. Go has raised the limit
// to what the system allows.
func descriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024
	}
	return int(min(uint64(limit.Cur), 1<<20))
}

// thrifty trades CPU for memory: most of what lives is connections that do
// nothing, and garbage would double them.
func thrifty() { debug.SetGCPercent(30) }
