package proxy

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/weirproxy/weir/tls/policy"
)

const sslv2Listeners = `
listeners:
  through: {address: '@0', protocol: tls}
  named: {address: '@1', protocol: tls}
  secure: {address: '@2', protocol: tls}
  raw: {address: '@3', protocol: tcp}
certificates: [{self_signed: {hosts: [a]}}]
routes:
  - {listeners: [through], tls: passthrough, backend: old}
  - {listeners: [through, secure], hosts: [a], backend: app}
  - {listeners: [named], hosts: [b], tls: passthrough, backend: old}
  - {listeners: [named], backend: app}
  - {listeners: [raw], backend: old}
backends: {app: {endpoints: ['@app']}, old: {protocol: tcp, endpoints: ['@old']}}
`

// sslv2Hellos are ClientHellos in the format of SSLv2: of OpenSSL 0.9.8 with TLS 1.0,
// and one of more than 255 bytes.
var sslv2Hellos = []string{
	"\x80\x3e\x01\x03\x01\x00\x15\x00\x00\x00\x20" + strings.Repeat("\x00\x00\x2f", 7) + strings.Repeat("\x25", 32),
	"\x81\x55\x01\x03\x01\x01\x2c\x00\x00\x00\x20" + strings.Repeat("\x00\x00\x2f", 100) + strings.Repeat("\x25", 32),
}

// A ClientHello in the format of SSLv2 is forwarded byte for byte by a passthrough route for
// clients without SNI. Other routes refuse it, and the error names the format.
func TestSSLv2Hello(t *testing.T) {
	old, app := newEndpoint(t), newEndpoint(t)
	r := newRig(t, sslv2Listeners, nil, "@app", app.address, "@old", old.address)
	r.adjust(func(p *Proxy) { p.Clients = policy.NewClients() })
	for _, hello := range sslv2Hellos {
		for _, listener := range []string{"through", "raw"} {
			c := r.dial(listener)
			c.write("%s", hello[:20])
			c.write("%s", hello[20:])
			s := old.accept()
			s.wantRead(hello)
			s.write("answer")
			c.wantRead("answer")
			c.write("more")
			s.wantRead("more")
			c.Close()
			s.wantEnd(false)
			s.Close()
			r.record().want(t, "kind", "tunnel", "listener", listener, "reason", "eof")
		}
		for _, listener := range []string{"named", "secure"} {
			c := r.dial(listener)
			c.write("%s", hello)
			rest, _ := io.ReadAll(c.r)
			if len(rest) > 0 && string(rest) != "\x15\x03\x01\x00\x02\x02\x46" { // the alert protocol_version
				t.Errorf("%s answers %q", listener, rest)
			}
			r.refusal().want(t, "listener", listener, "reason", "handshake", "tls_result", "sslv2_hello", "error",
				fmt.Sprintf("the client sent an SSLv2-format ClientHello, as OpenSSL 0.9.8 and Java 6 do, which weir cannot terminate; serve it by a route of the listener %s with tls: passthrough and no hosts, to a server that accepts such clients", listener))
		}
	}
	for _, listener := range []string{"through", "named"} {
		for _, hello := range []string{
			"\x80\x29\x01\x03\x01\x00\x00\x00\x00\x00\x20" + strings.Repeat("\x25", 32),                  // no suite
			"\x80\x0c\x01\x03\x01\x00\x03\x00\x00\x00\x00" + "\x00\x00\x2f",                              // no challenge
			"\x80\x28\x01\x03\x01\x00\x03\x00\x00\x00\x20" + "\x00\x00\x2f" + strings.Repeat("\x25", 32), // the total length is too short
		} {
			c := r.dial(listener)
			c.write("%s", hello)
			c.wantEnd(false)
			c.Close()
			r.refusal().want(t, "listener", listener, "reason", "bad_client_hello", "tls_result", "bad_record", "error",
				"the client sent a malformed SSLv2-format ClientHello: its lengths are invalid, or there is no cipher suite")
		}
	}
	app.untouched()
	for _, listener := range []string{"named", "secure"} {
		if n := r.counter("weir_tls_handshakes_total", "listener", listener, "result", "sslv2_hello"); n != 2 {
			t.Errorf("%s: %v handshakes are sslv2_hello", listener, n)
		}
	}
	var seen uint64
	for _, c := range r.proxy.Clients.Seen().Clients {
		if c.Result == policy.ResultSSLv2Hello && c.Network == netip.MustParsePrefix("127.0.0.0/24").String() {
			seen += c.Count
		}
	}
	if seen != 4 {
		t.Errorf("%d clients with such a hello are remembered", seen)
	}
}
