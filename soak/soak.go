// Package soak opens, holds and churns many connections to any address, with
// PROXY headers of made-up clients and with faults that the user chooses. It reports every
// connection that did not behave as expected.
//
// A run has one or more processes, each with a runner for each target. A link is one
// connection and runs in one goroutine, from the beginning to the end of link.live.
package soak

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
)

// tick is the interval in which a run is checked. Tests use a shorter one.
var tick = 500 * time.Millisecond

// Run makes the run that o describes, after Prepare. It ends early with ctx. If the run
// needs several processes, Run starts them with the command line worker, which must call
// Work. show, if it is not nil, is called about twice a second with the counters so far.
func Run(ctx context.Context, o *Options, worker []string, show func(*Snapshot)) (*Report, error) {
	if show == nil {
		show = func(*Snapshot) {}
	}
	if err := o.Resolve(ctx); err != nil {
		return nil, err
	}
	processes := min(o.Connections/len(o.plans), max(o.Processes, processesFor(o.Connections, descriptors())))
	if processes > maxProcesses {
		return nil, fmt.Errorf("%d connections with %d descriptors per process need %d processes, and at most %d are possible: raise the limit of open files (ulimit -n)",
			o.Connections, descriptors(), processes, maxProcesses)
	}
	start := time.Now()
	var (
		last []*Snapshot
		err  error
	)
	if processes > 1 {
		last, err = runWorkers(ctx, o, processes, worker, show)
	} else {
		last = runPart(ctx, o, 0, 1, func(all []*Snapshot) { show(total(all)) })
	}
	if err != nil {
		return nil, err
	}
	return newReport(o, last, start, processes, ctx.Err() != nil), nil
}

// runPart runs the part of one of several processes, and returns a snapshot of each target
// at its end.
func runPart(ctx context.Context, o *Options, part, parts int, show func([]*Snapshot)) []*Snapshot {
	thrifty()
	start := time.Now()
	last := make([]*Snapshot, len(o.plans))
	runners := make([]*runner, len(o.plans))
	var all sync.WaitGroup
	for i, p := range o.plans {
		runners[i] = newRunner(p, i, len(o.plans), part, parts, start)
		all.Go(func() { last[i] = runners[i].run(ctx) })
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
			now := make([]*Snapshot, len(runners))
			for i, r := range runners {
				now[i] = r.snapshot(time.Since(start))
			}
			show(now)
		case <-done:
			return last
		}
	}
}

// total adds up the counters of all targets.
func total(targets []*Snapshot) *Snapshot {
	sum := emptySnapshot()
	for _, s := range targets {
		sum.merge(s)
	}
	return sum
}

// reserved descriptors are for everything except connections.
const reserved = 64

func processesFor(connections, descriptors int) int {
	each := max(1, descriptors-reserved)
	return (connections + each - 1) / each
}

// descriptors returns how many descriptors this process may have open. Go has raised the
// limit to the maximum that the system allows.
func descriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024
	}
	return int(min(uint64(limit.Cur), 1<<20))
}

// thrifty makes Go collect garbage more often: with idle connections as most of the heap,
// garbage could double the memory.
func thrifty() { debug.SetGCPercent(30) }
