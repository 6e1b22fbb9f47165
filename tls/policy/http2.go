package policy

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/tls"
	"slices"
)

// HTTP2 is what ALPN calls HTTP/2 within TLS (RFC 9113, section 3.1).
const HTTP2 = "h2"

// The suites for TLS 1.2 that HTTP/2 allows, of those that Go implements: all
// others are in the list of RFC 9113, appendix A. Those of TLS 1.3 are allowed.
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

// prepareHTTP2 makes the policy that offers HTTP/2, where some client could be offered it.
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

// OfferHTTP2 is p with HTTP/2 offered, if the client asks for it and the
// handshake will end with what HTTP/2 demands of TLS (RFC 9113, section 9.2);
// else p. Go itself offers it with any version and suite.
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

// version is the one that will be agreed on, of those that a client offers; 0: none.
func (p *Policy) version(offered []uint16) (best uint16) {
	for _, v := range offered {
		if p.Config.MinVersion <= v && v <= p.Config.MaxVersion {
			best = max(best, v)
		}
	}
	return best
}

// allowed12 reports whether TLS 1.2 will end with a suite that HTTP/2 allows.
// crypto/tls prefers these to all others, as far as the certificate's key fits.
func (p *Policy) allowed12(h *tls.ClientHelloInfo) bool {
	if !p.sharesCurve(h.SupportedCurves) {
		return false
	}
	ecdsa := common(p.Config.CipherSuites, suitesECDSA, h.CipherSuites)
	rsa := common(p.Config.CipherSuites, suitesRSA, h.CipherSuites)
	if ecdsa == rsa {
		return ecdsa // whatever the key
	}
	// What the policy has not, the client need not offer: crypto/tls judges
	// certificates by the configuration that the policy has yet to replace.
	own := *h
	own.SupportedVersions = []uint16{tls.VersionTLS12}
	own.CipherSuites = slices.DeleteFunc(slices.Clone(h.CipherSuites), func(s uint16) bool { return !slices.Contains(p.Config.CipherSuites, s) })
	if ours := p.Config.CurvePreferences; len(ours) > 0 {
		own.SupportedCurves = slices.DeleteFunc(slices.Clone(h.SupportedCurves), func(c tls.CurveID) bool { return !slices.Contains(ours, c) })
	}
	cert, err := p.Config.GetCertificate(&own)
	if err != nil || cert == nil {
		return false // there will be no handshake
	}
	return ecdsa == ellipticKey(cert)
}

// ellipticKey reports whether c proves itself in the suites that are named for ECDSA.
func ellipticKey(c *tls.Certificate) bool {
	if k, ok := c.PrivateKey.(crypto.Signer); ok {
		switch k.Public().(type) {
		case *ecdsa.PublicKey, ed25519.PublicKey:
			return true
		}
	}
	return false
}

// sharesCurve reports whether a key can be exchanged by ECDHE in TLS 1.2.
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

// common reports whether one of suites is among ours and offered; nil: everything is offered.
func common(ours, suites, offered []uint16) bool {
	for _, s := range suites {
		if slices.Contains(ours, s) && (offered == nil || slices.Contains(offered, s)) {
			return true
		}
	}
	return false
}
