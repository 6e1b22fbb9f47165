package soak

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	length = flag.Duration("for", 15*time.Second, "how long to soak; more than a few minutes need -timeout 0, too")
	more   = flag.Float64("load", 1, "how many times the usual number of connections")
)

// host is the host of all requests.
const host = "app.example.org"

// front returns the n-th configuration of the weir to which clients connect. All have one endpoint in common.
// They differ in further endpoints, in one listener, in the names of a certificate, and in limits. The test
// starts and ends with number 0.
func front(n int) string {
	apps := []string{"'@a'", "'@a', '@b'", "'@a', '@b', '@c'", "'@c', '@a'"}[n%4]
	lost := []string{"'@l0', '@l1'", "'@l0'", "'@l1'"}[n%3]
	names := []string{host, host + ", two.example.org"}[n%2]
	extra, listeners := "", "[web, secure, brief]"
	if n%2 == 1 {
		extra, listeners = "  extra: {address: '@extra', protocol: http}\n", "[web, secure, brief, extra]"
	}
	return fmt.Sprintf(`
listeners:
  web: {address: '@web', protocol: http, http2: {prior_knowledge: true}, timeouts: {request_head: 5s, body_idle: %ds}}
  secure: {address: '@secure', protocol: tls, proxy_protocol: edge, timeouts: {handshake: 10s}}
  brief: {address: '@brief', protocol: http, timeouts: {keep_alive: 2s}}
  raw: {address: '@raw', protocol: tcp}
  brief-raw: {address: '@brief-raw', protocol: tcp, timeouts: {tunnel_idle: 2s}}
  lost: {address: '@lost', protocol: tcp}
%s
proxy_protocol:
  edge: {header_timeout: %ds, rules: [{from: [127.0.0.0/8], header: require}]}
certificates: [{self_signed: {hosts: [%s]}}]
routes:
  - {name: app, listeners: %s, backend: app}
  - {name: chain, listeners: [secure], paths: [/chain], backend: chain}
  - {name: steady, listeners: [web, secure], paths: [/steady], backend: steady}
  - {name: doomed, listeners: [secure], paths: [/doomed], backend: doomed}
  - {name: raw, listeners: [raw, brief-raw], backend: echo}
  - {name: lost, listeners: [lost], backend: lost}
backends:
  app:
    endpoints: [%s]
    health_check: {http: {path: /healthz}, interval: @@interval, rise: 1, fall: 3}
    timeouts: {keep_alive: 1s}
  chain:
    endpoints: ['@d', '@e']
    send_proxy: v2
    health_check: {http: {path: /}, port: %s, send_proxy: v2, interval: 2s, rise: 1, fall: 2}
  steady: {endpoints: ['@a'], timeouts: {keep_alive: 1s}}
  doomed: {endpoints: ['@x', '@y'], timeouts: {keep_alive: 1s}}
  echo: {protocol: tcp, endpoints: ['@echo']}
  lost: {protocol: tcp, endpoints: [%s]}
limits: {pending: %d}
health: {address: '@health', require_local: [app]}
admin: {address: '@admin'}
metrics: {per_endpoint: true}
access_log: {path: '@dir/access.log'}
drain: {lame_duck: 0s, timeout: %s}
pid_file: '@dir/weir.pid'
`, 3+n%3, extra, 4+n%2, names, listeners, apps, "@@health-port", lost, 4000+n%5, drainTimeout)
}

// behind is the configuration of the weirs behind the first one.
const behind = `
listeners:
  web: {address: '@web', protocol: http, proxy_protocol: edge}
proxy_protocol:
  edge: {rules: [{from: [127.0.0.0/8], header: require}]}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ['@a']}}
health: {address: '@health', require_local: [app], from: [127.0.0.0/8]}
admin: {address: '@admin'}
drain: {lame_duck: 7s, timeout: 20s} # longer than it takes the front to notice
`

// drainTimeout is longer than the life of each tunnel.
const drainTimeout = 60 * time.Second

// house has all parts of the test.
type house struct {
	t      *testing.T
	front  *node
	behind [2]*node
	apps   [3]*app       // a, b, c: a always runs, the others shut down gracefully
	doomed [2]*app       // x, y: they die, also during requests
	lost   [2]*echo      // l0, l1: they die, also with open tunnels
	checks time.Duration // interval of the health checks of apps
	form   int
	forms  atomic.Int64 // reloads, restarts and deaths, for the log
}

// config returns the n-th configuration.
func (h *house) config(n int) string {
	_, port, _ := strings.Cut(h.behind[0].at("health"), ":")
	return strings.NewReplacer("@@health-port", port, "@@interval", h.checks.String()).Replace(front(n))
}

// build starts everything. checks is the interval of the health checks of apps.
func build(t *testing.T, checks time.Duration) *house {
	h := &house{t: t, checks: checks, front: newNode(t, "front", "127.0.0.1")}
	_, err := tool() // built now, and not in the time of the loads
	h.must(err)
	for i, name := range []string{"a", "b", "c"} {
		h.apps[i] = newApp(t)
		h.front.address[name] = h.apps[i].address
	}
	for i, name := range []string{"x", "y"} {
		h.doomed[i] = newApp(t)
		h.front.address[name] = h.doomed[i].address
	}
	for i := range h.lost {
		h.lost[i] = newEcho(t)
		h.front.address[fmt.Sprint("l", i)] = h.lost[i].address
	}
	h.front.address["echo"] = newEcho(t).address
	for i := range h.behind {
		b := newNode(t, fmt.Sprint("behind ", i), fmt.Sprint("127.0.0.", 2+i))
		b.address["a"] = h.apps[0].address
		if i > 0 { // weir checks the health of both on the same port
			_, port, _ := strings.Cut(h.behind[0].at("health"), ":")
			b.address["health"] = b.host + ":" + port
		}
		h.behind[i] = b
		h.front.address[[]string{"d", "e"}[i]] = b.at("web")
		h.must(b.write(behind))
		t.Cleanup(b.kill)
		h.must(b.start())
	}
	h.must(h.front.write(h.config(0)))
	t.Cleanup(h.front.kill)
	h.must(h.front.start())
	h.must(eventually("the verdict is good", func() error {
		_, err := h.front.get("health", "/")
		return err
	}))
	h.must(eventually("all endpoints are up", func() error {
		up, err := h.front.metric("weir_backend_endpoint_up")
		if err == nil && up < 9 {
			err = fmt.Errorf("%v are", up)
		}
		return err
	}))
	return h
}

func (h *house) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// use runs loads and clients until ctx ends. more is how many times the usual number of connections they have.
// The result counts their requests, and what a client does from beginning to end as one.
func (h *house) use(ctx context.Context, loads []load, clients []client, more float64) (requests int64) {
	var all sync.WaitGroup
	var total atomic.Int64
	for _, l := range loads {
		all.Go(func() { total.Add(l.run(ctx, h.t, h.front, more).Requests) })
	}
	for _, c := range clients {
		var done, failed atomic.Int64
		var some sync.WaitGroup
		for range max(1, int(float64(c.n)*more)) {
			some.Go(func() {
				for ctx.Err() == nil {
					done.Add(1)
					if err := c.once(ctx, h.front); err != nil && failed.Add(1) <= 5 {
						h.t.Errorf("%s: %v", c.name, err)
					}
				}
			})
		}
		all.Go(func() {
			some.Wait()
			total.Add(done.Load())
			h.t.Logf("%-22s %6d, %d failed", c.name, done.Load(), failed.Load())
		})
	}
	all.Wait()
	return total.Load()
}

// useFor is use for a limited time.
func (h *house) useFor(d time.Duration, loads []load, clients []client, more float64) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	h.use(ctx, loads, clients, more)
}

func TestSoak(t *testing.T) {
	inCI, asked := os.Getenv("CI") == "true", false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "for" })
	switch {
	case runtime.GOOS != "linux" && inCI:
		t.Fatal("needs Linux, and CI leaves nothing out")
	case runtime.GOOS != "linux":
		t.Skip("needs Linux: /proc, and loopback addresses beside 127.0.0.1")
	case !inCI && !asked:
		t.Skip("takes long: runs with -for (go test ./e2e/soak -for 15s), and where CI=true, as in .ci/run")
	}
	if end, ok := t.Deadline(); ok && time.Until(end) < *length+3*time.Minute {
		t.Fatalf("-for %s needs -timeout 0 beside it", *length)
	}
	h := build(t, 500*time.Millisecond)
	fresh, err := look(h.front)
	h.must(err)

	// All clients run once without disturbances. This fills the pools, the caches and the memory of the
	// runtime. All of them keep memory that they have allocated.
	h.useFor(10*time.Second, loads, clients, *more)
	warm := h.rested(fresh, fresh.heap*4)
	if t.Failed() {
		t.FailNow() // the rest of the test may take hours
	}

	ctx, stop := context.WithCancel(context.Background())
	var trouble sync.WaitGroup
	for _, f := range []func(context.Context){h.reloads, h.drains, h.deaths, h.watch} {
		trouble.Go(func() { f(ctx) })
	}
	h.useFor(*length, loads, clients, *more)
	stop()
	trouble.Wait()
	h.must(h.front.reload(h.config(0), "success"))

	h.rested(fresh, warm.heap*5/4+2<<20)
	if t.Failed() {
		metrics, _ := h.front.metrics()
		t.Logf("weir's own account:\n%s", refused(metrics))
		h.tellRefusals()
	}
	for _, n := range []*node{h.front, h.behind[0], h.behind[1]} {
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	}
}

// tellRefusals logs the lines of the access log about failed requests.
func (h *house) tellRefusals() {
	text, _ := os.ReadFile(h.front.file("access.log"))
	n := 0
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, `"status":5`) && !strings.Contains(line, `"route":"doomed"`) || strings.Contains(line, `"reason":"panic"`) {
			if n++; n <= 20 {
				h.t.Log(strings.TrimSpace(line))
			}
		}
	}
}
