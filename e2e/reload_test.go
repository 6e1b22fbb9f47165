package e2e

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// changing returns the n-th configuration of the test below. All have one endpoint and three
// listeners in common. They differ in further endpoints, in a fourth listener, and in one certificate.
func changing(n int) string {
	at := func(name string) string { return "{address: '@" + name + "', node: node-a}" }
	endpoints, extra := at("a"), ""
	switch n % 4 {
	case 1:
		endpoints += ", " + at("b")
	case 2:
		endpoints += ", " + at("b") + ", " + at("c")
	case 3:
		endpoints += ", " + at("c")
	}
	listeners := "[web, secure]"
	if n%2 == 1 {
		extra = "  extra: {address: '@extra', protocol: http}\n"
		listeners = "[web, secure, extra]"
	}
	return `
listeners:
  web: {address: '@web', protocol: http}
  secure: {address: '@secure', protocol: tls}
  raw: {address: '@raw', protocol: tcp}
` + extra + `
certificates: [{cert: '@@dir/app` + fmt.Sprint(n%3) + `.crt', key: '@@dir/app` + fmt.Sprint(n%3) + `.key'}]
routes:
  - {name: app, listeners: ` + listeners + `, backend: app}
  - {name: raw, listeners: [raw], backend: echo}
backends:
  app:
    endpoints: [` + endpoints + `]
    health_check: {http: {path: /healthz}, interval: 2s, rise: 1, fall: 5}
  echo: {protocol: tcp, endpoints: ['@echo', '@echo` + fmt.Sprint(2+n%2) + `']}
health: {address: '@health', require_local: [app]}
drain: {lame_duck: 2s, timeout: 20s}
`
}

// traffic counts the results of clients of all kinds.
type traffic struct {
	t        *testing.T
	address  map[bool]string // the key is true for TLS
	stop     chan struct{}
	running  sync.WaitGroup
	requests atomic.Int64
	failures atomic.Int64
	refused  atomic.Bool // weir has begun to refuse new connections
	mayEnd   atomic.Bool // SIGTERM was sent, so weir may refuse new connections
}

func (tr *traffic) fail(format string, args ...any) {
	if tr.failures.Add(1) <= 20 {
		tr.t.Errorf(format, args...)
	}
}

// open connects to weir. It returns nil if weir accepts no more connections, which is allowed after SIGTERM.
func (tr *traffic) open(secure bool) net.Conn {
	c, err := net.DialTimeout("tcp", tr.address[secure], patience)
	switch {
	case err == nil && secure:
		return tls.Client(c, anyCertificate("app.example.org"))
	case err == nil:
		return c
	case errors.Is(err, syscall.ECONNREFUSED) && tr.mayEnd.Load():
		tr.refused.Store(true)
	default:
		tr.fail("a new connection: %v", err)
	}
	return nil
}

// one makes a request. It returns true if the connection can carry another request.
func (tr *traffic) one(c net.Conn, r *bufio.Reader, kind string, n int, fields ...string) (again bool) {
	resp, _, err := ask(c, r, "GET", "app.example.org", fmt.Sprintf("/%s/%d", kind, n), fields...)
	if err != nil {
		tr.fail("%s, request %d of its connection: %v", kind, n, err)
		return false
	}
	if resp.StatusCode != 200 {
		tr.fail("%s: %s", kind, resp.Status)
	}
	tr.requests.Add(1)
	return !resp.Close
}

// keepAlive is a client that reuses its connection until a response says Connection: close. If the connection
// ends earlier, the test fails.
func (tr *traffic) keepAlive(secure bool) {
	for !tr.refused.Load() {
		c := tr.open(secure)
		if c == nil {
			return
		}
		r := bufio.NewReader(c)
		for n := 0; tr.one(c, r, "keep-alive", n); n++ {
			select {
			case <-tr.stop:
				c.Close()
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
		c.Close()
	}
}

// newOnes opens 200 connections per second, with one request on each.
func (tr *traffic) newOnes() {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i := 0; !tr.refused.Load(); i++ {
		select {
		case <-tr.stop:
			return
		case <-tick.C:
		}
		tr.running.Go(func() {
			if c := tr.open(i%4 == 0); c != nil {
				tr.one(c, bufio.NewReader(c), "new", 0, "Connection: close")
				c.Close()
			}
		})
	}
}

// passing connects to the listener that some configurations lack. The listener may be closed, but weir must
// serve each connection that it has accepted.
func (tr *traffic) passing(address string) {
	for !tr.refused.Load() {
		select {
		case <-tr.stop:
			return
		case <-time.After(5 * time.Millisecond):
		}
		tr.running.Go(func() {
			c, err := net.DialTimeout("tcp", address, patience)
			switch {
			case err == nil:
				tr.one(c, bufio.NewReader(c), "passing", 0)
				c.Close()
			case !errors.Is(err, syscall.ECONNREFUSED):
				tr.fail("a new connection to a listener that comes and goes: %v", err)
			}
		})
	}
}

// tunnel sends some bytes now and then, and expects the echo.
func (tr *traffic) tunnel(c net.Conn, end <-chan struct{}) {
	for n := byte(0); ; n++ {
		got := make([]byte, 1)
		c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Write([]byte{n}); err != nil {
			tr.fail("a tunnel to an endpoint that stays: %v", err)
			return
		}
		if _, err := io.ReadFull(c, got); err != nil || got[0] != n {
			tr.fail("a tunnel to an endpoint that stays: %v, %v", got, err)
			return
		}
		select {
		case <-end:
			c.Close()
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// watch asks the health port again and again. The result must be healthy until SIGTERM, and never afterwards.
func (tr *traffic) watch(w *weir, exited <-chan struct{}) {
	for drained := false; ; {
		select {
		case <-exited:
			return
		case <-time.After(20 * time.Millisecond):
		}
		ending := tr.mayEnd.Load()
		status, body, err := w.get("health", "/")
		switch {
		case err != nil && !ending:
			tr.fail("the health port: %v", err)
		case err != nil:
			return
		case status != 200 && !tr.mayEnd.Load():
			tr.fail("the verdict flapped: %d: %s", status, body)
		case status == 503:
			drained = true
		case drained:
			tr.fail("the verdict went back to %d while draining", status)
		}
	}
}

func TestNoFailedRequestThroughReloadsAndDrain(t *testing.T) {
	long(t)
	w := newWeir(t)
	for _, name := range []string{"a", "b", "c"} {
		w.address[name] = newWebBackend(t, name).address
	}
	echo := newEchoBackend(t)
	w.address["echo"] = echo.address
	w.address["echo2"], w.address["echo3"] = newEchoBackend(t).address, newEchoBackend(t).address
	for i := range 3 {
		writeCertificate(t, w.dir, fmt.Sprint("app", i), false, "app.example.org")
	}
	w.start(changing(0))
	w.wantVerdict(200)

	tr := &traffic{t: t, stop: make(chan struct{}), address: map[bool]string{false: w.at("web"), true: w.at("secure")}}
	for i := range 64 {
		tr.running.Go(func() { tr.keepAlive(i%2 == 0) })
	}
	tr.running.Go(tr.newOnes)
	tr.running.Go(func() { tr.passing(w.at("extra")) })
	tr.running.Go(func() { tr.watch(w, w.exited) })
	endTunnels := make(chan struct{})
	for _, c := range tunnelsTo(t, w, echo) {
		tr.running.Go(func() { tr.tunnel(c, endTunnels) })
	}

	for n := 1; n <= 50; n++ {
		w.reload(changing(n))
		if n%10 == 0 { // only the files change: new certificates for the same names
			for i := range 3 {
				writeCertificate(t, w.dir, fmt.Sprint("app", i), false, "app.example.org")
			}
		}
		time.Sleep(20 * time.Millisecond) // some traffic for each configuration
	}
	checkServed(t, w)

	tr.mayEnd.Store(true)
	w.signal(syscall.SIGTERM)
	eventually(t, "new connections are refused after the lame duck", func() error {
		if !tr.refused.Load() {
			return errNotYet
		}
		return nil
	})
	select {
	case <-w.exited:
		t.Error("weir ended though tunnels were running")
	case <-time.After(300 * time.Millisecond):
	}
	close(endTunnels) // the clients close their tunnels, and then weir ends
	if status := w.wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	close(tr.stop)
	tr.running.Wait()
	t.Logf("%d requests, %d failures", tr.requests.Load(), tr.failures.Load())
	if t.Failed() {
		reasons := map[string]int{}
		for _, e := range w.accessLog() {
			if e.text("status") != "200" {
				reasons[e.text("kind")+" "+e.text("status")+" "+e.text("reason")+" "+e.text("error")]++
			}
		}
		t.Logf("what the access log says: %v", reasons)
	}
	if tr.requests.Load() < 1000 {
		t.Error("that was no load")
	}
}

// tunnelsTo opens tunnels until some of them use the endpoint that stays, and then closes the others. If it
// closed them earlier, the other endpoint would always have fewer connections, and would get every new
// tunnel.
func tunnelsTo(t *testing.T, w *weir, echo *echoBackend) []net.Conn {
	t.Helper()
	var all, others []net.Conn
	defer func() {
		for _, c := range others {
			c.Close()
		}
	}()
	for len(all) < 4 {
		before := echo.connections.Load()
		c := dial(t, w.at("raw"))
		c.Write([]byte{1})
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			for _, e := range w.accessLog() {
				if e.text("client") == c.LocalAddr().String() {
					t.Log(e)
				}
			}
			t.Fatalf("a tunnel: %v", err)
		}
		if echo.connections.Load() > before {
			all = append(all, c)
		} else {
			others = append(others, c)
		}
	}
	return all
}

// checkServed checks that the reloads took effect: weir serves according to the last configuration.
func checkServed(t *testing.T, w *weir) {
	t.Helper()
	if n := w.reloads("success"); n < 50 {
		t.Errorf("%v reloads were counted", n)
	}
	c := dial(t, w.at("raw"))
	c.Close()
	if _, err := net.Dial("tcp", w.at("extra")); err == nil {
		t.Error("a listener that was removed still takes connections")
	}
}

func TestReloadOfABadFileChangesNothing(t *testing.T) {
	t.Parallel()
	w, _ := startWeb(t)
	hash := w.hash()
	bad := func(what, config string) {
		t.Helper()
		before := w.reloads("failure")
		w.write(config)
		w.signal(syscall.SIGHUP)
		eventually(t, "the reload is refused", func() error {
			if w.reloads("failure") == before {
				return errNotYet
			}
			return nil
		})
		if got := w.metric("weir_config_last_reload_success"); got != 0 {
			t.Errorf("%s: weir_config_last_reload_success is %v", what, got)
		}
		if w.hash() != hash {
			t.Errorf("%s: the hash has changed", what)
		}
		if status, _, err := w.get("web", "/"); err != nil || status != 200 {
			t.Errorf("%s: a request gets %d, %v", what, status, err)
		}
		w.wantVerdict(200)
	}
	bad("unknown key", webConfig+"nonsense: 1\n")
	eventually(t, "the log says what is wrong with the file", func() error {
		if log := w.log.String(); !strings.Contains(log, "nonsense") || !strings.Contains(log, "weir.yaml:") {
			return errNotYet
		}
		return nil
	})
	bad("no YAML", "listeners: [")
	bad("dangling backend", strings.Replace(webConfig, "backend: app}", "backend: ap}", 1))

	taken, err := net.Listen("tcp", freePort(t))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	w.address["taken"] = taken.Addr().String()
	bad("an address that is taken", strings.Replace(webConfig, "listeners:\n", "listeners:\n  more: {address: '@taken', protocol: http}\n", 1))

	w.reload(webConfig + "limits: {pending: 4000}\n")
	if got := w.metric("weir_config_last_reload_success"); got != 1 {
		t.Errorf("after a good reload weir_config_last_reload_success is %v", got)
	}
}

// weir also loads a changed file without a signal.
func TestReloadOfAChangedFile(t *testing.T) {
	t.Parallel()
	needLinux(t)
	w, _ := startWeb(t)
	hash := w.hash()
	w.write(webConfig + "limits: {pending: 4001}\n")
	hash = w.rehashed(hash)
	text, _ := os.ReadFile(w.config)
	if err := os.WriteFile(w.config, []byte(strings.Replace(string(text), "4001", "4002", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	w.rehashed(hash)
}

// A pipe that once was in the place of the configuration, or of a file that it names, blocks no reload: a line
// names it, and the next good file takes effect.
func TestPipeInPlaceOfAFile(t *testing.T) {
	t.Parallel()
	needLinux(t)
	w, _ := startWeb(t)
	pipe := func(path string) {
		t.Helper()
		if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(want string) {
		t.Helper()
		before := w.reloads("failure")
		w.signal(syscall.SIGHUP)
		eventually(t, "the reload is refused", func() error {
			if w.reloads("failure") == before || !strings.Contains(w.log.String(), want) {
				return errNotYet
			}
			return nil
		})
	}
	pipe(w.config)
	refused("cannot read the configuration: it is not a regular file")
	hash := w.hash()
	w.write(webConfig + "limits: {pending: 4003}\n")
	w.rehashed(hash)
	part := filepath.Join(w.dir, "part.yaml")
	if err := os.WriteFile(part, []byte("limits: {pending: 4004}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.reload(webConfig + "include: [part.yaml]\n")
	pipe(part)
	refused("part.yaml: it is not a regular file")
	w.reload(webConfig + "limits: {pending: 4005}\n")
	w.wantVerdict(200)
}

// weir also loads a changed ConfigMap that is mounted, where only a symbolic link changes.
func TestReloadOfAMountedConfigMap(t *testing.T) {
	t.Parallel()
	needLinux(t)
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	mounted, written := newSecret(t), w.config
	publish := func(config string) {
		t.Helper()
		w.write(config)
		text, err := os.ReadFile(written)
		if err != nil {
			t.Fatal(err)
		}
		mounted.publish(map[string][]byte{"weir.yaml": text})
	}
	publish(webConfig)
	w.config = filepath.Join(mounted.dir, "weir.yaml")
	w.launch()
	w.config = written
	w.wantVerdict(200)
	for _, pending := range []string{"4001", "4002"} {
		hash := w.hash()
		publish(webConfig + "limits: {pending: " + pending + "}\n")
		w.rehashed(hash)
	}
}

// rehashed waits until the hash of the configuration in effect differs from before, and returns it.
func (w *weir) rehashed(before string) (now string) {
	w.t.Helper()
	eventually(w.t, "the new file is loaded", func() error {
		if now = w.hash(); now == before {
			return errNotYet
		}
		return nil
	})
	return now
}

func TestReloadThroughTheAdminPort(t *testing.T) {
	t.Parallel()
	w, _ := startWeb(t)
	hash := w.hash()
	w.write(webConfig + "limits: {pending: 4003}\n")
	w.post("/reload")
	w.rehashed(hash)
}

// After the access log was moved away, SIGHUP makes weir write to a new file.
func TestAccessLogIsReopened(t *testing.T) {
	t.Parallel()
	w, _ := startWeb(t)
	get := func(path string) {
		t.Helper()
		if status, _, err := w.get("web", path); status != 200 || err != nil {
			t.Fatalf("%d, %v", status, err)
		}
		w.logged(path, func(e entry) bool { return strings.Contains(fmt.Sprint(e), path) })
	}
	get("/first")
	if err := os.Rename(w.access, w.access+".1"); err != nil {
		t.Fatal(err)
	}
	w.reload(webConfig)
	get("/second")
	if strings.Contains(fmt.Sprint(w.accessLog()), "/first") {
		t.Error("the new file has the old line")
	}
}
