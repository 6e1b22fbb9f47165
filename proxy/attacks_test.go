package proxy

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/tls/policy"
)

// These tests attack a host whose clients must prove who they are. An open host is beside it on the
// same address. The attacks use sessions, names that differ between the layers, ClientHellos in
// pieces and encrypted ClientHellos.

const fortress = `
listeners: {tls: {address: '@0', protocol: tls}}
certificates: [{self_signed: {hosts: [open.example.org, cover.example.org, "*.vault.example.org"]}}]
tls_policies:
  vault: {client_auth: {mode: require, ca: @ca}}
  other: {client_auth: {mode: require, ca: @other}}
  asked: {client_auth: {mode: request, ca: @ca}}
  near: {max_version: "1.3", from: [127.0.0.1/32]}
routes:
  - {listeners: [tls], hosts: [open.example.org, cover.example.org], backend: app}
  - {listeners: [tls], hosts: [vault.example.org, "*.vault.example.org"], tls_policy: vault, backend: app}
  - {listeners: [tls], hosts: [other.example.org], tls_policy: other, backend: app}
  - {listeners: [tls], hosts: [asked.example.org], tls_policy: asked, backend: app}
  - {listeners: [tls], hosts: [near.example.org], tls_policy: near, backend: app}
  - {listeners: [tls], hosts: [through.example.org], tls: passthrough, backend: raw}
backends:
  app: {endpoints: ['@app']}
  raw: {protocol: tcp, endpoints: ['@raw']}
`

// besieged is the attacked server. good is a client certificate that the server's CA signed.
type besieged struct {
	*rig
	raw         *endpoint
	good, other tls.Certificate
}

func newBesieged(t *testing.T, tune func(*config.Config)) *besieged {
	ca, other, raw := writeCA(t), writeCA(t), newEndpoint(t)
	r := newRig(t, fortress, tune, "@app", newHandler(t, echo), "@raw", raw.address, "@ca", ca.file, "@other", other.file)
	return &besieged{rig: r, raw: raw, good: ca.client("good"), other: other.client("other")}
}

// oneSession offers its latest session to every host, as an attacker's client would.
type oneSession struct{ state *tls.ClientSessionState }

func (s *oneSession) Get(string) (*tls.ClientSessionState, bool)  { return s.state, s.state != nil }
func (s *oneSession) Put(_ string, state *tls.ClientSessionState) { s.state = state }

// visit connects from an address, requests host and returns the status, and whether the session
// was resumed. err is the error of the handshake.
func (b *besieged) visit(c *tls.Config, from, host string) (status int, resumed bool, err error) {
	b.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	nc, err := dialer.Dial("tcp", b.addrs["tls"])
	if err != nil {
		b.Fatal(err)
	}
	p := newPeer(b.TB, nc)
	defer p.Close()
	return visitOver(p, p.Conn, c, host)
}

func visitOver(p *peer, out net.Conn, c *tls.Config, host string) (status int, resumed bool, err error) {
	tc := tls.Client(out, c)
	if err := tc.Handshake(); err != nil {
		return 0, false, err
	}
	inside := newPeer(p.t, tc)
	if _, err := fmt.Fprintf(tc, "GET /x HTTP/1.1\r\nHost: %s\r\n\r\n", host); err != nil {
		return 0, tc.ConnectionState().DidResume, err
	}
	// TLS 1.3 reports a refused certificate, and sends tickets, together with the first bytes.
	if _, err := inside.r.Peek(1); err != nil {
		return 0, tc.ConnectionState().DidResume, err
	}
	resp, _ := inside.response("GET")
	return resp.StatusCode, tc.ConnectionState().DidResume, nil
}

// A resumed session gives no access that a full handshake would not give.
func TestSessionAttacks(t *testing.T) {
	const open, vault, other, asked, near = "open.example.org", "vault.example.org", "other.example.org", "asked.example.org", "near.example.org"
	const here, there = "127.0.0.1", "127.0.0.2"
	b := newBesieged(t, nil)
	type visit struct {
		sni, from, host string
		cert            *tls.Certificate
		want            int // 0: the handshake fails
		resumed         bool
	}
	f := func(what string, visits ...visit) {
		t.Helper()
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			cache := &oneSession{}
			for i, v := range visits {
				if v.from != here && runtime.GOOS != "linux" {
					return // on other systems only 127.0.0.1 is an address of this machine
				}
				c := &tls.Config{ServerName: v.sni, InsecureSkipVerify: true, MinVersion: version, MaxVersion: version, ClientSessionCache: cache}
				if v.cert != nil {
					c.Certificates = []tls.Certificate{*v.cert}
				}
				status, resumed, err := b.visit(c, v.from, v.host)
				if status != v.want || (err == nil) != (v.want != 0) || v.want != 0 && resumed != v.resumed {
					t.Errorf("%s, %s: visit %d, SNI %q, Host %q: status %d, resumed %v, error %v; want %d, %v",
						what, tls.VersionName(version), i+1, v.sni, v.host, status, resumed, err, v.want, v.resumed)
				}
			}
		}
	}
	f("what sessions are for", visit{vault, here, vault, &b.good, 200, false}, visit{vault, here, vault, nil, 200, true})
	f("within a policy", visit{vault, here, vault, &b.good, 200, false}, visit{"x." + vault, here, "y." + vault, nil, 200, true})
	f("no certificate", visit{vault, here, vault, nil, 0, false})
	f("an open host's session", visit{open, here, open, nil, 200, false}, visit{vault, here, vault, nil, 0, false})
	f("a session without a name", visit{"", here, open, nil, 200, false}, visit{vault, here, vault, nil, 0, false})
	f("to the open host, and its Host from there", visit{vault, here, vault, &b.good, 200, false}, visit{open, here, vault, nil, 421, false})
	f("to no name, and its Host from there", visit{vault, here, vault, &b.good, 200, false}, visit{"", here, vault, nil, 421, false})
	f("another CA's session", visit{other, here, other, &b.other, 200, false}, visit{vault, here, vault, nil, 0, false})
	f("another CA's session and its certificate", visit{other, here, other, &b.other, 200, false}, visit{vault, here, vault, &b.other, 0, false})
	f("where one is asked for only", visit{asked, here, asked, nil, 200, false}, visit{vault, here, vault, nil, 0, false})
	f("where one is asked for, with it", visit{asked, here, asked, &b.good, 200, false}, visit{vault, here, vault, nil, 0, false})
	f("the same, and its Host", visit{asked, here, asked, &b.good, 200, false}, visit{asked, here, vault, nil, 421, true})
	f("a network's policy from elsewhere", visit{near, here, near, nil, 200, false}, visit{near, there, near, nil, 200, false})
	f("its Host from elsewhere", visit{near, here, near, nil, 200, false}, visit{open, there, near, nil, 200, false})
	f("back again", visit{near, there, near, nil, 200, false}, visit{near, here, near, nil, 200, false}, visit{near, here, open, nil, 421, true})
}

// All spellings of a name, in either layer, count as the same name.
func TestNameAttacks(t *testing.T) {
	b := newBesieged(t, nil)
	f := func(sni, target, host string, want int) {
		t.Helper()
		c := b.dialTLS("tls", sni, nil)
		defer c.Close()
		c.write("GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, host)
		if resp, _ := c.response("GET"); resp.StatusCode != want {
			t.Errorf("SNI %q, target %s, Host %s: %d, want %d", sni, target, host, resp.StatusCode, want)
		}
	}
	for _, sni := range []string{"open.example.org", "OPEN.example.org", "", "unknown.example.org", "example.org", "a.b.vault.example.org", "near.example.org"} {
		for _, host := range []string{"vault.example.org", "VAULT.Example.ORG", "vault.example.org.", "vault.example.org:443", "Vault.example.org.:8443",
			"vault.example.org:", "x.vault.example.org", "X.VAULT.EXAMPLE.ORG.:1"} {
			f(sni, "/", host, 421)
		}
		f(sni, "https://vault.example.org/", "vault.example.org", 421)
		f(sni, "/", "vault.example.org..", 404)
		f(sni, "/", "a.b.vault.example.org", 404)
		f(sni, "/", "through.example.org.:443", 421)
	}
	f("open.example.org", "https://vault.example.org/", "open.example.org", 400) // the target and the Host header name different hosts

	for _, sni := range []string{"vault.example.org", "VAULT.example.org", "x.vault.example.org", "X.Vault.Example.Org"} {
		if status, _, err := b.visit(&tls.Config{ServerName: sni, InsecureSkipVerify: true}, "127.0.0.1", "open.example.org"); err == nil {
			t.Errorf("SNI %q without a certificate: %d", sni, status)
		}
	}
	// crypto/tls sends no name that ends with a dot, because such a name is invalid (RFC 6066, section 3).
	p := b.dial("tls")
	defer p.Close()
	out := respelling{p.Conn, "vault.example.orgx", "vault.example.org."}
	if status, _, err := visitOver(p, out, &tls.Config{ServerName: out.from, InsecureSkipVerify: true}, "vault.example.org"); err == nil {
		t.Errorf("SNI %q: %d", out.to, status)
	}
}

// respelling replaces a name in the bytes that a client writes.
type respelling struct {
	net.Conn
	from, to string
}

func (c respelling) Write(p []byte) (int, error) {
	if _, err := c.Conn.Write(bytes.Replace(p, []byte(c.from), []byte(c.to), 1)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// shredding writes the handshake in records of one byte, each in a segment of its own, until the
// connection is encrypted.
type shredding struct {
	net.Conn
	encrypted bool
}

func (c *shredding) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := 5 + int(binary.BigEndian.Uint16(rest[3:]))
		record := rest[:n]
		rest = rest[n:]
		if c.encrypted = c.encrypted || record[0] != tlsRecord; c.encrypted {
			if _, err := c.Conn.Write(record); err != nil {
				return 0, err
			}
			continue
		}
		for _, b := range record[5:] {
			if _, err := c.Conn.Write([]byte{tlsRecord, record[1], record[2], 0, 1, b}); err != nil {
				return 0, err
			}
		}
	}
	return len(p), nil
}

// A ClientHello in pieces has the same name as in one piece: weir does not give up and use the
// default policy (CVE-2026-32305), though this listener looks for names with passthrough.
func TestHelloInPieces(t *testing.T) {
	b := newBesieged(t, nil)
	f := func(sni string, cert *tls.Certificate, host string, want int) {
		t.Helper()
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			p := b.dial("tls")
			c := &tls.Config{ServerName: sni, InsecureSkipVerify: true, MaxVersion: version}
			if cert != nil {
				c.Certificates = []tls.Certificate{*cert}
			}
			status, _, err := visitOver(p, &shredding{Conn: p.Conn}, c, host)
			if status != want || (err == nil) != (want != 0) {
				t.Errorf("SNI %s, %s: %d, error %v, want %d", sni, tls.VersionName(version), status, err, want)
			}
			p.Close()
		}
	}
	f("open.example.org", nil, "open.example.org", 200)
	f("vault.example.org", nil, "vault.example.org", 0)
	f("vault.example.org", nil, "open.example.org", 0)
	f("vault.example.org", &b.good, "vault.example.org", 200)
	b.raw.untouched()
}

// With ECH the inner name decides everything, and the outer name nothing.
func TestECH(t *testing.T) {
	key, list, err := policy.NewECH("cover.example.org")
	if err != nil {
		t.Fatal(err)
	}
	b := newBesieged(t, func(c *config.Config) { c.ECHKeys = []config.ECHKey{{File: "ech.pem", PEM: key}} })
	cache := &oneSession{}
	visit := func(sni, host string, cert *tls.Certificate) (int, error) {
		t.Helper()
		c := &tls.Config{ServerName: sni, EncryptedClientHelloConfigList: list, InsecureSkipVerify: true, ClientSessionCache: cache}
		if cert != nil {
			c.Certificates = []tls.Certificate{*cert}
		}
		status, _, err := b.visit(c, "127.0.0.1", host)
		return status, err
	}
	f := func(sni, host string, cert *tls.Certificate, want int) {
		t.Helper()
		status, err := visit(sni, host, cert)
		if status != want || (err == nil) != (want != 0) {
			t.Errorf("SNI %s, Host %s: %d, error %v; want %d", sni, host, status, err, want)
		}
		if want != 0 {
			b.record().want(t, "sni", sni, "tls_ech", true, "status", want)
		} else {
			b.refusal()
		}
	}
	f("open.example.org", "open.example.org", nil, 200)
	f("open.example.org", "cover.example.org", nil, 200) // of the same policy
	f("open.example.org", "vault.example.org", nil, 421)
	f("vault.example.org", "vault.example.org", nil, 0) // even with the session of the open host
	f("vault.example.org", "cover.example.org", nil, 0)
	f("vault.example.org", "vault.example.org", &b.good, 200)
	f("vault.example.org", "cover.example.org", &b.good, 421) // the connection is not for the outer name
	f("open.example.org", "vault.example.org", nil, 421)

	// Weir cannot pass a host through if it has decrypted the ClientHello. It refuses the client, and
	// the endpoint receives nothing.
	if status, err := visit("through.example.org", "through.example.org", nil); err == nil {
		t.Errorf("a host that is passed through answered %d", status)
	}
	b.refusal().want(t, "sni", "through.example.org", "error", errECHPassthrough)
	b.raw.untouched()
	b.rejected(t, list, cache)
}

// rejected visits with an ECH key that weir does not have. The policy is that of the public name,
// and weir reveals nothing about an inner host.
func (b *besieged) rejected(t *testing.T, list []byte, cache *oneSession) {
	_, stranger, err := policy.NewECH("cover.example.org")
	if err != nil {
		t.Fatal(err)
	}
	cache.state = nil
	trusted := false
	_, _, err = b.visit(&tls.Config{ServerName: "vault.example.org", EncryptedClientHelloConfigList: stranger, ClientSessionCache: cache,
		EncryptedClientHelloRejectionVerify: func(tls.ConnectionState) error {
			trusted = true // another test, in tls/policy, checks whose certificate it is
			return nil
		}}, "127.0.0.1", "vault.example.org")
	var told *tls.ECHRejectionError
	if !errors.As(err, &told) || !bytes.Equal(told.RetryConfigList, list) || !trusted || cache.state != nil {
		t.Errorf("error %v, told to try %x, want %x; a session: %v", err, told, list, cache.state != nil)
	}
}

// CheckECH refuses a public name with passthrough beside hosts without passthrough.
func TestCheckECH(t *testing.T) {
	key, _, err := policy.NewECH("cover.example.org")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := policy.ParseECH([]config.ECHKey{{File: "ech.pem", PEM: key}})
	if err != nil {
		t.Fatal(err)
	}
	f := func(routes string, want bool) {
		t.Helper()
		cfg, err := file.Parse("test", []byte(`
listeners: {tls: {address: "127.0.0.1:1", protocol: tls}, web: {address: "127.0.0.1:2", protocol: http}, tls2: {address: "127.0.0.1:3", protocol: tls}}
certificates: [{self_signed: {hosts: [a]}}]
backends: {app: {endpoints: ["127.0.0.1:9"]}, raw: {protocol: tcp, endpoints: ["127.0.0.1:9"]}}
routes:
  - {listeners: [web], backend: app}
  - {listeners: [tls2], hosts: [a], backend: app}
`+routes), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckECH(cfg, keys); (err == nil) != want || err != nil && !strings.Contains(err.Error(), "listener tls passes TLS for cover.example.org through") {
			t.Errorf("%s\n%v", routes, err)
		}
		if err := CheckECH(cfg, nil); err != nil {
			t.Errorf("without a key: %v", err)
		}
	}
	through := func(host string) string {
		return "  - {listeners: [tls], tls: passthrough, backend: raw" + host + "}\n"
	}
	const open = "  - {listeners: [tls], hosts: [open.example.org], backend: app}\n"
	f(open, true)
	f(open+through(", hosts: [cover.example.org]"), false)
	f(open+through(`, hosts: ["*.example.org"]`), false)
	f(open+through(""), false)
	f(open+through("")+"  - {listeners: [tls], hosts: [cover.example.org], backend: app}\n", true)
	f(open+through(`, hosts: ["*.cover.example.org"]`), true)
	f(through(""), true) // every host has passthrough: weir terminates nothing
}
