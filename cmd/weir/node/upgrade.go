package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/listener/sockets"
)

// This file is the old process's half of an upgrade; successor.go is the new one's. They talk
// over a socket pair, which ends when either process ends.
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
//	           drains                               may itself be upgraded once the old one has ended
//
// Until the new process serves, the old one has given up nothing: so each failure before leads
// back to serving. If the old process is killed, the new one goes on by itself.

// stage is the state of an upgrade.
type stage string

const (
	stageNone      stage = "none"
	stageStarting  stage = "starting"
	stageLoading   stage = "loading"
	stageAccepting stage = "accepting"
	stageLeft      stage = "left"
)

// Time limits of steps that take milliseconds. upgrade_timeout limits the stage loading.
const (
	helloPatience  = 10 * time.Second
	acceptPatience = 10 * time.Second
	exitPatience   = 5 * time.Second
)

// upgradeEnv is the environment variable of a new process. Its value is the id of the old one.
const upgradeEnv = "WEIR_UPGRADE"

// upgradeDescriptor is the new process's end of the socket pair. The sockets follow, in order.
const upgradeDescriptor = 3

// upgradeVersion is the version of the messages. A binary with another one refuses to take over.
const upgradeVersion = 1

// A note is a message between the two processes. Each is one JSON object.
type note struct {
	Kind  string              `json:"kind"`
	State *passedState        `json:"state,omitempty"`
	Taken []sockets.Inherited `json:"taken,omitempty"` // of ready
	Error string              `json:"error,omitempty"` // of failed
	// Cordoned is of go: an operator may have changed it since state. nil: it is as in state.
	Cordoned *bool `json:"cordoned,omitempty"`
}

// The kinds of notes, in the order of an upgrade.
const (
	noteState   = "state"   // old: what the new process gets
	noteHello   = "hello"   // new: it is weir, and has read the state
	noteReady   = "ready"   // new: it could serve
	noteGo      = "go"      // old: accept
	noteServing = "serving" // new: it accepts
	noteLeft    = "left"    // old: it accepts no more
	noteReload  = "reload"  // old: it got SIGHUP after it had left
	noteFailed  = "failed"  // new: it ends, and why
)

// passedState is what a new process gets besides the sockets. It contains secrets.
type passedState struct {
	Version   int                 `json:"version"`
	Sockets   []sockets.Inherited `json:"sockets"` // FD has no meaning
	Tickets   json.RawMessage     `json:"tickets"`
	StickyKey string              `json:"sticky_key,omitempty"`
	PIDFile   string              `json:"pid_file,omitempty"` // path
	Cordoned  bool                `json:"cordoned"`
	Healthy   bool                `json:"healthy"`
	Ready     bool                `json:"ready"`
	Working   map[string]bool     `json:"working"` // see server.working
}

// upgrade is the upgrade of this process to another binary. One runs at a time.
type upgrade struct {
	mu     sync.Mutex
	at     stage
	child  *successor    // nil: none was started
	cancel bool          // weir ends: no new process may take over
	done   chan struct{} // closed when the upgrade that runs has ended; nil: none
	left   chan struct{} // closed when the new process serves
	binary string        // path
	// container says why a container would end with this process; empty: none would.
	container string
}

// newUpgrade notes by which path this process was started: afterwards another binary may be
// there.
func newUpgrade() *upgrade {
	return &upgrade{at: stageNone, left: make(chan struct{}), binary: startedBinary(os.Args[0]),
		container: endsContainer(os.Getpid(), os.Getppid(), processName(1))}
}

// endsContainer returns why a container would end with this process; empty: none would. first is
// the name of process 1.
func endsContainer(pid, parent int, first string) string {
	switch {
	case pid == 1:
		return "weir is process 1 of a container, which ends with it"
	case parent == 0: // the parent is outside: the container shares its processes with others
		return "weir is the main process of a container, which ends with it"
	case parent == 1 && slices.Contains(endWithChild, first):
		return "weir is the child of " + first + ", process 1 of a container, which ends with it"
	}
	return ""
}

// endWithChild are the init processes of containers (docker run --init and the like). They end when
// the process ends that they have started.
var endWithChild = []string{"tini", "tini-static", "docker-init", "podman-init", "catatonit", "dumb-init"}

// processName returns the name of a process; empty: unknown.
func processName(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(text))
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
	case s.former == nil && u.container != "": // what has a former process is not what the container started
		refuse(u.container + "; start a new container, and let this one drain")
	case u.done != nil:
		refuse("an upgrade is in progress, in the stage " + string(u.at))
	case s.former.running():
		refuse(fmt.Sprintf("process %d of the last upgrade still has connections; wait until it has ended (drain.timeout), or end it: kill -TERM it twice", s.former.pid))
	case s.node.Draining() || u.cancel:
		refuse("weir drains; POST /undrain to the admin port first")
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
	s.notify(notifyReloading())
	s.loading.Lock()
	defer s.loading.Unlock()
	u := s.upgrade
	taken, err := s.raise()
	if err == nil {
		s.moveOut(taken)
		return
	}
	at, cancelled := u.failed()
	fields := []zap.Field{zap.String("stage", string(at)), zap.String("binary", u.binary)}
	if c := u.current(); c != nil {
		fields = append(fields, zap.Int("new_pid", c.pid))
		c.kill()
	}
	s.besides(nil)
	if cancelled {
		s.log.Info("the upgrade was cancelled, because weir ends", fields...)
	} else {
		s.metrics.upgrades.WithLabelValues("failure").Inc()
		s.log.Error("the upgrade failed, and this process continues", append(fields, zap.Error(err))...)
		s.notify(notifyReady)
	}
	u.mu.Lock()
	u.done, u.at, u.child = nil, stageNone, nil
	u.mu.Unlock()
}

// failed returns the stage in which the upgrade failed, and whether it failed because weir ends.
func (u *upgrade) failed() (at stage, cancelled bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.at, u.cancel
}

func (u *upgrade) current() *successor {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.child
}

// advance notes the next stage, unless the upgrade was cancelled.
func (u *upgrade) advance(to stage, c *successor) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.cancel {
		return errors.New("weir was told to end")
	}
	u.at, u.child = to, c
	return nil
}

// raise starts the new process, and returns when it serves. Until then this process has given
// up nothing.
func (s *server) raise() (taken []sockets.Inherited, err error) {
	u := s.upgrade
	if err := u.advance(stageStarting, nil); err != nil {
		return nil, err
	}
	s.log.Info("upgrade: starting the binary", zap.String("binary", u.binary))
	passed, err := s.sockets.Pass()
	if err != nil {
		return nil, err
	}
	state, err := s.passedState(passed)
	if err != nil {
		sockets.CloseAll(passed)
		return nil, err
	}
	c, err := startSuccessor(u.binary, passed)
	sockets.CloseAll(passed)
	if err != nil {
		return nil, err
	}
	if err := u.advance(stageStarting, c); err != nil {
		c.kill()
		return nil, err
	}
	s.besides(func() int64 { return processMemory(c.pid) })
	if err := c.say(note{Kind: noteState, State: state}); err != nil {
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
	cordoned := s.node.State().Cordoned
	if err := c.say(note{Kind: noteGo, Cordoned: &cordoned}); err != nil {
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

// passedState collects what the new process gets.
func (s *server) passedState(passed []sockets.Inherited) (*passedState, error) {
	tickets, err := s.tickets.Keys()
	if err != nil {
		return nil, fmt.Errorf("cannot pass the session ticket keys: %w", err)
	}
	v, state := s.node.Verdict(), s.node.State()
	s.change.Lock()
	key := s.sticky.own
	s.change.Unlock()
	return &passedState{Version: upgradeVersion, Sockets: passed, Tickets: tickets, StickyKey: key, PIDFile: s.pidFile,
		Cordoned: state.Cordoned, Healthy: v.Healthy, Ready: v.Ready, Working: s.working()}, nil
}

// working returns what this process knows, and whether it works: backends with a ready
// endpoint, certificates of authorities, and keys from URLs. A new process accepts only when
// everything works there that works in the old process.
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

// moveOut leaves all sockets that the new process has taken to it, and closes the others as a
// drain does.
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
	c.say(note{Kind: noteLeft})                                 // an error means that the new process has ended
	s.log.Info("the new process serves; this one ends with its connections", zap.Int("new_pid", c.pid),
		zap.Duration("timeout", s.configInEffect().Drain.Timeout), zap.Int("connections", s.tracker.Open()))
	close(s.upgrade.left)
}

// cancelUpgrade ends an upgrade because this process ends. It returns true if the new process
// serves already.
func (s *server) cancelUpgrade() (left bool) {
	u := s.upgrade
	u.mu.Lock()
	u.cancel = true
	c, done := u.child, u.done
	if c != nil && u.at != stageLeft {
		c.process.Kill()
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
		c.say(note{Kind: noteReload})
	}
}

// shutdownLeft waits for the connections that this process still has, after a new process has
// taken over. now ends all waits.
func (s *server) shutdownLeft(now <-chan struct{}) error {
	cluster := s.current()
	if cluster != nil {
		cluster.handOver()
	}
	go s.acme.Close()
	return s.finish(s.configInEffect().Drain, cluster, now, s.health.Await)
}

// successor is the new process, as the old one sees it.
type successor struct {
	pid     int
	process *os.Process
	conn    net.Conn
	notes   *json.Decoder
	writing sync.Mutex
	exited  chan struct{}
	status  string // set before exited is closed
}

// mostNotes limits what weir reads from a new process, which may be any program.
const mostNotes = 8 << 20

// startSuccessor starts a binary with the sockets. It has the same arguments, environment and
// rights as this process.
func startSuccessor(binary string, passed []sockets.Inherited) (*successor, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open a socket pair for the new process: %w", err)
	}
	unix.CloseOnExec(pair[0])
	unix.CloseOnExec(pair[1])
	defer unix.Close(pair[1])
	f := os.NewFile(uintptr(pair[0]), "upgrade")
	conn, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return nil, fmt.Errorf("cannot open a socket pair for the new process: %w", err)
	}
	files := []uintptr{0, 1, 2, uintptr(pair[1])}
	for _, i := range passed {
		files = append(files, uintptr(i.FD))
	}
	unix.Seek(0, 0, io.SeekStart) // a configuration from standard input is read again
	// Not os.StartProcess: it would make the sockets blocking, for both processes.
	pid, err := syscall.ForkExec(binary, os.Args, &syscall.ProcAttr{Env: successorEnv(os.Environ()), Files: files})
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("cannot start %s as uid %d: %w", binary, os.Getuid(), err)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		conn.Close()
		syscall.Kill(pid, syscall.SIGKILL)
		return nil, fmt.Errorf("cannot watch the new process: %w", err)
	}
	c := &successor{pid: pid, process: process, conn: conn, exited: make(chan struct{})}
	c.notes = json.NewDecoder(io.LimitReader(conn, mostNotes))
	go func() {
		defer close(c.exited)
		if state, err := process.Wait(); err == nil {
			c.status = state.String()
		}
	}()
	return c, nil
}

// successorEnv returns the environment of a new process: the watchdog variables are without
// the id of this process.
func successorEnv(all []string) (env []string) {
	for _, one := range all {
		if name, _, _ := strings.Cut(one, "="); name != "WATCHDOG_PID" && name != upgradeEnv {
			env = append(env, one)
		}
	}
	return append(env, upgradeEnv+"="+strconv.Itoa(os.Getpid()))
}

// say sends a note.
func (c *successor) say(n note) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.conn.SetWriteDeadline(time.Now().Add(helloPatience))
	return json.NewEncoder(c.conn).Encode(n)
}

// hear waits for a note of this kind.
func (c *successor) hear(kind string, within time.Duration) (note, error) {
	c.conn.SetReadDeadline(time.Now().Add(within))
	var n note
	switch err := c.notes.Decode(&n); {
	case err != nil:
		return n, c.explain(err, kind, within)
	case n.Kind == noteFailed:
		return n, fmt.Errorf("the new process cannot take over: %s", n.Error)
	case n.Kind != kind:
		return n, fmt.Errorf("the new process said %q instead of %q; it is not a weir that this one can pass its sockets to", n.Kind, kind)
	}
	return n, nil
}

// explain returns why there is no note of this kind from the new process.
func (c *successor) explain(err error, kind string, within time.Duration) error {
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && kind == noteReady:
		return fmt.Errorf("the new process did not become ready within %v (upgrade_timeout); its log says what it waits for", within)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the new process did not answer within %v; it hangs, or is not weir", within)
	case errors.As(err, &syntax):
		return errors.New("the new process is not weir: its messages have another form")
	}
	timer := time.NewTimer(exitPatience)
	defer timer.Stop()
	select {
	case <-c.exited:
		return fmt.Errorf("the new process ended (%s); its log says why", c.status)
	case <-timer.C:
		return fmt.Errorf("the new process closed its connection to this one: %w", err)
	}
}

// kill ends the new process, and waits until it has ended.
func (c *successor) kill() {
	c.process.Kill()
	select {
	case <-c.exited:
	case <-time.After(exitPatience): // it waits for a disk, for example
	}
	c.conn.Close()
}

// besides tells the memory limits that another weir uses the same memory; nil: none does.
func (s *server) besides(used func() int64) {
	s.beside.Store(used != nil)
	if s.budget != nil {
		s.budget.SetBeside(used)
	}
	s.limitMemory()
}
