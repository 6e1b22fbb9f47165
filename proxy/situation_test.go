package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

const situations = `
listeners:
  web: {address: '@0', protocol: http, timeouts: {handshake: 1s, request_head: 1s}}
  prior: {address: '@1', protocol: http, http2: {prior_knowledge: true}}
  tls: {address: '@2', protocol: tls, timeouts: {handshake: 1s}}
  through: {address: '@3', protocol: tls}
certificates: [{self_signed: {hosts: [a]}}]
routes:
  - {listeners: [web, prior, tls], hosts: [a], backend: b}
  - {listeners: [through], hosts: [p], tls: passthrough, backend: raw}
  - {listeners: [through], hosts: [a], backend: b}
backends: {b: {endpoints: ['@app']}, raw: {protocol: tcp, endpoints: ['@app']}}
`

// If a connection begins with another protocol than its listener expects, the log names
// that protocol.
func TestOtherProtocols(t *testing.T) {
	const headerV1 = "PROXY TCP4 192.0.2.1 192.0.2.2 1000 80\r\n"
	const v2 = headerV2 + "\x21\x11\x00\x0c\xc0\x00\x02\x01\xc0\x00\x02\x02\x03\xe8\x00\x50"
	const request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	const hello = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" // it contains no line end
	r := newRig(t, situations, nil, "@app", refusedAddress(t))
	for _, listener := range []string{"web", "prior"} {
		for sent, reason := range map[string]string{headerV1 + request: "proxy_header", v2 + request: "proxy_header", hello: "tls_on_http"} {
			before := r.counter("weir_http_refused_total", "listener", listener, "reason", reason)
			c := r.dial(listener)
			c.write(sent)
			want := refuseHeader
			if reason == "tls_on_http" {
				want = refuseTLS
			}
			if got := all(c); !strings.HasPrefix(got, "HTTP/1.1 400 ") || !strings.Contains(got, want.Detail) || setting.MatchString(got) {
				t.Errorf("%s: %q was answered with %q", listener, sent, got)
			}
			r.record().want(t, "status", 400, "reason", reason, "error", want.Error())
			if n := r.counter("weir_http_refused_total", "listener", listener, "reason", reason); n != before+1 {
				t.Errorf("%s: %q counts %v times", listener, reason, n-before)
			}
		}
	}
	for _, listener := range []string{"tls", "through"} {
		for sent, want := range map[string][2]string{
			headerV1:        {"proxy_header", "the connection begins with a PROXY header, and the listener reads none from this peer; set listeners.%s.proxy_protocol to a policy with a rule for the peer, or turn the PROXY header off at the load balancer"},
			v2:              {"proxy_header", "the connection begins with a PROXY header, and the listener reads none from this peer; set listeners.%s.proxy_protocol to a policy with a rule for the peer, or turn the PROXY header off at the load balancer"},
			request:         {"plain_http", "the client speaks plain HTTP, and the listener %s speaks TLS; use a listener with protocol: http, or an https:// address"},
			"SSH-2.0-x\r\n": {"bad_record", "the connection does not begin with a TLS handshake, and the listener %s speaks TLS"},
		} {
			c := r.dial(listener)
			c.write(sent)
			r.refusal().want(t, "reason", "not_tls", "tls_result", want[0], "error", fmt.Sprintf(want[1], listener))
		}
		for result, n := range map[string]float64{"proxy_header": 2, "plain_http": 1, "bad_record": 1} {
			if got := r.counter("weir_tls_handshakes_total", "listener", listener, "result", result); got != n {
				t.Errorf("%s: %v handshakes are %s", listener, got, result)
			}
		}
	}
}

// A client that does not trust the certificate reports it in TLS 1.2 and 1.3.
func TestClientRejectsCertificate(t *testing.T) {
	r := newRig(t, situations, nil, "@app", refusedAddress(t))
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		c := r.dial("tls")
		if err := tls.Client(c.Conn, &tls.Config{ServerName: "a", RootCAs: x509.NewCertPool(), MinVersion: version, MaxVersion: version}).Handshake(); err == nil {
			t.Fatal("the client trusts the certificate")
		}
		r.refusal().want(t, "reason", "handshake", "tls_result", "client_refused", "error", "the client ended the TLS handshake with the alert: bad certificate; "+
			"the client does not accept weir's certificate: check its names, issuer and expiry date (certificates), and which CAs the client trusts")
	}
	c := r.dial("tls") // in TLS 1.3, OpenSSL sends this alert without encryption
	tc := tls.Client(&plainAlert{Conn: c.Conn}, &tls.Config{ServerName: "a", RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13})
	tc.Handshake()
	r.refusal().want(t, "tls_result", "client_refused", "error", "the client ended the TLS handshake with the alert: unknown certificate authority; "+
		"the client does not accept weir's certificate: check its names, issuer and expiry date (certificates), and which CAs the client trusts")
}

// The error of a timeout names the setting.
func TestHandshakeTimeoutNamesItsSetting(t *testing.T) {
	r := newRig(t, situations, nil, "@app", refusedAddress(t))
	r.dial("tls")
	r.refusal().want(t, "tls_result", "timeout", "error",
		"the client did not send its first bytes, or complete the TLS handshake, within 1s (listeners.tls.timeouts.handshake)")
}

// plainAlert is a client connection that, after the ClientHello, sends an unencrypted alert instead of everything
// else.
type plainAlert struct {
	net.Conn
	writes int
}

func (p *plainAlert) Write(b []byte) (int, error) {
	p.writes++
	switch p.writes {
	case 1:
		return p.Conn.Write(b)
	case 2:
		p.Conn.Write([]byte{21, 3, 3, 0, 2, 2, 48})
	}
	return len(b), nil
}

func all(p *peer) string {
	b, _ := io.ReadAll(p.r)
	return string(b)
}

// The log has the path and the host of a refused request.
func TestRefusedPathIsLogged(t *testing.T) {
	r := newRig(t, situations, nil, "@app", refusedAddress(t))
	c := r.dial("web")
	c.write("GET /a/../b?c HTTP/1.1\r\nHost: a\r\n\r\n")
	all(c)
	r.record().want(t, "reason", "ambiguous_path", "target", "/a/../b?c", "host", "a", "method", "GET")
	c = r.dial("web")
	c.write("GET /a/../b HTTP/1.1\r\nHost: a b\r\n\r\n")
	all(c)
	r.record().want(t, "reason", "ambiguous_path", "target", "/a/../b", "host", nil)
	c = r.dial("web")
	c.write("GET /\xc3\xa4?c HTTP/1.1\r\nHost: a\r\n\r\n")
	all(c)
	r.record().want(t, "reason", "bad_target", "target", "/\u00e4?c", "host", "a", "method", "GET")
	c = r.dial("web")
	c.write("POST /c HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n")
	all(c)
	r.record().want(t, "reason", "two_lengths", "target", "/c", "host", "a", "method", "POST")
}

// If there is no endpoint because a name could not be looked up, the log line of the
// request says so.
func TestLookupErrorIsLogged(t *testing.T) {
	r := newRig(t, strings.Replace(situations, "'@app'", "'nothing.invalid:80'", 1), nil, "@app", refusedAddress(t))
	c := r.dial("web")
	c.write("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	if got := all(c); strings.Contains(got, "nothing.invalid") || !strings.Contains(got, "no endpoint is ready\n") {
		t.Errorf("the client was answered %q", got)
	}
	e := r.record()
	e.want(t, "reason", "no_endpoint_ready")
	if text := fmt.Sprint(e["error"]); !strings.HasPrefix(text, "no endpoint of the backend is ready: looking up nothing.invalid: ") {
		t.Errorf("the error is %q", text)
	}
}
