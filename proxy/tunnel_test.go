package proxy

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/backend"
)

const raw = `
listeners: {tcp: {address: '@0', protocol: tcp}}
routes: [{name: git, listeners: [tcp], backend: ssh}]
backends: {ssh: {protocol: tcp, endpoints: ['@ssh']}}
`

func TestTunnel(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, raw, nil, "@ssh", e.address)
	c := r.dial("tcp")
	c.converse(e.accept(), func() {
		if n := r.counter("weir_tunnels_open", "route", "git"); n != 1 {
			t.Errorf("%v tunnels are open", n)
		}
	})
	r.record().want(t, "kind", "tunnel", "listener", "tcp", "route", "git", "backend", "ssh", "endpoint", e.address, "reason", "eof",
		"error", nil, "status", nil, "bytes_in", 8, "bytes_out", 13, "retries", 0, "client", c.LocalAddr())
	for direction, want := range map[string]float64{"in": 8, "out": 13} {
		if n := r.counter("weir_bytes_total", "route", "git", "direction", direction); n != want {
			t.Errorf("%v bytes %s", n, direction)
		}
	}
	if n := r.counter("weir_tunnels_open", "route", "git"); n != 0 {
		t.Errorf("%v tunnels are open", n)
	}
}

// converse sends 8 bytes from the client c to the server s and 13 bytes back, and ends each direction separately. It calls
// open while both directions are open.
func (c *peer) converse(s *peer, open func()) {
	c.t.Helper()
	s.write("welcome") // weir does not wait for the client if the server sends first
	c.wantRead("welcome")
	c.write("question")
	s.wantRead("question")
	open()
	c.closeWrite() // the two directions end one after the other
	s.wantEnd(false)
	s.write("answer")
	c.wantRead("answer")
	s.closeWrite()
	s.Close()
	c.wantEnd(false)
}

func TestTunnelsThatEndBadly(t *testing.T) {
	f := func(tune func(*config.Config), end func(r *rig, c, s *peer), reason string) {
		t.Helper()
		e := newEndpoint(t)
		r := newRig(t, raw, tune, "@ssh", e.address)
		c := r.dial("tcp")
		s := e.accept()
		c.write("x")
		s.wantRead("x")
		end(r, c, s)
		r.record().want(t, "kind", "tunnel", "reason", reason)
		if n := r.counter("weir_tunnels_ended_total", "route", "git", "reason", reason); n != 1 {
			t.Errorf("%v tunnels ended: %s", n, reason)
		}
		for _, p := range []*peer{c, s} { // neither side receives a regular end
			if _, err := io.ReadAll(p.r); err == nil {
				t.Errorf("%s: an orderly end", reason)
			}
		}
	}
	f(nil, func(_ *rig, c, _ *peer) { c.reset() }, "client_reset")
	f(nil, func(_ *rig, _, s *peer) { s.reset() }, "endpoint_reset")
	f(nil, func(r *rig, _, _ *peer) { r.only().Cut() }, "cut")
	nothing := func(*rig, *peer, *peer) {}
	f(func(c *config.Config) { c.Routes[0].TunnelIdle = 50 * time.Millisecond }, nothing, "idle")
	f(func(c *config.Config) { c.Listeners[0].Timeouts.TunnelIdle = 50 * time.Millisecond }, nothing, "idle")
	f(func(c *config.Config) { c.Routes[0].MaxLifetime = 50 * time.Millisecond }, nothing, "lifetime")
}

// If there is no endpoint, the client receives a reset, never a regular end.
func TestTunnelWithoutEndpoint(t *testing.T) {
	r := newRig(t, raw, nil, "@ssh", refusedAddress(t))
	wantReset(t, r.addrs["tcp"])
	r.record().want(t, "kind", "tunnel", "reason", "connect", "retries", 2, "bytes_in", 0)
	if n := r.counter("weir_tunnels_ended_total", "route", "git", "reason", "connect"); n != 1 { // the test reads a metric, because the access log may be off
		t.Errorf("%v connections came to no tunnel", n)
	}
	r = newRig(t, strings.Replace(raw, "endpoints:", "health_check: {tcp: {}}, endpoints:", 1), nil, "@ssh", refusedAddress(t))
	wantReset(t, r.addrs["tcp"])
	r.record().want(t, "kind", "tunnel", "reason", "no_endpoint_ready", "endpoint", nil)
}

// wantReset connects and expects a reset, perhaps before the connect has returned.
func wantReset(t *testing.T, address string) {
	t.Helper()
	if c, err := net.Dial("tcp", address); err == nil {
		newPeer(t, c).wantEnd(true)
	} else if !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}

// A reload returns the tunnels that have lost their route; the others continue.
func TestReloadOfTunnels(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, raw, nil, "@ssh", e.address)
	c := r.dial("tcp")
	s := e.accept()
	c.write("x")
	s.wantRead("x")
	if orphans := r.load(raw, nil, "@ssh", e.address); len(orphans) != 0 {
		t.Errorf("%d tunnels lost a route that is there", len(orphans))
	}
	orphans := r.load(strings.Replace(raw, "git", "other", 1), nil, "@ssh", e.address)
	if len(orphans) != 1 {
		t.Fatalf("%d tunnels lost their route", len(orphans))
	}
	c.write("y") // the tunnel continues until the test ends it
	s.wantRead("y")
	orphans[0].Cut()
	c.wantEnd(true)
	r.record().want(t, "reason", "cut", "route", "git")
	if n := r.counter("weir_bytes_total", "route", "git"); n != 0 {
		t.Errorf("the removed route has %v bytes", n)
	}
	if n := r.counter("weir_tunnels_ended_total", "route", "git"); n != 0 {
		t.Errorf("the removed route has %v tunnels that ended", n)
	}
	for range 3 { // weir keeps nothing of the tunnel
		if orphans := r.load(raw, nil, "@ssh", e.address); len(orphans) != 0 {
			t.Errorf("%d orphans", len(orphans))
		}
	}
}

const edgeTLS = `
listeners: {tls: {address: '@0', protocol: tls}, web: {address: '@1', protocol: http}}
certificates: [{self_signed: {hosts: [a, b]}}]
tls_policies: {auth: {client_auth: {mode: require, ca: '@ca'}}}
routes:
  - {listeners: [tls], hosts: [a], backend: app}
  - {listeners: [tls], hosts: [vault], tls: passthrough, backend: vault}
  - {listeners: [tls], hosts: ["*.vault"], tls: passthrough, backend: vault}
  - {listeners: [tls], hosts: [auth], tls_policy: auth, backend: app}
  - {listeners: [tls, web], first_bytes: ssh, backend: ssh}
  - {listeners: [web], hosts: [a], backend: app}
backends:
  app: {endpoints: ['@app']}
  vault: {protocol: tcp, endpoints: ['@vault']}
  ssh: {protocol: tcp, endpoints: ['@ssh']}
`

// newEdgeTLS serves edgeTLS; the test plays vault and ssh.
func newEdgeTLS(t *testing.T, tune func(*config.Config)) (r *rig, vault, ssh *endpoint, ca *authority) {
	vault, ssh, ca = newEndpoint(t), newEndpoint(t), writeCA(t)
	r = newRig(t, edgeTLS, tune, "@app", newHandler(t, echo), "@vault", vault.address, "@ssh", ssh.address, "@ca", ca.file)
	return r, vault, ssh, ca
}

// recording keeps the bytes that are written through it.
type recording struct {
	net.Conn
	sent bytes.Buffer
}

func (r *recording) Write(p []byte) (int, error) { r.sent.Write(p); return r.Conn.Write(p) }

// overheard keeps the bytes that are read through it.
type overheard struct {
	net.Conn
	got bytes.Buffer
}

func (o *overheard) Read(p []byte) (int, error) {
	n, err := o.Conn.Read(p)
	o.got.Write(p[:n])
	return n, err
}

// With passthrough, the endpoint gets the client's bytes and makes the handshake, whether the ClientHello
// arrives in one piece or in many.
func TestPassthrough(t *testing.T) {
	ca := writeCA(t)
	own := ca.client("vault itself")
	for _, pieces := range []bool{false, true} {
		for _, sni := range []string{"vault", "VAULT", "x.vault"} {
			r, vault, _, _ := newEdgeTLS(t, nil)
			c := &recording{Conn: r.dial("tls")}
			var out net.Conn = c
			if pieces {
				out = trickling{c}
			}
			client := tls.Client(out, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
			done := make(chan error, 1)
			go func() { done <- client.Handshake() }()
			in := &overheard{Conn: vault.accept()}
			server := tls.Server(in, &tls.Config{Certificates: []tls.Certificate{own}})
			if err := server.Handshake(); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if cn := client.ConnectionState().PeerCertificates[0].Subject.CommonName; cn != "vault itself" {
				t.Errorf("the certificate is that of %q", cn)
			}
			client.Close()
			io.Copy(io.Discard, server)
			if !bytes.Equal(c.sent.Bytes(), in.got.Bytes()) {
				t.Errorf("%d bytes were sent and %d others came", c.sent.Len(), in.got.Len())
			}
			server.Close()
			r.record().want(t, "kind", "tunnel", "sni", strings.ToLower(sni), "backend", "vault", "tls_version", nil, "bytes_in", c.sent.Len())
		}
	}
}

// trickling writes one byte at a time.
type trickling struct{ net.Conn }

func (c trickling) Write(p []byte) (int, error) {
	for i := range p {
		if _, err := c.Conn.Write(p[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(p), nil
}

// A listener can have hosts with passthrough and hosts whose TLS weir terminates.
func TestTerminationBesidePassthrough(t *testing.T) {
	r, vault, _, _ := newEdgeTLS(t, nil)
	for _, sni := range []string{"a", "", "unknown", "x.y.vault"} {
		c := r.dialTLS("tls", sni, nil)
		c.write("GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
		c.wantResponse(200, "/x ")
		r.record().want(t, "status", 200, "tls_policy", "default")
	}
	vault.untouched()
}

// A passthrough route for every host takes clients without SNI, too.
func TestPassthroughOfEverything(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, `
listeners: {tls: {address: '@0', protocol: tls}}
routes: [{listeners: [tls], tls: passthrough, backend: vault}]
backends: {vault: {protocol: tcp, endpoints: ['@vault']}}
`, nil, "@vault", e.address)
	own := writeCA(t).client("vault itself")
	for _, sni := range []string{"any.example.org", ""} {
		done := make(chan *peer, 1)
		go func() { done <- r.dialTLS("tls", sni, nil) }()
		s := tls.Server(e.accept(), &tls.Config{Certificates: []tls.Certificate{own}})
		if err := s.Handshake(); err != nil {
			t.Fatal(err)
		}
		(<-done).Close()
		s.Close()
		r.record().want(t, "kind", "tunnel", "backend", "vault")
	}
}

// SSH shares the port with HTTP and with TLS.
func TestFirstBytes(t *testing.T) {
	r, vault, ssh, _ := newEdgeTLS(t, nil)
	for _, listener := range []string{"tls", "web"} {
		for _, pieces := range []bool{false, true} {
			c := r.dial(listener)
			if pieces {
				io.WriteString(trickling{c.Conn}, "SSH-2.0-")
				c.write("test\r\n")
			} else {
				c.write("SSH-2.0-test\r\n")
			}
			s := ssh.accept()
			s.wantRead("SSH-2.0-test\r\n")
			s.write("SSH-2.0-weir\r\n")
			c.wantRead("SSH-2.0-weir\r\n")
			c.Close()
			s.wantEnd(false)
			s.Close()
			r.record().want(t, "kind", "tunnel", "listener", listener, "route", "first_bytes=ssh", "backend", "ssh", "reason", "eof")
		}
	}
	c := r.dialTLS("tls", "a", nil) // HTTP works as before
	c.write("GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
	c.wantResponse(200, "/x ")
	r.record()
	for _, method := range []string{"GET", "SEARCH", "S", "SSH", "SSHX"} {
		c = r.dial("web")
		io.WriteString(trickling{c.Conn}, method+" /x HTTP/1.1\r\nHost: a\r\n\r\n")
		c.wantResponse(200, "/x ")
		r.record().want(t, "status", 200)
	}
	vault.untouched()
	ssh.untouched()
	r.wantNoLog()
}

// A connection to a TLS port that is neither TLS nor SSH gets at most an alert.
func TestNotTLS(t *testing.T) {
	withSSH, _, _, _ := newEdgeTLS(t, nil)
	opened := newRig(t, secure, nil, "@app", refusedAddress(t))
	for _, r := range []*rig{withSSH, opened} {
		name := map[bool]string{true: "tls", false: "web"}[r == withSSH]
		for _, text := range []string{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "\x16\x03\x01\x00\x05hello", "\x16\x03\x01\xff\xff" + strings.Repeat("x", 20000),
			"SXSH-2.0\r\n", "\r\n\r\n\x00\r\nQUIT\n", "\x80\x2e\x01\x03\x01", "\x15\x03\x01\x00\x02\x02\x28"} {
			c := r.dial(name)
			io.WriteString(c.Conn, text)
			c.closeWrite()
			got, _ := io.ReadAll(c.r)
			if len(got) > 0 && (len(got) != 7 || got[0] != 0x15) {
				t.Errorf("%q was answered with %q", text, got)
			}
			line := r.refusal()
			line.want(t, "kind", "refused", "listener", name)
			if line["error"] == nil || line["reason"] == "" {
				t.Errorf("%q: %v", text, line)
			}
		}
		r.wantNoLog()
	}
}

// Weir does not wait for clients that send nothing.
func TestSilentClients(t *testing.T) {
	soon := func(c *config.Config) {
		for i := range c.Listeners {
			c.Listeners[i].Timeouts.Handshake = 500 * time.Millisecond // the test's own clients send their bytes within this time
		}
	}
	r, _, _, _ := newEdgeTLS(t, soon)
	opened := newRig(t, secure, soon, "@app", refusedAddress(t))
	f := func(r *rig, listener, text, reason string) {
		t.Helper()
		c := r.dial(listener)
		c.write(text)
		got, _ := io.ReadAll(c.r)
		if len(got) > 0 {
			t.Errorf("%q was answered with %q", text, got)
		}
		r.refusal().want(t, "reason", reason, "listener", listener)
	}
	f(r, "tls", "", "first_bytes")
	f(r, "tls", "SS", "first_bytes")
	f(r, "tls", "\x16\x03\x01", "bad_client_hello")
	f(r, "web", "", "first_bytes")
	f(r, "web", "SSH", "first_bytes")
	f(opened, "web", "", "handshake")
	f(opened, "web", "\x16\x03\x01\x00", "handshake")
}

// A client that sends nothing for silent_after is an SSH client that waits for the banner. One that has
// begun to send has all of the handshake's time.
func TestSilentClientsOfSSH(t *testing.T) {
	r, vault, ssh, _ := newEdgeTLS(t, func(c *config.Config) {
		for i := range c.Listeners {
			c.Listeners[i].Timeouts.Handshake = 3 * time.Second
		}
		for i := range c.Routes {
			if c.Routes[i].FirstBytes != "" {
				c.Routes[i].SilentAfter = 500 * time.Millisecond
			}
		}
	})
	for _, listener := range []string{"tls", "web"} {
		c := r.dial(listener)
		s := ssh.accept()
		s.write("SSH-2.0-server\r\n")
		c.wantRead("SSH-2.0-server\r\n")
		if listener == "tls" {
			time.Sleep(3 * time.Second) // the handshake's time is over, and does not count in the tunnel
		}
		c.write("SSH-2.0-client\r\n")
		s.wantRead("SSH-2.0-client\r\n")
		c.Close()
		s.wantEnd(false)
		s.Close()
		r.record().want(t, "kind", "tunnel", "listener", listener, "backend", "ssh", "reason", "eof")
	}
	c := r.dial("tls")
	c.write("SSH")
	if got, _ := io.ReadAll(c.r); len(got) > 0 {
		t.Errorf("SSH was answered with %q", got)
	}
	r.refusal().want(t, "reason", "first_bytes", "listener", "tls")
	c = r.dial("web")
	c.write("G")
	time.Sleep(time.Second) // longer than silent_after
	c.write("ET /x HTTP/1.1\r\nHost: a\r\n\r\n")
	c.wantResponse(200, "/x ")
	r.record()
	vault.untouched()
	ssh.untouched()
	r.wantNoLog()
}

func TestClientCertificates(t *testing.T) {
	r, _, _, ca := newEdgeTLS(t, nil)
	with := func(certs ...tls.Certificate) func(*tls.Config) {
		return func(c *tls.Config) { c.Certificates = certs }
	}
	c := r.dialTLS("tls", "auth", with(ca.client("somebody")))
	c.write("GET /x HTTP/1.1\r\nHost: auth\r\n\r\n")
	c.wantResponse(200, "/x ")
	r.record().want(t, "status", 200, "tls_policy", "auth", "tls_client_subject", "CN=somebody")

	for _, change := range []func(*tls.Config){with(), with(writeCA(t).client("stranger"))} {
		c := r.dial("tls")
		cfg := &tls.Config{ServerName: "auth", InsecureSkipVerify: true}
		change(cfg)
		tc := tls.Client(c.Conn, cfg)
		tc.Handshake()
		io.WriteString(tc, "GET /x HTTP/1.1\r\nHost: auth\r\n\r\n")
		if got, err := io.ReadAll(tc); err == nil || len(got) > 0 {
			t.Errorf("without a certificate the client got %q, %v", got, err)
		}
		r.refusal().want(t, "reason", "handshake")
	}
	// Without SNI the policy is default, so the host requires another connection.
	c = r.dialTLS("tls", "", nil)
	c.write("GET /x HTTP/1.1\r\nHost: auth\r\n\r\n")
	c.wantResponse(421, "*")
	r.record().want(t, "status", 421)
	r.wantNoLog()
}

const upgrade = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"

func TestUpgrade(t *testing.T) {
	for _, text := range []string{plain, secure} {
		e := newEndpoint(t)
		r := newRig(t, text, nil, "@app", e.address)
		dial := func() *peer {
			if text == secure {
				return r.dialTLS("web", "a", nil)
			}
			return r.dial("web")
		}
		c := dial()
		c.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n") // the first exchange, so that the next one reuses the connection
		s := serveOnce(e.accept(), ok(""))
		c.wantResponse(200, "")
		r.record()
		c.write(upgrade + "early client")
		head := s.head()
		if !strings.Contains(head, "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n") || !strings.Contains(head, "\r\nSec-WebSocket-Key: x\r\n") {
			t.Errorf("the endpoint got %q", head)
		}
		s.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: upgrade\r\nSec-WebSocket-Accept: y\r\n\r\nearly endpoint")
		if head := c.head(); head != "HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: y\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n" {
			t.Errorf("the client got %q", head)
		}
		c.wantRead("early endpoint")
		s.wantRead("early client")
		c.write("ping")
		s.wantRead("ping")
		s.write("pong")
		c.wantRead("pong")
		if n := r.counter("weir_tunnels_open", "route", "web/*"); n != 1 {
			t.Errorf("%v tunnels are open", n)
		}
		if state := r.only().State(); state != conn.Tunnel {
			t.Errorf("the connection is %s", state)
		}
		c.closeWrite()
		s.wantEnd(false)
		s.Close()
		c.wantEnd(false)
		r.record().want(t, "kind", "upgrade", "status", 101, "bytes_in", 16, "bytes_out", 18, "target", "/ws", "endpoint", e.address, "reason", "eof")
		if n := r.counter("weir_http_requests_total", "code", "101"); n != 1 {
			t.Errorf("%v requests of 101", n)
		}
		if n := r.set.Backend("app").InFlight(); n != 0 {
			t.Errorf("%d are in flight", n)
		}
		r.wantNoLog()
	}
}

// If an endpoint refuses the upgrade, the request is like any other.
func TestUpgradeRefused(t *testing.T) {
	r, e := newPlain(t, nil)
	c := r.dial("web")
	c.write(upgrade + get) // the bytes after the upgrade are the next request
	s := serveOnce(e.accept(), ok("no"))
	c.wantResponse(200, "no")
	serveOnce(s, ok("next"))
	c.wantResponse(200, "next")
	r.record().want(t, "kind", "http", "status", 200)
	r.record()

	c.write(upgrade)
	serveOnce(s, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n")
	c.wantResponse(502, "*")
	s.wantEnd(false)
	r.record().want(t, "kind", "http", "status", 502, "reason", "bad_response_bad_upgrade")

	for _, request := range []string{strings.Replace(upgrade, "1.1", "1.0", 1), strings.Replace(upgrade, "Connection: Upgrade\r\n", "", 1),
		strings.Replace(upgrade, "websocket", "h2c", 1)} {
		c := r.dial("web")
		c.write(request)
		s := e.accept()
		if head := s.head(); strings.Contains(strings.ToLower(head), "upgrade:") {
			t.Errorf("the endpoint got %q", head)
		}
		s.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		c.wantResponse(502, "*")
	}
}

func TestUpgradeThatIsCut(t *testing.T) {
	r, e := newPlain(t, nil)
	c := r.dial("web")
	c.write(upgrade)
	s := serveOnce(e.accept(), "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	c.head()
	s.write("x")
	c.wantRead("x")
	r.only().Cut()
	c.wantEnd(true)
	s.wantEnd(true)
	r.record().want(t, "kind", "upgrade", "status", 101, "reason", "cut")
}

// An endpoint that has switched protocols gets a reset if the client is gone by then: a regular end would look
// like the client's.
func TestUpgradeForNobody(t *testing.T) {
	f := func(e *endpoint, text string) {
		t.Helper()
		r := newRig(t, text, nil, "@app", e.address)
		for {
			begun := time.Now()
			c := r.dial("web")
			c.write(upgrade)
			s := e.accept()
			s.head()
			c.reset()
			s.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			rec := r.record()
			if time.Since(begun) >= clientCheck { // weir may have checked the client before the response came
				continue
			}
			s.wantEnd(true)
			rec.want(t, "kind", "http", "reason", "client_gone")
			return
		}
	}
	f(newEndpoint(t), plain)
	f(newTLSEndpoint(t), strings.Replace(plain, "endpoints:", "protocol: https, tls: {insecure_skip_verify: true}, endpoints:", 1))
}

// A tunnel whose route is removed while weir connects to its endpoint is drained as well.
func TestTunnelOrphanedAtBirth(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, raw, nil, "@ssh", e.address)
	orphans := make(chan conn.Cuttable, 1)
	r.adjust(func(p *Proxy) { p.Orphaned = func(c conn.Cuttable) { orphans <- c } })
	r.load(plain, nil, "@app", e.address) // the listener's socket accepts connections as before
	c := r.dial("tcp")
	s := e.accept()
	c.write("x")
	s.wantRead("x")
	next(t, orphans, "orphan").Cut()
	c.wantEnd(true)
	r.record().want(t, "kind", "tunnel", "reason", "cut", "route", "git")
}

// Tunnels and exchanges use the same reasons for the same failures.
func TestWhyNone(t *testing.T) {
	f := func(err error, want string) {
		t.Helper()
		if got := whyNone(err); got != want {
			t.Errorf("%v is called %q, want %q", err, got, want)
		}
	}
	f(backend.ErrNoReady, "no_endpoint_ready")
	f(backend.ErrQueueFull, "queue_full")
	f(backend.ErrQueueTimeout, "queue_timeout")
}

// A connection that weir cuts while it waits for its tunnel leaves the queue.
func TestTunnelCutInQueue(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, raw, func(cfg *config.Config) {
		cfg.Backends[0].MaxConnections, cfg.Backends[0].Queue = 1, config.Queue{Size: 1, Timeout: time.Hour}
	}, "@ssh", e.address)
	held, err := r.set.Backend(r.set.Status()[0].Name).Acquire(netip.Addr{}, nil, time.Time{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	c := r.dial("tcp")
	r.waitInQueue()
	r.only().Cut()
	r.record().want(t, "kind", "tunnel", "reason", "cut", "endpoint", nil)
	if n := r.set.Status()[0].Waiting; n != 0 {
		t.Errorf("%d connections wait", n)
	}
	c.Close()
	e.untouched()
}
