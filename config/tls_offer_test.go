package config_test

import (
	"crypto/tls"
	"slices"
	"testing"
)

// A backend has the TLS keys of a policy. weir offers HTTP/2 only if its TLS supports
// HTTP/2.
func TestBackendOffers(t *testing.T) {
	f := func(keys string, min, max uint16, http2 bool, suites ...uint16) {
		t.Helper()
		c := mustParse(t, `listeners: {web: {address: ":80", protocol: http}}
routes: [{listeners: [web], backend: a}]
backends: {a: {protocol: https, endpoints: ["a:1"], tls: {`+keys+`}}}
`)
		b := c.Backends[0]
		if b.TLS.MinVersion != min || b.TLS.MaxVersion != max || b.HTTP2 != http2 || !slices.Equal(b.TLS.CipherSuites, suites) {
			t.Errorf("%s: %+v, HTTP/2 %t", keys, b.TLS, b.HTTP2)
		}
		reloads(t, c)
	}
	f("", tls.VersionTLS12, tls.VersionTLS13, true)
	f("min_version: 1.0", tls.VersionTLS10, tls.VersionTLS13, true)
	f("min_version: '1.0', max_version: '1.1'", tls.VersionTLS10, tls.VersionTLS11, false)
	f("max_version: '1.2', sha1_signatures: true", tls.VersionTLS12, tls.VersionTLS12, true)
	const rsa, gcm, chacha = tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
	f("cipher_suites: [TLS_RSA_WITH_AES_128_GCM_SHA256]", tls.VersionTLS12, tls.VersionTLS13, true, rsa) // HTTP/2 is possible over TLS 1.3
	f("max_version: '1.2', cipher_suites: [TLS_RSA_WITH_AES_128_GCM_SHA256]", tls.VersionTLS12, tls.VersionTLS12, false, rsa)
	f("max_version: '1.2', cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256]", tls.VersionTLS12, tls.VersionTLS12, false, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256)
	f("max_version: '1.2', cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]", tls.VersionTLS12, tls.VersionTLS12, true, gcm)
	f("max_version: '1.2', cipher_suites: [TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256]", tls.VersionTLS12, tls.VersionTLS12, true, chacha)
}
