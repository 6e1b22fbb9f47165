package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/listener/pressure"
	"github.com/weirproxy/weir/listener/sockets"
)

// This file is the old process's half of an upgrade: successor.go is the new process as the old one
// sees it. former.go is the new process's half. upgradenote.go has the messages between them, which
// pass through a socket pair. The socket pair ends when either process ends.
//
//	           SIGUSR2
//	serving ------------> starting --hello--> loading --ready--> accepting --serving--> left
//	   ^                     |                   |                   |                    |
//	   +---------------------+-------------------+-------------------+           drain.timeout, then
//	     the new process ended, reported an error, or took too long;             the process ends
//	     or SIGTERM ended the upgrade
//
//	stage      old process                          new process
//	starting   passes sockets and keys              says hello
//	loading    serves                               loads the file, gets the sockets, becomes ready
//	accepting  still accepts, says go               begins to accept from the same queues
//	left       closes its copies, says left;        decides about sockets, writes pid_file;
//	           drains                               may itself be upgraded
//
// The new process also gets the socket pairs with older processes that still drain (generations.go).
//
// Until the new process serves, the old one gives up nothing. So each earlier failure leads back to
// serving. If the old process is killed, the new one takes over as soon as it is ready.

// stage is the state of an upgrade.
type stage string

const (
	stageNone      stage = "none"
	stageStarting  stage = "starting"
	stageLoading   stage = "loading"
	stageAccepting stage = "accepting"
	stageLeft      stage = "left"
)

// acceptPatience limits the time from go to serving, which takes milliseconds. upgrade_timeout
// limits the stage loading, and helloPatience the stage starting.
const acceptPatience = 10 * time.Second

// upgrade is the upgrade of this process to another binary. One runs at a time.
type upgrade struct {
	mu     sync.Mutex
	at     stage
	child  *successor    // nil: none was started
	cancel bool          // weir ends: no new process may take over
	done   chan struct{} // closed when the current upgrade has ended; nil: no upgrade runs
	left   chan struct{} // closed when the new process serves
	binary string        // path
	args   []string      // of the command line, with the name of the program
	// container says why a container would end with this process; empty: none would.
	container string
}

// newUpgrade records the path by which this process was started. An upgrade starts the binary that is
// there by then.
func newUpgrade() *upgrade {
	return &upgrade{at: stageNone, left: make(chan struct{}), binary: startedBinary(os.Args[0]), args: os.Args,
		container: endsContainer(os.Getpid(), os.Getppid(), processName(1))}
}

// adopt keeps the command line of the former process for the next upgrade. If its path is a script, the script may
// have started this process by another path, and the next upgrade must run the script again.
func (u *upgrade) adopt(binary string, args []string) {
	if binary != "" && len(args) > 0 {
		u.binary, u.args = binary, args
	}
}

// startedBinary returns the path by which this process was started. Symbolic links are kept,
// because an upgrade may change where they lead.
func startedBinary(name string) string {
	if !strings.Contains(name, "/") {
		if found, err := exec.LookPath(name); err == nil {
			name = found
		}
	}
	if path, err := filepath.Abs(name); err == nil {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	path, _ := os.Executable()
	return strings.TrimSuffix(path, " (deleted)")
}

// startUpgrade begins an upgrade, unless something speaks against it.
func (s *server) startUpgrade() {
	u := s.upgrade
	refuse := func(why string) {
		s.log.Warn("SIGUSR2: no upgrade was started, and this process continues", zap.String("because", why), zap.String("binary", u.binary))
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case s.former == nil && u.container != "": // an upgrade starts a process with a former one; the container does not
		refuse(u.container + "; start a new container, and let this one drain")
	case u.done != nil:
		refuse("an upgrade is in progress, in the stage " + string(u.at))
	case s.node.Draining() || u.cancel:
		refuse("weir drains; run weir undrain first")
	default:
		done := make(chan struct{})
		u.done, u.at, u.child = done, stageStarting, nil
		go func() {
			defer close(done)
			s.runUpgrade()
		}()
	}
}

// runUpgrade is one upgrade. Reloads wait meanwhile.
func (s *server) runUpgrade() {
	s.loading.Lock()
	defer s.loading.Unlock()
	s.notify(notifyReloading())
	u := s.upgrade
	taken, err := s.raise()
	if err == nil {
		s.moveOut(taken)
		return
	}
	at, cancelled := u.state()
	fields := []zap.Field{zap.String("stage", string(at)), zap.String("binary", u.binary)}
	if c := u.current(); c != nil {
		fields = append(fields, zap.Int("new_pid", c.pid))
		c.kill()
	}
	s.generations.starts(0)
	if !cancelled {
		s.lasting.begins(upgradeProblem, "the last upgrade failed: "+cut(err.Error()))
	}
	u.mu.Lock() // before the log line and READY=1: an operator may send the next SIGUSR2 as soon as one of them arrives
	u.done, u.at, u.child = nil, stageNone, nil
	u.mu.Unlock()
	if cancelled {
		s.log.Info("the upgrade was cancelled, because weir ends", fields...)
	} else {
		s.metrics.upgrades.WithLabelValues("failure").Inc()
		s.log.Error("the upgrade failed, and this process continues", append(fields, zap.Error(err))...)
		s.notify(notifyReady)
	}
}

// state returns the stage of the upgrade, and whether weir was told to end.
func (u *upgrade) state() (at stage, cancelled bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.at, u.cancel
}

func (u *upgrade) current() *successor {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.child
}

// advance notes the next stage, unless the upgrade was cancelled. A new process that accepts is not cancelled any
// more: it may have clients.
func (u *upgrade) advance(to stage, c *successor) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.cancel && to != stageLeft {
		return errors.New("weir was told to end")
	}
	u.at, u.child = to, c
	return nil
}

// raise starts the new process, and returns when it serves. Until then this process gives up nothing.
func (s *server) raise() (taken []sockets.Inherited, err error) {
	u := s.upgrade
	if err := u.advance(stageStarting, nil); err != nil {
		return nil, err
	}
	s.log.Info("upgrade: starting the binary", zap.String("binary", u.binary))
	state, descriptors, err := s.passedState()
	if err != nil {
		return nil, err
	}
	c, err := startSuccessor(u.binary, u.args, descriptors)
	closeAll(descriptors)
	if err != nil {
		return nil, err
	}
	if err := u.advance(stageStarting, c); err != nil {
		c.kill()
		return nil, err
	}
	s.generations.starts(c.pid)
	if err := c.conn.say(note{Kind: noteState, State: state}); err != nil {
		return nil, c.explain(err, noteHello, helloPatience)
	}
	if _, err := c.hear(noteHello, helloPatience); err != nil {
		return nil, err
	}
	if err := u.advance(stageLoading, c); err != nil {
		return nil, err
	}
	ready, err := c.hear(noteReady, s.configInEffect().UpgradeTimeout)
	if err != nil {
		return nil, err
	}
	if err := u.advance(stageAccepting, c); err != nil {
		return nil, err
	}
	if err := c.conn.say(s.operatorsNote(noteGo)); err != nil {
		return nil, c.explain(err, noteServing, acceptPatience)
	}
	if _, err := c.hear(noteServing, acceptPatience); err != nil {
		return nil, err
	}
	if err := u.advance(stageLeft, c); err != nil {
		return nil, err
	}
	return ready.Taken, nil
}

// operatorsNote returns a note with what operators have set on the admin port.
func (s *server) operatorsNote(kind string) note {
	now := s.node.State()
	return note{Kind: kind, Cordoned: &now.Cordoned, Draining: &now.Draining}
}

// passedState describes this process to the new one. The descriptors are those of the sockets, and of the connections
// to old processes.
func (s *server) passedState() (state *passedState, descriptors []int, err error) {
	tickets, err := s.tickets.Keys()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot pass the session ticket keys: %w", err)
	}
	passed, err := s.sockets.Pass()
	if err != nil {
		return nil, nil, err
	}
	old, toOld, err := s.generations.pass()
	if err != nil {
		sockets.CloseAll(passed)
		return nil, nil, err
	}
	for _, i := range passed {
		descriptors = append(descriptors, i.FD)
	}
	version := upgradeVersion
	if len(old) > 0 {
		version = upgradeVersionOld
	}
	v, operators := s.node.Verdict(), s.node.State()
	s.change.Lock()
	own, shared := s.sticky.own, s.sticky.shared
	s.change.Unlock()
	return &passedState{Version: version, Sender: s.generations.self(), Old: old, Sockets: passed, Tickets: tickets, StickyKey: own, SharedStickyKey: shared, PIDFile: s.pidFile, Binary: s.upgrade.binary, Args: s.upgrade.args,
		Cordoned: operators.Cordoned, Healthy: v.Healthy, Ready: v.Ready, Working: s.working()}, append(descriptors, toOld...), nil
}

func closeAll(descriptors []int) {
	for _, fd := range descriptors {
		unix.Close(fd)
	}
}

// working has an entry for each backend, for each certificate of an authority, and for each key set
// of auth. The entry is true if the backend has a ready endpoint, or if the certificate or the keys
// are loaded. A new process accepts when each entry that is true in the old process is true, or
// missing, in the new one.
func (s *server) working() map[string]bool {
	all := make(map[string]bool)
	for _, b := range s.backends.Status() {
		all["backend "+b.Name] = b.Ready > 0
	}
	for name, served := range s.acme.Served() {
		all["certificate "+name] = served
	}
	for entry, has := range s.filters.HasKeys() {
		all["auth "+entry] = has
	}
	return all
}

// moveOut leaves the taken sockets to the new process, and closes all other sockets as a drain does.
func (s *server) moveOut(taken []sockets.Inherited) {
	s.change.Lock()
	s.ended = true
	s.change.Unlock()
	s.sockets.Leave(taken)
	s.health.Move()
	s.tracker.SetDraining()
	s.proxy.SetDraining(true)
	s.endWaits()
	s.closeSockets()
	c := s.upgrade.current()
	s.notify(fmt.Sprintf("MAINPID=%d\n%s", c.pid, notifyReady)) // first: then systemd hears the new process
	left := s.operatorsNote(noteLeft)
	left.LoadBalancers = s.health.LoadBalancers()
	left.Connections, left.Active = s.remaining()
	left.Old, left.Until = s.generations.leave(), time.Now().Add(s.configInEffect().Drain.Timeout)
	_, left.End = s.upgrade.state()
	c.conn.say(left) // an error means that the new process has ended
	s.log.Info("the new process serves; this one ends with its connections", zap.Int("generation", s.generations.number), zap.Int("new_pid", c.pid),
		zap.Duration("timeout", s.configInEffect().Drain.Timeout), zap.Int("connections", s.tracker.Open()))
	close(s.upgrade.left)
}

// cancelUpgrade ends an upgrade because this process ends. It returns true if the new process
// serves. A new process that may have accepted clients is not killed: it drains them, because the note left says
// that weir ends.
func (s *server) cancelUpgrade() (left bool) {
	u := s.upgrade
	u.mu.Lock()
	u.cancel = true
	c, done := u.child, u.done
	if c != nil && u.at != stageAccepting && u.at != stageLeft {
		c.signalEnd()
	}
	u.mu.Unlock()
	s.endWaits() // the upgrade may wait for a reload that waits for a cluster
	if done != nil {
		<-done
	}
	return s.hasLeft()
}

// hasLeft returns true if another process serves.
func (s *server) hasLeft() bool {
	select {
	case <-s.upgrade.left:
		return true
	default:
		return false
	}
}

// passReload tells the new process to load its configuration, because SIGHUP came to this one.
func (s *server) passReload() {
	if c := s.upgrade.current(); c != nil {
		c.conn.say(note{Kind: noteReload})
	}
}

// shutdownLeft waits for the connections that this process still has, after a new process has
// taken over. now ends all waits.
func (s *server) shutdownLeft(now <-chan struct{}, endNow func()) error {
	cluster := s.current()
	if cluster != nil {
		cluster.handOver()
	}
	go s.acme.Close()
	ended, passed := make(chan struct{}), make(chan struct{})
	go func() {
		s.passRemaining(ended)
		close(passed)
	}()
	go s.hearServing(endNow)
	err := s.finish(s.configInEffect().Drain, cluster, now, s.health.Await)
	close(ended)
	<-passed
	return err
}

// passInterval is how often an old process tells the one that serves how many connections it has.
const passInterval = time.Second

// passRemaining tells the process that serves how many connections this one still has, until ended is closed: then
// there are none, and a process that was killed does not say so. Nobody can scrape this process any more.
func (s *server) passRemaining(ended <-chan struct{}) {
	c := s.upgrade.current()
	tick := time.NewTicker(passInterval)
	defer tick.Stop()
	toldOpen, toldActive := 0, 0
	for last := false; ; {
		open, active := s.remaining()
		if last {
			open, active = 0, 0
		}
		if last || open != toldOpen || active != toldActive {
			switch err := c.conn.tell(note{Kind: noteRemaining, Connections: open, Active: active}); {
			case err == nil:
				toldOpen, toldActive = open, active
			case !errors.Is(err, os.ErrDeadlineExceeded): // else it hangs
				return // the process that serves has ended
			}
		}
		if last {
			return
		}
		select {
		case <-tick.C:
		case <-ended:
			last = true
		}
	}
}

// remaining returns the number of open connections, and how many of them have a request or a tunnel.
func (s *server) remaining() (open, active int) {
	exchanges, tunnels := s.active()
	return s.tracker.Open(), exchanges + tunnels
}

// hearServing does what the process that serves asks for, until that process or this one ends. endNow aborts the open
// connections.
func (s *server) hearServing(endNow func()) {
	c := s.upgrade.current()
	for {
		n, err := c.conn.hear(0)
		var broken brokenNote
		switch {
		case errors.As(err, &broken): // a process that was killed has written its beginning
		case err != nil:
			return
		case n.Kind == noteReopen:
			s.reopenLogs()
		case n.Kind == noteShare:
			s.besides(besideOf(n.Parts, n.Processes))
		case n.Kind == noteEnd:
			s.log.Warn("the process that serves ends this one: aborting open connections", zap.Int("generation", s.generations.number), zap.Int("pid", os.Getpid()))
			endNow()
		}
	}
}

// besides tells the memory limits which other weirs use the same memory; nil: none does.
func (s *server) besides(b *pressure.Beside) {
	if b == nil {
		s.beside.Store(0)
	} else {
		s.beside.Store(b.Parts)
	}
	if s.budget != nil {
		s.budget.SetBeside(b)
	}
	s.limitMemory()
}
