package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// note is a message between the two processes of an upgrade.
type note map[string]any

// noteConn is one end of the socket pair of an upgrade.
type noteConn struct {
	net.Conn
	decoder *json.Decoder
}

func newNoteConn(f *os.File) (*noteConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	return &noteConn{c, json.NewDecoder(c)}, nil
}

func (c *noteConn) say(n note) error { return json.NewEncoder(c).Encode(n) }

// hear reads the next note.
func (c *noteConn) hear() (n note, err error) {
	err = c.decoder.Decode(&n)
	return n, err
}

// succeed makes w the new process of an upgrade, and the test the old one. The result is the test's end of the
// socket pair. The other end is the first of w.files, which the test closes after the start.
func (w *weir) succeed() *noteConn {
	w.t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.files = []*os.File{os.NewFile(uintptr(pair[1]), "upgrade")}
	w.env = []string{fmt.Sprint("WEIR_UPGRADE=", os.Getpid())}
	c, err := newNoteConn(os.NewFile(uintptr(pair[0]), "upgrade"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	return c
}

// fakeOld is the test in the place of the old process. It has opened the sockets of w.
type fakeOld struct {
	*noteConn
	w       *weir
	sockets map[string]net.Listener
}

// startFakeOld starts weir as the new process of an upgrade. more has fields of the state.
func startFakeOld(t *testing.T, more ...note) *fakeOld {
	t.Helper()
	return startFakeOldWith(t, activationConfig, more...)
}

// startFakeOldWith is startFakeOld with a configuration of the new process.
func startFakeOldWith(t *testing.T, config string, more ...note) *fakeOld {
	t.Helper()
	needLinux(t)
	w := newWeir(t)
	o := &fakeOld{w: w, sockets: map[string]net.Listener{}}
	w.address["app"] = newWebBackend(t, "app").address
	o.noteConn = w.succeed()
	w.env = append(w.env, "WEIR_CONFINED={}")
	passed := []note{}
	local := filepath.Join(w.dir, "local.sock")
	for _, s := range [][3]string{{"listeners.web", "tcp", w.at("web")}, {"health", "tcp", w.at("health")}, {"listeners.local", "unix", local}, {"listeners.removed", "tcp", w.at("removed")}} {
		ln, err := net.Listen(s[1], s[2])
		if err != nil {
			t.Fatal(err)
		}
		if u, ok := ln.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false)
		}
		o.sockets[s[0]] = ln
		f, err := ln.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			t.Fatal(err)
		}
		w.files = append(w.files, f)
		passed = append(passed, note{"Name": s[0], "Network": s[1], "Address": s[2]})
	}
	t.Cleanup(o.dieSilently)
	w.write(strings.ReplaceAll(config, "@@dir", w.dir) + "pid_file: '@@dir/weir.pid'\n")
	w.launch()
	for _, f := range w.files {
		f.Close()
	}
	state := note{"version": 1, "sockets": passed, "tickets": note{}}
	for _, fields := range more {
		maps.Copy(state, fields)
	}
	if err := o.say(note{"kind": "state", "state": state}); err != nil {
		t.Fatal(err)
	}
	return o
}

// dieSilently closes everything that the old process had, as the kernel does if the process is killed.
func (o *fakeOld) dieSilently() {
	for _, ln := range o.sockets {
		ln.Close()
	}
	o.Close()
}

func (o *fakeOld) want(kind string) {
	o.w.t.Helper()
	n, err := o.hear()
	if err != nil || n["kind"] != kind {
		o.w.t.Fatalf("the new process says %v, %v; want %s", n, err, kind)
	}
}

// systemd sends SIGTERM to both processes of an upgrade. If the new one has accepted clients by then, and the old one
// has not left yet, the new one still drains its clients.
func TestEndWhileTheOldProcessLeaves(t *testing.T) {
	t.Parallel()
	o := startFakeOld(t)
	o.untilServing()
	client := dial(t, o.w.at("web"))
	if _, err := askSeen(client, "app.example.org", "/"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(client, "POST / HTTP/1.1\r\nHost: app.example.org\r\nContent-Length: 2\r\n\r\na"); err != nil {
		t.Fatal(err)
	}
	send(t, o.w.cmd.Process.Pid, syscall.SIGTERM)
	for range 20 { // it serves until it is alone, so that the signal has time to arrive
		other := dial(t, o.w.at("web"))
		if _, err := askSeen(other, "app.example.org", "/"); err != nil {
			t.Fatalf("a client after SIGTERM: %v", err)
		}
		other.Close()
	}
	if err := o.say(note{"kind": "left"}); err != nil {
		t.Fatal(err)
	}
	o.dieSilently()
	o.untilDraining()
	o.finishes(client)
}

// untilDraining waits until the new process drains.
func (o *fakeOld) untilDraining() {
	o.w.t.Helper()
	eventually(o.w.t, "it drains", func() error {
		if o.w.linesWith("no new connections are accepted any more") == 0 {
			return errNotYet
		}
		return nil
	})
}

// finishes ends the request of a client, and waits until the new process has answered it and has ended.
func (o *fakeOld) finishes(client net.Conn) {
	o.w.t.Helper()
	if _, err := io.WriteString(client, "b"); err != nil {
		o.w.t.Fatal(err)
	}
	if r, err := http.ReadResponse(bufio.NewReader(client), nil); err != nil || r.StatusCode != http.StatusOK {
		o.w.t.Errorf("%v, %v", r, err)
	}
	o.dieSilently() // otherwise the new process waits for it
	if status := o.w.wait(); status != 0 {
		o.w.t.Errorf("it ended with status %d", status)
	}
}

// untilServing lets the new process accept.
func (o *fakeOld) untilServing() {
	o.w.t.Helper()
	o.want("hello")
	o.want("ready")
	if err := o.say(note{"kind": "go"}); err != nil {
		o.w.t.Fatal(err)
	}
	o.want("serving")
}

// If an operator changes a drain or a cordon on the port of the new process before the old one has left, the change
// stays.
func TestOperatorsWhileBothAccept(t *testing.T) {
	t.Parallel()
	o := startFakeOld(t)
	w := o.w
	o.want("hello")
	o.want("ready")
	if err := o.say(note{"kind": "go", "cordoned": true, "draining": false}); err != nil {
		t.Fatal(err)
	}
	o.want("serving")
	w.wantVerdict(503)
	w.post("/uncordon")
	w.post("/drain")
	if err := o.say(note{"kind": "left", "cordoned": true, "draining": false, "connections": 3, "active": 2}); err != nil {
		t.Fatal(err)
	}
	w.pid() // it has taken over
	_, text, err := w.get("admin", "/status")
	var st struct {
		Draining bool
		Verdict  struct{ Cordoned bool }
		Old      []struct {
			PID, Connections, Active int
		} `json:"old_processes"`
	}
	if json.Unmarshal([]byte(text), &st); err != nil || !st.Draining || st.Verdict.Cordoned || fmt.Sprint(st.Old) != fmt.Sprintf("[{%d 3 2}]", os.Getpid()) {
		t.Errorf("the status is %+v, %v", st, err)
	}
}

// SIGTERM comes to the old process while both accept. Both end, and the new one drains the clients that it has. systemd
// sends SIGTERM to both, and that aborts none of them.
func TestEndWhileBothAccept(t *testing.T) {
	t.Parallel()
	o := startFakeOld(t)
	o.untilServing()
	client := dial(t, o.w.at("web"))
	if _, err := io.WriteString(client, "POST / HTTP/1.1\r\nHost: app.example.org\r\nContent-Length: 2\r\n\r\na"); err != nil {
		t.Fatal(err)
	}
	o.w.wantMetric(1, "weir_connections_open", "state", "active")
	if err := o.say(note{"kind": "left", "end": true}); err != nil {
		t.Fatal(err)
	}
	o.untilDraining()
	send(t, o.w.cmd.Process.Pid, syscall.SIGTERM)
	eventually(t, "it says that it ends already", func() error {
		if o.w.linesWith("a second signal aborts them") != 1 {
			return errNotYet
		}
		return nil
	})
	o.finishes(client)
}

// While both processes accept, SIGTERM to the old process does not kill the new one, which may have clients: both drain.
func TestOldProcessEndsWhileBothAccept(t *testing.T) {
	t.Parallel()
	w := newUpgradable(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.start(onlyApp)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ended := filepath.Join(w.dir, "ended")
	w.script(fmt.Sprintf("%s='go waits for %s' exec '%s'", fakeNew, ended, self))
	w.signal(syscall.SIGUSR2)
	w.log.awaits(t, "the fake was told to accept")
	w.signal(syscall.SIGTERM)
	eventually(t, "the old process handles the signal", func() error { return w.runs("cancelUpgrade") })
	if err := os.WriteFile(ended, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if status := w.wait(); status != 0 {
		t.Errorf("the old process ended with status %d", status)
	}
	w.wantLines(1, 1, "the new process serves; this one ends with its connections")
	w.wantLines(1, 1, "the fake was told to end: true") // another process writes it
}

// The new process also waits until the node is healthy, if the old one says that it is: a backend may have a ready
// endpoint, and none on this node.
func TestUpgradeAwaitsTheVerdict(t *testing.T) {
	t.Parallel()
	config := strings.Replace(activationConfig, "['@app']", "[{address: '@late', node: node-a}], health_check: {interval: 1s, tcp: {}}", 1) + "health: {address: '@health', require_local: [app]}\n"
	o := startFakeOldWith(t, config, note{"healthy": true, "ready": true})
	o.want("hello")
	eventually(t, "the new process waits", func() error {
		if o.w.linesWith("upgrade: waiting until this process is ready", "has no ready endpoint on this node (require_local)") == 0 {
			return errNotYet
		}
		return nil
	})
	late, err := net.Listen("tcp", o.w.at("late"))
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	o.want("ready")
}

// A cordon stays in effect, also if the old process is killed before it can say so again.
func TestUpgradeKeepsCordon(t *testing.T) {
	t.Parallel()
	o := startFakeOld(t, note{"cordoned": true})
	o.want("hello")
	o.want("ready")
	o.dieSilently()
	o.w.pid() // it has taken over
	if status, _, err := o.w.get("health", "/"); status != http.StatusServiceUnavailable {
		t.Errorf("the health port says %d, %v", status, err)
	}
	o.w.post("/uncordon")
	o.w.wantVerdict(http.StatusOK)
}

// The old process stands still after it has said go. The new one serves, and ends when it is told to.
func TestOldProcessStandsStill(t *testing.T) {
	long(t)
	t.Parallel()
	o := startFakeOld(t)
	o.untilServing()
	send(t, o.w.cmd.Process.Pid, syscall.SIGTERM)
	o.untilDraining()
	o.dieSilently()
	if status := o.w.wait(); status != 0 {
		t.Errorf("it ended with status %d", status)
	}
	if o.w.linesWith(`"warn"`, "the old process stands still") != 1 {
		t.Error("no warning tells of the old process")
	}
}

// The old process is killed at each step of an upgrade. The new one takes over, with the clients that wait in
// the accept queue. It accepts nobody before the old one says so.
func TestOldProcessIsKilled(t *testing.T) {
	t.Parallel()
	f := func(name string, last string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := startFakeOld(t)
			w := o.w
		steps:
			for _, step := range []string{"hello", "ready", "go", "serving", "left"} {
				switch step {
				case "go", "left":
					if err := o.say(note{"kind": step}); err != nil {
						t.Fatal(err)
					}
				default:
					o.want(step)
				}
				if step == "ready" { // it does not accept yet
					early := make([]net.Conn, 100)
					for n := range early {
						early[n] = dial(t, w.at("web"))
					}
					o.sockets["listeners.web"].(*net.TCPListener).SetDeadline(time.Now().Add(patience))
					for _, client := range early {
						c, err := o.sockets["listeners.web"].Accept()
						if err != nil {
							t.Fatalf("the new process accepts too early: %v", err)
						}
						c.Close()
						client.Close()
					}
				}
				if step == last {
					break steps
				}
			}
			queued := dial(t, w.at("web"))
			o.dieSilently()
			if _, err := askSeen(queued, "app.example.org", "/"); err != nil {
				t.Errorf("a client in the accept queue: %v", err)
			}
			w.wantVerdict(200)
			eventually(t, "nobody listens for a listener that the new configuration does not have", func() error { return refuses(w.at("removed")) })
			if pid := w.pid(); pid != w.cmd.Process.Pid {
				t.Errorf("pid_file names %d", pid)
			}
			queued.Close()
			if status := w.terminate(); status != 0 {
				t.Errorf("it ended with status %d", status)
			}
			if _, err := os.Lstat(filepath.Join(w.dir, "local.sock")); err == nil {
				t.Error("the new process does not own the socket file")
			}
		})
	}
	f("after hello", "hello")
	f("when the new one is ready", "ready")
	f("after it has said go", "go")
	f("when the new one serves", "serving")
	f("after it has left", "left")
}

// A new process that gets no usable state ends, and says why.
func TestUnusableState(t *testing.T) {
	t.Parallel()
	f := func(name, text, failed, logged string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			needLinux(t)
			w := newWeir(t)
			c := w.succeed()
			w.address["app"] = "127.0.0.1:9"
			w.write(onlyApp)
			w.launch()
			w.files[0].Close()
			io.WriteString(c, text+"\n")
			if status := w.wait(); status != 1 || !strings.Contains(w.log.String(), logged) {
				t.Errorf("status %d:\n%s", status, w.log.String())
			}
			n, err := c.hear()
			if got, _ := n["error"].(string); failed != "" && !strings.Contains(got, failed) || failed == "" && err == nil {
				t.Errorf("it says %v, %v", n, err)
			}
		})
	}
	f("not JSON", "HTTP/1.1 400 Bad Request\r\n\r\n", "", "passed no state")
	f("nothing", "{}", "", `passed no state, but a message of the kind ""`)
	f("another version", `{"kind": "state", "state": {"version": 3}}`, "this binary knows the versions 1 to 2", "restart weir instead")
	f("without the old environment", `{"kind": "state", "state": {"version": 1}}`, "the environment does not have WEIR_CONFINED", "clears its environment")
}

// fakeNew is set in a new process that is a fake: the value is the step at which it fails.
const fakeNew = "WEIR_E2E_FAKE_NEW"

func init() {
	step := os.Getenv(fakeNew)
	if step == "" {
		return
	}
	if err := beFakeNew(step); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// beFakeNew is a fake new process, which runs instead of the tests and writes no files: weir has taken the right
// from it.
func beFakeNew(step string) error {
	c, err := newNoteConn(os.NewFile(3, "upgrade"))
	if err != nil {
		return err
	}
	at := func(name string) {
		switch step {
		case name + " dies":
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case name + " hangs":
			time.Sleep(time.Minute)
		case name + " babbles":
			c.say(note{"kind": "nonsense"})
		case name + " closes":
			c.Close()
			time.Sleep(time.Minute)
		}
	}
	c.hear()
	at("state")
	c.say(note{"kind": "hello"})
	at("hello")
	c.say(note{"kind": "ready", "taken": []note{}})
	at("ready")
	if n, err := c.hear(); err != nil || n["kind"] != "go" {
		return fmt.Errorf("the old process says %v, %w", n, err)
	}
	at("go")
	if until, ok := strings.CutPrefix(step, "go waits for "); ok {
		fmt.Fprintln(os.Stderr, "the fake was told to accept")
		for _, err := os.Stat(until); err != nil; _, err = os.Stat(until) {
			time.Sleep(10 * time.Millisecond)
		}
		c.say(note{"kind": "serving"})
		n, err := c.hear()
		fmt.Fprintln(os.Stderr, "the fake was told to end:", n["end"])
		return err
	}
	return nil
}

// The new process is killed, hangs or misbehaves at each step. The old one continues as if nothing had happened.
func TestNewProcessFails(t *testing.T) {
	long(t)
	t.Parallel()
	w := newUpgradable(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.start(onlyApp + "upgrade_timeout: 2s\n")
	w.wantMetric(1, "weir_backend_endpoints_ready", "backend", "app") // the first check
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l := &load{w: w, stop: make(chan struct{})}
	l.keep("HTTP/1.1", "tcp", w.at("web"))
	l.keep("the health port", "tcp", w.at("health"))
	l.run("new connections", l.fresh)
	defer l.end()
	failed := 0
	f := func(step, stage string, words ...string) {
		t.Helper()
		w.script(fmt.Sprintf("%s='%s' exec '%s'", fakeNew, step, self))
		w.signal(syscall.SIGUSR2)
		failed++
		w.wantFailed(failed, append(words, `"stage":"`+stage+`"`)...)
		l.next(20)
	}
	f("state dies", "starting", "the new process ended (signal: killed)")
	f("state babbles", "starting", `said \"nonsense\" instead of \"hello\"`)
	f("hello dies", "loading", "the new process ended (signal: killed)")
	f("hello hangs", "loading", "did not become ready within 2s (upgrade_timeout)")
	f("hello babbles", "loading", `said \"nonsense\" instead of \"ready\"`)
	f("hello closes", "loading", "the new process closed its connection")
	f("ready dies", "accepting", "the new process ended (signal: killed)")
	f("go dies", "accepting", "the new process ended (signal: killed)")
	f("go hangs", "accepting", "the new process did not answer within 10s")
	f("go babbles", "accepting", `said \"nonsense\" instead of \"serving\"`)
	if children := childrenOf(w.cmd.Process.Pid); len(children) > 0 {
		t.Errorf("children are left: %v", children)
	}
	before := w.descriptors()
	f("go dies", "accepting")
	eventually(t, "no descriptor is left", func() error {
		if now := w.descriptors(); now > before+2 { // the clients come and go
			return fmt.Errorf("%d descriptors, %d before", now, before)
		}
		return nil
	})
	w.install(executable(t))
	w.upgrade()
	l.next(20)
}

// Without free descriptors an upgrade fails like any other, and works once there are some.
func TestUpgradeWithoutDescriptors(t *testing.T) {
	t.Parallel()
	w := newUpgradable(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.start(onlyApp)
	w.wantMetric(1, "weir_backend_endpoints_ready", "backend", "app") // the first check
	limit := func(soft uint64) {
		t.Helper()
		var now unix.Rlimit
		if err := unix.Prlimit(w.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &now); err != nil {
			t.Fatal(err)
		}
		now.Cur = soft
		if err := unix.Prlimit(w.cmd.Process.Pid, unix.RLIMIT_NOFILE, &now, nil); err != nil {
			t.Fatal(err)
		}
	}
	var before unix.Rlimit
	if err := unix.Prlimit(w.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	client := &keepAlive{network: "tcp", address: w.at("web")}
	if err := client.ask(); err != nil {
		t.Fatal(err)
	}
	limit(5) // all descriptors are in use
	w.signal(syscall.SIGUSR2)
	eventually(t, "the upgrade fails", func() error {
		if w.linesWith(`"error"`, "the upgrade failed, and this process continues", "too many open files") != 1 {
			return errNotYet
		}
		return nil
	})
	if err := client.ask(); err != nil {
		t.Errorf("an open connection: %v", err)
	}
	limit(before.Cur)
	old, _ := w.upgrade()
	if err := client.ask(); err != nil || client.c != nil {
		t.Errorf("an open connection does not move: %v", err)
	}
	gone(t, old)
}

// The sockets of systemd move to the new process, and stay systemd's.
func TestUpgradeAfterSocketActivation(t *testing.T) {
	t.Parallel()
	w := newUpgradable(t)
	w.address["app"] = newWebBackend(t, "app").address
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	w.address["web"] = ln.Addr().String()
	w.activate("web", ln)
	w.start(onlyApp)
	for range 2 {
		old, _ := w.upgrade()
		if status, _, err := w.get("web", "/up"); status != 200 {
			t.Errorf("%d, %v", status, err)
		}
		gone(t, old)
		w.alone()
	}
	now := w.pid()
	send(t, now, syscall.SIGTERM)
	gone(t, now)
	dial(t, w.at("web")) // the accept queue still works
}
