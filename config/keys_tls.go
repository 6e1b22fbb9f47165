package config

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

func (c *Certificate) section() section {
	if c.Pair != nil {
		return c.Pair.section()
	}
	made := c.SelfSigned != nil
	return section{object: c, position: &c.Position, check: c.checkSources, rules: certificateRules, keys: []key{
		{"cert", text(&c.CertFile), "File with the certificate chain in PEM, leaf certificate first. Needs key."},
		{"key", text(&c.KeyFile), "File with the private key of cert, in PEM."},
		{"self_signed", mapping(c.selfSigned).shownIf(made), "Self-signed certificates that weir makes at start, one ECDSA and one RSA."},
		{"acme", optional(&c.ACME, newACME, (*ACME).section).shownIf(!made), "Certificates that weir gets from an ACME authority, by default Let's Encrypt, and renews. An empty mapping is a complete entry."},
		{"ocsp", negated(&c.NoOCSP).shownIf(!made), "If the certificate names an OCSP responder, weir asks it and staples the answer. Not with self_signed."},
	}}
}

func (c *Certificate) selfSigned() section {
	return section{keys: []key{
		{"hosts", list(&c.SelfSigned, host.at).required("[app.example.org]"), "The names in the certificate."},
	}}
}

// checkSources reports entries without exactly one source of certificates.
func (c *Certificate) checkSources(v *draft, there keySet, n *Tree, p path) {
	files := there.has("cert") || there.has("key")
	switch {
	case n.Shape != ShapeMapping: // already reported
	case files && there.has("self_signed"):
		v.fail(n, p, "has both files and self_signed; split it into two entries")
	case files && there.has("acme"):
		v.fail(n, p, "has both files and acme; split it into two entries")
	case there.has("acme") && there.has("self_signed"):
		v.fail(n, p, "has both self_signed and acme; split it into two entries")
	case files:
		v.require(there, n, p, "cert", "tls/app.crt")
		v.require(there, n, p, "key", "tls/app.key")
	case there.has("self_signed") && v.given(&c.NoOCSP):
		v.failAt(v.places[&c.NoOCSP], "self-signed certificates have no OCSP responder; take this out")
	case !there.has("self_signed") && !there.has("acme"):
		v.fail(n, p, "has no source of certificates; write cert and key, acme, or self_signed")
	}
}

// section prints a pair of a cluster. No file has these keys.
func (p *Pair) section() section {
	missing := len(p.CertPEM) == 0
	return section{keys: []key{
		{"secret", text(&p.Name), ""},
		{"hosts", list(&p.Hosts, text), ""},
		{"default", truth(&p.Default).shownIf(p.Default), ""},
		{"tls_policy", text(&p.Owner).shownIf(p.Owner != ""), ""},
		{"missing", truth(&missing).shownIf(missing), ""},
	}}
}

// ech has the files of Encrypted Client Hello.
func (r *root) ech() section {
	var files []string
	for _, k := range r.echKeys {
		files = append(files, k.File)
	}
	keys := list(&files, text)
	read := keys.read
	keys.read = func(v *draft, n *Tree, p path) {
		read(v, n, p)
		for i := range files {
			if at := v.places[&files[i]]; files[i] != "" {
				k := &ECHKey{Position: v.position(at), File: files[i]}
				v.places[&k.File] = at
				r.echKeys = append(r.echKeys, k)
			}
		}
	}
	return section{keys: []key{
		{"keys", keys.required("[tls/ech.pem]"), "Files with one ECH key in PEM each: a block PRIVATE KEY and a block ECHCONFIG. Clients with an older key are served as long as its file is listed."},
	}}
}

// challengePolicy is not allowed as a policy name: package proxy uses it in place of a
// policy.
const challengePolicy = "acme-tls-alpn-01"

// policiesKey has the conditions for policies with a special name.
func (r *root) policiesKey() value {
	x := named(&r.policies, newTLSPolicy, (*TLSPolicy).name, (*TLSPolicy).section)
	describe := x.schema
	x.schema = func() *schema {
		s := describe()
		s.PropertyNames.Not = &schema{Const: challengePolicy}
		s.AllOf = []*schema{with(DefaultTLSPolicy, lacks("from"))}
		return s
	}
	return x
}

func newTLSPolicy(name string) *TLSPolicy {
	return &TLSPolicy{Name: name, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13}
}

func (t *TLSPolicy) name() string { return t.Name }

func (t *TLSPolicy) section() section {
	min, max, suites, sha1 := t.offer().keys()
	return section{object: t, position: &t.Position, rules: policyRules, keys: []key{
		{"min_version", min, "The oldest TLS version. At least one suite must work with it."},
		{"max_version", max, "The newest TLS version."},
		{"cipher_suites", suites, "Suites for TLS 1.0 to 1.2, by their IANA names. Go does not let programs choose suites for TLS 1.3."},
		{"curves", list(&t.Curves, curve.at).byDefault("Go's choice"), "Key exchange groups. The three with MLKEM are for TLS 1.3 only."},
		{"client_auth", mapping(t.clientAuth).shownIf(t.ClientAuth != ClientAuthNone).byDefault("none"), "Client certificates. Not together with from."},
		{"sha1_signatures", sha1, "Accepts clients that offer only SHA-1 signatures in TLS 1.2. All other clients use stronger signatures. Only if the policy includes TLS 1.2. While a policy has this key, every policy with client_auth needs min_version 1.3 or sha1_signatures itself, and weir's own TLS 1.2 connections accept SHA-1 as the last choice."},
		{"from", list(&t.From, prefix.at).byDefault("everyone"), "Only these client networks (CIDR) get the policy; all others get default for the same host. Not together with client_auth, and not on default."},
	}, check: func(v *draft, _ keySet, _ *Tree, _ path) {
		if t.Name == challengePolicy {
			v.failAt(v.places[t], "is the name of the handshakes of ACME challenges in metrics and logs; give the policy another name")
		}
	}}
}

// forwarded are the HTTP headers about client certificates that weir sends by default.
var forwarded = []ClientCertField{ClientCertSubject, ClientCertSAN, ClientCertFingerprint, ClientCertCertificate}

func (t *TLSPolicy) clientAuth() section {
	field := oneOf(ClientCertSubject, ClientCertSAN, ClientCertFingerprint, ClientCertCertificate, ClientCertChain)
	return section{object: &t.ClientAuth, keys: []key{
		{"mode", oneOf(ClientAuthRequest, ClientAuthRequire).at(&t.ClientAuth).required("require"), "Whether a client may (request) or must (require) send a certificate. weir verifies every certificate that is sent."},
		{"ca", text(&t.ClientAuthCA), "PEM file of CA certificates that verify client certificates."},
		{"crl", list(&t.ClientAuthCRL, text), "Files with certificate revocation lists in PEM or DER. If there is one, each CA between a client certificate and ca needs one."},
		{"forward", listOrNone(&t.ClientAuthForward, field.at).byDefault("[subject, san, fingerprint, certificate]"), "The HTTP headers about a verified certificate that weir sends to backends. The empty list: none."},
	}, rules: clientAuthRules, check: func(v *draft, there keySet, n *Tree, p path) {
		if !v.given(&t.ClientAuthForward) {
			t.ClientAuthForward = slices.Clone(forwarded)
		}
		if !there.has("ca") && n.Shape == ShapeMapping {
			v.fail(n, p, "ca is missing, and without it no client certificate can be verified; give it, such as tls/clients-ca.crt")
		}
	}}
}

// versionNames are the versions, by the number after "1.".
var versionNames = []string{"1.0", "1.1", "1.2", "1.3"}

func versionName(v uint16) string { return versionNames[v-tls.VersionTLS10] }

// version is a TLS version. It may be a number: 1.0 has the text "1.0" with and without
// quotes.
func version(dst *uint16) value {
	return value{
		read: func(v *draft, n *Tree, p path) {
			s, ok := v.scalar(dst, n, p, `a TLS version such as "1.2"`, ShapeText, ShapeFraction)
			if !ok {
				return
			}
			i := slices.Index(versionNames, s)
			if i < 0 {
				v.fail(n, p, `%s is not a TLS version; write "1.0", "1.1", "1.2" or "1.3"`, v.quoteNode(n))
				return
			}
			*dst = tls.VersionTLS10 + uint16(i)
		},
		print: func(*shower) *Tree { return textTree(versionName(*dst)) },
		schema: func() *schema {
			numbers := &schema{}
			for _, name := range versionNames {
				numbers.Enum = append(numbers.Enum, json.Number(name))
			}
			// Two negations: an editor would suggest the number 1.0 as 1, which is no version.
			return anyOf(textLike("", "", versionNames), &schema{Not: &schema{Not: numbers}})
		},
	}
}

// suites are all suites of crypto/tls, the secure ones first.
var suites = append(slices.Clone(tls.CipherSuites()), tls.InsecureCipherSuites()...)

func suiteByID(id uint16) *tls.CipherSuite {
	for _, s := range suites {
		if s.ID == id {
			return s
		}
	}
	return nil
}

// worksWith reports whether a handshake with version can negotiate s.
func worksWith(s *tls.CipherSuite, version uint16) bool {
	return slices.Contains(s.SupportedVersions, version)
}

// secureSuites are the suites of a policy that sets none.
func secureSuites() (ids []uint16) {
	for _, s := range tls.CipherSuites() {
		if worksWith(s, tls.VersionTLS12) {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// suite is a cipher suite for TLS up to 1.2.
var suite = kind[uint16]{what: "a cipher suite that weir has", parse: parseSuite, format: tls.CipherSuiteName, words: suiteWords()}

func suiteWords() (names []string) {
	for _, s := range suites {
		if worksWith(s, tls.VersionTLS12) {
			names = append(names, s.Name)
		}
	}
	return names
}

// openSSLName returns OpenSSL's name of a suite, such as ECDHE-RSA-AES128-GCM-SHA256.
var openSSLName = strings.NewReplacer("TLS_RSA_WITH_", "", "TLS_", "", "_WITH_", "-", "CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305",
	"3DES_EDE_CBC_SHA", "DES-CBC3-SHA", "AES_128_CBC", "AES128", "AES_256_CBC", "AES256", "AES_128", "AES128", "AES_256", "AES256", "RC4_128", "RC4", "_", "-").Replace

func parseSuite(s string) (uint16, error) {
	var names []string
	for _, c := range suites {
		if s == openSSLName(c.Name) {
			return 0, fmt.Errorf("is OpenSSL's name of the suite; write %q", c.Name)
		}
		only13 := !worksWith(c, tls.VersionTLS12)
		switch {
		case c.Name == s && only13:
			return 0, fmt.Errorf("is a TLS 1.3 suite, and Go does not let programs choose these; remove it")
		case c.Name == s:
			return c.ID, nil
		case !only13:
			names = append(names, c.Name)
		}
	}
	switch near := nearest(s, names); {
	case near != "":
		return 0, fmt.Errorf("is not a cipher suite that weir has; did you mean %q?", near)
	case strings.Contains(s, "_DHE_") || strings.HasPrefix(s, "DHE-"):
		return 0, fmt.Errorf("is not a cipher suite that weir has: Go has no DHE; write the suite with ECDHE instead")
	}
	return 0, fmt.Errorf(`is not a cipher suite that weir has; write an IANA name such as "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", one for each suite`)
}

// curves has the names of curves in this configuration and at IANA.
var curves = []struct {
	name, iana string
	id         tls.CurveID
	only13     bool
}{
	{"X25519MLKEM768", "", tls.X25519MLKEM768, true},
	{"SecP256r1MLKEM768", "", tls.SecP256r1MLKEM768, true},
	{"SecP384r1MLKEM1024", "", tls.SecP384r1MLKEM1024, true},
	{"X25519", "", tls.X25519, false},
	{"P-256", "secp256r1", tls.CurveP256, false},
	{"P-384", "secp384r1", tls.CurveP384, false},
	{"P-521", "secp521r1", tls.CurveP521, false},
}

var curve = kind[uint16]{what: "a curve that weir has", parse: parseCurve, format: curveName, words: curveWords()}

func curveWords() (names []string) {
	for _, c := range curves {
		names = append(names, c.name)
	}
	return names
}

func parseCurve(s string) (uint16, error) {
	names := make([]string, len(curves))
	for i, c := range curves {
		if names[i] = c.name; c.name == s {
			return uint16(c.id), nil
		}
	}
	for _, c := range curves {
		if c.iana == s && s != "" || strings.EqualFold(c.name, s) {
			return 0, fmt.Errorf("is not known here; did you mean %q?", c.name)
		}
	}
	return 0, notOneOf(s, names)
}

func curveName(id uint16) string {
	for _, c := range curves {
		if uint16(c.id) == id {
			return c.name
		}
	}
	return ""
}
