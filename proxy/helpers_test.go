package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zapcore"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/http1"
	"github.com/weirproxy/weir/tls/certs"
	"github.com/weirproxy/weir/tls/policy"
)

// patience is how long a test waits for what has to happen.
const patience = 10 * time.Second

// rig is a Proxy with real sockets around it, and everything it tells of.
type rig struct {
	testing.TB
	proxy    *Proxy
	set      *backend.Set
	registry *prometheus.Registry
	store    *certs.Store
	tickets  *certs.Tickets
	addrs    map[string]string // of listeners
	serving  sync.WaitGroup
	records  chan entry
	refusals chan entry

	mu   sync.Mutex
	stop []func()
	open map[*conn.Conn]struct{}
}

// entry is a line of the access log by its field names.
type entry map[string]any

// newRig serves a configuration. In it, every @word is replaced: pairs lists
// words and what stands for them. tune may change what the file cannot say,
// such as waits of less than a second.
func newRig(t testing.TB, text string, tune func(*config.Config), pairs ...string) *rig {
	t.Helper()
	warmUp()
	before, files := runtime.NumGoroutine(), descriptors()
	r := &rig{TB: t, registry: prometheus.NewRegistry(), addrs: make(map[string]string), open: make(map[*conn.Conn]struct{}),
		records: make(chan entry, 10000), refusals: make(chan entry, 10000), tickets: certs.NewTickets()}
	r.store = certs.New(certs.NewMetrics(r.registry))
	r.set = backend.NewSet(backend.Options{})
	r.proxy = &Proxy{Metrics: NewMetrics(r.registry), Handshakes: policy.NewMetrics(r.registry),
		Refused: func(rec *Record) { r.refusals <- fieldsOf(rec.Fields()) }}
	r.proxy.SetLog(func(rec *Record) { r.records <- fieldsOf(rec.Fields()) })
	r.proxy.SetLimits(http1.Limits{})
	t.Cleanup(func() {
		r.shut()
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

// warmUp makes package conn start what it keeps for the life of the process.
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

func fieldsOf(fields []zapcore.Field) entry {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	return enc.Fields
}

// descriptors counts open ones; 0 where that cannot be known.
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

// load puts a configuration into effect, the first or another one, and returns
// the tunnels whose route is gone. Addresses of listeners are written as @NAME
// and are bound when they come up first.
func (r *rig) load(text string, tune func(*config.Config), pairs ...string) []*conn.Conn {
	r.Helper()
	for i := range 9 { // any valid address does: sockets are the rig's own
		pairs = append(pairs, fmt.Sprintf("@%d", i), fmt.Sprintf("127.0.0.1:%d", 20000+i))
	}
	cfg, err := config.Parse("test", []byte(strings.NewReplacer(pairs...).Replace(text)), os.LookupEnv)
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
	policies := make(map[string]*policy.Policy)
	for _, p := range cfg.TLSPolicies {
		if policies[p.Name], err = policy.New(p, r.store.Get, r.tickets.Attach); err != nil {
			r.Fatal(err)
		}
	}
	backends, err := r.set.Update(cfg.Backends, backend.NodeInfo{})
	if err != nil {
		r.Fatal(err)
	}
	table, err := NewTable(cfg, Parts{Backends: backends, Policies: policies, Metrics: r.proxy.Metrics})
	if err != nil {
		r.Fatal(err)
	}
	commit()
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

func (r *rig) serve(c *conn.Conn, listener string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[c] = struct{}{}
	r.serving.Go(func() {
		r.proxy.Serve(c, listener)
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.open, c)
	})
}

// only is the one client connection there is.
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

// shut ends everything and waits for it.
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

// record is the next line of the access log.
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

// want checks fields of a line; nil stands for a field that is not there.
func (e entry) want(t testing.TB, pairs ...any) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got := e[pairs[i].(string)]; fmt.Sprint(got) != fmt.Sprint(pairs[i+1]) {
			t.Errorf("%s is %v, not %v, in %v", pairs[i], got, pairs[i+1], e)
		}
	}
}

// quiet checks that nothing was logged that the test did not ask for.
func (r *rig) quiet() {
	r.Helper()
	select {
	case e := <-r.records:
		r.Errorf("unexpected access log line %v", e)
	case e := <-r.refusals:
		r.Errorf("unexpected refusal %v", e)
	default:
	}
}

// peer is a connection as a test holds it, of a client or an endpoint.
type peer struct {
	net.Conn
	t testing.TB
	r *bufio.Reader
}

func newPeer(t testing.TB, c net.Conn) *peer {
	c.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { c.Close() })
	return &peer{Conn: c, t: t, r: bufio.NewReader(c)}
}

// dial connects to a listener.
func (r *rig) dial(listener string) *peer {
	r.Helper()
	network := "tcp"
	if strings.HasPrefix(r.addrs[listener], "/") {
		network = "unix"
	}
	c, err := net.Dial(network, r.addrs[listener])
	if err != nil {
		r.Fatal(err)
	}
	return newPeer(r.TB, c)
}

// dialTLS connects to a listener and shakes hands.
func (r *rig) dialTLS(listener, sni string, change func(*tls.Config)) *peer {
	r.Helper()
	cfg := &tls.Config{ServerName: sni, InsecureSkipVerify: true}
	if change != nil {
		change(cfg)
	}
	p := r.dial(listener)
	tc := tls.Client(p.Conn, cfg)
	if err := tc.Handshake(); err != nil {
		r.Fatal(err)
	}
	return newPeer(r.TB, tc)
}

func (p *peer) write(format string, args ...any) {
	p.t.Helper()
	if len(args) > 0 {
		format = fmt.Sprintf(format, args...)
	}
	if _, err := io.WriteString(p.Conn, format); err != nil {
		p.t.Fatalf("writing: %v", err)
	}
}

// head reads a message's head.
func (p *peer) head() string {
	p.t.Helper()
	var b strings.Builder
	for !strings.HasSuffix(b.String(), "\r\n\r\n") {
		c, err := p.r.ReadByte()
		if err != nil {
			p.t.Fatalf("reading a head: %v after %q", err, b.String())
		}
		b.WriteByte(c)
	}
	return b.String()
}

func (p *peer) read(n int) string {
	p.t.Helper()
	b := make([]byte, n)
	if n, err := io.ReadFull(p.r, b); err != nil {
		p.t.Fatalf("reading: %v after %q", err, b[:n])
	}
	return string(b)
}

// wantRead reads exactly want.
func (p *peer) wantRead(want string) {
	p.t.Helper()
	if got := p.read(len(want)); got != want {
		p.t.Fatalf("read %q, not %q", got, want)
	}
}

// response reads a response with its body.
func (p *peer) response(method string) (*http.Response, string) {
	p.t.Helper()
	resp, body, err := p.tryResponse(method)
	if err != nil {
		p.t.Fatalf("reading a response: %v", err)
	}
	return resp, body
}

func (p *peer) tryResponse(method string) (*http.Response, string, error) {
	resp, err := http.ReadResponse(p.r, &http.Request{Method: method})
	if err != nil {
		return nil, "", err
	}
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

// wantResponse reads a response with that status and body.
func (p *peer) wantResponse(status int, body string) *http.Response {
	p.t.Helper()
	resp, got := p.response("GET")
	if resp.StatusCode != status || body != "*" && got != body {
		p.t.Fatalf("the response is %d with %q, not %d with %q", resp.StatusCode, got, status, body)
	}
	return resp
}

// wantEnd reads an orderly end, or a reset.
func (p *peer) wantEnd(reset bool) {
	p.t.Helper()
	rest, err := io.ReadAll(p.r)
	if len(rest) > 0 || (err != nil) != reset || os.IsTimeout(err) {
		p.t.Fatalf("instead of an end (reset: %t) came %q and %v", reset, rest, err)
	}
}

func (p *peer) closeWrite() { p.Conn.(interface{ CloseWrite() error }).CloseWrite() }

// reset closes the connection by a reset.
func (p *peer) reset() {
	p.Conn.(*net.TCPConn).SetLinger(0)
	p.Close()
}

// endpoint is a server that a test plays the part of.
type endpoint struct {
	testing.TB
	address string
	conns   chan *peer
}

func newEndpoint(t testing.TB) *endpoint {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return startEndpoint(t, ln)
}

func startEndpoint(t testing.TB, ln net.Listener) *endpoint {
	e := &endpoint{TB: t, address: ln.Addr().String(), conns: make(chan *peer, 1000)}
	done := make(chan struct{})
	t.Cleanup(func() { ln.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			e.conns <- newPeer(t, c)
		}
	}()
	return e
}

// accept is the next connection.
func (e *endpoint) accept() *peer {
	e.Helper()
	return next(e, e.conns, "connection to an endpoint")
}

// untouched checks that nobody connected.
func (e *endpoint) untouched() {
	e.Helper()
	select {
	case <-e.conns:
		e.Error("the endpoint got a connection")
	default:
	}
}

// newHandler is an endpoint that answers by itself.
func newHandler(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { s.Serve(ln); close(done) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if s.Shutdown(ctx) != nil {
			s.Close()
		}
		<-done
	})
	return ln.Addr().String()
}

// echo answers with the request's path and its body.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	fmt.Fprintf(w, "%s %s", r.URL.Path, body)
}

// refusedAddress is an address that nobody listens on.
func refusedAddress(t testing.TB) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// plain is the smallest configuration: one listener, one backend.
const plain = `
listeners: {web: {address: '@0', protocol: http}}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ['@app']}}
`

// newPlain serves plain in front of an endpoint that the test plays.
func newPlain(t testing.TB, tune func(*config.Config)) (*rig, *endpoint) {
	e := newEndpoint(t)
	return newRig(t, plain, tune, "@app", e.address), e
}

// counter is the value of a series, by its name and label values in their order; 0 where there is none.
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
