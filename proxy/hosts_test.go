package proxy

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/weirproxy/weir/tls/policy"
)

const reported = `
listeners:
  tls: {address: '@0', protocol: tls}
  web: {address: '@1', protocol: http}
certificates: [{self_signed: {hosts: [a.example.org]}}]
tls_policies:
  old: {min_version: "1.0", cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, TLS_RSA_WITH_AES_128_CBC_SHA]}
  near: {min_version: "1.0", max_version: "1.1", from: [192.0.2.0/24]}
routes:
  - {name: one, listeners: [tls, web], hosts: [a.example.org, "*.b.example.org"], tls_policy: old, backend: app}
  - {name: two, listeners: [tls], hosts: [a.example.org], paths: [/two, /deux], backend: app}
  - {name: three, listeners: [tls], hosts: [c.example.org], tls_policy: near, backend: app}
  - {name: through, listeners: [tls], hosts: [d.example.org], tls: passthrough, backend: raw}
  - {name: rest, listeners: [tls], backend: app}
backends: {app: {endpoints: ['127.0.0.1:1']}, raw: {protocol: tcp, endpoints: ['127.0.0.1:1']}}
`

func newReported(t *testing.T) *rig {
	r := newRig(t, plain, nil, "@app", "127.0.0.1:1")
	r.adjust(func(p *Proxy) { p.Clients = policy.NewClients() })
	r.load(reported, nil)
	return r
}

func TestHosts(t *testing.T) {
	r := newReported(t)
	want := []HostRoutes{
		{"tls", "*", "default", []string{"rest"}},
		{"tls", "*.b.example.org", "old", []string{"one"}},
		{"tls", "a.example.org", "old", []string{"one", "two"}},
		{"tls", "c.example.org", "near", []string{"three"}},
	}
	if got := r.proxy.Hosts(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the hosts are %v, want %v", got, want)
	}
	if got := new(Proxy).Hosts(); len(got) != 0 {
		t.Errorf("without a table, the hosts are %v", got)
	}
}

// Weir remembers every handshake under its host and policy.
func TestClientsAreRemembered(t *testing.T) {
	r := newReported(t)
	f := func(sni string, version uint16, host, policyName, result string) {
		t.Helper()
		tc := tls.Client(r.dial("tls").Conn, &tls.Config{ServerName: sni, InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: version})
		err := tc.Handshake()
		tc.Close()
		if (err == nil) != (result == policy.ResultOK) {
			t.Errorf("%s with %s: %v", sni, tls.VersionName(version), err)
		}
		eventually(t, fmt.Sprintf("%s with %s is remembered", sni, tls.VersionName(version)), func() error {
			s := r.proxy.Clients.Seen()
			for _, m := range s.Modern {
				if version == tls.VersionTLS13 && m.Listener == "tls" && m.Host == host && m.Policy == policyName {
					return nil
				}
			}
			for _, c := range s.Clients {
				if c.Listener == "tls" && c.Host == host && c.Policy == policyName && c.Result == result && c.Newest == tls.VersionName(version) &&
					c.Network == "127.0.0.0/24" && strings.HasPrefix(c.JA4, fmt.Sprintf("t1%d", version-tls.VersionTLS10)) {
					return nil
				}
			}
			return fmt.Errorf("seen is %+v", s)
		})
	}
	f("a.example.org", tls.VersionTLS13, "a.example.org", "old", policy.ResultOK)
	f("A.example.org", tls.VersionTLS10, "a.example.org", "old", policy.ResultOK)
	f("x.b.example.org", tls.VersionTLS11, "*.b.example.org", "old", policy.ResultOK)
	f("y.b.example.org", tls.VersionTLS12, "*.b.example.org", "old", policy.ResultOK)
	f("c.example.org", tls.VersionTLS11, "c.example.org", "default", policy.ResultNoCommonVersion) // not in from
	f("z.example.org", tls.VersionTLS13, "*", "default", policy.ResultOK)
	f("z.example.org", tls.VersionTLS10, "*", "default", policy.ResultNoCommonVersion)
	f("", tls.VersionTLS12, "*", "default", policy.ResultOK) // the route without hosts serves it

	bad := r.dial("tls")
	bad.write("GET / HTTP/1.1\r\n\r\n")
	bad.Close()
	eventually(t, "what is no TLS is remembered", func() error {
		for _, c := range r.proxy.Clients.Seen().Clients {
			if c.Result == policy.ResultPlainHTTP && c.Policy == "" && c.JA4 == "" {
				return nil
			}
		}
		return fmt.Errorf("it is not")
	})
	r.load(strings.ReplaceAll(reported, "old", "new"), nil) // a reload keeps the handshakes
	if n := len(r.proxy.Clients.Seen().Clients); n < 7 {
		t.Errorf("%d lines are left after a reload", n)
	}
}

// The log line of a failed handshake contains the client's offer.
func TestOffersAreLogged(t *testing.T) {
	r := newReported(t)
	f := func(change func(*tls.Config), want ...any) {
		t.Helper()
		c := &tls.Config{ServerName: "z.example.org", InsecureSkipVerify: true}
		change(c)
		tc := tls.Client(r.dial("tls").Conn, c)
		if err := tc.Handshake(); err == nil {
			t.Error("the handshake succeeded")
		}
		tc.Close()
		r.refusal().want(t, append(want, "kind", "refused", "reason", "handshake", "tls_policy", "default", "sni", "z.example.org")...)
	}
	f(func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 },
		"tls_result", "no_common_version", "tls_offered_versions", []string{"TLS 1.1", "TLS 1.0"}, "tls_offered_alpn", nil, "tls_only_sha1", nil)
	f(func(c *tls.Config) {
		c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA}
		c.NextProtos = []string{"h2", "http/1.1"}
	}, "tls_result", "no_common_suite", "tls_offered_suites", []string{"TLS_RSA_WITH_3DES_EDE_CBC_SHA"}, "tls_offered_alpn", []string{"h2", "http/1.1"})
	bad := r.dial("tls")
	bad.write("GET / HTTP/1.1\r\n\r\n")
	r.refusal().want(t, "tls_offered_versions", nil, "ja4", nil, "reason", "not_tls", "tls_result", "plain_http")
}

// The error says what the client offers, what the policy accepts, and which setting to change.
func TestVersionsAreExplained(t *testing.T) {
	const unsupported = ": tls: client offered only unsupported versions: "
	r := newReported(t)
	r.load(reported, nil, "tls_policies:\n", "tls_policies:\n  late: {min_version: \"1.3\"}\n  early: {max_version: \"1.2\"}\n",
		"c.example.org], tls_policy: near, backend: app}\n", "c.example.org], tls_policy: near, backend: app}\n"+
			"  - {listeners: [tls], hosts: [e.example.org], tls_policy: late, backend: app}\n"+
			"  - {listeners: [tls], hosts: [f.example.org], tls_policy: early, backend: app}\n")
	f := func(sni string, least, most uint16, want string) {
		t.Helper()
		tc := tls.Client(r.dial("tls").Conn, &tls.Config{ServerName: sni, InsecureSkipVerify: true, MinVersion: least, MaxVersion: most})
		if err := tc.Handshake(); err == nil {
			t.Errorf("%s: the handshake succeeded", sni)
		}
		tc.Close()
		r.refusal().want(t, "tls_result", "no_common_version", "error", want)
	}
	f("z.example.org", tls.VersionTLS10, tls.VersionTLS10,
		`the client offers TLS 1.0 at most, and policy "default" accepts TLS 1.2 to 1.3 (tls_policies.default.min_version)`+unsupported+"[301]")
	f("e.example.org", tls.VersionTLS11, tls.VersionTLS12,
		`the client offers TLS 1.2 at most, and policy "late" accepts TLS 1.3 (tls_policies.late.min_version)`+unsupported+"[303 302]")
	f("f.example.org", tls.VersionTLS13, tls.VersionTLS13,
		`the client offers TLS 1.3 at least, and policy "early" accepts TLS 1.2 (tls_policies.early.max_version)`+unsupported+"[304]")
	f("c.example.org", tls.VersionTLS10, tls.VersionTLS11,
		`the client offers TLS 1.1 at most, and policy "default" accepts TLS 1.2 to 1.3 (tls_policies.default.min_version); `+
			`policy "near" does not apply, because the client's address is not in tls_policies.near.from`+unsupported+"[302 301]")
}

// If a client accepts only SHA-1 signatures, the error names the setting that allows them.
func TestSHA1IsExplained(t *testing.T) {
	const unsupported = "tls: peer doesn't support any of the certificate's signature algorithms"
	r := newReported(t)
	f := func(sni string, scheme tls.SignatureScheme, want string) {
		t.Helper()
		a, b := net.Pipe()
		go tls.Client(a, &tls.Config{ServerName: sni, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12}).Handshake()
		hello := make([]byte, 4096)
		n, err := b.Read(hello)
		a.Close()
		i := bytes.Index(hello[:n], []byte{0x00, 0x0d, 0x00}) // signature_algorithms
		if err != nil || i < 0 {
			t.Fatalf("no ClientHello: %v", err)
		}
		for j := i + 6; j < i+6+int(hello[i+5]); j += 2 {
			binary.BigEndian.PutUint16(hello[j:], uint16(scheme))
		}
		c := r.dial("tls")
		c.Write(hello[:n])
		r.refusal().want(t, "tls_result", "no_common_signature", "error", want)
		c.Close()
	}
	const only = `the client accepts only SHA-1 signatures, and policy "default" makes none in TLS 1.2 (tls_policies.default.sha1_signatures)`
	f("z.example.org", tls.ECDSAWithSHA1, only+": "+unsupported)
	f("c.example.org", tls.ECDSAWithSHA1, only+`; policy "near" does not apply, because the client's address is not in tls_policies.near.from: `+unsupported)
	f("z.example.org", 0xfefe, unsupported)
}
