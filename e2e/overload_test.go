package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

const crowdConfig = `
listeners:
  web: {address: '@web', protocol: http, http2: {prior_knowledge: true}}
  secure: {address: '@secure', protocol: tls}
  raw: {address: '@raw', protocol: tcp}
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes:
  - {listeners: [web, secure], backend: app}
  - {listeners: [raw], backend: echo}
backends:
  app: {endpoints: ['@app']}
  echo: {protocol: tcp, endpoints: ['@echo']}
`

// startCrowded starts w with crowdConfig and returns its HTTP backend.
func startCrowded(t *testing.T, w *weir) *webBackend {
	t.Helper()
	app, echo := newWebBackend(t, "app"), newEchoBackend(t)
	w.address["app"], w.address["echo"] = app.address, echo.address
	w.start(crowdConfig)
	return app
}

// crowd is a group of clients that keep their connections open. Each makes one request, or none by HTTP/2.
type crowd struct {
	w     *weir
	mu    sync.Mutex
	conns []net.Conn
	errs  []error
}

// come adds n clients. kind returns the kind of each: "plain", "tls" or "http2".
func (c *crowd) come(n int, kind func(i int) string) {
	var coming sync.WaitGroup
	for worker := range 8 {
		coming.Go(func() {
			for i := worker; i < n; i += 8 {
				conn, err := c.one(kind(i))
				c.mu.Lock()
				if conn != nil {
					c.conns = append(c.conns, conn)
				}
				if err != nil {
					c.errs = append(c.errs, fmt.Errorf("client %d (%s): %w", i, kind(i), err))
				}
				c.mu.Unlock()
			}
		})
	}
	coming.Wait()
}

func (c *crowd) one(kind string) (net.Conn, error) {
	listener := "web"
	if kind == "tls" {
		listener = "secure"
	}
	conn, err := net.DialTimeout("tcp", c.w.at(listener), patience)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "http2":
		_, err := io.WriteString(conn, http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		return conn, err
	case "tls":
		conn = tlsOver(conn)
	}
	_, err = askSeen(conn, "app.example.org", "/")
	return conn, err
}

// leave closes all connections, and fails the test for each client that was not served.
func (c *crowd) leave(t *testing.T) {
	t.Helper()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
	for _, err := range c.errs[:min(5, len(c.errs))] {
		t.Error(err)
	}
	if len(c.errs) > 0 {
		t.Errorf("%d clients were not served", len(c.errs))
	}
	c.errs = nil
}

// mixed returns the kind of the i-th client. Few use HTTP/2, because weir needs four seconds to end such a
// client if it does not read.
func mixed(i int) string {
	return [...]string{"plain", "tls", "plain", "http2", "plain", "plain", "tls", "plain"}[i%8]
}

// wantStep waits until a resource is at a step.
func (w *weir) wantStep(resource string, step float64) {
	w.t.Helper()
	within(w.t, 2*patience, fmt.Sprintf("%s is at step %v", resource, step), func() error {
		if got := w.metric("weir_overload_step", "resource", resource); got != step {
			return fmt.Errorf("it is at %v, with %v in use", got, w.metric("weir_overload_usage_ratio", "resource", resource))
		}
		return nil
	})
}

// wantLines checks how many lines of weir's log contain all words: at least least, at most most. It waits for
// the minimum, because the log may be a moment late.
func (w *weir) wantLines(least, most int, words ...string) {
	w.t.Helper()
	n := 0
	eventually(w.t, fmt.Sprintf("at least %d lines have %q", least, words), func() error {
		n = 0
		for line := range strings.Lines(w.log.String()) {
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
				n++
			}
		}
		if n < least {
			return fmt.Errorf("%d have", n)
		}
		return nil
	})
	if n > most {
		w.t.Errorf("%d lines have %q, want %d to %d", n, words, least, most)
	}
}

// With descriptors for a few hundred clients, weir serves many more clients that arrive one after another and
// stay: it ends the connections that have been idle longest. If no connection is idle, new clients wait and
// are served later. The active clients of this test notice nothing.
func TestDescriptorsRunShort(t *testing.T) {
	needLinux(t)
	long(t)
	w := newWeir(t)
	w.before = []string{"sh", "-c", `ulimit -n 300 && exec "$@"`, "sh"}
	app := startCrowded(t, w)
	busy := newBystander(w)
	var tunnels []net.Conn
	for range 5 {
		tunnels = append(tunnels, dial(t, w.at("raw")))
		wantEcho(t, tunnels[len(tunnels)-1])
	}

	c := &crowd{w: w}
	c.come(800, mixed)
	if w.metric("weir_overload_steps_total", "resource", "descriptors", "step", "shed") == 0 {
		t.Error("descriptors did not run short")
	}
	if plain, h2 := w.crowdedOut("http1"), w.crowdedOut("http2"); plain < 200 || h2 < 20 {
		t.Errorf("%v and %v connections of HTTP/1.1 and HTTP/2 were ended", plain, h2)
	}
	if n := w.crowdedOut("tunnel"); n != 0 {
		t.Errorf("%v tunnels were ended while there were idle clients", n)
	}
	for _, tunnel := range tunnels {
		wantEcho(t, tunnel)
	}
	c.leave(t)
	t.Log("the busy, while idle clients come: ", busy.leave(t))

	// From here on, no client is idle.
	kept := newKept(t, w)
	var waiting sync.WaitGroup
	errs := make(chan error, 200)
	for range cap(errs) {
		waiting.Go(func() {
			conn, err := net.DialTimeout("tcp", w.at("web"), patience)
			if err == nil {
				defer conn.Close()
				_, err = askSeen(held{conn}, "a", "/hold/")
			}
			errs <- err
		})
	}
	newcomer, answer := w.newcomerThatWaits()
	w.wantStep("descriptors", 2)
	for range 10 {
		if status, body, err := w.get("health", "/"); err != nil || status != 200 {
			t.Errorf("the health port says %d, %s, %v", status, body, err)
		}
	}
	close(app.release)
	newcomer.SetReadDeadline(time.Now().Add(patience))
	if _, err := answer.Peek(1); err != nil {
		t.Errorf("the newcomer is not served in the end: %v", err)
	}
	waiting.Wait()
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Errorf("one that was held, or waited: %v", err)
		}
	}
	kept.leave(t)

	w.wantStep("descriptors", 0)
	w.wantLines(1, 3, `"level":"warn"`, "descriptors run short")
	w.wantLines(1, 3, `"level":"info"`, "descriptors no longer run short", "ended_http1")
	w.wantLines(1, 3, `"level":"warn"`, "descriptors are used up")
	w.wantLines(1, 3, `"level":"info"`, "descriptors are no longer used up")
	newBystander(w).leave(t)
}

// newcomerThatWaits returns a client whose request is not answered yet, and the reader for its response. It
// tries several clients, because weir may still serve the first ones.
func (w *weir) newcomerThatWaits() (net.Conn, *bufio.Reader) {
	w.t.Helper()
	var newcomer net.Conn
	var answer *bufio.Reader
	eventually(w.t, "a newcomer waits", func() error {
		newcomer = dial(w.t, w.at("web"))
		io.WriteString(newcomer, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		newcomer.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		answer = bufio.NewReader(newcomer)
		_, err := answer.Peek(1)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		newcomer.Close()
		return fmt.Errorf("it was served, or closed: %v", err)
	})
	return newcomer, answer
}

// held is a connection whose response comes several steps of a test later. Each step may
// take as long as the test's timeout.
type held struct{ net.Conn }

func (h held) SetDeadline(at time.Time) error { return h.Conn.SetDeadline(at.Add(5 * patience)) }

func (w *weir) crowdedOut(kind string) float64 {
	w.t.Helper()
	return w.metric("weir_overload_connections_ended_total", "kind", kind)
}

func wantEcho(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(io.LimitReader(c, 5)); string(got) != "hello" {
		t.Fatalf("the tunnel says %q, %v", got, err)
	}
}

// kept are clients that keep sending requests on their open connections.
type kept struct {
	stop    chan struct{}
	running sync.WaitGroup
	mu      sync.Mutex
	errs    []error
	served  int
}

func newKept(t *testing.T, w *weir) *kept {
	k := &kept{stop: make(chan struct{})}
	for i := range 4 {
		c := dial(t, w.at([]string{"web", "secure"}[i%2]))
		if i%2 == 1 {
			c = tlsOver(c)
		}
		if _, err := askSeen(c, "app.example.org", "/"); err != nil {
			t.Fatal(err)
		}
		k.running.Go(func() { k.ask(c) })
	}
	return k
}

func (k *kept) ask(c net.Conn) {
	for {
		select {
		case <-k.stop:
			return
		case <-time.After(20 * time.Millisecond):
		}
		_, err := askSeen(c, "app.example.org", "/")
		k.mu.Lock()
		k.served++
		if err != nil {
			k.errs = append(k.errs, err)
		}
		k.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (k *kept) leave(t *testing.T) {
	t.Helper()
	close(k.stop)
	k.running.Wait()
	for _, err := range k.errs {
		t.Errorf("one of the busy: %v", err)
	}
	t.Logf("the busy were served %d times while newcomers waited", k.served)
}

// With memory for about a thousand idle clients weir serves thousands, with every way to limit its memory.
func TestMemoryRunsShort(t *testing.T) {
	needLinux(t)
	long(t)
	f := func(t *testing.T, w *weir, source string) {
		startCrowded(t, w)
		w.wantLines(1, 1, `"msg":"memory limit"`, `"limit_from":"`+source+`"`, "gomemlimit_bytes")
		busy := newBystander(w)
		c := &crowd{w: w}
		for came := 0; w.metric("weir_overload_steps_total", "resource", "memory", "step", "shed") == 0; came += 500 {
			if came >= 12_000 {
				t.Fatalf("%d clients use no more than %v", came, w.metric("weir_overload_usage_ratio", "resource", "memory"))
			}
			c.come(500, func(int) string { return "tls" })
		}
		open := w.metric("weir_connections_open")
		c.come(1500, mixed)
		eventually(t, "idle clients are ended", func() error {
			if n := w.crowdedOut("http1"); n < 500 {
				return fmt.Errorf("%v were", n)
			}
			return nil
		})
		t.Logf("memory ran short with %v connections, and they were %v when 1500 more had come", open, w.metric("weir_connections_open"))
		if status, body, err := w.get("health", "/"); err != nil || status != 200 {
			t.Errorf("the health port says %d, %s, %v", status, body, err)
		}
		c.leave(t)
		t.Log("the busy: ", busy.leave(t))
		w.wantStep("memory", 0)
		w.wantLines(1, 3, `"level":"warn"`, "memory runs short")
		w.wantLines(1, 3, `"level":"info"`, "memory no longer runs short", "ended_http1")
		if w.terminate() != 0 {
			t.Error("it did not end in peace")
		}
	}
	t.Run("GOMEMLIMIT", func(t *testing.T) {
		w := newWeir(t)
		w.env = append(w.env, "GOMEMLIMIT=16MiB")
		f(t, w, "GOMEMLIMIT")
	})
	t.Run("cgroup", func(t *testing.T) {
		w := newWeir(t)
		w.before, w.binary = newCgroup(t, 48<<20).run(), shipped(t)
		f(t, w, "cgroup")
	})
}

// If the environment does not set GOMEMLIMIT, weir sets it from the memory limit of its cgroup, and adjusts
// it when that limit changes.
func TestMemoryLimitOfTheCgroup(t *testing.T) {
	long(t)
	t.Parallel()
	needLinux(t)
	g := newCgroup(t, 256<<20)
	w := newWeir(t)
	w.before = g.run()
	startCrowded(t, w)
	// f waits until GOMEMLIMIT is somewhat below the limit of the cgroup: weir subtracts a tenth, and the
	// memory that the kernel uses.
	f := func(cgroup float64) {
		t.Helper()
		within(t, 2*patience, fmt.Sprintf("GOMEMLIMIT fits %v", cgroup), func() error {
			if got := w.metric("go_gc_gomemlimit_bytes"); got < cgroup*0.7 || got > cgroup*0.9 {
				return fmt.Errorf("it is %v", got)
			}
			return nil
		})
	}
	f(256 << 20)
	g.limit(512 << 20)
	f(512 << 20)
	w.wantLines(1, 1, "the cgroup's memory limit has changed", `"cgroup_limit_bytes":536870912`)

	w = newWeir(t)
	w.before, w.env = g.run(), []string{"GOMEMLIMIT=300MiB"}
	startCrowded(t, w)
	if got := w.metric("go_gc_gomemlimit_bytes"); got != 300<<20 {
		t.Errorf("GOMEMLIMIT was given, and is %v", got)
	}
	w.wantLines(1, 1, `"limit_from":"GOMEMLIMIT"`, `"cgroup_limit_bytes":536870912`)
}

// cgroup is a cgroup that the test created.
type cgroup struct {
	t    *testing.T
	dir  string
	file string // path of the file with the limit
}

// newCgroup creates a cgroup with a memory limit, or skips the test.
func newCgroup(t *testing.T, limit int64) *cgroup {
	t.Helper()
	name := fmt.Sprintf("weir-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	for _, in := range [][2]string{{"/sys/fs/cgroup", "memory.max"}, {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}} {
		g := &cgroup{t: t, dir: filepath.Join(in[0], name)}
		g.file = filepath.Join(g.dir, in[1])
		os.WriteFile(filepath.Join(in[0], "cgroup.subtree_control"), []byte("+memory"), 0) // only for cgroup version 2
		if os.Mkdir(g.dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			eventually(t, "the cgroup can be removed", func() error { return os.Remove(g.dir) })
		})
		if _, err := os.Stat(g.file); err == nil && g.set(limit) == nil {
			return g
		}
	}
	if inCI() {
		t.Fatal("cgroups for memory cannot be made here, and CI needs them")
	}
	t.Skip("cgroups for memory cannot be made here")
	return nil
}

func (g *cgroup) set(limit int64) error {
	return os.WriteFile(g.file, []byte(strconv.FormatInt(limit, 10)), 0)
}

// peak returns the most memory that the cgroup has held, in bytes; 0: the kernel does not tell.
func (g *cgroup) peak() int64 {
	for _, name := range []string{"memory.peak", "memory.max_usage_in_bytes"} {
		if data, err := os.ReadFile(filepath.Join(g.dir, name)); err == nil {
			n, _ := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
			return n
		}
	}
	return 0
}

// killed returns how many processes of the cgroup the kernel killed for their memory.
func (g *cgroup) killed() int {
	for _, name := range []string{"memory.events", "memory.oom_control"} {
		data, _ := os.ReadFile(filepath.Join(g.dir, name))
		if _, rest, ok := strings.Cut(string(data), "oom_kill "); ok {
			n, _ := strconv.Atoi(strings.Fields(rest)[0])
			return n
		}
	}
	return 0
}

func (g *cgroup) limit(limit int64) {
	g.t.Helper()
	if err := g.set(limit); err != nil {
		g.t.Fatal(err)
	}
}

// run returns the start of a command line that runs the rest of it in the cgroup.
func (g *cgroup) run() []string {
	return []string{"sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, g.dir}
}
