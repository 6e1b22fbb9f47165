package proxy

import (
	"crypto/tls"
	"time"

	"github.com/weirproxy/weir/proxy/accesslog"
	"github.com/weirproxy/weir/tls/policy"
)

// Challenges answers the challenges with which certificate authorities check that a name belongs
// to this weir, or to another replica. A call may wait for its storage, and for nothing else.
type Challenges interface {
	// HTTP01 returns the response to a request for /.well-known/acme-challenge/TOKEN (RFC 8555,
	// section 8.3); false: weir expects no such challenge.
	HTTP01(host, token string) (keyAuthorization string, ok bool)
	// OrdersHTTP01 reports whether weir obtains a certificate for the host by HTTP-01. It does not wait.
	OrdersHTTP01(host string) bool
	// TLSALPN01 returns the certificate that answers a challenge for the name in the ClientHello
	// (RFC 8737). With an error, or without a certificate, weir expects no such challenge.
	TLSALPN01(h *tls.ClientHelloInfo) (*tls.Certificate, error)
}

// ChallengePolicy replaces the name of a TLS policy in metrics and logs, for handshakes that are
// TLS-ALPN-01 challenges.
const ChallengePolicy = "acme-tls-alpn-01"

// challengeProtocol is the ALPN value of RFC 8737, section 6.2.
const challengeProtocol = "acme-tls/1"

// isChallenge reports whether a ClientHello is a TLS-ALPN-01 challenge: it offers that one
// protocol and no other (RFC 8737, section 3). A client that offers more protocols is an ordinary
// client, and no policy has the challenge's protocol for it.
func isChallenge(h *tls.ClientHelloInfo) bool {
	return len(h.SupportedProtos) == 1 && h.SupportedProtos[0] == challengeProtocol
}

// answer returns the policy that a challenge gets instead of its host's policy. It has only the
// certificate made for the challenge, for every client. Without such a certificate the handshake
// ends, because client and policy have no protocol in common.
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
		// A resumed session would prove nothing.
		SessionTicketsDisabled: true,
	}}
}

var noChallenge = &policy.Policy{Name: ChallengePolicy, Config: &tls.Config{
	MinVersion:             tls.VersionTLS12,
	NextProtos:             []string{"http/1.1"},
	SessionTicketsDisabled: true,
}}

// answered ends the connection of a challenge. The connection is for the handshake alone (RFC
// 8737, section 3), so weir reads nothing after it.
func (p *Proxy) answered(h *handshake, tc *tls.Conn) {
	tc.Close()
	h.conn.Close()
	if log := p.log.Load(); log != nil {
		r := &accesslog.Record{Kind: "challenge", Listener: h.edge.name, Origin: &h.conn.Origin,
			Started: h.conn.Accepted, Duration: time.Since(h.conn.Accepted)}
		sec := newSecurity(tc, h.sni, h.policy)
		sec.describe(r)
		(*log)(r)
	}
}
