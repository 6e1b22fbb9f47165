package proxy

import (
	"crypto/tls"
	"net"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/header"
)

// announced reads the PROXY header at the start of a connection to an endpoint.
func announced(t *testing.T, p *peer) header.Header {
	t.Helper()
	var b []byte
	for {
		n, err := header.Scan(b)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			h, err := header.Parse(b[:n])
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		c, err := p.r.ReadByte()
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, c)
	}
}

// The PROXY header to an endpoint describes the client's TLS as section 2.2.6 of the PROXY protocol
// requires, for full handshakes and resumed sessions.
func TestHeadersTellOfTLS(t *testing.T) {
	f := func(forward string, subject, certificate bool) {
		t.Helper()
		ca, app := writeCA(t), newEndpoint(t)
		r := newRig(t, strings.Replace(certified, "endpoints:", "send_proxy: v2, endpoints:", 1), nil, "@ca", ca.file, "@app", app.address, "@trust", "", "@forward", forward)
		client := ca.client("robot-7")
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			cache := tls.NewLRUClientSessionCache(1)
			for _, resumed := range []bool{false, true} {
				c := r.dialTLS("tls", robots, func(c *tls.Config) {
					c.Certificates, c.ClientSessionCache, c.MaxVersion, c.NextProtos = []tls.Certificate{client}, cache, version, []string{"http/1.1"}
					c.CurvePreferences = []tls.CurveID{tls.CurveP256}
				})
				c.write("GET / HTTP/1.1\r\nHost: %s\r\n\r\n", robots)
				s := app.accept()
				h := announced(t, s)
				serveOnce(s, ok(""))
				c.wantResponse(200, "")
				state := c.Conn.(*tls.Conn).ConnectionState()
				want := &header.SSL{TLS: true, ClientCert: !resumed, Verified: true, Version: "TLSv1.3", Cipher: tls.CipherSuiteName(state.CipherSuite), Group: groups[state.CurveID]}
				if version == tls.VersionTLS12 {
					want.Version, want.Cipher = "TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"
				}
				if want.Group != "secp256r1" && !resumed { // resumed sessions of TLS 1.2 have no group
					t.Errorf("the group is %q", want.Group)
				}
				if subject {
					want.CommonName = "robot-7"
				}
				if certificate {
					want.Certificate = client.Certificate[0]
				}
				if !reflect.DeepEqual(h.TLVs.SSL, want) || h.TLVs.Authority != robots || h.TLVs.ALPN != "http/1.1" || state.DidResume != resumed {
					t.Errorf("resumed: %t (%t), the header says %+v of TLS, not %+v", resumed, state.DidResume, h.TLVs.SSL, want)
				}
			}
		}
		c := r.dialTLS("tls", robots, nil)
		c.write("GET / HTTP/1.1\r\nHost: %s\r\n\r\n", robots)
		s := app.accept()
		if h := announced(t, s); !h.TLVs.SSL.TLS || h.TLVs.SSL.ClientCert || h.TLVs.SSL.Verified || h.TLVs.SSL.CommonName != "" || h.TLVs.SSL.Certificate != nil {
			t.Errorf("without a certificate the header says %+v", h.TLVs.SSL)
		}
		serveOnce(s, ok(""))
		c.wantResponse(200, "")
	}
	f("", true, true)
	f(", forward: []", false, false)
	f(", forward: [subject, san]", true, false)
}

// introduced opens a client connection to the listener and sends a PROXY header.
func (r *rig) introduced(listener string, h header.Header) *peer {
	r.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		r.Fatal(err)
	}
	nc, err := ln.Accept()
	if err != nil {
		r.Fatal(err)
	}
	c := conn.New(nc)
	c.Header = &h
	r.serve(c, listener)
	return newPeer(r.TB, client)
}

// weir forwards the TLVs about TLS of the client's own PROXY header, but only if weir does not terminate TLS
// itself.
func TestHeadersPassOnWhatTheySaid(t *testing.T) {
	ca, app := writeCA(t), newEndpoint(t)
	r := newRig(t, strings.Replace(certified, "endpoints:", "send_proxy: v2, endpoints:", 1), nil, "@ca", ca.file, "@app", app.address, "@trust", "", "@forward", "")
	said := &header.SSL{TLS: true, ClientCert: true, Verified: true, Version: "TLSv1.3", CommonName: "said", Group: "x25519", SigScheme: "ed25519", Certificate: []byte("DER")}
	for _, listener := range []string{"web", "tls"} {
		c := r.introduced(listener, header.Header{Version: 2, TLVs: header.TLVs{SSL: said}})
		if listener == "tls" {
			tc := tls.Client(c.Conn, &tls.Config{ServerName: open, InsecureSkipVerify: true})
			if err := tc.Handshake(); err != nil {
				t.Fatal(err)
			}
			c = newPeer(t, tc)
		}
		c.write("GET / HTTP/1.1\r\nHost: %s\r\n\r\n", open)
		s := app.accept()
		h := announced(t, s)
		serveOnce(s, ok(""))
		c.wantResponse(200, "")
		switch {
		case listener == "web" && !reflect.DeepEqual(h.TLVs.SSL, said):
			t.Errorf("the header says %+v", h.TLVs.SSL)
		case listener == "tls" && (h.TLVs.SSL.ClientCert || h.TLVs.SSL.Verified || h.TLVs.SSL.CommonName != "" || h.TLVs.SSL.Certificate != nil):
			t.Errorf("over TLS of weir's own the header says %+v", h.TLVs.SSL)
		}
	}
}

// Every suite has a name. The list of OpenSSL agrees, if it is installed.
func TestOpenSSLNames(t *testing.T) {
	known := make(map[string]string)
	if out, err := exec.Command("openssl", "ciphers", "-stdname", "ALL:COMPLEMENTOFALL:@SECLEVEL=0").Output(); err == nil {
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) > 2 {
				known[f[0]] = f[2]
			}
		}
	}
	for _, s := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		name := opensslSuites[s.ID]
		if s.SupportedVersions[0] == tls.VersionTLS13 {
			name = s.Name
		}
		if name == "" {
			t.Errorf("%s has no name", s.Name)
		}
		if want := known[s.Name]; want != "" && want != name {
			t.Errorf("OpenSSL calls %s %s, not %s", s.Name, want, name)
		}
	}
}
