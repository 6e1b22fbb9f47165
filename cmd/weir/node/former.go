package node

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/cmd/weir/node/status"
	"github.com/weirproxy/weir/listener/pressure"
)

// This file is the new process's half of an upgrade. upgrade.go has the diagram.

// former is a process that this one takes over from, or one before it that has not ended. A nil *former is none: its
// methods do nothing.
type former struct {
	status.OldProcess // guarded by generations.mu
	conn              *noteConn
	notes             chan note     // closed when read returns
	ended             chan struct{} // closed when the former process has ended, or has lost the connection
	told              time.Time     // when it was told to end at once; zero: it was not. Guarded by generations.mu

	// The rest is only of the process that started this one.
	state  *passedState
	before []*former // the processes before it, the oldest first
	left   bool      // it accepts no more, or has ended
	end    bool      // it said that this process has to end

	cordoned, draining bool // what operators had set there, when it last said so
}

// formerWith returns a former process with this end of a socket pair.
func formerWith(descriptor int, p status.OldProcess) (*former, error) {
	unix.CloseOnExec(descriptor)
	conn, err := newNoteConn(os.NewFile(uintptr(descriptor), "upgrade"), math.MaxInt64)
	if err != nil {
		return nil, fmt.Errorf("upgrade: no connection to process %d: %w", p.PID, err)
	}
	return &former{OldProcess: p, conn: conn, notes: make(chan note), ended: make(chan struct{})}, nil
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
	b, err := formerWith(upgradeDescriptor, status.OldProcess{Generation: 1, PID: pid})
	if err != nil {
		return nil, err
	}
	first, err := b.conn.hear(helloPatience)
	if err != nil {
		return nil, fmt.Errorf("upgrade: process %d passed no state: %w", pid, err)
	}
	if first.State == nil {
		return nil, fmt.Errorf("upgrade: process %d passed no state, but a message of the kind %q", pid, first.Kind)
	}
	b.state = first.State
	if sender := b.state.Sender; sender.PID == pid { // else it is of a version that does not say so
		b.OldProcess = sender
	}
	err = b.check()
	if err == nil {
		err = b.inherit()
	}
	if err != nil {
		b.failed(err)
		return nil, err
	}
	if err := b.conn.say(note{Kind: noteHello}); err != nil {
		return nil, fmt.Errorf("upgrade: process %d cannot be told that this one is weir: %w", pid, err)
	}
	go b.read()
	return b, nil
}

// inherit takes the descriptors that the former process has passed.
func (b *former) inherit() error {
	fd := upgradeDescriptor
	for n := range b.state.Sockets {
		fd++
		unix.CloseOnExec(fd)
		b.state.Sockets[n].FD = fd
	}
	for _, p := range b.state.Old {
		fd++
		f, err := formerWith(fd, p.OldProcess)
		if err != nil {
			return err
		}
		b.before = append(b.before, f)
	}
	return nil
}

// read reads notes until the former process ends, or until the read deadline of the connection.
func (b *former) read() {
	defer close(b.notes)
	for {
		n, err := b.conn.hear(0)
		var broken brokenNote
		switch {
		case err == nil:
			b.notes <- n
		case errors.As(err, &broken): // a killed process has read its beginning
		case errors.Is(err, os.ErrDeadlineExceeded):
			return
		default:
			close(b.ended)
			return
		}
	}
}

// check returns an error if this process cannot take over from the former one.
func (b *former) check() error {
	if b.state.Version < upgradeVersion || b.state.Version > upgradeVersionOld {
		return fmt.Errorf("upgrade: process %d passes its state in version %d, and this binary knows the versions %d to %d; restart weir instead", b.PID, b.state.Version, upgradeVersion, upgradeVersionOld)
	}
	// Without the variable, confine would execute the binary again, and the state would be lost.
	if _, confined := os.LookupEnv(confinedEnv); !confined && runtime.GOOS == "linux" {
		return fmt.Errorf("upgrade: the environment does not have %s, which process %d has set; start weir without a program that clears its environment", confinedEnv, b.PID)
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
	if group, err := unix.Getpgid(b.PID); err == nil {
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

// beside describes the former processes for the memory limit of this one; nil: there are none.
func (b *former) beside() *pressure.Beside {
	if b == nil {
		return nil
	}
	pids := []int{b.PID}
	for _, f := range b.before {
		pids = append(pids, f.PID)
	}
	return besideOf(2, pids)
}

// adoptFormer takes the keys, the cordon and the sockets that the former process passed. It is called
// before a configuration takes effect.
func (s *server) adoptFormer(b *former) error {
	s.former, s.gate = b, make(chan struct{})
	s.upgrade.adopt(b.state.Binary, b.state.Args)
	s.generations.adopt(b)
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
	s.log.Info("upgrade: ready to take over", zap.Int("generation", s.generations.number), zap.Int("old_pid", b.PID))
	b.conn.say(note{Kind: noteReady, Taken: s.sockets.Taken()}) // after an error, awaitNote notices the end
	if _, err := s.awaitNote(noteGo, signals, nil); err != nil {
		return err
	}
	s.sockets.Discard()
	close(s.gate)
	b.conn.say(note{Kind: noteServing})
	// This process has clients now. A signal waits until serve can drain them.
	left, err := s.awaitNote(noteLeft, nil, time.After(leftPatience))
	if err != nil {
		return err
	}
	b.left, b.end = true, left.End
	s.generations.settle(b, left)
	b.rejoin()
	s.sockets.Own()
	s.metrics.upgrades.WithLabelValues("success").Inc()
	s.log.Info("upgrade: this process has taken over", zap.Int("generation", s.generations.number), zap.Int("pid", os.Getpid()),
		zap.Int("old_generation", b.Generation), zap.String("old_version", b.Version), zap.Int("old_pid", b.PID))
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
// former process limits the time. Without a note it returns an empty one.
func (s *server) awaitNote(kind string, signals <-chan os.Signal, over <-chan time.Time) (note, error) {
	for {
		select {
		case n, open := <-s.former.notes:
			s.adoptOperators(n)
			s.health.AdoptLoadBalancers(n.LoadBalancers)
			if !open || n.Kind == kind {
				return n, nil
			}
		case <-over:
			s.log.Warn("upgrade: the old process stands still, and has not said that it left", zap.Int("old_pid", s.former.PID))
			return note{}, nil
		case sig := <-signals:
			if err := endedBy(sig); err != nil {
				return note{}, err
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

var errEndedEarly = errors.New("a signal ended this process before it had taken over")

// endedBy returns an error if the signal ends weir.
func endedBy(sig os.Signal) error {
	if sig == syscall.SIGTERM || sig == syscall.SIGINT {
		return errEndedEarly
	}
	return nil
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
