package e2e

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// Routes whose endpoint is weir itself, by every possible path. relay is a TCP proxy in
// between, which changes the addresses of both ends.
const loopConfig = `
listeners:
  web: {address: '@web', protocol: http, http2: {prior_knowledge: true}}
  secure: {address: '@secure', protocol: tls}
  raw: {address: '@raw', protocol: tcp}
  announced: {address: '@announced', protocol: tcp, proxy_protocol: anyone}
  relayed: {address: '@relayed', protocol: tcp, proxy_protocol: anyone}
  passing: {address: '@passing', protocol: tls}
  there: {address: '@there', protocol: http}
  back: {address: '@back', protocol: tcp}
proxy_protocol:
  anyone: {rules: [{from: [127.0.0.0/8], header: optional}]}
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes:
  - {listeners: [web], hosts: [http1.example.org], backend: http1}
  - {listeners: [web], hosts: [h2c.example.org], backend: h2c}
  - {listeners: [secure], hosts: [app.example.org], backend: https}
  - {listeners: [secure], hosts: [old.example.org], backend: https1}
  - {listeners: [raw], backend: raw}
  - {listeners: [announced], backend: announced}
  - {listeners: [relayed], backend: relayed}
  - {listeners: [passing], hosts: [app.example.org], tls: passthrough, backend: passing}
  - {listeners: [there], backend: back}
  - {listeners: [back], backend: there}
backends:
  http1: {endpoints: ['@web']}
  h2c: {protocol: h2c, endpoints: ['@web']}
  https: {protocol: https, tls: {insecure_skip_verify: true}, endpoints: ['@secure']}
  https1: {protocol: https, http2: false, tls: {insecure_skip_verify: true}, endpoints: ['@secure']}
  raw: {protocol: tcp, endpoints: ['@raw']}
  announced: {protocol: tcp, endpoints: ['@announced'], send_proxy: v1}
  relayed: {protocol: tcp, endpoints: ['@relay'], send_proxy: v2}
  passing: {protocol: tcp, endpoints: ['@passing']}
  back: {endpoints: ['@back']}
  there: {protocol: tcp, endpoints: ['@there']}
`

// relay forwards each connection to address on a new connection.
func relay(t *testing.T, address func() string) string {
	return serve(t, func(c net.Conn) { pass(c, c, address()) })
}

// pass connects to address, copies r to that connection, and copies the responses to c.
func pass(c net.Conn, r io.Reader, address string) {
	to, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		io.Copy(c, to)
		c.Close()
	}()
	io.Copy(to, r)
}

// mostOpen counts the descriptors of weir until stop is called. stop returns the maximum.
func (w *weir) mostOpen() (stop func() int) {
	var most atomic.Int64
	dir := fmt.Sprintf("/proc/%d/fd", w.cmd.Process.Pid)
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			files, _ := os.ReadDir(dir)
			most.Store(max(most.Load(), int64(len(files))))
			select {
			case <-end:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return func() int { close(end); <-ended; return int(most.Load()) }
}

// weir answers a request on its fourth visit, and resets a connection, by whatever path
// they come back. Until then they use only a few descriptors, and tunnels leave none open.
func TestRoutingLoop(t *testing.T) {
	t.Parallel()
	needLinux(t)
	h1 := func(listener, host string, fields ...string) func(*testing.T, *weir) error {
		return func(t *testing.T, w *weir) error {
			c := dial(t, w.at(listener))
			defer c.Close()
			if listener == "secure" {
				config := anyCertificate(host)
				c = tls.Client(c, config)
			}
			resp, body, err := ask(c, bufio.NewReader(c), "GET", host, "/", fields...)
			if err == nil && resp.StatusCode != 508 {
				err = fmt.Errorf("%s: %s", resp.Status, body)
			}
			return err
		}
	}
	h2 := func(listener, host string, fields ...string) func(*testing.T, *weir) error {
		return func(t *testing.T, w *weir) error {
			h := dialH2(t, w, listener)
			defer h.Close()
			h.head(1, true, append([]string{":method: GET", ":scheme: http", ":path: /", ":authority: " + host}, fields...)...)
			status, body, err := h.answer(1)
			if err == nil && status != "508" {
				err = fmt.Errorf("%s: %s", status, body)
			}
			return err
		}
	}
	tunnel := func(listener string, first []byte) func(*testing.T, *weir) error {
		return func(t *testing.T, w *weir) error {
			c, err := net.DialTimeout("tcp", w.at(listener), patience)
			if errors.Is(err, syscall.ECONNRESET) {
				return nil // weir reset it before the tunnel began
			}
			if err != nil {
				return err
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(patience))
			c.Write(first)
			if n, err := io.Copy(io.Discard, c); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				return fmt.Errorf("%d bytes came, then %v, where the connection was to end", n, err)
			}
			return nil
		}
	}
	upgrade := []string{"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="}
	for _, c := range []struct {
		name string
		try  func(*testing.T, *weir) error
		kept int // connections that the pools may keep, with two descriptors each
	}{
		{"HTTP/1.1", h1("web", "http1.example.org"), 3},
		{"HTTP/1.1 with an open quotation mark", h1("web", "http1.example.org", `CDN-Loop: other; a="`), 3},
		{"HTTP/1.1 that calls the header one of the connection", h1("web", "http1.example.org", "CDN-Loop: other", "Connection: CDN-Loop"), 3},
		{"HTTP/1.1 with the header in another spelling", h1("web", "http1.example.org", "CDN_Loop: other"), 3},
		{"a WebSocket", h1("web", "http1.example.org", upgrade...), 3},
		{"HTTP/2", h2("web", "h2c.example.org"), 3},
		{"HTTP/1.1 to HTTP/2", h1("web", "h2c.example.org"), 3},
		{"HTTP/2 to HTTP/1.1", h2("web", "http1.example.org"), 3},
		{"HTTP/2 over TLS", h2("secure", "app.example.org"), 3},
		{"HTTP/1.1 over TLS", h1("secure", "old.example.org"), 3},
		{"a WebSocket over TLS", h1("secure", "app.example.org", upgrade...), 3},
		{"HTTP and TCP in turn", h1("there", "any.example.org"), 8},
		{"TCP", tunnel("raw", []byte("hello")), 0},
		{"TCP with PROXY headers", tunnel("announced", []byte("hello")), 0},
		{"TCP with PROXY headers through a relay", tunnel("relayed", []byte("hello")), 0},
		{"TLS passed through", tunnel("passing", clientHello(t)), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWeir(t)
			w.before = []string{"sh", "-c", `ulimit -n 1000 && exec "$@"`, "sh"}
			w.address["relay"] = relay(t, func() string { return w.at("relayed") })
			w.start(loopConfig)
			w.metrics() // the admin port has its descriptors in reserve by now
			control.CloseIdleConnections()
			before := w.descriptors()
			stop := w.mostOpen()
			err := c.try(t, w)
			if most := stop() - before; most > 40 {
				t.Errorf("one request took %d descriptors", most)
			}
			if err != nil {
				t.Error(err)
			}
			eventually(t, "the descriptors are closed", func() error {
				if n := w.descriptors() - before; n > 2*c.kept {
					return fmt.Errorf("%d are still open", n)
				}
				return nil
			})
			e := w.logged("the loop", func(e entry) bool { return e.text("reason") == "loop" })
			if c.kept > 0 {
				if e.text("status") != "508" {
					t.Errorf("%v", e)
				}
				w.wantMetric(1, "weir_http_refused_total", "reason", "loop")
			} else {
				w.wantMetric(1, "weir_tunnels_ended_total", "reason", "loop")
				w.wantMetric(0, "weir_tunnels_open")
			}
			if log := w.log.String(); !strings.Contains(log, "a route leads back to weir") {
				t.Error("the log does not tell")
			}
		})
	}
}

// A gRPC call in a loop gets a status that clients do not retry.
func TestRoutingLoopOfGRPC(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	w.address["relay"] = freePort(t)
	w.start(loopConfig)
	h := dialH2(t, w, "web")
	h.head(1, true, ":method: POST", ":scheme: http", ":path: /a.B/C", ":authority: h2c.example.org", "content-type: application/grpc", "te: trailers")
	for {
		f, err := h.framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if f, ok := f.(*http2.HeadersFrame); ok {
			fields, _ := h.dec.DecodeFull(f.HeaderBlockFragment())
			if text := fmt.Sprint(fields); !strings.Contains(text, `"grpc-status" = "13"`) {
				t.Errorf("%s", text)
			}
			return
		}
	}
}

const selfConfig = `
listeners: {web: {address: '@web', protocol: http}}
routes:
  - {listeners: [web], hosts: [twice.example.org], backend: app}
  - {listeners: [web], backend: self}
backends:
  app: {endpoints: ['@app']}
  self: {endpoints: ['@web'], host: twice.example.org}
limits: {loop: 2}
`

// limits.loop sets the number of visits: some routes lead back on purpose. A process does
// not count the visits of another process.
func TestRoutingLoopLimit(t *testing.T) {
	t.Parallel()
	app := newWebBackend(t, "app")
	last, first := newWeir(t), newWeir(t)
	last.address["app"] = app.address
	last.start(selfConfig)
	first.address["last"] = last.at("web")
	first.start(`
listeners: {web: {address: '@web', protocol: http}}
routes: [{listeners: [web], backend: last}]
backends: {last: {endpoints: ['@last']}}
limits: {loop: 1}
`)
	c := dial(t, first.at("web"))
	s, err := askSeen(c, "once.example.org", "/", "CDN-Loop: cdn.example; a=b", "CDN-Loop: third")
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Header.Values("Cdn-Loop"); len(got) != 2 || got[0] != "cdn.example; a=b" || strings.Count(got[1], "weir-") != 3 || !strings.HasPrefix(got[1], "third, weir-") {
		t.Errorf("%q", got)
	}
	last.reload(strings.Replace(selfConfig, "loop: 2", "loop: 1", 1))
	c = dial(t, first.at("web"))
	if resp, _, err := ask(c, bufio.NewReader(c), "GET", "once.example.org", "/"); err != nil || resp.StatusCode != 508 {
		t.Errorf("with limits.loop 1, a second visit gets %v, %v", resp, err)
	}
}
