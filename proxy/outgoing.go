package proxy

import (
	"crypto/tls"
	"net/netip"
	"slices"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/header"
	"github.com/weirproxy/weir/proxy/backend"
)

// outgoing returns the client information for the PROXY header to an endpoint: the content of the
// client's own PROXY header, replaced by what weir knows from its own TLS. client is the client
// that sent the request, or the other end of the connection.
func outgoing(c *conn.Origin, client netip.AddrPort, sec *Security) *backend.Outgoing {
	out := &backend.Outgoing{Client: client, Local: c.Local, TLVs: c.Header.TLVs}
	if sec.SNI != "" {
		out.TLVs.Authority = sec.SNI
	}
	out.TLVs.UniqueID = uniqueID(out.TLVs.UniqueID)
	if sec.Terminated() {
		state := sec.State()
		out.TLVs.ALPN = state.NegotiatedProtocol
		out.TLVs.SSL = sslTLV(&state, sec)
	}
	return out
}

// sslTLV describes the client's TLS connection to weir. It uses the names of OpenSSL, as HAProxy
// does and readers of this TLV expect. It always tells whether there was a client certificate. It
// contains only the parts of the certificate that the policy forwards to backends.
//
// ClientCert is true if the client sent the certificate in a full handshake of this connection. It
// is false for a resumed session. Verified is true for both.
func sslTLV(state *tls.ConnectionState, sec *Security) *header.SSL {
	s := &header.SSL{TLS: true, Version: opensslVersions[state.Version], Cipher: opensslSuites[state.CipherSuite], Group: groups[state.CurveID]}
	if s.Cipher == "" {
		s.Cipher = tls.CipherSuiteName(state.CipherSuite) // OpenSSL uses these names for TLS 1.3
	}
	if !sec.verified(state) {
		return s
	}
	leaf, under := state.PeerCertificates[0], sec.Policy
	s.ClientCert, s.Verified = !state.DidResume, true
	if slices.Contains(under.Forward, config.ClientCertSubject) {
		s.CommonName = leaf.Subject.CommonName
	}
	if slices.Contains(under.Forward, config.ClientCertCertificate) {
		s.Certificate = leaf.Raw
	}
	return s
}

var opensslVersions = map[uint16]string{
	tls.VersionTLS10: "TLSv1", tls.VersionTLS11: "TLSv1.1", tls.VersionTLS12: "TLSv1.2", tls.VersionTLS13: "TLSv1.3",
}

// opensslSuites are OpenSSL's names of the suites before TLS 1.3, which differ from IANA's names.
var opensslSuites = map[uint16]string{
	tls.TLS_RSA_WITH_RC4_128_SHA:                      "RC4-SHA",
	tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA:                 "DES-CBC3-SHA",
	tls.TLS_RSA_WITH_AES_128_CBC_SHA:                  "AES128-SHA",
	tls.TLS_RSA_WITH_AES_256_CBC_SHA:                  "AES256-SHA",
	tls.TLS_RSA_WITH_AES_128_CBC_SHA256:               "AES128-SHA256",
	tls.TLS_RSA_WITH_AES_128_GCM_SHA256:               "AES128-GCM-SHA256",
	tls.TLS_RSA_WITH_AES_256_GCM_SHA384:               "AES256-GCM-SHA384",
	tls.TLS_ECDHE_ECDSA_WITH_RC4_128_SHA:              "ECDHE-ECDSA-RC4-SHA",
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA:          "ECDHE-ECDSA-AES128-SHA",
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA:          "ECDHE-ECDSA-AES256-SHA",
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256:       "ECDHE-ECDSA-AES128-SHA256",
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256:       "ECDHE-ECDSA-AES128-GCM-SHA256",
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384:       "ECDHE-ECDSA-AES256-GCM-SHA384",
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256: "ECDHE-ECDSA-CHACHA20-POLY1305",
	tls.TLS_ECDHE_RSA_WITH_RC4_128_SHA:                "ECDHE-RSA-RC4-SHA",
	tls.TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA:           "ECDHE-RSA-DES-CBC3-SHA",
	tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA:            "ECDHE-RSA-AES128-SHA",
	tls.TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA:            "ECDHE-RSA-AES256-SHA",
	tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256:         "ECDHE-RSA-AES128-SHA256",
	tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256:         "ECDHE-RSA-AES128-GCM-SHA256",
	tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384:         "ECDHE-RSA-AES256-GCM-SHA384",
	tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256:   "ECDHE-RSA-CHACHA20-POLY1305",
}

// groups are the names of TLS groups in IANA's registry. OpenSSL uses these names.
var groups = map[tls.CurveID]string{
	tls.CurveP256: "secp256r1", tls.CurveP384: "secp384r1", tls.CurveP521: "secp521r1", tls.X25519: "x25519",
	tls.X25519MLKEM768: "X25519MLKEM768", tls.SecP256r1MLKEM768: "SecP256r1MLKEM768", tls.SecP384r1MLKEM1024: "SecP384r1MLKEM1024",
}
