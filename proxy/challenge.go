package proxy

import (
	"crypto/tls"
	"time"

	"github.com/weirproxy/weir/tls/policy"
)

// Challenges answers what certificate authorities ask in order to see that a
// name is ours, here or for another replica. Nothing but its own storage keeps it waiting.
type Challenges interface {
	// HTTP01 returns what is to be answered on /.well-known/acme-challenge/TOKEN
	// (RFC 8555, section 8.3); false: nobody asked for such a challenge.
	HTTP01(host, token string) (keyAuthorization string, ok bool)
	// TLSALPN01 returns the certificate that answers a challenge for the name in
	// the ClientHello (RFC 8737). An error, or none: nobody asked for one.
	TLSALPN01(h *tls.ClientHelloInfo) (*tls.Certificate, error)
}

// ChallengePolicy is what metrics and logs have in the place of a TLS policy
// for handshakes that are TLS-ALPN-01 challenges.
const ChallengePolicy = "acme-tls-alpn-01"

// challengeProtocol is the ALPN value of RFC 8737, section 6.2.
const challengeProtocol = "acme-tls/1"

// isChallenge reports whether a ClientHello is a TLS-ALPN-01 challenge: it offers
// that one protocol and no other (RFC 8737, section 3). Whoever offers more is
// an ordinary client, for whom no policy has that protocol.
func isChallenge(h *tls.ClientHelloInfo) bool {
	return len(h.SupportedProtos) == 1 && h.SupportedProtos[0] == challengeProtocol
}

// answer is what a challenge gets in the place of its host's policy: the
// certificate made for it and nothing else, whoever asks. Without one the
// handshake ends, as no protocol is left in common.
func (p *Proxy) answer(h *tls.ClientHelloInfo) *policy.Policy {
	if p.Challenges == nil {
		return noChallenge
	}
	cert, err := p.Challenges.TLSALPN01(h)
	if err != nil || cert == nil {
		return noChallenge
	}
	return &policy.Policy{Name: ChallengePolicy, Config: &tls.Config{
		Certificates: []tls.Certificate{*cert},
		MinVersion:   tls.VersionTLS12, // RFC 8737, section 3
		NextProtos:   []string{challengeProtocol},
		// A session of it would prove nothing to anybody.
		SessionTicketsDisabled: true,
	}}
}

var noChallenge = &policy.Policy{Name: ChallengePolicy, Config: &tls.Config{
	MinVersion:             tls.VersionTLS12,
	NextProtos:             []string{"http/1.1"},
	SessionTicketsDisabled: true,
}}

// answered ends the connection of a challenge: it was for the handshake alone
// (RFC 8737, section 3), and what comes after that is not read.
func (p *Proxy) answered(h *handshake, tc *tls.Conn) {
	tc.Close()
	h.conn.Close()
	if log := p.log.Load(); log != nil {
		(*log)(&Record{Kind: "challenge", Listener: h.edge.name, Origin: &h.conn.Origin, Security: newSecurity(tc, h.sni, h.policy),
			Started: h.conn.Accepted, Duration: time.Since(h.conn.Accepted)})
	}
}
