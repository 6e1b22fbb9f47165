package config_test

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

// Settings of tunnels whose TLS weir terminates: valid ones, errors, and warnings.
func TestOpenedTunnels(t *testing.T) {
	const text = `
listeners: {s: {address: ':443', protocol: tls}, w: {address: ':80', protocol: http}, t: {address: ':22', protocol: tcp}}
certificates: [{self_signed: {hosts: [db.example]}}]
tls_policies: {p: {client_auth: {mode: require, ca: testdata/ca.pem}}}
routes:
  - {listeners: [w], backend: app} # serves nothing of db.example without TLS
  - {listeners: [s], hosts: [db.example], tls_policy: p, alpn: [mqtt], max_lifetime: 1h, tunnel_idle: 5m, backend: raw}
  - {listeners: [s], hosts: [through.example], tls: passthrough, backend: @raw}
  - {listeners: [t], backend: raw}
backends: {app: {endpoints: ['a:1']}, raw: {endpoints: ['a:1'], protocol: tcp, tls: {alpn: [x, mqtt]}}, plain: {endpoints: ['a:1'], protocol: tcp}}
`
	f := func(raw, want string) {
		t.Helper()
		c := mustParse(t, strings.Replace(text, "@raw", raw, 1))
		got := ""
		for _, w := range c.Warnings {
			if !strings.Contains(w.Message, "nothing uses this") {
				got += w.Error() + "\n"
			}
		}
		if got != want {
			t.Errorf("the warnings are\n%snot\n%s", got, want)
		}
		if b := c.Backends[1]; !b.UsesTLS() || strings.Join(b.TLS.ALPN, " ") != "x mqtt" || c.Backends[2].UsesTLS() {
			t.Errorf("%+v", c.Backends)
		}
		if r := c.Routes[1]; strings.Join(r.ALPN, " ") != "mqtt" || r.TLS != config.TLSTerminate {
			t.Errorf("%+v", r)
		}
		reloads(t, c)
	}
	f("plain", "")
	f("raw", "weir.yaml:8:75: routes[2].backend: the route passes the client's TLS through, and backend \"raw\" has tls, so its endpoints get TLS within TLS; take tls out of one of the two unless they expect that\n")
}
