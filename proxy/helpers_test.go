package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/proxy/accesslog"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/filter"
	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/tls/certs"
	"github.com/weirproxy/weir/tls/policy"
)

// patience is the timeout of each wait in a test.
const patience = 10 * time.Second

// rig is a Proxy with real sockets around it, and with the records that it reports.
type rig struct {
	testing.TB
	proxy        *Proxy
	set          *backend.Set
	filters      filter.Shared
	registry     *prometheus.Registry
	store        *certs.Store
	tickets      *certs.Tickets
	addrs        map[string]string // of listeners
	serving      sync.WaitGroup
	records      chan entry
	refusals     chan entry
	clientChecks atomic.Int64 // how often a wait for an endpoint continued after a check; see waitForClientChecks

	mu    sync.Mutex
	greet func(*conn.Conn) // called for each accepted connection; nil: none
	stop  []func()
	open  map[*conn.Conn]struct{}
}

// entry is a line of the access log by its field names.
type entry map[string]any

// newRig serves a configuration. It replaces every @word in the configuration: pairs lists words
// and their replacements. tune may change settings that the file cannot express, such as waits of
// less than a second.
func newRig(t testing.TB, text string, tune func(*config.Config), pairs ...string) *rig {
	t.Helper()
	warmUp()
	before, files := runtime.NumGoroutine(), descriptors()
	r := &rig{TB: t, registry: prometheus.NewRegistry(), addrs: make(map[string]string), open: make(map[*conn.Conn]struct{}),
		records: make(chan entry, 10000), refusals: make(chan entry, 10000), tickets: certs.NewTickets()}
	r.store = certs.New(certs.NewMetrics(r.registry))
	r.set = backend.NewSet(backend.Options{})
	r.filters.Register(r.registry)
	r.proxy = &Proxy{Memory: memory.NewProcess(t.Context()), Metrics: NewMetrics(r.registry), Handshakes: policy.NewMetrics(r.registry),
		Refused: func(rec *accesslog.Record) { r.refusals <- fieldsOf(rec) }}
	r.proxy.SetLog(func(rec *accesslog.Record) { r.records <- fieldsOf(rec) })
	r.proxy.SetLimits(http1.Limits{})
	r.proxy.hooks.waits = func() { r.clientChecks.Add(1) }
	t.Cleanup(func() {
		r.shut()
		eventually(t, "nothing is left in the memory account", func() error {
			if n := r.proxy.Memory.Used(); n != 0 {
				return fmt.Errorf("%d bytes are", n)
			}
			return nil
		})
		eventually(t, "goroutines end", func() error {
			if n := runtime.NumGoroutine(); n > before {
				buf := make([]byte, 1<<20)
				return fmt.Errorf("%d of them, %d before:\n%s", n, before, buf[:runtime.Stack(buf, true)])
			}
			return nil
		})
		eventually(t, "descriptors are closed", func() error {
			if n := descriptors(); n > files {
				return fmt.Errorf("%d of them, %d before", n, files)
			}
			return nil
		})
	})
	r.load(text, tune, pairs...)
	return r
}

// long skips tests of many seconds outside of CI, so that "go test ./..." takes a few minutes. They wait until
// real sockets are idle, and run one after the other, because each looks for leaks in the process.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("CI") != "true" {
		t.Skip("takes long: runs where CI=true, as in .ci/run")
	}
}

// warmUp makes package conn start the goroutines that live as long as the process.
var warmUp = sync.OnceFunc(func() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	a, ok, err := conn.NewAcceptor(ln)
	if !ok || err != nil {
		ln.Close()
		return
	}
	defer a.Close()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		panic(err)
	}
	defer client.Close()
	c, err := a.AcceptConn()
	if err != nil {
		panic(err)
	}
	defer c.Close()
	client.Write([]byte{0})
	waits := 0
	c.Await(func() bool { waits++; return waits > 1 })
})

func fieldsOf(rec *accesslog.Record) entry {
	return entryOf(rec, config.AccessLog{Format: config.LogJSON, Sample: 1})
}

// entryOf reads the line of a record. Numbers without a fraction are int64.
func entryOf(rec *accesslog.Record, c config.AccessLog) entry {
	line := accesslog.NewFormat(c).Append(nil, rec)
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	var e entry
	if err := d.Decode(&e); err != nil {
		panic(fmt.Sprintf("the line is no JSON: %v in %q", err, line))
	}
	for name, value := range e {
		if n, is := value.(json.Number); is {
			if i, err := n.Int64(); err == nil && !strings.HasSuffix(name, "_seconds") {
				e[name] = i
			} else {
				e[name], _ = n.Float64()
			}
		}
	}
	return e
}

// descriptors counts the open descriptors; 0 if the system does not show them.
func descriptors() int {
	names, _ := os.ReadDir("/proc/self/fd")
	return len(names)
}

func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s: %v", what, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// waitForClientChecks waits until weir has made n more checks of a client that waits for its response, and
// found that the client is still there. weir checks once per clientCheck.
func (r *rig) waitForClientChecks(n int64) {
	r.Helper()
	want := r.clientChecks.Load() + n
	eventually(r, "weir checks the waiting client", func() error {
		if got := r.clientChecks.Load(); got < want {
			return fmt.Errorf("%d checks, want %d", got, want)
		}
		return nil
	})
}

// load applies a configuration, the first or another one, and returns the tunnels whose route was
// removed. The text has addresses of listeners as @NAME. load binds a listener's address when the
// listener first appears.
func (r *rig) load(text string, tune func(*config.Config), pairs ...string) []conn.Cuttable {
	r.Helper()
	for i := range 9 { // the address need only be valid, because the rig has its own sockets
		pairs = append(pairs, fmt.Sprintf("@%d", i), fmt.Sprintf("127.0.0.1:%d", 20000+i))
	}
	cfg, err := file.Parse("test", []byte(strings.NewReplacer(pairs...).Replace(text)), os.LookupEnv)
	if err != nil {
		r.Fatal(err)
	}
	if tune != nil {
		tune(cfg)
	}
	commit, err := r.store.Prepare(cfg.Certificates)
	if err != nil {
		r.Fatal(err)
	}
	ech, err := policy.ParseECH(cfg.ECHKeys)
	if err != nil {
		r.Fatal(err)
	}
	policies := make(map[string]*policy.Policy)
	for _, p := range cfg.TLSPolicies {
		if policies[p.Name], err = policy.New(p, r.store.Get, r.tickets.Attach); err != nil {
			r.Fatal(err)
		}
		policies[p.Name].RetryECH(ech)
	}
	backends, err := r.set.Update(cfg.AllBackends(), backend.NodeInfo{})
	if err != nil {
		r.Fatal(err)
	}
	shared, err := r.filters.Plan(cfg, func(name string) filter.Decider { b, _ := backends.Get(name); return b })
	if err != nil {
		r.Fatal(err)
	}
	table, err := NewTable(cfg, Parts{Backends: backends, Policies: policies, Shared: shared, Metrics: r.proxy.Metrics, ECH: ech})
	if err != nil {
		r.Fatal(err)
	}
	commit()
	shared.Commit()
	orphans := r.proxy.Swap(table)
	for _, l := range cfg.Listeners {
		if r.addrs[l.Name] == "" {
			r.listen(l.Name, "tcp", "127.0.0.1:0")
		}
	}
	return orphans
}

// listen serves connections as the listener of that name.
func (r *rig) listen(name, network, address string) {
	r.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		r.Fatal(err)
	}
	accept := func() (*conn.Conn, error) {
		nc, err := ln.Accept()
		if err != nil {
			return nil, err
		}
		return conn.New(nc), nil
	}
	closer := io.Closer(ln)
	if a, ok, err := conn.NewAcceptor(ln); ok {
		if err != nil {
			r.Fatal(err)
		}
		ln, accept, closer = a, a.AcceptConn, a
	}
	r.addrs[name] = ln.Addr().String()
	r.stop = append(r.stop, func() { closer.Close() })
	r.serving.Go(func() {
		for {
			c, err := accept()
			if err != nil {
				return
			}
			r.serve(c, name)
		}
	})
}

// adjust changes the proxy before the first client comes. serve takes the same lock, so every
// connection sees the change.
func (r *rig) adjust(change func(*Proxy)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r.proxy)
}

func (r *rig) serve(c *conn.Conn, listener string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[c] = struct{}{}
	r.serving.Add(1) // a parked tunnel is open without a goroutine
	c.OnClose = func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.open, c)
		r.serving.Done()
	}
	if r.greet != nil {
		r.greet(c)
	}
	r.serving.Go(func() { r.proxy.Serve(c, listener) })
}

// only returns the single client connection.
func (r *rig) only() *conn.Conn {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.open) != 1 {
		r.Fatalf("%d connections are open, not one", len(r.open))
	}
	for c := range r.open {
		return c
	}
	return nil
}

// shut ends everything and waits until it has ended.
func (r *rig) shut() {
	for _, stop := range r.stop {
		stop()
	}
	r.mu.Lock()
	for c := range r.open {
		c.Cut()
	}
	r.mu.Unlock()
	done := make(chan struct{})
	go func() { r.serving.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		buf := make([]byte, 1<<20)
		r.Errorf("connections do not end:\n%s", buf[:runtime.Stack(buf, true)])
	}
	r.set.Close()
}

// record returns the next line of the access log.
func (r *rig) record() entry {
	r.Helper()
	return next(r, r.records, "access log line")
}

func (r *rig) refusal() entry {
	r.Helper()
	return next(r, r.refusals, "refusal")
}

func next[T any](t testing.TB, ch <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatalf("waited in vain for a %s", what)
	}
	return v
}

// want checks fields of a line; nil stands for a missing field.
func (e entry) want(t testing.TB, pairs ...any) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got := e[pairs[i].(string)]; fmt.Sprint(got) != fmt.Sprint(pairs[i+1]) {
			t.Errorf("%s is %v, not %v, in %v", pairs[i], got, pairs[i+1], e)
		}
	}
}

// wantError checks that the error sentence contains each text, such as the name of the setting that ended a wait.
func (e entry) wantError(t testing.TB, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if got := fmt.Sprint(e["error"]); !strings.Contains(got, text) {
			t.Errorf("the error %q does not contain %q", got, text)
		}
	}
}

// wantNoLog checks that weir logged nothing except the lines that the test has read.
func (r *rig) wantNoLog() {
	r.Helper()
	select {
	case e := <-r.records:
		r.Errorf("unexpected access log line %v", e)
	case e := <-r.refusals:
		r.Errorf("unexpected refusal %v", e)
	default:
	}
}

// plain is the smallest configuration: one listener, one backend.
const plain = `
listeners: {web: {address: '@0', protocol: http}}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ['@app']}}
`

// newPlain serves plain in front of an endpoint whose part the test plays.
func newPlain(t testing.TB, tune func(*config.Config)) (*rig, *endpoint) {
	e := newEndpoint(t)
	return newRig(t, plain, tune, "@app", e.address), e
}

// counter returns the value of a series, by its name and its label values in order; 0 if there is none.
func (r *rig) counter(name string, labels ...string) float64 {
	r.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	metrics:
		for _, m := range f.GetMetric() {
			for i := 0; i < len(labels); i += 2 {
				found := false
				for _, l := range m.GetLabel() {
					found = found || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
				}
				if !found {
					continue metrics
				}
			}
			switch {
			case m.Counter != nil:
				return m.Counter.GetValue()
			case m.Gauge != nil:
				return m.Gauge.GetValue()
			case m.Histogram != nil:
				return float64(m.Histogram.GetSampleCount())
			}
		}
	}
	return 0
}
