package proxy

import (
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// socket2 requests a WebSocket over HTTP/2.
func (c *client2) socket2(path string, fields ...string) uint32 {
	c.t.Helper()
	return c.request(false, path, append([]string{":method: CONNECT", ":protocol: websocket", "sec-websocket-version: 13"}, fields...)...)
}

var keyField = regexp.MustCompile(`(?i)\r\nsec-websocket-key: (.*)\r\n`)

// accept2 answers an upgrade as a WebSocket server does, and returns the request's head.
func accept2(t testing.TB, s *peer, extra string) string {
	t.Helper()
	head := s.head()
	key := keyField.FindStringSubmatch(head)
	if key == nil {
		t.Fatalf("no key in %q", head)
	}
	sum := sha1.Sum([]byte(key[1] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	s.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\nSec-WebSocket-Protocol: chat\r\n\r\n%s",
		base64.StdEncoding.EncodeToString(sum[:]), extra)
	return head
}

// open2 opens a WebSocket.
func (c *client2) open2(e *endpoint) (uint32, *peer) {
	c.t.Helper()
	id := c.socket2("/ws")
	s := e.accept()
	accept2(c.t, s, "")
	c.until("the tunnel", func() bool { return len(c.on(id).heads) > 0 })
	return id, s
}

func TestHTTP2WebSockets(t *testing.T) {
	r, e := newRig2(t, nil)
	for _, listener := range wires2 {
		c := r.dial2(listener)
		id := c.socket2("/ws?x", "sec-websocket-protocol: chat", "origin: https://a")
		c.data(id, false, "early client")
		s := e.accept()
		head := accept2(t, s, "early endpoint")
		for _, want := range []string{"GET /ws?x HTTP/1.1\r\n", "\r\nhost: a\r\n", "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n", "\r\norigin: https://a\r\n", "\r\nsec-websocket-protocol: chat\r\n"} {
			if !strings.Contains(head, want) {
				t.Errorf("%q is not in %q", want, head)
			}
		}
		s.wantRead("early client")
		c.until("what the endpoint said", func() bool { return c.on(id).body.String() == "early endpoint" })
		if got := c.on(id).heads[0]; got != ":status: 200\nsec-websocket-protocol: chat\n" {
			t.Errorf("the head is %q", got)
		}
		if n := r.counter("weir_tunnels_open", "route", "*"); n != 1 {
			t.Errorf("%v tunnels are open", n)
		}
		other := c.request(true, "/..%2f") // a request beside the tunnel
		c.want2(other, 400, "*")
		r.record()
		large := strings.Repeat("0123456789abcdef", 20_000)
		go s.Write([]byte(large))
		for c.on(id).body.Len() < len("early endpoint")+len(large) {
			if err := c.step(); err != nil {
				t.Fatal(err)
			}
			c.framer.WriteWindowUpdate(0, 16<<10)
			c.framer.WriteWindowUpdate(id, 16<<10)
		}
		c.data(id, true, "the end") // one direction ends after the other
		s.wantRead("the end")
		s.wantEnd(false)
		s.write("!")
		s.closeWrite()
		if a := c.answer(id); a.reset != "" || !strings.HasSuffix(a.body.String(), "f!") {
			t.Errorf("%v", a)
		}
		r.record().want(t, "kind", "upgrade", "status", 101, "http_version", "2", "reason", "eof", "bytes_in", 19, "bytes_out", 14+len(large)+1,
			"target", "/ws?x", "endpoint", e.address)
		c.alive()
		s.Close()
	}
	r.wantNoLog()
	if n := r.counter("weir_tunnels_open", "route", "*"); n != 0 {
		t.Errorf("%v tunnels are open", n)
	}
}

func TestHTTP2WebSocketsRefused(t *testing.T) {
	r, e := newRig2(t, nil)
	c := r.dial2("tls")
	f := func(response string, status int, body, reason string) {
		t.Helper()
		id := c.socket2("/ws")
		c.data(id, false, "for nobody")
		s := e.accept()
		s.head()
		s.write(response)
		c.want2(id, status, body)
		r.record().want(t, "kind", "http", "status", status, "reason", reason)
		s.Close()
		c.alive()
	}
	f("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno", 403, "no", "<nil>")
	f("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno", 501, "*", "upgrade")
	f("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n", 501, "*", "upgrade")
	f("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: wrong\r\n\r\n", 502, "*", "bad_response_bad_upgrade")
	f("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", 502, "*", "bad_response_bad_upgrade")
	f("HTTP/1.1 101 Switching Protocols\r\nUpgrade: other\r\nConnection: Upgrade\r\n\r\n", 502, "*", "bad_response_bad_upgrade")
	c.want2(c.socket2("/..%2f"), 400, "*")
	c.want2(c.socket2("/ws", ":protocol: h2c"), 501, "*")
}

// However a tunnel ends, its connection and the other exchanges on it continue.
func TestHTTP2WebSocketEnds(t *testing.T) {
	r, e := newRig2(t, func(cfg *config.Config) {
		for i := range cfg.Listeners {
			cfg.Listeners[i].Timeouts.TunnelIdle = 200 * time.Millisecond
		}
	})
	c := r.dial2("tls")
	beside := c.request(true, "/beside")
	b := e.accept()
	b.head()

	begun := func() { // the client has the response a moment before
		t.Helper()
		eventually(t, "the tunnel is known", func() error {
			r.proxy.tunnels.mu.Lock()
			defer r.proxy.tunnels.mu.Unlock()
			if r.proxy.tunnels.first == nil {
				return errors.New("no tunnel is")
			}
			return nil
		})
	}
	id, s := c.open2(e)
	begun()
	c.framer.WriteRSTStream(id, 8)
	s.wantEnd(true)
	r.record().want(t, "kind", "upgrade", "reason", "client_reset")

	id, s = c.open2(e)
	begun()
	s.reset()
	c.wantReset(id, "CANCEL")
	r.record().want(t, "kind", "upgrade", "reason", "endpoint_reset")

	id, s = c.open2(e)
	c.wantReset(id, "CANCEL")
	s.wantEnd(true)
	r.record().want(t, "kind", "upgrade", "reason", "idle")

	r.load(secure2, nil, "@app", e.address) // from here on, tunnels may be idle for longer than the test takes
	id, s = c.open2(e)
	begun()
	orphans := r.load(strings.Replace(secure2, "backend: app", "paths: [/other], backend: app", 1), nil, "@app", e.address)
	if len(orphans) != 1 {
		t.Fatalf("%d tunnels are orphans", len(orphans))
	}
	orphans[0].Cut()
	c.wantReset(id, "CANCEL")
	s.wantEnd(true)
	r.record().want(t, "kind", "upgrade", "reason", "cut")
	orphans[0].Cut() // the tunnel has ended: no effect

	b.write(ok("b"))
	c.want2(beside, 200, "b")
	r.record()

	r.load(secure2, nil, "@app", e.address)
	b.Close()
	_, s = c.open2(e)
	r.only().Cut()
	s.wantEnd(true)
	r.record().want(t, "kind", "upgrade", "reason", "cut")
}

// A connection carries requests for the hosts of its own policy. Redirects and Strict-Transport-Security
// work as over HTTP/1.1.
func TestHTTP2Routes(t *testing.T) {
	ca := writeCA(t)
	e := newEndpoint(t)
	r := newRig(t, `
listeners:
  tls: {address: '@0', protocol: tls}
  web: {address: '@1', protocol: http, http2: {prior_knowledge: true}}
certificates: [{self_signed: {hosts: [a, b, known]}}]
tls_policies: {mutual: {client_auth: {mode: require, ca: '@ca', forward: [subject]}}}
routes:
- {listeners: [tls], hosts: [a, b], hsts: {max_age: 24h}, backend: app}
- {listeners: [tls], hosts: [known], tls_policy: mutual, backend: app}
- {listeners: [web], hosts: [a], redirect: {}}
- {listeners: [web], hosts: [b], backend: app}
backends: {app: {endpoints: ['@app']}}
`, nil, "@app", e.address, "@ca", ca.file)
	c := r.dial2("tls")
	c.want2(c.request(true, "/", ":authority: known"), 421, "*")
	r.record().want(t, "status", 421, "reason", "misdirected", "host", "known")
	c.want2(c.request(true, "/", ":authority: else"), 404, "*")
	id := c.request(true, "/", ":authority: b:443") // a host of the same policy
	serveOnce(e.accept(), ok("b")).Close()
	a := c.want2(id, 200, "b")
	if got := field2(a.heads[0], "strict-transport-security"); got != "max-age=86400" {
		t.Errorf("%q", a.heads)
	}

	known := greet2(r.dialTLS("tls", "known", func(cfg *tls.Config) {
		cfg.NextProtos, cfg.Certificates = []string{"h2"}, []tls.Certificate{ca.client("robot")}
	}))
	known.want2(known.request(true, "/"), 421, "*")
	id = known.request(true, "/", ":authority: known", "x-client-cert-subject: forged")
	s := e.accept()
	if head := s.head(); strings.Count(strings.ToLower(head), "x-client-cert-subject") != 1 || !strings.Contains(head, "CN=robot") {
		t.Errorf("%q", head)
	}
	s.write(ok("known"))
	s.Close()
	known.want2(id, 200, "known")

	c = r.dial2("web")
	a = c.want2(c.request(true, "/x?y"), 308, "*")
	if got := field2(a.heads[0], "location"); got != "https://a/x?y" {
		t.Errorf("%q", a.heads)
	}
	id = c.request(true, "/", ":authority: b")
	s = e.accept()
	if head := s.head(); !strings.Contains(head, "\r\nX-Forwarded-Proto: http\r\n") {
		t.Errorf("%q", head)
	}
	s.write(ok("b"))
	if a := c.want2(id, 200, "b"); strings.Contains(fmt.Sprint(a.heads), "strict") {
		t.Errorf("%q", a.heads)
	}
}

// Weir offers HTTP/2 if the listener does and the client's TLS is suitable.
func TestHTTP2Offer(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, `
listeners:
  tls: {address: '@0', protocol: tls}
  without: {address: '@1', protocol: tls, http2: false}
certificates: [{self_signed: {hosts: [a]}}]
tls_policies: {default: {min_version: "1.0", cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA]}}
routes: [{listeners: [tls, without], backend: app}]
backends: {app: {endpoints: ['@app']}}
`, nil, "@app", e.address)
	f := func(listener, want string, change func(*tls.Config)) {
		t.Helper()
		p := r.dialTLS(listener, "a", func(c *tls.Config) {
			c.NextProtos, c.MinVersion = []string{"http/1.1", "h2"}, tls.VersionTLS10
			change(c)
		})
		if got := p.Conn.(*tls.Conn).ConnectionState().NegotiatedProtocol; got != want {
			t.Errorf("%s: %q is agreed on, not %q", listener, got, want)
		}
		if want == "h2" {
			c := greet2(p)
			c.want2(c.request(true, "/..%2f"), 400, "*")
			return
		}
		p.write(get)
		s := serveOnce(e.accept(), ok("1"))
		p.wantResponse(200, "1")
		s.Close()
	}
	f("tls", "h2", func(*tls.Config) {})
	f("without", "http/1.1", func(*tls.Config) {})
	f("tls", "h2", func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 })
	f("tls", "http/1.1", func(c *tls.Config) { c.MaxVersion = tls.VersionTLS11 })
	f("tls", "http/1.1", func(c *tls.Config) {
		c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA}
	})
	f("tls", "", func(c *tls.Config) { c.NextProtos = nil })
}
