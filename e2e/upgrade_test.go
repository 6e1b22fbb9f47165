package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// endWithAll makes all processes end when the test ends: the first one, and those that take over. The result is
// called after the start.
func (w *weir) endWithAll() (started func()) {
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return func() {
		if w.cmd.Process != nil {
			session := w.cmd.Process.Pid
			w.t.Cleanup(func() { killSession(session) })
		}
	}
}

// killSession kills all processes of a session, also those that are started meanwhile.
func killSession(session int) {
	for {
		all := processesOf(func(p process) bool { return p.session == session })
		for _, p := range all {
			syscall.Kill(p.pid, syscall.SIGKILL)
		}
		if len(all) == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// process is what /proc tells about a process that has not ended.
type process struct{ pid, group, session int }

// processesOf returns the running processes that match accepts.
func processesOf(match func(process) bool) (all []process) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		_, rest, _ := strings.Cut(string(text), ") ") // after the name of the program
		var state string
		var parent int
		var p process
		if err != nil {
			continue
		}
		p.pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if _, err := fmt.Sscan(rest, &state, &parent, &p.group, &p.session); err == nil && state != "Z" && match(p) {
			all = append(all, p)
		}
	}
	return all
}

// wantAlone waits until no other process of the session of w is left.
func (w *weir) wantAlone() {
	w.t.Helper()
	eventually(w.t, "nothing is left of the new process", func() error {
		all := processesOf(func(p process) bool { return p.session == w.cmd.Process.Pid })
		if len(all) != 1 || all[0].pid != w.cmd.Process.Pid {
			return fmt.Errorf("there are %v", all)
		}
		return nil
	})
}

// newUpgradable prepares a weir whose binary a test can replace.
func newUpgradable(t *testing.T) *weir {
	t.Helper()
	needLinux(t)
	w := newWeir(t)
	w.upgrades = true
	w.binary = filepath.Join(w.dir, "weir")
	w.install(executable(t))
	return w
}

// install makes another program the binary of w. The path is a symbolic link, as in many installations.
func (w *weir) install(program string) {
	w.t.Helper()
	os.Remove(w.binary + ".new")
	if err := errors.Join(os.Symlink(program, w.binary+".new"), os.Rename(w.binary+".new", w.binary)); err != nil {
		w.t.Fatal(err)
	}
}

// script makes a shell script the binary of w.
func (w *weir) script(text string) {
	w.t.Helper()
	path := filepath.Join(w.dir, fmt.Sprint("script", time.Now().UnixNano()))
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		w.t.Fatal(err)
	}
	w.install(path)
}

// pid returns the process that pid_file names.
func (w *weir) pid() int {
	w.t.Helper()
	var pid int
	eventually(w.t, "there is a pid_file", func() (err error) {
		text, err := os.ReadFile(filepath.Join(w.dir, "weir.pid"))
		if err == nil {
			pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err
	})
	return pid
}

func send(t testing.TB, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatalf("cannot send %s to %d: %v", s, pid, err)
	}
}

// upgrade starts an upgrade, waits until the new process has taken over, and returns both processes.
func (w *weir) upgrade() (old, now int) {
	w.t.Helper()
	old = w.pid()
	send(w.t, old, syscall.SIGUSR2)
	within(w.t, time.Minute, "a new process takes over", func() error {
		if now = w.pid(); now == old || w.linesWith("upgrade: this process has taken over", fmt.Sprintf(`"old_pid":%d}`, old)) == 0 {
			return fmt.Errorf("%d still serves", old)
		}
		return nil
	})
	return old, now
}

// alone waits until the process that has taken over knows that the old one has ended.
func (w *weir) alone() {
	w.t.Helper()
	within(w.t, time.Minute, "the new process knows that the old one has ended", func() error {
		if w.linesWith("upgrade: the old process has ended") != w.linesWith("upgrade: this process has taken over") {
			return errNotYet
		}
		return nil
	})
}

// wantFailed waits until the log has n errors about upgrades, the last of them with these words.
func (w *weir) wantFailed(n int, words ...string) {
	w.t.Helper()
	within(w.t, time.Minute, "the upgrade fails", func() error {
		if got := w.linesWith(`"error"`, "the upgrade failed, and this process continues"); got != n {
			return fmt.Errorf("%d upgrades failed", got)
		}
		return nil
	})
	if w.linesWith(append(words, "the upgrade failed")...) == 0 {
		w.t.Errorf("no error about an upgrade has %q:\n%s", words, w.log.tail(4<<10))
	}
	w.wantMetric(float64(n), "weir_upgrades_total", "result", "failure")
}

// childrenOf returns the processes that a process has started, those of one thread in order.
func childrenOf(pid int) (all []int) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, thread := range threads {
		text, _ := os.ReadFile(thread)
		for _, child := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(child); err == nil {
				all = append(all, n)
			}
		}
	}
	return all
}

// onlyChild returns the process that a process has started.
func onlyChild(t testing.TB, pid int) int {
	t.Helper()
	all := childrenOf(pid)
	if len(all) != 1 {
		t.Fatalf("process %d has the children %v", pid, all)
	}
	return all[0]
}

// isRunning returns true if a process has not ended.
func isRunning(pid int) bool {
	return len(processesOf(func(p process) bool { return p.pid == pid })) > 0
}

// gone waits until a process has ended.
func gone(t testing.TB, pid int) {
	t.Helper()
	within(t, time.Minute, fmt.Sprint("process ", pid, " ends"), func() error {
		if isRunning(pid) {
			return errors.New("it runs")
		}
		return nil
	})
}

const upgradeConfig = `
pid_file: '@@dir/weir.pid'
listeners:
  web: {address: '@web', protocol: http}
  secure: {address: '@secure', protocol: tls}
  raw: {address: '@raw', protocol: tcp}
  local: {address: 'unix:@@dir/local.sock', protocol: http}
certificates: [{cert: '@@dir/app.crt', key: '@@dir/app.key'}]
routes:
  - {listeners: [web, secure, local], backend: app}
  - {listeners: [raw], backend: echo}
backends:
  app: {endpoints: ['@app', '@other'], sticky: {}, health_check: {interval: 1s, fall: 100, tcp: {}}}
  echo: {protocol: tcp, endpoints: ['@echo']}
drain: {lame_duck: 0s, timeout: 10m}
`

func startUpgradable(t *testing.T, more string) (*weir, *webBackend) {
	t.Helper()
	w := newUpgradable(t)
	writeCertificate(t, w.dir, "app", false, "app.example.org")
	app := newWebBackend(t, "app")
	w.address["app"], w.address["other"], w.address["echo"] = app.address, newWebBackend(t, "other").address, newEchoBackend(t).address
	w.start(upgradeConfig + more)
	w.wantMetric(2, "weir_backend_endpoints_ready", "backend", "app") // the first checks
	return w, app
}

// load is clients of all kinds that send requests until it ends. Each request must be answered.
type load struct {
	w    *weir
	stop chan struct{}
	once sync.Once
	all  sync.WaitGroup
	done atomic.Int64
}

func (w *weir) startLoad() *load {
	l := &load{w: w, stop: make(chan struct{})}
	for range 2 {
		l.keep("HTTP/1.1", "tcp", w.at("web"))
		l.keep("HTTP/1.1 on a Unix socket", "unix", filepath.Join(w.dir, "local.sock"))
		l.run("new connections", l.fresh)
		l.run("new TLS connections", l.freshTLS)
		l.run("raw TCP", l.raw)
		l.run("WebSockets", l.webSocket("web", func(c net.Conn) net.Conn { return c }))
		l.run("WebSockets over TLS", l.webSocket("secure", func(c net.Conn) net.Conn { return tlsOver(c) }))
		l.keepParked("parked HTTP/1.1", "tcp", w.at("web"))
		l.keepParked("parked HTTP/1.1 on a Unix socket", "unix", filepath.Join(w.dir, "local.sock"))
	}
	for kind := range 2 {
		r := &requests{t: w.t, base: "https://" + w.at("secure"), end: l.stop}
		l.all.Go(func() { r.client(kind) })
	}
	l.keep("the health port", "tcp", w.at("health"))
	return l
}

// keep sends requests on connections that stay open.
func (l *load) keep(kind, network, address string) {
	k := &keepAlive{network: network, address: address}
	l.run(kind, k.ask, k.end)
}

// toPark is so long that weir parks a connection that is idle.
const toPark = 1500 * time.Millisecond

// keepParked is keep with pauses in which weir parks the connection.
func (l *load) keepParked(kind, network, address string) {
	k := &keepAlive{network: network, address: address}
	l.run(kind, func() error {
		err := k.ask()
		l.pause(toPark)
		return err
	}, k.end)
}

// pause waits for d, or until the load ends.
func (l *load) pause(d time.Duration) {
	select {
	case <-l.stop:
	case <-time.After(d):
	}
}

// run calls f until the load ends, and then end.
func (l *load) run(kind string, f func() error, end ...func()) {
	l.all.Go(func() {
		for _, end := range end {
			defer end()
		}
		for {
			select {
			case <-l.stop:
				return
			default:
			}
			if err := f(); err != nil {
				l.w.t.Errorf("%s: a request was lost: %v", kind, err)
				return
			}
			l.done.Add(1)
			time.Sleep(time.Millisecond) // other tests run beside this one
		}
	})
}

// end stops the load.
func (l *load) end() {
	l.once.Do(func() { close(l.stop) })
	l.all.Wait()
}

// next waits until the load has made some more requests.
func (l *load) next(n int64) {
	l.w.t.Helper()
	from := l.done.Load()
	within(l.w.t, time.Minute, "the clients go on", func() error {
		if now := l.done.Load(); now < from+n {
			return fmt.Errorf("%d of %d", now-from, n)
		}
		return nil
	})
}

// keepAlive sends requests on one connection until weir says that it closes it.
type keepAlive struct {
	network, address string
	c                net.Conn
	r                *bufio.Reader
}

func (k *keepAlive) ask() (err error) {
	if k.c == nil {
		if k.c, err = net.DialTimeout(k.network, k.address, patience); err != nil {
			return err
		}
		k.c.SetDeadline(time.Now().Add(5 * time.Minute))
		k.r = bufio.NewReader(k.c)
	}
	resp, _, err := ask(k.c, k.r, "GET", "app.example.org", "/")
	if err != nil || resp.StatusCode != 200 {
		return fmt.Errorf("%v, %w", resp, err)
	}
	if resp.Close {
		k.end()
	}
	return nil
}

// end closes the connection: a drain waits for it.
func (k *keepAlive) end() {
	if k.c != nil {
		k.c.Close()
		k.c = nil
	}
}

// fresh sends a request on a new connection.
func (l *load) fresh() error {
	return l.connect("web", func(c net.Conn) error {
		_, err := askSeen(c, "app.example.org", "/")
		return err
	})
}

// freshTLS sends a request on a new TLS connection.
func (l *load) freshTLS() error {
	return l.connect("secure", func(c net.Conn) error {
		secure := tlsOver(c)
		defer secure.Close()
		_, err := askSeen(secure, "app.example.org", "/")
		return err
	})
}

// raw opens a tunnel, and reads back what it has written.
func (l *load) raw() error {
	return l.connect("raw", func(c net.Conn) error {
		sent := []byte("some bytes")
		if _, err := c.Write(sent); err != nil {
			return err
		}
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
			return fmt.Errorf("%q, %w", got, err)
		}
		return nil
	})
}

// webSocket returns a function that opens a WebSocket, sends a message, waits until weir has parked the
// connection, sends another one, and closes the WebSocket. over makes TLS of the connection, if it has to.
func (l *load) webSocket(listener string, over func(net.Conn) net.Conn) func() error {
	return func() error {
		return l.connect(listener, func(c net.Conn) error {
			c = over(c)
			defer c.Close()
			r := bufio.NewReader(c)
			resp, _, err := ask(c, r, "GET", "app.example.org", "/ws", "Connection: Upgrade", "Upgrade: websocket",
				"Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
			if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
				return fmt.Errorf("%v, %w", resp, err)
			}
			c.SetDeadline(time.Now().Add(time.Minute))
			for i, one := range [][2]string{ // frames with a mask that is zero, and the answers: two echos and a close frame
				{"\x81\x85\x00\x00\x00\x00hello", "\x81\x05hello"},
				{"\x81\x85\x00\x00\x00\x00again", "\x81\x05again"},
				{"\x88\x82\x00\x00\x00\x00\x03\xe8", "\x88\x02\x03\xe8"},
			} {
				if i == 1 {
					l.pause(toPark)
				}
				got := make([]byte, len(one[1]))
				if _, err := io.WriteString(c, one[0]); err != nil {
					return fmt.Errorf("before %q: %w", one[0], err)
				}
				if _, err := io.ReadFull(r, got); err != nil || string(got) != one[1] {
					return fmt.Errorf("%q for %q, %w", got, one[0], err)
				}
			}
			return nil
		})
	}
}

// connect calls f with a new connection to a listener.
func (l *load) connect(listener string, f func(net.Conn) error) error {
	c, err := net.DialTimeout("tcp", l.w.at(listener), patience)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	return f(c)
}

// Another binary takes over several times under load, and no request is lost. Idle connections move with their
// next response, tunnels stay, and sessions of TLS and of clients stay valid.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	w, _ := startUpgradable(t, "")
	l := w.startLoad()
	defer l.end()
	l.next(200)
	for range 3 {
		eventually(t, "weir has parked clients and tunnels", func() error {
			if n := w.metric("weir_connections_parked"); n < 4 {
				return fmt.Errorf("%v connections are parked", n)
			}
			return nil
		})
		idle := dial(t, w.at("web"))
		r := bufio.NewReader(idle)
		resp, body, err := ask(idle, r, "GET", "app.example.org", "/")
		if err != nil || resp.Close || len(resp.Cookies()) != 1 {
			t.Fatalf("before: %v, %v", resp, err)
		}
		cookie := resp.Cookies()[0]
		var first seen
		json.Unmarshal(body, &first)
		tunnel := openTunnel(t, w)
		sessions := &anySession{}
		for _, want := range []bool{false, true} {
			if got, err := resumes(t, w, "app.example.org", tls.VersionTLS13, sessions); err != nil || got != want {
				t.Fatalf("before: resumed is %t, %v", got, err)
			}
		}
		old, now := w.upgrade()
		if all := processesOf(func(p process) bool { return p.pid == now }); len(all) != 1 || all[0].group != w.cmd.Process.Pid {
			t.Errorf("the new process is not in the process group of the first: %v", all)
		}
		if got, err := resumes(t, w, "app.example.org", tls.VersionTLS13, sessions); err != nil || !got {
			t.Errorf("the session is not resumed by the new process: %v", err)
		}
		for range 5 {
			c := dial(t, w.at("web"))
			got, err := askSeen(c, "app.example.org", "/", "Cookie: "+cookie.Name+"="+cookie.Value)
			c.Close()
			if err != nil || got.Backend != first.Backend {
				t.Errorf("the cookie leads to %q instead of %q: %v", got.Backend, first.Backend, err)
			}
		}
		if resp, _, err = ask(idle, r, "GET", "app.example.org", "/"); err != nil || !resp.Close {
			t.Errorf("an idle connection does not move with its next response: %v, %v", resp, err)
		}
		idle.Close()
		if _, err := tunnel.Write([]byte("y")); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(tunnel, make([]byte, 1)); err != nil {
			t.Errorf("a tunnel of the old process: %v", err)
		}
		tunnel.Close()
		gone(t, old)
		w.alone()
		l.next(100)
	}
	w.wantMetric(1, "weir_upgrades_total", "result", "success")
	now := w.pid()
	l.end()
	send(t, now, syscall.SIGTERM)
	gone(t, now)
	for _, file := range []string{"weir.pid", "local.sock"} {
		if _, err := os.Lstat(filepath.Join(w.dir, file)); err == nil {
			t.Errorf("%s is left", file)
		}
	}
	if n := w.linesWith(`"error"`); n > 0 {
		t.Errorf("%d errors", n)
	}
}

// An upgrade waits for no old process: neither the next one, nor the way back after a bad release. An old process that
// is killed, and upgrades that fail, change nothing for the others. Beyond eight, the oldest ends at once.
func TestUpgradeWhileOldProcessesDrain(t *testing.T) {
	t.Parallel()
	w, _ := startUpgradable(t, "")
	l := w.startLoad()
	defer l.end()
	var tunnels []net.Conn // each to another process
	pids := []int{w.pid()}
	alive := func(t *testing.T) {
		t.Helper()
		for n, tunnel := range tunnels {
			if tunnel == nil {
				continue
			}
			if _, err := tunnel.Write([]byte("y")); err != nil {
				t.Errorf("tunnel %d: %v", n, err)
			} else if _, err := io.ReadFull(tunnel, make([]byte, 1)); err != nil {
				t.Errorf("tunnel %d: %v", n, err)
			}
		}
	}
	next := func() {
		t.Helper()
		tunnel := openTunnel(t, w)
		tunnel.SetDeadline(time.Now().Add(5 * time.Minute))
		tunnels = append(tunnels, tunnel)
		_, now := w.upgrade()
		pids = append(pids, now)
		alive(t)
	}
	remain := func(want ...int) { // the generations with one tunnel each
		t.Helper()
		within(t, time.Minute, fmt.Sprintf("the generations %v have connections", want), func() error {
			var st struct {
				Generation int
				Old        []struct {
					Generation, PID, Connections, Active int
					Binary, Version, Since, Until        string
				} `json:"old_processes"`
			}
			_, text, err := w.get("admin", "/status")
			if err == nil {
				err = json.Unmarshal([]byte(text), &st)
			}
			if err != nil || st.Generation != len(pids) || len(st.Old) != len(want) {
				return fmt.Errorf("%+v, %v", st, err)
			}
			for n, p := range st.Old {
				if p.Generation != want[n] || p.PID != pids[p.Generation-1] || p.Connections != 1 || p.Active != 1 || p.Since == "" || p.Until == "" || p.Version == "" || filepath.Base(p.Binary) != filepath.Base(executable(t)) {
					return fmt.Errorf("%+v", p)
				}
			}
			return nil
		})
		w.wantMetric(float64(len(want)), "weir_drain_connections_remaining")
	}
	next()
	w.script("exec " + executable(t) + ` "$@"`) // another release
	next()
	w.script("exit 3")
	send(t, pids[2], syscall.SIGUSR2)
	w.wantFailed(1, "the new process ended (exit status 3)")
	w.install(executable(t)) // back
	good, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	w.write("listeners: 7\n")
	send(t, pids[2], syscall.SIGUSR2)
	w.wantFailed(2, "the new process cannot take over", "listeners")
	send(t, pids[1], syscall.SIGKILL)
	gone(t, pids[1])
	w.wantLines(1, 1, `"warn"`, "has ended with open connections", `"old_generation":2`)
	tunnels[1] = nil
	w.write(string(good))
	next()
	l.next(200)
	l.end()
	remain(1, 3)

	if err := os.Rename(w.access, w.access+".1"); err != nil {
		t.Fatal(err)
	}
	send(t, pids[3], syscall.SIGHUP)
	for _, pid := range []int{pids[0], pids[2]} {
		w.awaitReopened(pid)
	}
	before := w.linesWith("configuration loaded", "SIGHUP")
	send(t, pids[0], syscall.SIGHUP) // reaches the process that serves, beyond the killed one
	eventually(t, "the process that serves loads its file", func() error {
		if w.linesWith("configuration loaded", "SIGHUP") != before+1 {
			return errNotYet
		}
		return nil
	})
	tunnels[2].Close()
	tunnels[2] = nil
	gone(t, pids[2])
	remain(1)

	for range 7 {
		next()
	}
	remain(1, 4, 5, 6, 7, 8, 9, 10)
	tunnel := tunnels[0]
	tunnels[0] = nil // the next upgrade ends it
	next()
	gone(t, pids[0])
	if _, err := tunnel.Read(make([]byte, 1)); err == nil {
		t.Error("the tunnel of the oldest process goes on")
	}
	w.wantLines(1, 1, "too many old processes have connections, so the oldest ends at once")
	remain(4, 5, 6, 7, 8, 9, 10, 11)
	now := w.pid()
	send(t, now, syscall.SIGTERM)
	w.log.awaits(t, "all ports are closed, and another process can bind them")
	w.wantLines(1, 1, `"draining"`, fmt.Sprintf(`"old_processes":["generation 4, pid %d: 1 connections"`, pids[3]))
	alive(t)
	w.wantLines(1, 9, "waiting for open connections to close", `"old_processes":["generation 4`) // without connections of its own
	if w.pid() != now {
		t.Error("pid_file does not name the process that waits for the old ones")
	}
	send(t, now, syscall.SIGTERM)
	for _, pid := range pids {
		gone(t, pid)
	}
}

// A new process that cannot take over changes nothing. The old one says why, and can be upgraded later.
func TestUpgradeFails(t *testing.T) {
	long(t)
	t.Parallel()
	w, _ := startUpgradable(t, "")
	l := w.startLoad()
	defer l.end()
	l.next(50)
	failed := 0
	f := func(words ...string) {
		t.Helper()
		send(t, w.cmd.Process.Pid, syscall.SIGUSR2)
		failed++
		w.wantFailed(failed, words...)
		if pid := w.pid(); pid != w.cmd.Process.Pid {
			t.Errorf("process %d took over", pid)
		}
		l.next(50)
	}
	w.script("exit 3")
	f(`"stage":"starting"`, "the new process ended (exit status 3)")
	w.script("echo HTTP/1.1 200 OK >&3; sleep 60")
	f(`"stage":"starting"`, "the new process is not weir")
	w.script("sleep 300 & sleep 301")
	f(`"stage":"starting"`, "did not answer within 10s; it hangs, or is not weir")
	w.wantAlone()
	w.script("kill -9 $$")
	f("the new process ended (signal: killed)")
	w.install("/nowhere/weir")
	f(`"stage":"starting"`, "cannot start "+w.binary, "no such file or directory")
	w.install(executable(t))
	good, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(w.dir, "bad.yaml")
	os.WriteFile(bad, []byte("listeners: 7\n"), 0o644)
	os.Rename(bad, w.config)
	f(`"stage":"loading"`, "the new process cannot take over", "listeners")
	os.WriteFile(bad, bytes.ReplaceAll(good, []byte("access_log: {path: '"), []byte("access_log: {path: '/proc/nowhere")), 0o644)
	os.Rename(bad, w.config)
	f(`"stage":"loading"`, "the new process cannot take over")
	os.WriteFile(bad, good, 0o644)
	os.Rename(bad, w.config)
	if old, _ := w.upgrade(); old != w.cmd.Process.Pid {
		t.Error("another process was upgraded")
	}
	l.next(50)
}

const onlyApp = `
pid_file: '@@dir/weir.pid'
listeners: {web: {address: '@web', protocol: http}}
routes: [{listeners: [web], paths: [/up], respond: {status: 200, body: up}}, {listeners: [web], backend: app}]
backends: {app: {endpoints: ['@app'], health_check: {interval: 1h, fall: 100, tcp: {}}}}
`

// loading starts an upgrade that stays in the stage loading, and returns the new process.
func loading(t *testing.T, w *weir) int {
	t.Helper()
	before := w.linesWith("upgrade: waiting until this process is ready")
	send(t, w.cmd.Process.Pid, syscall.SIGUSR2)
	within(t, time.Minute, "the new process waits", func() error {
		if w.linesWith("upgrade: waiting until this process is ready", "backend app") != before+1 {
			return errNotYet
		}
		return nil
	})
	children := childrenOf(w.cmd.Process.Pid)
	if len(children) == 0 {
		t.Fatal("weir has no child")
	}
	return children[len(children)-1]
}

// The old process continues if the new one does not become ready, or is killed. If the old process is killed, the
// new one takes over. Signals, reloads and cordons during an upgrade work.
func TestUpgradeWaits(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T, timeout string) *weir {
		t.Helper()
		app := newWebBackend(t, "app")
		w := newUpgradable(t)
		w.address["app"] = app.address
		w.start(onlyApp + "upgrade_timeout: " + timeout + "\n")
		w.wantMetric(1, "weir_backend_endpoints_ready", "backend", "app")
		app.server.Close() // the old process still uses the endpoint, and no new one can
		return w
	}
	serves := func(t *testing.T, w *weir) {
		t.Helper()
		if status, _, err := w.get("web", "/up"); status != 200 {
			t.Errorf("%d, %v", status, err)
		}
		if status, _, err := w.get("health", "/"); status != 200 {
			t.Errorf("the health port says %d, %v", status, err)
		}
	}
	t.Run("too long", func(t *testing.T) {
		t.Parallel()
		w := start(t, "3s")
		child := loading(t, w)
		w.wantFailed(1, `"stage":"loading"`, "the new process did not become ready within 3s (upgrade_timeout)")
		gone(t, child)
		serves(t, w)
	})
	// Otherwise weir would take the end of the script for the end of the old process, and take over.
	t.Run("too long, in a script", func(t *testing.T) {
		t.Parallel()
		w := start(t, "3s")
		w.script("'" + executable(t) + `' "$@"` + "\nexit $?")
		loading(t, w)
		w.wantFailed(1, `"stage":"loading"`, "the new process did not become ready within 3s (upgrade_timeout)")
		w.wantAlone()
		serves(t, w)
	})
	t.Run("the new process is killed", func(t *testing.T) {
		t.Parallel()
		w := start(t, "1h")
		send(t, loading(t, w), syscall.SIGKILL)
		w.wantFailed(1, `"stage":"loading"`, "the new process ended (signal: killed)")
		serves(t, w)
	})
	t.Run("the new process gets SIGTERM", func(t *testing.T) {
		t.Parallel()
		w := start(t, "1h")
		send(t, loading(t, w), syscall.SIGTERM)
		w.wantFailed(1, "a signal ended this process before it had taken over")
		serves(t, w)
	})
	t.Run("the old process is killed", func(t *testing.T) {
		t.Parallel()
		w := start(t, "1h")
		child := loading(t, w)
		send(t, w.cmd.Process.Pid, syscall.SIGKILL)
		eventually(t, "the new process takes over", func() error {
			if pid := w.pid(); pid != child {
				return fmt.Errorf("pid_file names %d", pid)
			}
			return nil
		})
		serves(t, w)
		send(t, child, syscall.SIGTERM)
		gone(t, child)
	})
	t.Run("the old process ends", func(t *testing.T) {
		t.Parallel()
		w := start(t, "1h")
		child := loading(t, w)
		if status := w.terminate(); status != 0 {
			t.Errorf("it ended with status %d", status)
		}
		if text := w.log.String(); !strings.Contains(text, "the upgrade was cancelled, because weir ends") || strings.Contains(text, "the upgrade failed") {
			t.Errorf("weir logged:\n%s", text)
		}
		gone(t, child)
		if err := refuses(w.at("web")); err != nil {
			t.Error(err)
		}
	})
	meanwhile := func(t *testing.T, during, after func(w *weir)) {
		t.Helper()
		t.Parallel()
		app := newWebBackend(t, "app")
		w := newUpgradable(t)
		w.address["app"] = app.address
		w.start(strings.Replace(onlyApp, "interval: 1h", "interval: 1s", 1) + "upgrade_timeout: 1h\n")
		w.wantMetric(1, "weir_backend_endpoints_ready", "backend", "app")
		app.server.Close()
		child := loading(t, w)
		during(w)
		back, err := net.Listen("tcp", w.address["app"]) // the endpoint comes back
		if err != nil {
			t.Fatal(err)
		}
		defer back.Close()
		go http.Serve(back, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		within(t, time.Minute, "the new process takes over", func() error {
			if pid := w.pid(); pid != child {
				return fmt.Errorf("pid_file names %d", pid)
			}
			return nil
		})
		gone(t, w.cmd.Process.Pid)
		after(w)
	}
	for _, path := range []string{"cordon", "drain"} {
		t.Run("an operator sends POST /"+path+" meanwhile", func(t *testing.T) {
			meanwhile(t, func(w *weir) { w.post("/" + path) }, func(w *weir) {
				if status, _, err := w.get("health", "/"); status != http.StatusServiceUnavailable {
					t.Errorf("the health port of the new process says %d, %v", status, err)
				}
				w.post("/un" + path)
				w.wantVerdict(http.StatusOK)
			})
		})
	}
	// The old process cannot say whether the new one can load the file.
	t.Run("an operator sends POST /reload meanwhile", func(t *testing.T) {
		answer := make(chan string, 1)
		meanwhile(t, func(w *weir) {
			go func() {
				resp, err := trusted.Post("http://"+w.at("admin")+"/reload", "", nil)
				if err != nil {
					answer <- err.Error()
					return
				}
				defer resp.Body.Close()
				text, _ := io.ReadAll(resp.Body)
				answer <- resp.Status + ": " + string(text)
			}()
			eventually(t, "the reload waits", func() error {
				return w.runs("adminReload")
			})
		}, func(w *weir) {
			if got := <-answer; !strings.Contains(got, "503 Service Unavailable: an upgrade ended meanwhile, and the new process loads the configuration now") {
				t.Errorf("the answer is %q", got)
			}
			eventually(t, "the new process loads its file", func() error {
				if w.linesWith("configuration loaded", "SIGHUP") != 1 {
					return errNotYet
				}
				return nil
			})
		})
	})
	t.Run("two upgrades and a reload", func(t *testing.T) {
		t.Parallel()
		w := start(t, "1h")
		child := loading(t, w)
		w.signal(syscall.SIGUSR2)
		eventually(t, "the second upgrade is refused", func() error {
			if w.linesWith(`"warn"`, "no upgrade was started", "an upgrade is in progress, in the stage loading") != 1 {
				return errNotYet
			}
			return nil
		})
		before := w.hash()
		w.write(strings.ReplaceAll(onlyApp, "body: up", "body: changed") + "upgrade_timeout: 1h\n")
		w.signal(syscall.SIGHUP)
		serves(t, w)
		if w.hash() != before {
			t.Error("a reload took effect during the upgrade")
		}
		send(t, child, syscall.SIGKILL)
		w.wantFailed(1, "the new process ended (signal: killed)")
		w.rehashed(before)
		serves(t, w)
	})
}

// SIGHUP to the old process, after a new one has taken over, makes the new one load its file and open its log.
func TestReloadAfterUpgrade(t *testing.T) {
	t.Parallel()
	w, _ := startUpgradable(t, "")
	tunnel := openTunnel(t, w)
	old, _ := w.upgrade()
	before := w.linesWith("configuration loaded", "SIGHUP")
	send(t, old, syscall.SIGHUP)
	eventually(t, "the new process loads its file", func() error {
		if w.linesWith("configuration loaded", "SIGHUP") != before+1 {
			return errNotYet
		}
		return nil
	})
	tunnel.Close()
	gone(t, old)
}

// The new process knows what the old one knows about a drain: the load balancers that asked only the old one, and
// how many connections the old one still has.
func TestDrainAfterUpgrade(t *testing.T) {
	t.Parallel()
	w, _ := startUpgradable(t, "")
	w.wantVerdict(200)
	tunnel := openTunnel(t, w)
	old, _ := w.upgrade()
	w.wantMetric(1, "weir_drain_connections_remaining")
	w.post("/drain")
	if _, body, err := w.get("admin", "/status"); err != nil || !strings.Contains(body, `"load_balancers_told": false`) {
		t.Errorf("the load balancer of the old process is forgotten: %v: %s", err, body)
	}
	for range 2 {
		w.wantVerdict(503)
	}
	wait := exec.Command(executable(t), "drain", "--wait", "--quiet", "1ms", w.at("admin"))
	var said logBuffer
	wait.Stdout, wait.Stderr = &said, &said
	if err := wait.Start(); err != nil {
		t.Fatal(err)
	}
	said.awaits(t, fmt.Sprintf("waiting: active requests and tunnels of old processes of upgrades: process %d (generation 1): 1", old))
	tunnel.Close()
	if err := wait.Wait(); err != nil || !strings.Contains(said.String(), "quiet: ") {
		t.Errorf("after the last tunnel of the old process: %v: %s", err, said.String())
	}
	gone(t, old)
	w.wantMetric(0, "weir_drain_connections_remaining")
	w.alone()
	w.wantLines(0, 0, "has ended with open connections") // it has said that none is left
	send(t, w.pid(), syscall.SIGUSR2)
	eventually(t, "an upgrade is refused during a drain", func() error {
		if w.linesWith(`"warn"`, "no upgrade was started", "weir drains; run weir undrain first") != 1 {
			return errNotYet
		}
		return nil
	})
}

// The new process gets the sockets that its configuration wants, also for renamed listeners. It opens new sockets
// for new addresses, and the sockets of removed listeners are closed.
func TestUpgradeMovesListeners(t *testing.T) {
	t.Parallel()
	w, _ := startUpgradable(t, "")
	gone1 := w.at("raw")
	// The file changes only for the new process: the old one cannot read it.
	text, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	w.script("exec " + executable(t) + " run -c " + w.config + ".next")
	next := string(text)
	next = strings.ReplaceAll(next, "  web: {", "  renamed: {")
	next = strings.ReplaceAll(next, "[web, secure, local]", "[renamed, secure, local, more]")
	next = strings.ReplaceAll(next, "  raw: {address: '"+gone1+"', protocol: tcp}", "  more: {address: '"+w.at("more")+"', protocol: http}")
	next = strings.ReplaceAll(next, "  - {listeners: [raw], backend: echo}\n", "")
	if err := os.WriteFile(w.config+".next", []byte(next), 0o644); err != nil {
		t.Fatal(err)
	}
	old, _ := w.upgrade()
	for _, name := range []string{"web", "more"} {
		if status, _, err := w.get(name, "/"); status != 200 {
			t.Errorf("%s: %d, %v", name, status, err)
		}
	}
	if err := refuses(gone1); err != nil {
		t.Errorf("the removed listener: %v", err)
	}
	gone(t, old)
}

// A program that cleans up a folder removes the file of a Unix socket. A reload makes it again, and so does an
// upgrade, whose old process leaves the file of the new one alone.
func TestRemovedSocketFile(t *testing.T) {
	t.Parallel()
	w, _ := startUpgradable(t, "")
	path := filepath.Join(w.dir, "local.sock")
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}, Timeout: patience}
	reach := func(after string) {
		t.Helper()
		resp, err := client.Get("http://app.example.org/")
		if err != nil {
			t.Errorf("%s: %v", after, err)
			return
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", after, resp.Status)
		}
	}
	remove := func() {
		t.Helper()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	remove()
	w.post("/reload")
	reach("after a reload")
	remove()
	old, _ := w.upgrade()
	reach("after an upgrade")
	gone(t, old)
	reach("after the end of the old process")
	remove()
	other, err := net.Listen("unix", path) // another program took the path
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	w.post("/reload")
	if w.linesWith(`"warn"`, "a listener is not reachable", "listeners.local", path) != 1 {
		t.Error("the log does not say that no client reaches the socket")
	}
}

// While both processes run, they share one limit of memory. Afterwards the new one has all of it.
func TestUpgradeSharesMemory(t *testing.T) {
	t.Parallel()
	w := newUpgradable(t)
	writeCertificate(t, w.dir, "app", false, "app.example.org")
	w.address["app"], w.address["other"], w.address["echo"] = newWebBackend(t, "app").address, newWebBackend(t, "other").address, newEchoBackend(t).address
	w.env = []string{"GOMEMLIMIT=1GiB"}
	w.start(upgradeConfig)
	w.wantMetric(1<<30, "go_gc_gomemlimit_bytes")
	seen := filepath.Join(w.dir, "seen")
	w.script("until [ -e '" + seen + "' ]; do sleep 0.1; done; exit 3")
	w.signal(syscall.SIGUSR2)
	eventually(t, "the old process makes room while the new one starts", func() error {
		if limit := w.metric("go_gc_gomemlimit_bytes"); limit == 1<<30 {
			return errNotYet
		}
		return nil
	})
	if err := os.WriteFile(seen, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	w.wantFailed(1)
	w.wantMetric(1<<30, "go_gc_gomemlimit_bytes")
	w.install(executable(t))
	tunnel := openTunnel(t, w)
	old, _ := w.upgrade()
	limit := w.metric("go_gc_gomemlimit_bytes")
	if limit < 1<<28 || limit > 6<<27 {
		t.Errorf("beside the old process the limit is %.0f", limit)
	}
	tunnel.Close()
	gone(t, old)
	w.wantMetric(1<<30, "go_gc_gomemlimit_bytes")
}

// systemd learns the id of the new main process, and the new process answers the watchdog.
func TestUpgradeTellsSystemd(t *testing.T) {
	t.Parallel()
	w := newUpgradable(t)
	systemd := listenAsSystemd(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.env = []string{systemd.env(), "WATCHDOG_USEC=200000"}
	w.before = []string{"/bin/sh", "-c", `WATCHDOG_PID=$$ exec "$@"`, "sh"}
	w.start(onlyApp)
	systemd.awaitState("WATCHDOG=1")
	w.script("exit 1")
	w.signal(syscall.SIGUSR2)
	systemd.awaitState("RELOADING=1\nMONOTONIC_USEC=")
	systemd.awaitState("READY=1")
	w.install(executable(t))
	_, now := w.upgrade()
	systemd.awaitState(fmt.Sprintf("MAINPID=%d\nREADY=1", now))
	systemd.awaitState("WATCHDOG=1")
	send(t, now, syscall.SIGTERM)
	systemd.awaitState("STOPPING=1")
}

// As process 1 of a container, weir is not upgraded: the container would end with the old process.
func TestProcessOneIsNotUpgraded(t *testing.T) {
	t.Parallel()
	needRoot(t)
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.before = []string{need(t, "unshare"), "--pid", "--fork"}
	w.start(onlyApp)
	pid := onlyChild(t, w.cmd.Process.Pid)
	// The kernel would forget --kill-child when a process changes its capabilities, as weir does.
	t.Cleanup(func() { syscall.Kill(pid, syscall.SIGKILL) })
	send(t, pid, syscall.SIGUSR2)
	eventually(t, "weir refuses", func() error {
		if w.linesWith(`"warn"`, "no upgrade was started", "weir is process 1 of a container") != 1 {
			return errNotYet
		}
		return nil
	})
	if status, _, err := w.get("web", "/up"); status != http.StatusOK {
		t.Errorf("%d, %v", status, err)
	}
}

// The init process of a container ends with the process that it started: so weir is not upgraded there either.
func TestChildOfContainerInitIsNotUpgraded(t *testing.T) {
	t.Parallel()
	needRoot(t)
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	tini := filepath.Join(w.dir, "tini")
	if err := os.Symlink(need(t, "sh"), tini); err != nil {
		t.Fatal(err)
	}
	w.before = []string{need(t, "unshare"), "--pid", "--fork", "--mount-proc", "--kill-child", tini, "-c", `"$0" "$@"; exit $?`}
	w.start(onlyApp)
	pid := w.cmd.Process.Pid
	for range 2 { // from unshare to tini, and from there to weir
		pid = onlyChild(t, pid)
	}
	send(t, pid, syscall.SIGUSR2)
	eventually(t, "weir refuses", func() error {
		if w.linesWith(`"warn"`, "no upgrade was started", "weir is the child of tini, process 1 of a container") != 1 {
			return errNotYet
		}
		return nil
	})
}

// Each upgrade starts the path of the first process with its arguments. If a script is there, each upgrade runs the
// script.
func TestUpgradeKeepsItsPath(t *testing.T) {
	t.Parallel()
	w := newUpgradable(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.start(onlyApp)
	w.script("[ $# = 3 ] && exec " + executable(t) + ` "$@" --config ` + w.config)
	for range 3 {
		w.upgrade()
		w.alone()
	}
	w.script("exit 7")
	send(t, w.pid(), syscall.SIGUSR2)
	w.wantFailed(1, "the new process ended (exit status 7)", `"binary":"`+w.binary+`"`)
}

// A new process that cannot write pid_file does not take over. Otherwise nothing would find it by its id.
func TestUpgradeNeedsItsPIDFile(t *testing.T) {
	t.Parallel()
	w := newUpgradable(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.start(onlyApp)
	old := w.pid()
	w.write(strings.Replace(onlyApp, "@@dir/weir.pid", "/proc/weir.pid", 1))
	eventually(t, "a line says when pid_file changes", func() error {
		if w.linesWith(`"warn"`, "a changed pid_file takes effect only after a restart or an upgrade (SIGUSR2)") != 1 {
			return errNotYet
		}
		return nil
	})
	send(t, old, syscall.SIGUSR2)
	w.wantFailed(1, "pid_file: the new process could not write its id")
	if now := w.pid(); now != old {
		t.Errorf("process %d took over", now)
	}
}

// If the new configuration has another pid_file, weir removes the file of the old process.
func TestUpgradeMovesPIDFile(t *testing.T) {
	t.Parallel()
	w, _ := startUpgradable(t, "")
	old := w.pid()
	w.write(strings.Replace(upgradeConfig, "@@dir/weir.pid", "@@dir/other.pid", 1))
	send(t, old, syscall.SIGUSR2)
	within(t, time.Minute, "the new process writes its file", func() error {
		_, err := os.Stat(filepath.Join(w.dir, "other.pid"))
		return err
	})
	if text, err := os.ReadFile(filepath.Join(w.dir, "weir.pid")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of the old process is still there: %q, %v", text, err)
	}
}

// An upgrade while the storage is down, or hangs, ends no session: the new process has the keys that the old one got
// from the storage.
func TestUpgradeWithoutStorage(t *testing.T) {
	long(t)
	t.Parallel()
	w := newUpgradable(t)
	writeCertificate(t, w.dir, "app", false, "app.example.org")
	w.address["app"], w.address["other"], w.address["echo"] = newWebBackend(t, "app").address, newWebBackend(t, "other").address, newEchoBackend(t).address
	w.start(upgradeConfig + "storage: '@@dir/storage'\n")
	w.wantMetric(2, "weir_backend_endpoints_ready", "backend", "app")
	c := dial(t, w.at("web"))
	resp, body, err := ask(c, bufio.NewReader(c), "GET", "app.example.org", "/")
	if err != nil || len(resp.Cookies()) != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	c.Close()
	cookie := resp.Cookies()[0]
	var first seen
	json.Unmarshal(body, &first)
	sessions := &anySession{}
	if _, err := resumes(t, w, "app.example.org", tls.VersionTLS13, sessions); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(w.dir+"/storage", w.dir+"/away"), os.WriteFile(w.dir+"/storage", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	keeps := func() {
		t.Helper()
		for range 5 {
			c := dial(t, w.at("web"))
			got, err := askSeen(c, "app.example.org", "/", "Cookie: "+cookie.Name+"="+cookie.Value)
			c.Close()
			if err != nil || got.Backend != first.Backend {
				t.Errorf("the cookie leads to %q instead of %q: %v", got.Backend, first.Backend, err)
			}
		}
		if got, err := resumes(t, w, "app.example.org", tls.VersionTLS13, sessions); err != nil || !got {
			t.Errorf("the session is not resumed: %v", err)
		}
	}
	for range 2 {
		w.upgrade()
		keeps()
		w.alone()
	}
	if n := w.linesWith("there are no sticky sessions yet"); n > 0 {
		t.Errorf("%d lines say that there are no sticky sessions", n)
	}
	if err := errors.Join(os.Remove(w.dir+"/storage"), os.Rename(w.dir+"/away", w.dir+"/storage")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the key comes from the storage", func() error {
		if w.linesWith("the key for sticky sessions has come from the storage") != 1 {
			return errNotYet
		}
		return nil
	})
	keeps()
}

// A load balancer that checks the health port on a connection that it keeps open gets an answer from the old process.
func TestUpgradeAnswersChecks(t *testing.T) {
	t.Parallel()
	w := newUpgradable(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.start(onlyApp)
	check := &keepAlive{network: "tcp", address: w.at("health")}
	if err := check.ask(); err != nil || check.c == nil {
		t.Fatalf("the first check: %v", err)
	}
	defer check.end()
	old, _ := w.upgrade()
	w.stillRunning(300 * time.Millisecond)
	if err := check.ask(); err != nil || check.c != nil {
		t.Errorf("the next check does not end the connection: %v", err)
	}
	gone(t, old)
}

// Log rotation after an upgrade sends SIGHUP to the new process. The old one also opens its access log again, or the
// lines of its tunnels would be lost with the file that was moved away.
func TestRotationAfterUpgrade(t *testing.T) {
	t.Parallel()
	w, _ := startUpgradable(t, "")
	tunnel := openTunnel(t, w)
	old, now := w.upgrade()
	if err := os.Rename(w.access, w.access+".1"); err != nil {
		t.Fatal(err)
	}
	send(t, now, syscall.SIGHUP)
	w.awaitReopened(old)
	tunnel.Close()
	gone(t, old)
	w.logged("the tunnel of the old process", func(e entry) bool { return e.text("kind") == "tunnel" })
}

// awaitReopened waits until a process has opened the access log, after the test has moved the file away.
func (w *weir) awaitReopened(pid int) {
	w.t.Helper()
	eventually(w.t, fmt.Sprint("process ", pid, " opens its access log again"), func() error {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, f := range files {
			if to, _ := os.Readlink(f); to == w.access {
				return nil
			}
		}
		return errNotYet
	})
}
