package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// A job is the task of a worker, as one line of JSON. The worker runs until its standard
// input or the run ends.
type job struct {
	Options     Options
	Resolved    []netip.AddrPort // all processes use the same addresses
	Part, Parts int
}

// A word is a message of a worker, as one line of JSON: twice a second, and at its end.
type word struct {
	Targets []*Snapshot
	Done    bool
}

// Work does a worker's part of a run.
func Work(in io.Reader, out io.Writer) error {
	read := bufio.NewReader(in)
	line, err := read.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("cannot read the instructions: %w", err)
	}
	var j job
	if err := json.Unmarshal(line, &j); err != nil {
		return fmt.Errorf("cannot parse the instructions: %w", err)
	}
	if err := j.Options.Prepare(); err != nil {
		return err
	}
	if len(j.Resolved) != len(j.Options.plans) {
		return errors.New("cannot use the instructions: they do not have one address for each target")
	}
	for i, p := range j.Options.plans {
		p.resolved = j.Resolved[i]
		if err := p.checkAddresses(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		io.Copy(io.Discard, read)
		cancel()
	}()
	say := json.NewEncoder(out)
	last := runPart(ctx, &j.Options, j.Part, j.Parts, func(all []*Snapshot) { say.Encode(word{all, false}) })
	return say.Encode(word{last, true})
}

func newJob(o *Options, part, parts int) job {
	j := job{Options: *o, Part: part, Parts: parts}
	for _, p := range o.plans {
		j.Resolved = append(j.Resolved, p.resolved)
	}
	return j
}

// runWorkers starts a process for each part, and adds up their results.
func runWorkers(ctx context.Context, o *Options, parts int, command []string, show func(*Snapshot)) ([]*Snapshot, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ws := make([]*worker, parts)
	var all sync.WaitGroup
	for i := range ws {
		ws[i] = &worker{}
		all.Go(func() {
			if ws[i].err = ws[i].run(ctx, newJob(o, i, parts), command); ws[i].err != nil {
				cancel() // an incomplete run has no result
			}
		})
	}
	gone := make(chan struct{})
	go func() {
		all.Wait()
		close(gone)
	}()
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
			if all := sum(ws); all != nil {
				show(total(all))
			}
		case <-gone:
			for i, w := range ws {
				if w.err != nil {
					return nil, processError(i, parts, w.err)
				}
			}
			return sum(ws), nil
		}
	}
}

// processError returns the error of one process. Each process needs a few descriptors of
// this one.
func processError(part, parts int, err error) error {
	if errors.Is(err, syscall.EMFILE) {
		err = fmt.Errorf("%w: raise the limit of open files (ulimit -n), or hold fewer connections (--connections)", err)
	}
	return fmt.Errorf("process %d of %d: %w", part+1, parts, err)
}

// A worker is one of several processes, as its parent sees it.
type worker struct {
	err  error
	lock sync.Mutex
	last []*Snapshot // for each target
}

// run starts the process and reads its messages to the end. When ctx ends, or this
// process dies, the standard input of the worker ends, and the worker ends its part.
func (w *worker) run(ctx context.Context, j job, command []string) error {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	// Ctrl-C must not reach the worker: it would end without a result.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start it: %w", err)
	}
	// Kill a process that hangs, so that there is a report.
	lost := time.AfterFunc(j.Options.length()+3*j.Options.Timeout+6*grace, func() { cmd.Process.Kill() })
	defer lost.Stop()
	defer context.AfterFunc(ctx, func() { in.Close() })()
	json.NewEncoder(in).Encode(j) // a process that cannot read the job ends with an error
	done, said := w.hear(out)
	in.Close()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("it ended early: %w", err)
	}
	if !done {
		return fmt.Errorf("it ended before it sent its results: %w", said)
	}
	return nil
}

func (w *worker) hear(out io.Reader) (done bool, err error) {
	hear := json.NewDecoder(out)
	for {
		var said word
		if err := hear.Decode(&said); err != nil {
			return false, err
		}
		w.lock.Lock()
		w.last = said.Targets
		w.lock.Unlock()
		if said.Done {
			return true, nil
		}
	}
}

// sum adds the last snapshots of all processes for each target. It returns nil if a process
// has sent none yet.
func sum(ws []*worker) []*Snapshot {
	var all []*Snapshot
	for _, w := range ws {
		w.lock.Lock()
		last := w.last
		w.lock.Unlock()
		if last == nil {
			return nil
		}
		for i, s := range last {
			if i == len(all) {
				all = append(all, emptySnapshot())
			}
			all[i].merge(s)
		}
	}
	return all
}
