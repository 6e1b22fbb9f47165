package config_test

import (
	"crypto/elliptic"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config/file"
)

// unnamed has policies of all kinds, and hosts for them.
const unnamed = `listeners:
  secure: {address: ":443", protocol: tls@listener}
certificates: [{self_signed: {hosts: [a.example, b.example]}}]
tls_policies:
  default: {min_version: "1.2"@default}
  old: {min_version: "1.0"}
  sha: {sha1_signatures: true}
  new: {min_version: "1.3"}
routes:
- {listeners: [secure], hosts: [a.example], tls_policy: @policy, backend: app}
- {listeners: [secure], hosts: [a.example], paths: [/x], tls_policy: @policy, backend: app}
- {listeners: [secure], hosts: [b.example], tls_policy: new, backend: app}
@any
backends: {app: {endpoints: ["a:1"]}, raw: {protocol: tcp, endpoints: ["a:1"]}}
`

// weir warns of a legacy policy that clients without SNI cannot get, and of a listener's
// policy that no client gets.
func TestWarningsWithoutSNI(t *testing.T) {
	f := func(policy, listener, byDefault, any string, want ...string) {
		t.Helper()
		if listener != "" {
			listener = ", tls_policy: " + listener
		}
		if any != "" {
			any = "- {listeners: [secure], " + any + "}"
		}
		text := strings.NewReplacer("@policy", policy, "@listener", listener, "@default", byDefault, "@any", any).Replace(unnamed)
		c := mustParse(t, text)
		var got []string
		for _, w := range c.Warnings {
			if !strings.Contains(w.Error(), "nothing uses this") {
				got = append(got, w.Error())
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s\ngot\n%s\nwant\n%s", text, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		again, err := file.Parse("again", file.Effective(c), environment)
		if err != nil || again.Listeners[0].TLSPolicy != c.Listeners[0].TLSPolicy {
			t.Errorf("%v, %+v from the effective configuration", err, again)
		}
	}
	const (
		unreachable = `weir.yaml:10:57: routes[0].tls_policy: clients without SNI never get this policy on listener "secure": they have `
		rest        = ` to this policy. If all clients of these hosts send SNI, confirm it by setting listeners.secure.tls_policy to the policy that clients without SNI have now`
		ofDefault   = unreachable + `the policy default, and get 421 for these hosts. Many old clients send no SNI; to serve them, set listeners.secure.tls_policy` + rest
		ofRoute     = unreachable + `that of the route on line 13, and get 421 for these hosts. Many old clients send no SNI; to serve them, set tls_policy of that route` + rest
		unused      = `weir.yaml:2:56: listeners.secure.tls_policy: no client gets this policy: `
		auth        = ", client_auth: {mode: require, ca: testdata/ca.pem}"
	)
	f("default", "", "", "")
	f("old", "", "", "", ofDefault)
	f("sha", "", "", "", ofDefault)
	f("new", "", "", "")
	f("old", "", "", "backend: app", ofDefault)
	f("old", "", "", "tls_policy: new, backend: app", ofRoute)
	f("old", "", "", "tls_policy: old, backend: app")
	f("old", "", "", "tls: passthrough, backend: raw")
	f("old", "old", "", "")
	f("old", "old", "", "backend: app")
	f("old", "default", "", "")
	f("old", "default", "", "backend: app")
	f("old", "new", "", "tls_policy: new, backend: app")
	f("old", "old", "", "tls_policy: new, backend: app",
		unused+`clients without SNI have that of the route on line 13, which has no hosts; take this out, or tls_policy out of the route`)
	f("old", "old", "", "tls: passthrough, backend: raw",
		unused+`the route on line 13 has no hosts and passes TLS through unopened, that of clients without SNI too; take this out`)
	f("new", "new", auth, "backend: app",
		unused+`a route without hosts has the policy default, whose client_auth clients could get around by sending no SNI; name another tls_policy in that route, or take this out`)
	f("new", "new", auth, "")
}

// A policy that only a listener names counts as used.
func TestListenersPolicyIsUsed(t *testing.T) {
	c := mustParse(t, strings.Replace(small, "secure: {", "secure: {tls_policy: old, ", 1))
	for _, w := range c.Warnings {
		if strings.Contains(w.Error(), "tls_policies.old") {
			t.Error(w)
		}
	}
}

// Most old clients without SNI need an RSA key, and get the first certificate.
func TestOldNamelessClientsNeedRSA(t *testing.T) {
	dir := folder{t, t.TempDir()}
	dir.certificate("a", elliptic.P256(), time.Now().Add(60*day), "a.example")
	f := func(certificates, listener, route string, warned bool) {
		t.Helper()
		c, errs := dir.parse("listeners: {web: {address: ':443', protocol: tls" + listener + "}}\ncertificates: [" + certificates + "]\n" +
			"tls_policies: {old: {min_version: '1.0'}}\nbackends: {app: {endpoints: ['a:1']}}\nroutes: [{listeners: [web], " + route + "backend: app}]\n")
		if errs != "" {
			t.Fatal(errs)
		}
		got := ""
		for _, w := range c.Warnings {
			if strings.Contains(w.Message, "need an RSA key") {
				got += w.Error()
			}
		}
		if (got != "") != warned {
			t.Errorf("%s%s%s: %q of the warnings %v", certificates, listener, route, got, c.Warnings)
		}
	}
	const pair, rsa = "{cert: a.crt, key: a.key}", "{acme: {hosts: [a.example], key_type: rsa2048}}"
	f(pair, ", tls_policy: old", "hosts: [a.example], tls_policy: old, ", true)
	f(pair, "", "tls_policy: old, ", true)
	f(pair, "", "hosts: [a.example], ", false)       // no old clients
	f(pair+", "+rsa, "", "tls_policy: old, ", false) // a second certificate for the host of the first one, with an RSA key
	f("{self_signed: {hosts: [a.example]}}", "", "tls_policy: old, ", false)
	f("{acme: {hosts: [a.example]}}, {acme: {hosts: [b.example], key_type: rsa2048}}", "", "tls_policy: old, ", true) // this entry is not the first one
}
