package node

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/cmd/weir/node/status"
	"github.com/weirproxy/weir/listener/pressure"
)

// mostOld is how many old processes may have connections. Beyond it, the oldest one ends at once.
const mostOld = 8

// endPatience is how long an old process that was told to end at once may take, and latePatience how long after its
// drain.timeout it may run. Then it is killed: it hangs, was stopped by SIGSTOP, or does not know the note end.
const (
	endPatience  = 10 * time.Second
	latePatience = 30 * time.Second
)

// tellPatience limits the time to send a note to an old process. A process that hangs does not read its notes, so they
// may fill the socket pair.
const tellPatience = time.Second

// generations are the processes of a chain of upgrades. The process that serves has a socket pair with each old
// process, and passes its ends of them to the next process. So an old process does not notice further upgrades, and
// needs none of the processes in between.
type generations struct {
	number int                    // of this process; the first process of the chain has 1
	build  Build                  // of this process
	log    *zap.Logger            // of the server
	remain func(connections int)  // called with the sum of the open connections of all old processes
	beside func(*pressure.Beside) // called with the processes that share the memory; nil: this process is alone
	heard  sync.WaitGroup         // the goroutines of hear
	left   chan struct{}          // closed when the next process has the socket pairs

	mu   sync.Mutex
	old  []*former // the old processes that still run, the oldest first
	next int       // the id of the new process while it starts; 0: there is none
}

func (s *server) newGenerations() *generations {
	return &generations{number: 1, build: s.build, log: s.log, remain: s.tracker.SetFormer, beside: s.besides, left: make(chan struct{})}
}

// self describes this process.
func (g *generations) self() status.OldProcess {
	binary, _ := os.Executable() // not the path of the next upgrade, which may be a link or a script
	return status.OldProcess{Generation: g.number, PID: os.Getpid(), Binary: binary, Version: g.build.Version}
}

// about returns the fields of a log line about an old process.
func about(p status.OldProcess) []zap.Field {
	fields := []zap.Field{zap.Int("old_generation", p.Generation), zap.String("old_version", p.Version), zap.Int("connections", p.Connections), zap.Int("active", p.Active)}
	if !p.Until.IsZero() {
		fields = append(fields, zap.Time("until", p.Until))
	}
	return append(fields, zap.Int("old_pid", p.PID))
}

// adopt sets the number and the old processes of a process that takes over from b.
func (g *generations) adopt(b *former) {
	g.number = b.Generation + 1
	g.mu.Lock()
	defer g.mu.Unlock()
	g.old = append(slices.Clone(b.before), b)
	g.own(2)
}

// settle updates the old processes when b does not serve any more. n is the note left of b, with the latest state of the
// processes before b. If b was killed, n is empty, and their state from the note state stays.
func (g *generations) settle(b *former, n note) {
	g.mu.Lock()
	defer g.mu.Unlock()
	b.Since, b.Until, b.Connections, b.Active = time.Now(), n.Until, n.Connections, n.Active
	if n.Kind == noteLeft {
		g.old = slices.DeleteFunc(g.old, func(f *former) bool {
			i := slices.IndexFunc(n.Old, func(p oldProcess) bool { return p.PID == f.PID })
			switch {
			case f == b:
				return false
			case i < 0: // it has ended meanwhile
				f.conn.Close()
				return true
			}
			f.OldProcess, f.conn.rest, f.told = n.Old[i].OldProcess, n.Old[i].Rest, n.Old[i].Told
			return false
		})
	}
	g.count()
}

// follow reads the notes of all old processes until they end, or until this process leaves. If an old process gets
// SIGHUP, follow calls reload. If there are too many old processes, it ends the oldest.
func (g *generations) follow(reload func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for n, b := range g.old {
		if b.state == nil { // the notes of the process that started this one are read already
			go b.read()
		}
		g.heard.Go(func() { g.hear(b, reload) })
		if n < len(g.old)-mostOld && b.told.IsZero() {
			b.told = time.Now()
			g.log.Warn("upgrade: too many old processes have connections, so the oldest ends at once", append([]zap.Field{zap.Int("most", mostOld)}, about(b.OldProcess)...)...)
			go b.conn.tell(note{Kind: noteEnd})
		}
		switch {
		case !b.told.IsZero():
			go g.killAfter(b, b.told.Add(endPatience))
		case !b.Until.IsZero():
			go g.killAfter(b, b.Until.Add(latePatience))
		}
	}
	g.share()
}

// hear handles the notes of an old process until it ends, or until this process leaves.
func (g *generations) hear(b *former, reload func()) {
	for n := range b.notes {
		switch n.Kind {
		case noteReload:
			reload()
		case noteRemaining, noteLeft:
			g.mu.Lock()
			b.Connections, b.Active = n.Connections, n.Active
			g.count()
			g.mu.Unlock()
		}
	}
	if b.running() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.old = slices.DeleteFunc(g.old, func(f *former) bool { return f == b })
	b.conn.Close()
	g.count()
	if b.Connections > 0 { // a process that ends by itself reports 0 connections before
		g.log.Warn("upgrade: the old process has ended with open connections: it was killed or has failed", about(b.OldProcess)...)
	} else {
		g.log.Info("upgrade: the old process has ended", about(b.OldProcess)...)
	}
	g.share()
}

// count adds up the connections of the old processes. g.mu is held.
func (g *generations) count() {
	sum := 0
	for _, b := range g.old {
		sum += b.Connections
	}
	g.remain(sum)
}

// killAfter kills an old process that still runs at a time, unless this process has left. Then the next process does it.
func (g *generations) killAfter(b *former, at time.Time) {
	select {
	case <-b.ended:
		return
	case <-g.left:
		return
	case <-time.After(time.Until(at)):
	}
	p, err := os.FindProcess(b.PID) // a pidfd; first: while the socket pair is open, no other process has this id
	if err != nil {
		return
	}
	defer p.Release()
	if !b.running() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.log.Warn("upgrade: the old process does not end, and is killed", append(about(b.OldProcess), zap.NamedError("kill", p.Kill()))...)
}

// tell sends a note to all old processes.
func (g *generations) tell(n note) {
	g.mu.Lock()
	all := slices.Clone(g.old)
	g.mu.Unlock()
	for _, b := range all {
		b.conn.tell(n) // an error means that it has just ended, or hangs
	}
}

// await waits until all old processes have ended, or until ctx ends.
func (g *generations) await(ctx context.Context) {
	ended := make(chan struct{})
	go func() {
		g.heard.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		if old := g.list(); len(old) > 0 && ctx.Err() == context.DeadlineExceeded {
			g.log.Warn("upgrade: this process ends before old ones", zap.Strings("old_processes", named(old)))
		}
	}
}

// named describes old processes for a log line.
func named(old []status.OldProcess) (all []string) {
	for _, p := range old {
		all = append(all, fmt.Sprintf("generation %d, pid %d: %d connections", p.Generation, p.PID, p.Connections))
	}
	return all
}

// list describes the old processes.
func (g *generations) list() []status.OldProcess {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]status.OldProcess, 0, len(g.old))
	for _, b := range g.old {
		all = append(all, b.OldProcess)
	}
	return all
}

// starts records the process id of a new process. 0: the upgrade has failed.
func (g *generations) starts(pid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next = pid
	g.share()
}

// pass returns the old processes, and a descriptor of the socket pair with each, for a process that starts.
func (g *generations) pass() (all []oldProcess, descriptors []int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, b := range g.old {
		fd, err := b.conn.dup()
		if err != nil {
			closeAll(descriptors)
			return nil, nil, err
		}
		all, descriptors = append(all, oldProcess{OldProcess: b.OldProcess}), append(descriptors, fd)
	}
	return all, descriptors, nil
}

// leave stops reading the notes of the old processes. It returns these processes, each with the beginning of a note of
// which the rest has not arrived.
func (g *generations) leave() (all []oldProcess) {
	close(g.left)
	g.mu.Lock()
	for _, b := range g.old {
		b.conn.SetReadDeadline(time.Unix(1, 0))
	}
	g.mu.Unlock()
	g.heard.Wait() // until the notes that were read are handled
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, b := range g.old {
		all = append(all, oldProcess{b.OldProcess, b.conn.rest, b.told})
		b.conn.Close()
	}
	g.own(2 * int64(len(g.old)+1)) // this process is one of them now
	g.old = nil
	return all
}

// own sets the part of the memory for this process, and returns the ids of the other processes. g.mu is held.
func (g *generations) own(parts int64) (pids []int) {
	for _, b := range g.old {
		pids = append(pids, b.PID)
	}
	if g.next != 0 {
		pids = append(pids, g.next)
	}
	g.beside(besideOf(parts, pids))
	return pids
}

// share tells each process its part of the memory. g.mu is held.
func (g *generations) share() {
	pids := append(g.own(2), os.Getpid())
	for _, b := range g.old {
		b.conn.tell(note{Kind: noteShare, Processes: pids, Parts: 2 * int64(len(g.old))})
	}
}

// besideOf describes the processes that share the memory with this one; nil: there are none.
func besideOf(parts int64, pids []int) *pressure.Beside {
	pids = slices.DeleteFunc(slices.Clone(pids), func(pid int) bool { return pid == os.Getpid() })
	if len(pids) == 0 {
		return nil
	}
	return &pressure.Beside{Parts: max(parts, 2), Used: func() (sum int64) {
		for _, pid := range pids {
			sum += privateMemory(pid)
		}
		return sum
	}}
}
