package policy

import (
	"crypto/tls"
	"testing"

	"github.com/weirproxy/weir/config"
)

func TestTry(t *testing.T) {
	f := func(what string, p config.TLSPolicy) {
		t.Helper()
		if p.MinVersion == 0 {
			p.MinVersion, p.MaxVersion = tls.VersionTLS12, tls.VersionTLS13
		}
		if len(p.CipherSuites) == 0 {
			p.CipherSuites = ids(tls.CipherSuites())
		}
		if err := Try(p); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	ca := newAuthority(t, "ca")
	f("the default", config.TLSPolicy{})
	f("all versions", config.TLSPolicy{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS13, CipherSuites: allIDs()})
	f("old versions", config.TLSPolicy{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11, CipherSuites: []uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA}})
	f("ECDSA alone", config.TLSPolicy{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}})
	f("only TLS 1.3 and one curve", config.TLSPolicy{MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS13, Curves: []uint16{uint16(tls.SecP384r1MLKEM1024)}})
	for _, mode := range []config.ClientAuthMode{config.ClientAuthRequest, config.ClientAuthRequire, config.ClientAuthReport} {
		f("client certificates", config.TLSPolicy{ClientAuth: mode, ClientAuthPool: ca.pem})
		f("client certificates of many CAs", config.TLSPolicy{ClientAuth: mode, ClientAuthPool: append(manyCAs(), ca.pem...)})
	}
}
