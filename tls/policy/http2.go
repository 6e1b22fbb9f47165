package policy

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/tls"
	"slices"
)

// HTTP2 is the ALPN name of HTTP/2 over TLS (RFC 9113, section 3.1).
const HTTP2 = "h2"

// The cipher suites for TLS 1.2 that Go implements and HTTP/2 allows. RFC 9113, appendix
// A, prohibits all others. HTTP/2 allows all suites of TLS 1.3.
var (
	suitesECDSA = []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
	}
	suitesRSA = []uint16{
		tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
	}
)

// prepareHTTP2 makes the variant that offers HTTP/2, if any client could use it.
func (p *Policy) prepareHTTP2() {
	c := p.Config
	if c.MaxVersion < tls.VersionTLS12 || c.MaxVersion == tls.VersionTLS12 && !common(c.CipherSuites, suitesECDSA, nil) && !common(c.CipherSuites, suitesRSA, nil) {
		return
	}
	with := *p
	with.Config = c.Clone()
	with.Config.NextProtos = append([]string{HTTP2}, c.NextProtos...)
	p.http2 = &with
}

// OfferHTTP2 returns the variant of p that offers HTTP/2, if the client offers HTTP/2 and
// the handshake will meet its demands on TLS (RFC 9113, section 9.2). Otherwise it
// returns p. Without this check, Go would offer HTTP/2 with any version and suite.
func (p *Policy) OfferHTTP2(h *tls.ClientHelloInfo) *Policy {
	if p.http2 == nil || !slices.Contains(h.SupportedProtos, HTTP2) {
		return p
	}
	switch p.version(h.SupportedVersions) {
	case tls.VersionTLS13:
		return p.http2
	case tls.VersionTLS12:
		if p.allowed12(h) {
			return p.http2
		}
	}
	return p
}

// version returns the version that the handshake will use if the client offers these; 0:
// none.
func (p *Policy) version(offered []uint16) (best uint16) {
	for _, v := range offered {
		if p.Config.MinVersion <= v && v <= p.Config.MaxVersion {
			best = max(best, v)
		}
	}
	return best
}

// allowed12 reports whether a TLS 1.2 handshake will use a suite that HTTP/2 allows.
// crypto/tls prefers these suites to all others, if they fit the key of the certificate.
func (p *Policy) allowed12(h *tls.ClientHelloInfo) bool {
	if !p.sharesCurve(h.SupportedCurves) {
		return false
	}
	ecdsa := common(p.Config.CipherSuites, suitesECDSA, h.CipherSuites)
	rsa := common(p.Config.CipherSuites, suitesRSA, h.CipherSuites)
	if ecdsa == rsa {
		return ecdsa // independent of the key
	}
	// Remove from the ClientHello what the policy does not have. crypto/tls still judges
	// certificates by the configuration of Server, which the policy has not replaced yet.
	own := *h
	own.SupportedVersions = []uint16{tls.VersionTLS12}
	own.CipherSuites = slices.DeleteFunc(slices.Clone(h.CipherSuites), func(s uint16) bool { return !slices.Contains(p.Config.CipherSuites, s) })
	if ours := p.Config.CurvePreferences; len(ours) > 0 {
		own.SupportedCurves = slices.DeleteFunc(slices.Clone(h.SupportedCurves), func(c tls.CurveID) bool { return !slices.Contains(ours, c) })
	}
	cert, err := p.Config.GetCertificate(&own)
	if err != nil || cert == nil {
		return false // the handshake will fail
	}
	return ecdsa == ellipticKey(cert)
}

// ellipticKey reports whether the key of c signs in the suites with ECDSA in their names.
func ellipticKey(c *tls.Certificate) bool {
	if k, ok := c.PrivateKey.(crypto.Signer); ok {
		switch k.Public().(type) {
		case *ecdsa.PublicKey, ed25519.PublicKey:
			return true
		}
	}
	return false
}

// sharesCurve reports whether p and the client have a common curve for ECDHE in TLS 1.2.
func (p *Policy) sharesCurve(offered []tls.CurveID) bool {
	ours := p.Config.CurvePreferences
	for _, c := range offered {
		switch c {
		case tls.CurveP256, tls.CurveP384, tls.CurveP521, tls.X25519:
			if len(ours) == 0 || slices.Contains(ours, c) {
				return true
			}
		}
	}
	return false
}

// common reports whether ours and offered have one of suites in common. If offered is
// nil, the client offers all suites.
func common(ours, suites, offered []uint16) bool {
	for _, s := range suites {
		if slices.Contains(ours, s) && (offered == nil || slices.Contains(offered, s)) {
			return true
		}
	}
	return false
}
