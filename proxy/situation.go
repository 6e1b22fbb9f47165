package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/tls/hello"
	"github.com/weirproxy/weir/tls/policy"
)

// If a connection begins with another protocol than its listener expects, the error names
// that protocol. A syntax error of the expected protocol would not help.

// The refusals of connections to an http listener that begin with another protocol.
var (
	refuseHeader = &message.Refusal{Status: http.StatusBadRequest, Reason: "proxy_header",
		Detail: "the connection does not begin with an HTTP request",
		Hint:   "it begins with a PROXY header, and the listener reads none from this peer; set proxy_protocol of the listener to a policy with a rule for the peer, or turn the PROXY header off at the load balancer"}
	refuseTLS = &message.Refusal{Status: http.StatusBadRequest, Reason: "tls_on_http",
		Detail: "the client speaks TLS, and plain HTTP is spoken here; use an http:// address",
		Hint:   "or a listener with protocol: tls"}
)

// The first bytes of other protocols. A v2 PROXY header looks like two empty lines until its fifth byte.
const (
	headerV1     = "PROXY "
	headerV2     = "\r\n\r\n\x00\r\nQUIT\n"
	tlsHandshake = "\x16\x03"
)

// otherProtocol returns the refusal for the bytes that have arrived, or nil if they may be
// HTTP.
func (s *http1Session) otherProtocol() *message.Refusal {
	switch {
	case s.served || s.tls != nil:
	case s.http1.Begins(headerV1 + "TCP"), s.http1.Begins(headerV1 + "UNKNOWN"), s.http1.Begins(headerV2):
		return refuseHeader
	case s.http1.Begins(tlsHandshake):
		return refuseTLS
	}
	return nil
}

// explain describes the error of a handshake, or of the wait for one. tc is nil if no handshake began.
func (e *edge) explain(tc *tls.Conn, err error) error {
	var record tls.RecordHeaderError
	var op *net.OpError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return conn.Explain(err, "the client did not send its first bytes, or complete the TLS handshake, within %v (listeners.%s.timeouts.handshake)", e.timeouts.Handshake, e.name)
	case errors.Is(err, hello.ErrBadSSLv2):
		return conn.Explain(err, "the client sent a malformed SSLv2-format ClientHello: its lengths are invalid, or there is no cipher suite")
	case errors.As(err, &record):
		return e.explainRecord(policy.HandshakeResult(err), err)
	case unusable[policy.HandshakeResult(err)] != "": // the text in unusable already names the cause
		return fmt.Errorf("%s: %w", unusable[policy.HandshakeResult(err)], err)
	case errors.As(err, &op) && op.Op == "local error" && tc != nil && tc.ConnectionState().Version == 0:
		if fault := hello.Fault(conn.ClientHello(tc)); fault != "" {
			return fmt.Errorf("%s: %w", fault, err)
		}
	case errors.As(err, &op) && op.Op == "local error" && tc != nil && tc.ConnectionState().Version == tls.VersionTLS13:
		if alert, ok := conn.PlainAlert(tc); ok {
			return e.explainAlert(&net.OpError{Op: "remote error", Err: tls.AlertError(alert)})
		}
	case errors.As(err, &op) && op.Op == "remote error":
		return e.explainAlert(op)
	}
	return err
}

// unusable has advice for client certificates that weir refuses in every configuration.
// docs/tls.md lists them among the limits.
var unusable = map[string]string{
	policy.ResultClientCertificateSHA1:      "the client certificate, or a CA certificate between it and client_auth.ca, is signed with SHA-1 or MD5, which weir never accepts (sha1_signatures does not apply to certificates); issue it again with SHA-256, or pass the host through (tls: passthrough)",
	policy.ResultClientCertificateSignature: "the client certificate, or a CA certificate between it and client_auth.ca, has a signature that weir cannot verify, such as RSA-PSS with an unusual salt length, or DSA; issue it again with sha256WithRSAEncryption or ecdsa-with-SHA256",
	policy.ResultClientCertificateKey:       "the client certificate has a key that weir cannot verify, such as one for RSA-PSS only, DSA or Ed448; issue it again with an RSA key (rsaEncryption), ECDSA (P-256, P-384, P-521) or Ed25519",
	policy.ResultClientCertificateSerial:    "the serial number of the client certificate is negative; issue it again with a positive one",
}

// explainSuites names the client's suites if no policy of weir can have any of them.
func explainSuites(h *tls.ClientHelloInfo, err error) error {
	if policy.HandshakeResult(err) != policy.ResultNoCommonSuite || h == nil {
		return err
	}
	only := policy.OnlyMissing(h)
	if len(only) == 0 {
		return err
	}
	return fmt.Errorf("the client offers only cipher suites that no TLS policy of weir can have (%s); it needs another suite, or a route that passes its TLS through (tls: passthrough): %w", strings.Join(only, ", "), err)
}

// explainVersion names the versions of the client and of the policy if they have none in common.
func (h *handshake) explainVersion(err error) error {
	lowest, highest := h.policy.Config.MinVersion, h.policy.Config.MaxVersion
	offered, setting := "", "min_version"
	switch oldest, latest := policy.OfferedVersions(h.hello); {
	case latest < lowest:
		offered = policy.VersionName(latest) + " at most"
	case oldest > highest:
		offered, setting = policy.VersionName(oldest)+" at least", "max_version"
	default:
		return err // for example, a repeated attempt with an older version (TLS_FALLBACK_SCSV)
	}
	accepted := policy.VersionName(lowest)
	if highest > lowest {
		accepted += " to " + strings.TrimPrefix(policy.VersionName(highest), "TLS ")
	}
	return fmt.Errorf("the client offers %s, and policy %q accepts %s (tls_policies.%s.%s)%s: %w",
		offered, h.name(), accepted, h.name(), setting, h.otherPolicy(), err)
}

// explainSignatures names the setting for a client that accepts only SHA-1 signatures.
func (h *handshake) explainSignatures(err error) error {
	if h.policy.SHA1 || !policy.OfferOf(h.hello).OnlySHA1 {
		return err
	}
	return fmt.Errorf("the client accepts only SHA-1 signatures, and policy %q makes none in TLS 1.2 (tls_policies.%s.sha1_signatures)%s: %w",
		h.name(), h.name(), h.otherPolicy(), err)
}

// otherPolicy names the policy that the client would have if its network were in `from`.
func (h *handshake) otherPolicy() string {
	p := h.edge.policyOf(h.host, h.sni)
	if p == nil || p.Allows(h.conn.Client.Addr()) {
		return ""
	}
	return fmt.Sprintf("; policy %q does not apply, because the client's address is not in tls_policies.%s.from", p.Name, p.Name)
}

func (e *edge) explainRecord(result string, err error) error {
	switch result {
	case policy.ResultProxyHeader:
		return conn.Explain(err, "the connection begins with a PROXY header, and the listener reads none from this peer; set listeners.%s.proxy_protocol to a policy with a rule for the peer, or turn the PROXY header off at the load balancer", e.name)
	case policy.ResultPlainHTTP:
		return conn.Explain(err, "the client speaks plain HTTP, and the listener %s speaks TLS; use a listener with protocol: http, or an https:// address", e.name)
	case policy.ResultSSLv2Hello:
		return conn.Explain(err, "the client sent an SSLv2-format ClientHello, as OpenSSL 0.9.8 and Java 6 do, which weir cannot terminate; serve it by a route of the listener %s with tls: passthrough and no hosts, to a server that accepts such clients", e.name)
	}
	return conn.Explain(err, "the connection does not begin with a TLS handshake, and the listener %s speaks TLS", e.name)
}

// explainAlert describes an alert that the client sent.
func (e *edge) explainAlert(op *net.OpError) error {
	name := strings.TrimPrefix(op.Err.Error(), "tls: ")
	var alert tls.AlertError
	if errors.As(op.Err, &alert) {
		name = strings.TrimPrefix(alert.Error(), "tls: ")
	}
	switch name {
	case "unknown certificate authority", "bad certificate", "unsupported certificate", "expired certificate", "revoked certificate", "unknown certificate":
		name += "; the client does not accept weir's certificate: check its names, issuer and expiry date (certificates), and which CAs the client trusts"
	}
	return conn.Explain(op, "the client ended the TLS handshake with the alert: %s", name)
}

// slowHead returns the refusal for a client that does not send its request's head in time.
func (e *edge) slowHead() *message.Refusal {
	return &message.Refusal{Status: http.StatusRequestTimeout, Reason: "slow_head",
		Detail: "the client did not send the whole request head in time", Hint: fmt.Sprintf("timeouts.request_head of the listener is %v", e.timeouts.RequestHead)}
}

// slowRead returns the error for a client that does not read its response.
func slowRead(e *edge, err error) error {
	return conn.Explain(err, "the client did not read the response within %v (listeners.%s.timeouts.body_idle)", e.timeouts.BodyIdle, e.name)
}

// slowBody returns the error for a client that sends the request's body too slowly.
func slowBody(x *exchange, err error) error {
	e, pace, rate, hint := x.edge, x.bodyPace(), "", ""
	if pace.silence == 0 && x.req.Length == message.Unknown && (pace.call || x.answered) && !x.attempts.body.Owes() {
		hint = hintSilence
	}
	if n := x.minRate(); n > 0 {
		rate = fmt.Sprintf(", body_min_rate is %d bytes a second", n)
	}
	return conn.Explain(err, "the request's body did not arrive in time (listeners.%s.timeouts.body_idle is %v%s)%s", e.name, e.timeouts.BodyIdle, rate, hint)
}

// silentBody returns the error for a stream on which neither side sent anything, if the limit of the request ended it.
func silentBody(x *exchange, err error) error {
	whose := "listeners." + x.edge.name + ".timeouts.stream_idle"
	if l := x.attempts.limits; l != nil && l.waits.stream != 0 {
		whose = "timeouts.stream_idle of the route"
	}
	return conn.Explain(err, "neither side sent anything within %v (%s)", x.bodyPace().silence, whose)
}
