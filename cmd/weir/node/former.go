package node

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// This file is the new process's half of an upgrade. upgrade.go has the diagram.

// former is the process that this one takes over from. A nil *former is none: its methods
// do nothing.
type former struct {
	pid   int
	conn  *noteConn
	state *passedState
	notes chan note     // closed when the former process has ended, or has lost the connection
	ended chan struct{} // closed with notes
	left  bool          // it accepts no more, or has ended
	end   bool          // it said that this process has to end

	cordoned, draining  bool         // what operators had set there, when it last said so
	connections, active atomic.Int64 // that it still has, since it left
}

// newFormer returns the process that started this one for an upgrade; nil: none. It tells that
// process that this one is weir.
func newFormer() (*former, error) {
	text, given := os.LookupEnv(upgradeEnv)
	if !given {
		return nil, nil
	}
	os.Unsetenv(upgradeEnv)
	pid, err := strconv.Atoi(text)
	if err != nil {
		return nil, fmt.Errorf("%s is set, and not by weir", upgradeEnv)
	}
	unix.CloseOnExec(upgradeDescriptor)
	conn, err := newNoteConn(os.NewFile(upgradeDescriptor, "upgrade"), math.MaxInt64)
	if err != nil {
		return nil, fmt.Errorf("upgrade: no connection to process %d: %w", pid, err)
	}
	b := &former{pid: pid, conn: conn, notes: make(chan note), ended: make(chan struct{})}
	first, err := conn.hear(helloPatience)
	if err != nil {
		return nil, fmt.Errorf("upgrade: process %d passed no state: %w", pid, err)
	}
	if first.State == nil {
		return nil, fmt.Errorf("upgrade: process %d passed no state, but a message of the kind %q", pid, first.Kind)
	}
	b.state = first.State
	for n := range b.state.Sockets {
		fd := upgradeDescriptor + 1 + n
		unix.CloseOnExec(fd)
		b.state.Sockets[n].FD = fd
	}
	if err := b.check(); err != nil {
		b.failed(err)
		return nil, err
	}
	if err := b.conn.say(note{Kind: noteHello}); err != nil {
		return nil, fmt.Errorf("upgrade: process %d cannot be told that this one is weir: %w", pid, err)
	}
	go func() {
		defer close(b.ended)
		defer close(b.notes)
		for {
			n, err := conn.hear(0)
			if err != nil {
				return
			}
			b.notes <- n
		}
	}()
	return b, nil
}

// check returns an error if this process cannot take over from the former one.
func (b *former) check() error {
	if b.state.Version != upgradeVersion {
		return fmt.Errorf("upgrade: process %d passes its state in version %d, and this binary knows version %d; restart weir instead", b.pid, b.state.Version, upgradeVersion)
	}
	// Without the variable, confine would execute the binary again, and the state would be lost.
	if _, confined := os.LookupEnv(confinedEnv); !confined && runtime.GOOS == "linux" {
		return fmt.Errorf("upgrade: the environment does not have %s, which process %d has set; start weir without a program that clears its environment", confinedEnv, b.pid)
	}
	return nil
}

// failed tells the former process why this one ends, unless the former one has left already.
func (b *former) failed(err error) {
	if b == nil || err == nil || b.left {
		return
	}
	b.conn.say(note{Kind: noteFailed, Error: err.Error()})
}

// rejoin moves this process to the process group of the former one, which is the group that a shell or a
// supervisor knows. If the former process has ended, this one keeps its own group.
func (b *former) rejoin() {
	if group, err := unix.Getpgid(b.pid); err == nil {
		unix.Setpgid(0, group) // an error means that the group has ended, or belongs to another session
	}
}

// running returns true if the former process has not ended.
func (b *former) running() bool {
	if b == nil {
		return false
	}
	select {
	case <-b.ended:
		return false
	default:
		return true
	}
}

// saysEnd reports whether the former process was told to end while this one began to accept.
func (b *former) saysEnd() bool { return b != nil && b.end }

// reopen makes the former process open its access log again, if it has not ended: after log rotation its lines would
// go to the file that was moved away.
func (b *former) reopen() {
	if b.running() {
		b.conn.say(note{Kind: noteReopen}) // an error means that it has just ended
	}
}

// memory returns how much memory the former process uses; nil: there is none.
func (b *former) memory() func() int64 {
	if b == nil {
		return nil
	}
	return func() int64 { return privateMemory(b.pid) }
}

// adoptFormer takes the keys, the cordon and the sockets that the former process passed. It is called
// before a configuration takes effect.
func (s *server) adoptFormer(b *former) error {
	s.former, s.gate = b, make(chan struct{})
	s.upgrade.adopt(b.state.Binary, b.state.Args)
	s.beside.Store(true)
	if err := s.tickets.Adopt(b.state.Tickets); err != nil {
		return err
	}
	s.change.Lock()
	s.sticky.own, s.sticky.shared = b.state.StickyKey, b.state.SharedStickyKey
	s.change.Unlock()
	b.cordoned = b.state.Cordoned
	s.node.SetCordoned(b.cordoned)
	return s.sockets.Inherit(b.state.Sockets)
}

// readyInterval is the time between two checks whether a new process is ready.
const readyInterval = 20 * time.Millisecond

// takeOver waits until this process is ready, accepts connections when the former process says so,
// and returns when the former process has left. If the former process ends meanwhile, this process
// takes over at once: the accept queues may have clients, and no other process accepts them. After an
// error this process must end.
func (s *server) takeOver(signals <-chan os.Signal) error {
	b := s.former
	if err := s.awaitReady(signals); err != nil {
		return err
	}
	s.log.Info("upgrade: ready to take over", zap.Int("old_pid", b.pid))
	b.conn.say(note{Kind: noteReady, Taken: s.sockets.Taken()}) // after an error, awaitNote notices the end
	if err := s.awaitNote(noteGo, signals, nil); err != nil {
		return err
	}
	s.sockets.Discard()
	close(s.gate)
	b.conn.say(note{Kind: noteServing})
	// This process has clients now. A signal waits until serve can drain them.
	if err := s.awaitNote(noteLeft, nil, time.After(leftPatience)); err != nil {
		return err
	}
	b.left = true
	b.rejoin()
	s.sockets.Own()
	s.metrics.upgrades.WithLabelValues("success").Inc()
	s.log.Info("upgrade: this process has taken over", zap.Int("old_pid", b.pid))
	return nil
}

// awaitReady waits until notYet finds nothing. The former process limits the time.
func (s *server) awaitReady(signals <-chan os.Signal) error {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	tell := time.NewTimer(time.Second)
	defer tell.Stop()
	for {
		missing := s.notYet()
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-tell.C:
			s.log.Info("upgrade: waiting until this process is ready", zap.Strings("missing", missing[:min(len(missing), 10)]))
		case _, open := <-s.former.notes:
			if !open {
				return nil
			}
		case sig := <-signals:
			if err := endedBy(sig); err != nil {
				return err
			}
		}
	}
}

// notYet returns the names of backends, certificates and keys that work in the former process and not
// in this one yet.
func (s *server) notYet() (all []string) {
	was := s.former.state
	if v := s.node.Verdict(); was.Healthy && !v.Healthy || was.Ready && !v.Ready {
		all = append(all, v.Reasons...)
	}
	for what, works := range s.working() {
		if !works && was.Working[what] {
			all = append(all, what)
		}
	}
	slices.Sort(all)
	return all
}

// leftPatience limits the time from serving to left, which takes milliseconds. After it, this process goes on as if
// the former one had left: it serves already. The former process gives up earlier (acceptPatience), unless it stands
// still.
const leftPatience = acceptPatience + 5*time.Second

// awaitNote waits for a note of the former process, for its end, or until over fires. A nil over never fires: then the
// former process limits the time.
func (s *server) awaitNote(kind string, signals <-chan os.Signal, over <-chan time.Time) error {
	for {
		select {
		case n, open := <-s.former.notes:
			s.adoptOperators(n)
			s.health.AdoptLoadBalancers(n.LoadBalancers)
			if n.Kind == noteLeft {
				s.adoptRemaining(n)
				s.former.end = n.End
			}
			if !open || n.Kind == kind {
				return nil
			}
		case <-over:
			s.log.Warn("upgrade: the old process stands still, and has not said that it left", zap.Int("old_pid", s.former.pid))
			return nil
		case sig := <-signals:
			if err := endedBy(sig); err != nil {
				return err
			}
		}
	}
}

// adoptOperators sets what operators have changed on the admin port of the former process since it last said so.
// What they have changed meanwhile on the port of this process stays: while both accept, each gets some requests.
func (s *server) adoptOperators(n note) {
	b := s.former
	if n.Cordoned != nil && *n.Cordoned != b.cordoned {
		b.cordoned = *n.Cordoned
		s.node.SetCordoned(b.cordoned)
	}
	if n.Draining != nil && *n.Draining != b.draining {
		b.draining = *n.Draining
		s.setDraining(b.draining)
	}
}

// adoptRemaining records which connections the former process still has.
func (s *server) adoptRemaining(n note) {
	s.former.connections.Store(int64(n.Connections))
	s.former.active.Store(int64(n.Active))
	s.tracker.SetFormer(n.Connections)
}

var errEndedEarly = errors.New("a signal ended this process before it had taken over")

// endedBy returns an error if the signal ends weir.
func endedBy(sig os.Signal) error {
	if sig == syscall.SIGTERM || sig == syscall.SIGINT {
		return errEndedEarly
	}
	return nil
}

// follow waits for notes of the former process until that process has ended.
func (s *server) follow(reload func()) {
	for n := range s.former.notes {
		switch n.Kind {
		case noteReload:
			reload()
		case noteRemaining:
			s.adoptRemaining(n)
		}
	}
	s.adoptRemaining(note{})
	s.former.conn.Close()
	s.log.Info("upgrade: the old process has ended", zap.Int("old_pid", s.former.pid))
	s.besides(nil)
}

// awaitGate waits until this process may accept connections.
func (s *server) awaitGate(ended <-chan struct{}) (ok bool) {
	if s.gate == nil {
		return true
	}
	select {
	case <-s.gate:
		return true
	case <-ended:
		return false
	}
}
