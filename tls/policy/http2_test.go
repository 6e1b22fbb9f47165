package policy

import (
	"crypto/tls"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// weir offers HTTP/2 if and only if the same handshake without HTTP/2 ends with a version
// and suite that HTTP/2 allows, for all suites, curves, versions and certificates.
func TestOfferHTTP2(t *testing.T) {
	ca := newAuthority(t, "ca")
	kinds := map[string][]*tls.Certificate{
		"ECDSA": {ca.issue(t, "a.example.org", false, time.Now().Add(time.Hour))},
		"RSA":   {ca.issue(t, "a.example.org", true, time.Now().Add(time.Hour))},
	}
	kinds["both"] = append(slices.Clone(kinds["ECDSA"]), kinds["RSA"]...)
	suites := map[string][]uint16{
		"all":        nil,
		"ECDSA GCM":  {tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
		"RSA GCM":    {tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384},
		"chacha":     {tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256},
		"CBC":        {tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA},
		"mixed":      {tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA},
		"mixed back": {tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256},
		"RSA kx":     {tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_RSA_WITH_AES_128_CBC_SHA},
		"RSA kx too": {tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256},
	}
	policies := map[string]config.TLSPolicy{
		"default": {},
		"old":     {MinVersion: tls.VersionTLS10, CipherSuites: append(ids(tls.CipherSuites()), ids(tls.InsecureCipherSuites())...)},
		"1.1":     {MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
		"1.2":     {MaxVersion: tls.VersionTLS12},
		"1.3":     {MinVersion: tls.VersionTLS13},
		"CBC":     {MaxVersion: tls.VersionTLS12, CipherSuites: suites["CBC"]},
		"P-521":   {Curves: []uint16{uint16(tls.CurveP521)}, CipherSuites: append(ids(tls.CipherSuites()), ids(tls.InsecureCipherSuites())...)},
	}
	offered := map[bool]int{}
	for name, policy := range policies {
		policy.CipherSuites = slices.DeleteFunc(policy.CipherSuites, func(id uint16) bool { return !implemented(id) })
		for kind, certs := range kinds {
			p := newPolicy(t, policy, certs[0], keyring{}.attach)
			for _, c := range []*tls.Config{p.Config, configOf(p.http2)} {
				if c != nil {
					c.GetCertificate = func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
						for _, c := range certs {
							if h.SupportsCertificate(c) == nil {
								return c, nil
							}
						}
						return certs[0], nil
					}
				}
			}
			for list, ciphers := range suites {
				for _, version := range []uint16{tls.VersionTLS11, tls.VersionTLS12, tls.VersionTLS13} {
					for _, curves := range [][]tls.CurveID{nil, {tls.CurveP521}, {tls.X25519}} {
						if curves != nil && list != "all" && list != "mixed" && list != "RSA kx too" {
							continue // covered by the other lists
						}
						client := &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: version, CipherSuites: ciphers, CurvePreferences: curves, NextProtos: []string{"h2", "http/1.1"}}
						what := fmt.Sprintf("policy %s, key %s, client %s of %s, curves %v", name, kind, list, tls.VersionName(version), curves)
						offered[agree(t, what, p, client)]++
					}
				}
			}
		}
	}
	if offered[true] < 100 || offered[false] < 100 {
		t.Errorf("offered and not: %v", offered)
	}
}

func configOf(p *Policy) *tls.Config {
	if p == nil {
		return nil
	}
	return p.Config
}

// agree does a handshake without HTTP/2 and one with it, and reports whether HTTP/2 was
// negotiated.
func agree(t *testing.T, what string, p *Policy, client *tls.Config) bool {
	t.Helper()
	without, errWithout := shake(t, Server(func(*tls.ClientHelloInfo) (*Policy, error) { return p, nil }, nil), client)
	with, err := shake(t, Server(func(h *tls.ClientHelloInfo) (*Policy, error) { return p.OfferHTTP2(h), nil }, nil), client)
	if (err == nil) != (errWithout == nil) {
		t.Errorf("%s: %v, and without HTTP/2 %v", what, err, errWithout)
		return false
	}
	if err != nil {
		return false
	}
	allowed := without.Version == tls.VersionTLS13 || without.Version == tls.VersionTLS12 && slices.Contains(append(slices.Clone(suitesECDSA), suitesRSA...), without.CipherSuite)
	if got := with.NegotiatedProtocol == HTTP2; got != allowed || with.Version != without.Version || with.CipherSuite != without.CipherSuite {
		t.Errorf("%s: %s with %s and %s, without HTTP/2 %s and %s", what, with.NegotiatedProtocol, tls.VersionName(with.Version), tls.CipherSuiteName(with.CipherSuite),
			tls.VersionName(without.Version), tls.CipherSuiteName(without.CipherSuite))
	}
	return allowed
}

// A client that does not offer HTTP/2 gets the policy itself. OfferHTTP2 allocates
// nothing.
func TestOfferHTTP2AllocatesNothing(t *testing.T) {
	cert := newAuthority(t, "ca").issue(t, "a.example.org", false, time.Now().Add(time.Hour))
	p := newPolicy(t, config.TLSPolicy{}, cert, keyring{}.attach)
	hello := &tls.ClientHelloInfo{SupportedProtos: []string{"http/1.1"}, SupportedVersions: []uint16{tls.VersionTLS13}}
	if p.OfferHTTP2(hello) != p {
		t.Error("HTTP/2 is offered to a client that does not ask for it")
	}
	hello.SupportedProtos = []string{"h2", "http/1.1"}
	if got := p.OfferHTTP2(hello); !slices.Equal(got.Config.NextProtos, []string{"h2", "http/1.1", "http/1.0"}) || got.Scope != p.Scope {
		t.Errorf("%q is offered", got.Config.NextProtos)
	}
	if n := testing.AllocsPerRun(100, func() { p.OfferHTTP2(hello) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
