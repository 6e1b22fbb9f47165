package proxy

import (
	"crypto/tls"
	"errors"

	"github.com/weirproxy/weir/tls/policy"
)

// A host of a tls listener may lead to a tcp backend. Then weir terminates TLS and forwards the
// decrypted bytes without reading them. Only the ClientHello names the host. So a client without
// SNI uses the route without hosts, and only the TLS policy of that route can keep it out.

// errNoTunnel ends a handshake on a listener that has only tunnels.
var errNoTunnel = &noTunnelError{errors.New("no route of the listener has the host in the client's SNI, or the client sent no SNI; a route without hosts serves all other clients")}

type noTunnelError struct{ error }

// Unwrap makes the error count as an unknown name.
func (e *noTunnelError) Unwrap() error { return policy.ErrNoCertificate }

// chooseTunnel sets the route of the tunnel for the name in the ClientHello, if there is one.
func (h *handshake) chooseTunnel() error {
	e := h.edge
	if !e.tunnels {
		return nil
	}
	switch {
	case h.host != nil:
		h.tunnel = h.host.tunnel
	case !e.http:
		return errNoTunnel
	}
	return nil
}

// nameless has no certificate, so crypto/tls refuses the client with the alert
// unrecognized_name. With an error it would send internal_error.
var nameless = &policy.Policy{Config: &tls.Config{MinVersion: tls.VersionTLS10, SessionTicketsDisabled: true}}

// reason returns the reason for which the handshake failed with err.
func (h *handshake) reason(err error) error {
	if h.refused != nil && policy.HandshakeResult(err) == policy.ResultUnknownName {
		return h.refused
	}
	if h.hello != nil && h.name() != "" && !h.challenge {
		switch policy.HandshakeResult(err) {
		case policy.ResultNoCommonVersion:
			return h.explainVersion(err)
		case policy.ResultNoCommonSignature:
			return h.explainSignatures(err)
		}
	}
	return explainSuites(h.hello, err)
}
