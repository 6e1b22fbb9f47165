package proxy

import (
	"crypto/tls"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/accesslog"
	"github.com/weirproxy/weir/tls/policy"
)

// Security describes the TLS of a client's connection. The zero value means no TLS.
type Security struct {
	// SNI is the server name in the ClientHello, also of TLS that weir passes through.
	SNI string
	// Policy is the policy of TLS that weir terminates. It is nil without such TLS, and
	// after a handshake that failed before a policy was chosen.
	Policy *policy.Policy

	tls  stateful       // nil: weir terminates no TLS
	text *accesslog.TLS // the description of tls for the access log; nil: not made yet, see note
	cert *clientCert    // nil: the policy requests none, or it decides and the client sent none
}

// stateful is a *tls.Conn, or another connection that carries TLS.
type stateful interface {
	ConnectionState() tls.ConnectionState
}

// newSecurity describes TLS that weir terminates, or with a nil tc no TLS.
func newSecurity(tc *tls.Conn, sni string, under *policy.Policy) Security {
	s := Security{SNI: sni, Policy: under}
	if tc != nil { // a nil *tls.Conn in s.tls would count as TLS
		s.tls = tc
	}
	return s
}

// Terminated reports whether weir terminates TLS, even if the handshake failed.
func (s *Security) Terminated() bool { return s.tls != nil }

// State returns the state of the TLS connection. It needs Terminated.
func (s *Security) State() tls.ConnectionState { return s.tls.ConnectionState() }

// verified reports whether state has a client certificate that weir has verified, and that is good.
func (s *Security) verified(state *tls.ConnectionState) bool {
	if len(state.PeerCertificates) == 0 || s.Policy == nil || s.Policy.ClientAuth == config.ClientAuthNone {
		return false
	}
	return s.Policy.ClientAuth != config.ClientAuthReport || s.cert.good()
}

// PolicyName returns the name of the policy, or "".
func (s *Security) PolicyName() string {
	if s.Policy == nil {
		return ""
	}
	return s.Policy.Name
}
