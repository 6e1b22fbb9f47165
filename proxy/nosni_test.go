package proxy

import (
	"crypto/tls"
	"fmt"
	"io"
	"strings"
	"testing"
)

// withoutSNI is a configuration with a host for each kind of policy.
const withoutSNI = `
listeners: {tls: {address: '@0', protocol: tls@listener}}
certificates: [{self_signed: {hosts: [a, old, auth]}}]
tls_policies:
  default: {min_version: "1.2"@default}
  old: {min_version: "1.0", max_version: "1.2"}
  near: {min_version: "1.0", max_version: "1.2", from: [127.0.0.0/8]}
  far: {min_version: "1.0", max_version: "1.2", from: [203.0.113.0/24]}
  auth: {client_auth: {mode: require, ca: '@ca'}}
routes:
  - {listeners: [tls], hosts: [a], backend: app}
  - {listeners: [tls], hosts: [old], tls_policy: old, backend: app}
  - {listeners: [tls], hosts: [auth], tls_policy: auth, backend: app}
@any
backends: {app: {endpoints: ['@app']}, db: {protocol: tcp, endpoints: ['@db']}}
`

// namelessRig serves withoutSNI.
type namelessRig struct {
	*rig
	ca  *authority
	db  *endpoint
	app string
}

func newNameless(t *testing.T, listener, byDefault, any string) *namelessRig {
	n := &namelessRig{ca: writeCA(t), db: newEndpoint(t), app: newHandler(t, echo)}
	n.rig = newRig(t, withoutSNI, nil, n.with(listener, byDefault, any)...)
	return n
}

// with returns the pairs for a configuration in which the listener, the policy default and the route
// without hosts have these keys. An empty key for the route removes the route.
func (n *namelessRig) with(listener, byDefault, any string) []string {
	if listener != "" {
		listener = ", " + listener
	}
	if byDefault != "" {
		byDefault = ", " + strings.ReplaceAll(byDefault, "@ca", n.ca.file)
	}
	if any != "" {
		any = "  - {listeners: [tls], " + any + "}"
	}
	return []string{"@listener", listener, "@default", byDefault, "@any", any, "@ca", n.ca.file, "@app", n.app, "@db", n.db.address}
}

// statuses requests hosts over one connection. It returns the statuses of the responses, and the
// policy of the connection in the log.
func (n *namelessRig) statuses(c *peer, hosts ...string) (policy, statuses string) {
	n.Helper()
	var all []string
	for _, host := range hosts {
		c.write("GET /x HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		resp, _ := c.response("GET")
		all = append(all, fmt.Sprint(host, " ", resp.StatusCode))
		policy, _ = n.record()["tls_policy"].(string)
	}
	return policy, strings.Join(all, ", ")
}

// wantRefused checks that weir does not serve a client without a certificate. The handshake fails at
// once or, in TLS 1.3, after the client's part.
func (n *namelessRig) wantRefused(sni string) {
	n.Helper()
	c := tls.Client(n.dial("tls").Conn, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
	if err := c.Handshake(); err == nil {
		io.WriteString(c, "GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
		if b, err := io.ReadAll(c); err == nil || !strings.Contains(err.Error(), "certificate required") {
			n.Errorf("SNI %q: without a certificate there is %q, %v", sni, b, err)
		}
	}
	n.refusal().want(n, "tls_result", "client_certificate")
}

const askDefault = "client_auth: {mode: require, ca: '@ca'}"

// Clients without SNI have the policy of the route without hosts, or that of the listener. A client
// without SNI cannot reach a host that has another policy.
func TestPolicyWithoutSNI(t *testing.T) {
	for _, f := range []struct {
		name, listener, byDefault, any string
		policy, statuses               string
	}{
		{"nothing is said", "", "", "",
			"default", "a 200, old 421, auth 421, x 404"},
		{"the route without hosts names none", "", "", "backend: app",
			"default", "a 200, old 421, auth 421, x 200"},
		{"the route without hosts names one", "", "", "tls_policy: old, backend: app",
			"old", "a 421, old 200, auth 421, x 200"},
		{"the listener names one", "tls_policy: old", "", "",
			"old", "a 421, old 200, auth 421, x 404"},
		{"the listener names one for the route without hosts", "tls_policy: old", "", "backend: app",
			"old", "a 421, old 200, auth 421, x 200"},
		{"the listener names default", "tls_policy: default", "", "backend: app",
			"default", "a 200, old 421, auth 421, x 200"},
		{"both name one", "tls_policy: old", "", "tls_policy: near, backend: app",
			"near", "a 421, old 421, auth 421, x 200"},
		{"of a network that has the route's", "", "", "tls_policy: near, backend: app",
			"near", "a 421, old 421, auth 421, x 200"},
		{"of a network that has not", "", "", "tls_policy: far, backend: app",
			"default", "a 200, old 421, auth 421, x 200"},
		{"of a network that has not, and the listener names one", "tls_policy: old", "", "tls_policy: far, backend: app",
			"default", "a 200, old 421, auth 421, x 200"},
		{"of a network that has the listener's", "tls_policy: near", "", "backend: app",
			"near", "a 421, old 421, auth 421, x 200"},
		{"of a network that has not the listener's", "tls_policy: far", "", "backend: app",
			"default", "a 200, old 421, auth 421, x 200"},
		{"some paths are the route's", "tls_policy: old", "", "paths: [/x], backend: app",
			"old", "a 421, old 200, auth 421, x 200"},

		{"the route without hosts asks for certificates", "", "", "tls_policy: auth, backend: app",
			"auth", "a 421, old 421, auth 200, x 200"},
		{"and the listener does not", "tls_policy: old", "", "tls_policy: auth, backend: app",
			"auth", "a 421, old 421, auth 200, x 200"},
		{"the listener asks for certificates", "tls_policy: auth", "", "",
			"auth", "a 421, old 421, auth 200, x 404"},
		{"the listener asks for more than the route without hosts", "tls_policy: auth", "", "backend: app",
			"auth", "a 421, old 421, auth 200, x 200"},
		{"default asks for certificates", "", askDefault, "backend: app",
			"default", "a 200, old 421, auth 421, x 200"},
		{"the listener asks for less than the route without hosts", "tls_policy: old", askDefault, "backend: app",
			"default", "a 200, old 421, auth 421, x 200"},
		{"the listener asks for less, and there is no such route", "tls_policy: old", askDefault, "",
			"old", "a 421, old 200, auth 421, x 404"},
		{"the route without hosts asks for less", "", askDefault, "tls_policy: old, backend: app",
			"old", "a 421, old 200, auth 421, x 200"},
	} {
		t.Run(f.name, func(t *testing.T) {
			n := newNameless(t, f.listener, f.byDefault, f.any)
			var proof func(*tls.Config)
			if f.policy == "auth" || f.policy == "default" && f.byDefault != "" {
				n.wantRefused("")
				proof = presenting(n.ca.client("robot-7"))
			}
			policy, statuses := n.statuses(n.dialTLS("tls", "", proof), "a", "old", "auth", "x")
			if policy != f.policy || statuses != f.statuses {
				t.Errorf("the policy is %s, and the hosts %s; want %s, %s", policy, statuses, f.policy, f.statuses)
			}
		})
	}
}

// The listener's settings for clients without SNI do not apply to other clients.
func TestListenersPolicyIsNotForNames(t *testing.T) {
	n := newNameless(t, "tls_policy: old", "", "backend: app")
	old := func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS10 }
	if policy, statuses := n.statuses(n.dialTLS("tls", "", old), "x", "old", "a"); policy != "old" || statuses != "x 200, old 200, a 421" {
		t.Errorf("%s, %s", policy, statuses)
	}
	for _, sni := range []string{"a", "x", "auth"} {
		cfg := &tls.Config{ServerName: sni, InsecureSkipVerify: true}
		old(cfg)
		if err := tls.Client(n.dial("tls").Conn, cfg).Handshake(); err == nil {
			t.Errorf("SNI %s: TLS 1.0 is served", sni)
		}
		n.refusal().want(t, "tls_result", "no_common_version")
	}
	// An unknown name differs from no name.
	if policy, statuses := n.statuses(n.dialTLS("tls", "x", nil), "x", "a", "old"); policy != "default" || statuses != "x 200, a 200, old 421" {
		t.Errorf("%s, %s", policy, statuses)
	}
}

// A tcp backend does not get a Host header, so only the handshake keeps clients out.
func TestTunnelsWithoutSNI(t *testing.T) {
	f := func(listener, byDefault, any, want string, asks bool) {
		t.Helper()
		n := newNameless(t, listener, byDefault, any)
		var proof func(*tls.Config)
		if asks {
			n.wantRefused("")
			proof = presenting(n.ca.client("robot-7"))
		}
		c := n.dialTLS("tls", "", proof)
		c.write("x")
		s := n.db.accept()
		s.wantRead("x")
		s.Close()
		c.Close()
		n.record().want(t, "kind", "tunnel", "tls_policy", want)
		n.db.untouched()
	}
	f("", "", "backend: db", "default", false)
	f("tls_policy: old", "", "backend: db", "old", false)
	f("tls_policy: old", askDefault, "backend: db", "default", true)
	f("tls_policy: old", "", "tls_policy: auth, backend: db", "auth", true)
	f("tls_policy: auth", "", "backend: db", "auth", true)
	f("", askDefault, "tls_policy: old, backend: db", "old", false)
}

// If the route without hosts has passthrough, that applies to clients without SNI.
func TestPassthroughWithoutSNI(t *testing.T) {
	n := newNameless(t, "tls_policy: old", "", "tls: passthrough, backend: db")
	c := n.dial("tls")
	go tls.Client(c.Conn, &tls.Config{InsecureSkipVerify: true}).Handshake()
	if s := n.db.accept(); s.read(1) != "\x16" {
		t.Error("something else than the ClientHello is passed through")
	}
	c.Close()
}

// A connection without SNI that is open while the configuration changes keeps its policy. It can
// carry requests for the hosts that have this policy now. It ends with a 421 for the route without
// hosts, for which it was opened.
func TestReloadsWithoutSNI(t *testing.T) {
	n := newNameless(t, "tls_policy: old", "", "backend: app")
	f := func(want, listener, byDefault, any string) {
		t.Helper()
		n.load(withoutSNI, nil, n.with("tls_policy: old", "", "backend: app")...)
		c := n.dialTLS("tls", "", nil)
		n.statuses(c, "old") // the handshake has ended
		n.load(withoutSNI, nil, n.with(listener, byDefault, any)...)
		if policy, statuses := n.statuses(c, "a", "old", "auth", "x"); policy != "old" || statuses != want {
			t.Errorf("listener %q, default %q, any %q: %s, %s; want %s", listener, byDefault, any, policy, statuses, want)
		}
		if strings.HasSuffix(want, "421") {
			c.wantEnd(false)
		}
		c.Close()
	}
	f("a 421, old 200, auth 421, x 200", "tls_policy: old", "", "backend: app")
	f("a 421, old 200, auth 421, x 421", "", "", "backend: app")
	f("a 421, old 200, auth 421, x 421", "tls_policy: old", askDefault, "backend: app")
	f("a 421, old 200, auth 421, x 421", "tls_policy: auth", "", "backend: app")
	f("a 421, old 200, auth 421, x 421", "tls_policy: old", "", "tls_policy: auth, backend: app")
	f("a 421, old 200, auth 421, x 421", "tls_policy: old", "", "tls_policy: near, backend: app")
	f("a 421, old 200, auth 421, x 421", "tls_policy: far", "", "backend: app")
	f("a 421, old 200, auth 421, x 200", "", "", "tls_policy: old, backend: app")
	f("a 421, old 200, auth 421, x 404", "tls_policy: old", "", "")
	f("a 421, old 200, auth 421, x 200", "tls_policy: old", "", "backend: app")
}
