package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

const opened = `
listeners: {tls: {address: '@0', protocol: tls}, any: {address: '@1', protocol: tls}, named: {address: '@2', protocol: tls}}
certificates: [{self_signed: {hosts: [a, db]}}]
tls_policies:
  auth: {client_auth: {mode: require, ca: '@ca'}}
  old: {max_version: "1.2"}
routes:
  - {name: db, listeners: [tls, named], hosts: [db, "*.db"], backend: db}
  - {name: auth, listeners: [tls], hosts: [auth], tls_policy: auth, backend: told}
  - {name: pg, listeners: [tls], hosts: [pg], alpn: [postgresql, mqtt], tls_policy: old, backend: db}
  - {name: down, listeners: [tls], hosts: [down], backend: down}
  - {name: a, listeners: [tls], hosts: [a], backend: app}
  - {name: all, listeners: [any], tls_policy: auth, backend: told}
  - {name: b, listeners: [any], hosts: [b], backend: app}
backends:
  app: {endpoints: ['@app']}
  db: {protocol: tcp, endpoints: ['@db']}
  told: {protocol: tcp, endpoints: ['@told'], send_proxy: v2}
  down: {protocol: tcp, endpoints: ['@down'], tls: {}}
`

type openedRig struct {
	*rig
	db, told *endpoint
	ca       *authority
}

func newOpened(t *testing.T) openedRig {
	o := openedRig{db: newEndpoint(t), told: newEndpoint(t), ca: writeCA(t)}
	o.rig = newRig(t, opened, nil, "@app", newHandler(t, echo), "@db", o.db.address, "@told", o.told.address, "@down", refusedAddress(t), "@ca", o.ca.file)
	return o
}

func offering(protocols ...string) func(*tls.Config) {
	return func(c *tls.Config) { c.NextProtos = protocols }
}

// For a tcp backend, weir terminates TLS and forwards the decrypted bytes in both directions. It also
// forwards the end of each direction.
func TestOpenedTunnel(t *testing.T) {
	r := newOpened(t)
	for _, sni := range []string{"db", "DB", "x.db"} {
		c := r.dialTLS("tls", sni, nil)
		c.converse(r.db.accept(), func() {
			if n := r.counter("weir_tunnels_open", "route", "db"); n != 1 {
				t.Errorf("%v tunnels are open", n)
			}
		})
		r.record().want(t, "kind", "tunnel", "listener", "tls", "route", "db", "backend", "db", "endpoint", r.db.address, "reason", "eof", "error", nil,
			"sni", strings.ToLower(sni), "tls_policy", "default", "tls_version", "TLS 1.3", "bytes_in", 8, "bytes_out", 13, "retries", 0)
	}
	for direction, want := range map[string]float64{"in": 3 * 8, "out": 3 * 13} { // decrypted bytes
		if n := r.counter("weir_bytes_total", "route", "db", "direction", direction); n != want {
			t.Errorf("%v bytes %s", n, direction)
		}
	}
	if n := r.counter("weir_tls_handshakes_total", "listener", "tls", "policy", "default", "result", "ok"); n != 3 {
		t.Errorf("%v handshakes", n)
	}
	r.wantNoLog()
}

// Most clients close their connection instead of their sending half. That is a normal end, although the
// client's kernel then answers weir's close_notify with a reset.
func TestOpenedTunnelOfAClientThatCloses(t *testing.T) {
	r := newOpened(t)
	for _, notify := range []bool{true, false} {
		c := r.dialTLS("tls", "db", nil)
		s := r.db.accept()
		c.write("x")
		s.wantRead("x")
		s.write("y")
		c.wantRead("y") // and the session tickets before it: closing with unread bytes would reset the connection
		if notify {
			c.closeWrite()
		}
		c.Conn.(*tls.Conn).NetConn().Close()
		s.wantEnd(false)
		s.Close()
		r.record().want(t, "reason", "eof", "error", nil, "bytes_in", 1)
	}
}

// Without alpn of the route, weir negotiates no protocol for a tcp backend, so also not HTTP. It serves
// clients that offer no protocol.
func TestALPNOfOpenedTunnels(t *testing.T) {
	r := newOpened(t)
	f := func(sni, want string, offered ...string) {
		t.Helper()
		c := r.dialTLS("tls", sni, offering(offered...))
		c.write("x")
		s := r.db.accept()
		s.wantRead("x")
		if got := c.Conn.(*tls.Conn).ConnectionState().NegotiatedProtocol; got != want {
			t.Errorf("%s: a client that offers %q gets %q, not %q", sni, offered, got, want)
		}
		s.Close()
		c.Close()
		r.record().want(t, "kind", "tunnel")
	}
	for range 2 { // the second handshake uses the cached configuration of the first one
		f("db", "")
		f("db", "", "h2", "http/1.1")
		f("db", "", "http/1.1")
		f("db", "", "postgresql")
		f("pg", "")
		f("pg", "postgresql", "postgresql")
		f("pg", "postgresql", "mqtt", "postgresql")
		f("pg", "mqtt", "h2", "mqtt")
	}
	c := tls.Client(r.dial("tls").Conn, &tls.Config{ServerName: "pg", InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	if err := c.Handshake(); err == nil || !strings.Contains(err.Error(), "no application protocol") {
		t.Errorf("the handshake of a client that offers HTTP alone: %v", err)
	}
	r.refusal().want(t, "tls_result", "no_common_protocol", "tls_policy", "old")
	c = tls.Client(r.dial("tls").Conn, &tls.Config{ServerName: "a", InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	if err := c.Handshake(); err != nil || c.ConnectionState().NegotiatedProtocol != "h2" {
		t.Errorf("beside that, HTTP gets %q, %v", c.ConnectionState().NegotiatedProtocol, err)
	}
	r.db.untouched()
}

// Hosts with HTTP and hosts with tunnels on one listener do not affect each other.
func TestOpenedTunnelBesideHTTP(t *testing.T) {
	r := newOpened(t)
	for _, sni := range []string{"a", "", "unknown"} {
		c := r.dialTLS("tls", sni, nil)
		c.write("GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
		c.wantResponse(200, "/x ")
		for _, host := range []string{"db", "y.db:443", "auth"} {
			c.write("GET /x HTTP/1.1\r\nHost: %s\r\n\r\n", host)
			c.wantResponse(421, "*")
		}
	}
	c := r.dialTLS("tls", "db", nil)
	c.write("GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
	r.db.accept().wantRead("GET /x HTTP/1.1\r\nHost: a\r\n\r\n")

	// A listener that has only tunnels refuses the handshakes of clients for which no tunnel exists.
	for _, sni := range []string{"", "a", "unknown"} {
		c := tls.Client(r.dial("named").Conn, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
		if err := c.Handshake(); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("SNI %q: the handshake ended with %v, want the alert unrecognized_name", sni, err)
		}
		r.refusal().want(t, "listener", "named", "reason", "handshake", "tls_result", "unknown_name",
			"error", "no route of the listener has the host in the client's SNI, or the client sent no SNI; a route without hosts serves all other clients")
	}
	r.db.untouched()
}

// If a reload gives a host a tcp backend or passthrough, connections that were opened for the host end
// with their next response, which is 421. Connections for other hosts stay open.
func TestHostBecomesTunnel(t *testing.T) {
	const route = "hosts: [a], backend: app"
	pairs := func(r openedRig) []string {
		return []string{"@app", newHandler(t, echo), "@db", r.db.address, "@told", r.told.address, "@down", refusedAddress(t), "@ca", r.ca.file}
	}
	f := func(sni, becomes string) {
		t.Helper()
		r := newOpened(t)
		r.load(strings.Replace(opened, route, "backend: app", 1), nil, pairs(r)...)
		own, other, two := r.dialTLS("tls", sni, nil), r.dialTLS("tls", "x.unknown", nil), greet2(r.dialTLS("tls", sni, offering("h2")))
		for _, c := range []*peer{own, other} {
			c.write("GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
			if resp := c.wantResponse(200, "/x "); resp.Close {
				t.Error("the connection ends before the reload")
			}
		}
		two.want2(two.request(true, "/x"), 200, "/x ")
		r.load(strings.Replace(opened, route, becomes, 1), nil, pairs(r)...)
		for range 2 {
			other.write("GET /x HTTP/1.1\r\nHost: db\r\n\r\n")
			if resp := other.wantResponse(421, "*"); resp.Close {
				t.Error("the 421 for another host ends the connection")
			}
		}
		own.write("GET /x HTTP/1.1\r\nHost: a\r\n\r\n") // without a body, which would end the connection anyway
		if resp := own.wantResponse(421, "*"); !resp.Close {
			t.Error("the 421 for the connection's own host does not end it")
		}
		own.wantEnd(false)
		two.want2(two.request(true, "/x"), 421, "*")
		two.wantAway("NO_ERROR ")
		r.db.untouched()
	}
	f("a", "hosts: [a], backend: db")
	f("A", "hosts: [a], tls: passthrough, backend: db")
	f("a", "backend: db")
	f("", "backend: db")
}

// Tunnels require client certificates like requests do, whatever name a client sends. The PROXY header to the
// endpoint contains the verified certificate.
func TestClientCertificatesOfOpenedTunnels(t *testing.T) {
	r := newOpened(t)
	proved := r.ca.client("robot-7")
	f := func(listener, sni, route string) {
		t.Helper()
		c := r.dialTLS(listener, sni, presenting(proved))
		c.write("x")
		s := r.told.accept()
		h := announced(t, s)
		if h.TLVs.SSL == nil || !h.TLVs.SSL.Verified || h.TLVs.SSL.CommonName != "robot-7" || h.TLVs.Authority != sni || h.TLVs.ALPN != "" ||
			h.Source.String() != c.LocalAddr().String() {
			t.Errorf("the header says %+v", h)
		}
		s.wantRead("x")
		s.Close()
		c.Close()
		r.record().want(t, "kind", "tunnel", "route", route, "tls_policy", "auth", "tls_client_subject", "CN=robot-7")

		c = r.dialTLS(listener, sni, nil) // TLS 1.3: the refusal follows the client's part of the handshake
		if b, err := io.ReadAll(c.r); err == nil || !strings.Contains(err.Error(), "certificate required") {
			t.Errorf("%s: without a certificate there is %q, %v", sni, b, err)
		}
		r.refusal().want(t, "tls_result", "client_certificate")
	}
	f("tls", "auth", "auth")
	f("any", "auth", "all")
	f("any", "unknown", "all")
	f("any", "", "all") // a name does not bypass the certificate
	r.told.untouched()
	c := r.dialTLS("any", "b", nil)
	c.write("GET /x HTTP/1.1\r\nHost: b\r\n\r\n")
	c.wantResponse(200, "/x ")
	c.write("GET /x HTTP/1.1\r\nHost: c\r\n\r\n")
	c.wantResponse(421, "*")
}

// If there is no endpoint, weir resets the client instead of ending the stream normally.
func TestOpenedTunnelWithoutEndpoint(t *testing.T) {
	r := newOpened(t)
	c := r.dial("tls")
	ended := &endSeen{Conn: c.Conn}
	tc := tls.Client(ended, &tls.Config{ServerName: "down", InsecureSkipVerify: true})
	tc.Handshake()
	if _, err := tc.Read(make([]byte, 1)); err == nil || ended.end || err == io.EOF {
		t.Errorf("an end: %v", err)
	}
	r.record().want(t, "kind", "tunnel", "reason", "connect", "route", "down", "tls_policy", "default", "sni", "down")
}

// endSeen records whether the end of the TCP stream was read.
type endSeen struct {
	net.Conn
	end bool
}

func (c *endSeen) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.end = c.end || err == io.EOF
	return n, err
}

// server makes a certificate of a for a name, for an endpoint, and its files.
func (a *authority) server(name string) (c tls.Certificate, cert, key string) {
	a.Helper()
	leaf, signer := a.sign(&x509.Certificate{SerialNumber: big.NewInt(9), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, a.cert, a.key)
	der, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		a.Fatal(err)
	}
	dir := a.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: leaf.Raw}, key: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			a.Fatal(err)
		}
	}
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: signer}, cert, key
}

const towardsTLS = `
listeners: {tcp: {address: '@0', protocol: tcp}, tls: {address: '@1', protocol: tls}}
certificates: [{self_signed: {hosts: [db]}}]
routes:
  - {name: in, listeners: [tcp], backend: db}
  - {name: both, listeners: [tls], hosts: [db], backend: db}
backends:
  db: {protocol: tcp, endpoints: ['@db'], @more tls: {server_name: @name, ca: '@ca', cert: '@cert', key: '@key' @alpn}}
`

// buffered also reads the bytes that p has already read.
type buffered struct {
	net.Conn
	r io.Reader
}

func (b buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

// handshake makes the endpoint's side of a TLS handshake.
func (p *peer) handshake(cfg *tls.Config) (*peer, *endSeen, error) {
	seen := &endSeen{Conn: buffered{p.Conn, p.r}}
	s := tls.Server(seen, cfg)
	err := s.Handshake()
	return newPeer(p.t, s), seen, err
}

// Weir uses TLS to a tcp backend with tls, whether the client uses TLS or not.
func TestTunnelTowardsTLS(t *testing.T) {
	ca := writeCA(t)
	own, cert, key := ca.server("db.internal")
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	serving := &tls.Config{Certificates: []tls.Certificate{own}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{"postgresql"}}
	rigFor := func(e *endpoint, more, name, alpn string) *rig {
		return newRig(t, towardsTLS, nil, "@db", e.address, "@more", more, "@name", name, "@ca", ca.file, "@cert", cert, "@key", key, "@alpn", alpn)
	}
	dial := func(r *rig, listener string) *peer {
		if listener == "tls" {
			return r.dialTLS("tls", "db", nil)
		}
		return r.dial("tcp")
	}
	for _, listener := range []string{"tcp", "tls"} {
		for _, alpn := range []string{"", ", alpn: [x, postgresql]"} {
			e := newEndpoint(t)
			r := rigFor(e, "send_proxy: v2,", "db.internal", alpn)
			c := dial(r, listener)
			s := e.accept()
			if h := announced(t, s); h.Source.String() != c.LocalAddr().String() || (h.TLVs.SSL != nil) != (listener == "tls") { // comes before the handshake
				t.Errorf("the header says %+v", h)
			}
			s, seen, err := s.handshake(serving)
			if err != nil {
				t.Fatal(err)
			}
			state := s.Conn.(*tls.Conn).ConnectionState()
			if want := map[bool]string{true: "postgresql"}[alpn != ""]; state.ServerName != "db.internal" || state.NegotiatedProtocol != want || state.PeerCertificates[0].Subject.CommonName != "db.internal" {
				t.Errorf("SNI %q, ALPN %q, %v", state.ServerName, state.NegotiatedProtocol, state.PeerCertificates)
			}
			c.converse(s, func() {})
			if seen.end {
				t.Error("the end came without close_notify")
			}
			r.record().want(t, "kind", "tunnel", "reason", "eof", "bytes_in", 8, "bytes_out", 13, "error", nil)
		}
		// A server with another name, or with a certificate of another CA, gets no bytes.
		for _, f := range []func(cfg *tls.Config) (name string){
			func(*tls.Config) string { return "other.internal" },
			func(cfg *tls.Config) string {
				cfg.Certificates[0], _, _ = writeCA(t).server("db.internal")
				return "db.internal"
			},
		} {
			cfg := serving.Clone()
			cfg.Certificates = []tls.Certificate{own}
			name := f(cfg)
			e := newEndpoint(t)
			r := rigFor(e, "retries: {attempts: 1},", name, "")
			c := dial(r, listener)
			if _, _, err := e.accept().handshake(cfg); err == nil {
				t.Error("the handshake succeeded")
			}
			if _, err := c.r.ReadByte(); err == nil || err == io.EOF {
				t.Errorf("the client got %v", err)
			}
			if got := r.record(); !strings.Contains(got["error"].(string), "the TLS handshake with endpoint "+e.address+` of backend "db": `) ||
				!strings.Contains(got["error"].(string), "check tls.ca and tls.server_name of the backend") || got["reason"] != "connect" {
				t.Errorf("%v", got)
			}
		}
	}
}

// If a stream ends without close_notify, weir sends none to the other side either.
func TestTruncatedTunnels(t *testing.T) {
	ca := writeCA(t)
	own, cert, key := ca.server("db.internal")
	e := newEndpoint(t)
	r := newRig(t, towardsTLS, nil, "@db", e.address, "@more", "", "@name", "db.internal", "@ca", ca.file, "@cert", cert, "@key", key, "@alpn", "")
	f := func(listener string, truncate, truncated bool) {
		t.Helper()
		c := r.dial(listener)
		below := c.Conn
		if listener == "tls" {
			tc := tls.Client(below, &tls.Config{ServerName: "db", InsecureSkipVerify: true})
			go tc.Handshake()
			c = newPeer(t, tc)
		}
		s, seen, err := e.accept().handshake(&tls.Config{Certificates: []tls.Certificate{own}})
		if err != nil {
			t.Fatal(err)
		}
		c.write("x")
		s.wantRead("x")
		if truncate {
			below.(*net.TCPConn).CloseWrite()
		} else {
			c.closeWrite()
		}
		s.wantEnd(false)
		if seen.end != truncated {
			t.Errorf("%s: the end came without close_notify: %t, not %t", listener, seen.end, truncated)
		}
		s.closeWrite()
		s.Close()
		c.wantEnd(false)
		r.record().want(t, "reason", "eof")
	}
	f("tls", true, true)
	f("tls", false, false)
	f("tcp", true, false)

	// OpenSSL answers the truncation with an alert; that is not the endpoint's fault.
	c := r.dial("tls")
	tc := tls.Client(c.Conn, &tls.Config{ServerName: "db", InsecureSkipVerify: true})
	go tc.Handshake()
	below := e.accept()
	s, _, err := below.handshake(&tls.Config{Certificates: []tls.Certificate{own}})
	if err != nil {
		t.Fatal(err)
	}
	c.Conn.(*net.TCPConn).CloseWrite()
	s.wantEnd(false)
	below.reset()
	r.record().want(t, "reason", "client_reset", "error", "the connection ended without TLS close_notify, and the other side treated that as truncation")
}

// A tunnel over TLS that leads back to weir ends like every loop.
func TestLoopsOfOpenedTunnels(t *testing.T) {
	for _, listener := range []string{"tcp", "tls"} {
		text := strings.ReplaceAll(towardsTLS, "server_name: @name, ca: '@ca', cert: '@cert', key: '@key' @alpn", "insecure_skip_verify: true, server_name: db")
		once := func(c *config.Config) { c.Backends[0].Retries.Attempts = 1 }
		r := newRig(t, text, once, "@more", "", "@db", "127.0.0.1:1")
		r.load(text, once, "@more", "", "@db", r.addrs[listener])
		if listener == "tls" {
			r.dialTLS("tls", "db", nil).wantEnd(true)
		} else {
			wantReset(t, r.addrs["tcp"])
		}
		looped := 0
		for range 4 { // limits.loop is 3
			if r.record()["reason"] == "loop" {
				looped++
			}
		}
		if looped != 1 {
			t.Errorf("%s: %d connections ended as loops", listener, looped)
		}
		if n := r.proxy.localConns.known.Load(); n != 0 {
			t.Errorf("%s: %d ways are known afterwards", listener, n)
		}
	}
}
