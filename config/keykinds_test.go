package config_test

import (
	"crypto/elliptic"
	"strings"
	"testing"
	"time"
)

// A policy that fits no certificate of its hosts is an error, or a warning if it also has TLS 1.3.
func TestSuitesFitCertificates(t *testing.T) {
	dir := folder{t, t.TempDir()}
	dir.certificate("a", elliptic.P256(), time.Now().Add(60*day), "a.example")
	const head = "listeners: {web: {address: ':443', protocol: tls}}\nbackends: {app: {endpoints: ['a:1']}}\n" +
		"tls_policies: {p: {MAX cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]}}\n"
	f := func(max, rest, wantError, wantWarning string) {
		t.Helper()
		c, got := dir.parse(strings.Replace(head, "MAX", max, 1) + rest)
		if (got == "") != (wantError == "") || !strings.Contains(got, wantError) {
			t.Errorf("%s\nerror %q, want %q", rest, got, wantError)
		}
		if c == nil {
			return
		}
		found := false
		for _, w := range c.Warnings {
			found = found || strings.Contains(w.Message, "clients with TLS 1.3 can connect")
		}
		if found != (wantWarning != "") {
			t.Errorf("%s\nwarnings %v, want %q", rest, c.Warnings, wantWarning)
		}
	}
	const old, both = "max_version: '1.2',", ""
	route := func(hosts string) string {
		return "routes: [{listeners: [web], " + hosts + "tls_policy: p, backend: app}]\n"
	}
	const file, made = "certificates: [{cert: a.crt, key: a.key}]\n", "certificates: [{self_signed: {hosts: [a.example]}}]\n"
	f(old, route("hosts: [a.example], ")+file,
		`weir.yaml:3:55: tls_policies.p.cipher_suites: no client can connect: every suite of the list needs an RSA key, and the certificates for the host "a.example" have ECDSA keys only; `+
			`add a suite such as TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, or give a certificate with an RSA key`, "")
	f(old, route("hosts: [b.example], ")+file, `the host "b.example" have ECDSA keys only`, "") // weir serves the first certificate
	f(old, route("")+file, `the hosts of the route on line 4 have ECDSA keys only`, "")
	f(both, route("hosts: [a.example], ")+file, "", "only clients with TLS 1.3")
	f(old, route("hosts: [a.example], ")+made, "", "")
	f(old, route("hosts: [b.example], ")+file+"kubernetes: {}\n", "", "") // a Secret may have a key of another kind
	f(old, route("hosts: [a.example], ")+file+"kubernetes: {}\n", "ECDSA keys only", "")
	f(old, "routes: [{listeners: [web], hosts: [a.example], backend: app}]\n"+file, "", "") // no host uses the policy
}
