package config

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

func (v *draft) certificate(n *yaml.Node, p path) {
	c := &Certificate{Position: v.at(n)}
	v.mark(c, n, p)
	v.certificates = append(v.certificates, c)
	ocsp := new(bool)
	*ocsp = true
	there := v.section(n, p, []field{
		{"cert", v.text(&c.CertFile)},
		{"key", v.text(&c.KeyFile)},
		{"self_signed", func(n *yaml.Node, p path) {
			there := v.section(n, p, field{"hosts", list(v.decoder, &c.SelfSigned, v.host)})
			v.require(there, n, p, "hosts", "[app.example.org]")
		}},
		{"acme", v.acme(c)},
		{"ocsp", v.truth(ocsp)},
	}...)
	c.NoOCSP = !*ocsp
	files := there["cert"] || there["key"]
	switch {
	case n.Kind != yaml.MappingNode: // already reported
	case files && there["self_signed"]:
		v.fail(n, p, "has both files and self_signed; split it into two entries")
	case files && there["acme"]:
		v.fail(n, p, "has both files and acme; split it into two entries")
	case there["acme"] && there["self_signed"]:
		v.fail(n, p, "has both self_signed and acme; split it into two entries")
	case files:
		v.require(there, n, p, "cert", "tls/app.crt")
		v.require(there, n, p, "key", "tls/app.key")
	case there["self_signed"] && there["ocsp"]:
		v.failAt(v.places[ocsp], "self-signed certificates have no OCSP responder; take this out")
	case !there["self_signed"] && !there["acme"]:
		v.fail(n, p, "has no source of certificates; write cert and key, acme, or self_signed")
	}
}

// ech decodes the files of Encrypted Client Hello.
func (v *draft) ech(n *yaml.Node, p path) {
	var files []string
	there := v.section(n, p, field{"keys", func(n *yaml.Node, p path) {
		list(v.decoder, &files, v.text)(n, p)
	}})
	v.require(there, n, p, "keys", "[tls/ech.pem]")
	for i := range files {
		if at := v.places[&files[i]]; files[i] != "" {
			k := &ECHKey{Position: at.Position, File: files[i]}
			v.places[&k.File] = at
			v.echKeys = append(v.echKeys, k)
		}
	}
}

// clientCertFields decodes a list that may be empty: then weir passes nothing to the
// backend.
func (v *draft) clientCertFields(dst *[]ClientCertField) setter {
	one := func(dst *ClientCertField) setter {
		return choice(v.decoder, dst, ClientCertSubject, ClientCertSAN, ClientCertFingerprint, ClientCertCertificate, ClientCertChain)
	}
	return func(n *yaml.Node, p path) {
		if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
			v.mark(dst, n, p)
			*dst = []ClientCertField{}
			return
		}
		list(v.decoder, dst, one)(n, p)
	}
}

// challengePolicy is not allowed as a policy name: package proxy uses it in place of a
// policy.
const challengePolicy = "acme-tls-alpn-01"

func (v *draft) tlsPolicy(name string, key, n *yaml.Node, p path) {
	if name == challengePolicy {
		v.fail(key, p, "is the name of the handshakes of ACME challenges in metrics and logs; give the policy another name")
	}
	t := &TLSPolicy{Name: name, Position: v.at(key), MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13}
	v.mark(t, key, p)
	v.policies = append(v.policies, t)
	v.section(n, p, append(v.offerFields(t.offer()), []field{
		{"curves", list(v.decoder, &t.Curves, v.curve)},
		{"client_auth", func(n *yaml.Node, p path) {
			v.mark(&t.ClientAuth, n, p)
			t.ClientAuthForward = []ClientCertField{ClientCertSubject, ClientCertSAN, ClientCertFingerprint, ClientCertCertificate}
			there := v.section(n, p, []field{
				{"mode", choice(v.decoder, &t.ClientAuth, ClientAuthRequest, ClientAuthRequire)},
				{"ca", v.text(&t.ClientAuthCA)},
				{"crl", v.texts(&t.ClientAuthCRL)},
				{"forward", v.clientCertFields(&t.ClientAuthForward)},
			}...)
			v.require(there, n, p, "mode", "require")
			if !there["ca"] && n.Kind == yaml.MappingNode {
				v.fail(n, p, "ca is missing, and without it no client certificate can be verified; give it, such as tls/clients-ca.crt")
			}
		}},
		{"from", v.prefixes(&t.From)},
	}...)...)
}

// versionNames are the versions, by the number after "1.".
var versionNames = []string{"1.0", "1.1", "1.2", "1.3"}

func versionName(v uint16) string { return versionNames[v-tls.VersionTLS10] }

// version also accepts a number: 1.0 has the text "1.0" with and without quotes.
func (d *decoder) version(dst *uint16) setter {
	return func(n *yaml.Node, p path) {
		s, ok := d.scalar(dst, n, p, `a TLS version such as "1.2"`, "!!str", "!!float")
		if !ok {
			return
		}
		i := slices.Index(versionNames, s)
		if i < 0 {
			d.fail(n, p, `%s is not a TLS version; write "1.0", "1.1", "1.2" or "1.3"`, d.quoteNode(n))
			return
		}
		*dst = tls.VersionTLS10 + uint16(i)
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

func (d *decoder) suite(dst *uint16) setter {
	return parsed(d, dst, "a cipher suite that weir has", parseSuite)
}

func parseSuite(s string) (uint16, error) {
	var names []string
	for _, c := range suites {
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
	case strings.Contains(s, "_DHE_"):
		return 0, fmt.Errorf("is not a cipher suite that weir has: Go has no DHE; write the suite with ECDHE instead")
	}
	return 0, fmt.Errorf(`is not a cipher suite that weir has; write an IANA name such as "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"`)
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

func (d *decoder) curve(dst *uint16) setter {
	return parsed(d, dst, "a curve that weir has", parseCurve)
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
