package policy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/tls/hello"
)

// The results of a handshake, as they appear in metrics and the access log.
const (
	ResultOK                = "ok"
	ResultTimeout           = "timeout"
	ResultClientClosed      = "client_closed"       // the client closed or reset the connection without an alert
	ResultClientRefused     = "client_refused"      // the client sent an alert: mostly, it does not trust our certificate
	ResultBadRecord         = "bad_record"          // not TLS, or TLS that violates the protocol
	ResultPlainHTTP         = "plain_http"          // the client sent an HTTP request without TLS
	ResultSSLv2Hello        = "sslv2_hello"         // the client sent a ClientHello in the format of SSLv2
	ResultProxyHeader       = "proxy_header"        // a PROXY header that the listener does not expect
	ResultNoCommonVersion   = "no_common_version"   // no version between min_version and max_version
	ResultNoCommonSuite     = "no_common_suite"     // no suite in cipher_suites that fits the certificates, or no curve
	ResultNoCommonSignature = "no_common_signature" // mostly: the client supports only SHA-1
	ResultNoCommonProtocol  = "no_common_protocol"  // no common protocol by ALPN
	ResultUnknownName       = "unknown_name"        // there is no certificate for the name
	ResultClientCertificate = "client_certificate"  // missing although required, or not verified
	// Client certificates that crypto/tls or crypto/x509 cannot use, even if a trusted CA
	// issued them.
	ResultClientCertificateSHA1      = "client_certificate_sha1"      // the certificate, or a CA in its chain, has a signature with SHA-1 or MD5
	ResultClientCertificateSignature = "client_certificate_signature" // the signature's algorithm is not supported: RSA-PSS with unusual parameters, DSA
	ResultClientCertificateKey       = "client_certificate_key"       // weir does not support the key type: RSA-PSS, DSA
	ResultClientCertificateSerial    = "client_certificate_serial"    // the serial number is negative

	ResultRevoked           = "revoked"            // the certificate of the client, or of a CA in its chain
	ResultRevocationUnknown = "revocation_unknown" // a CA in the chain has no valid revocation list
	ResultCut               = "cut"                // weir ended the connection, because it drains
	ResultOther             = "other"
)

// ErrNoCertificate is in the error of a handshake if weir could not find or obtain a
// certificate. The error contains the reason.
var ErrNoCertificate = errors.New("there is no certificate for the name")

// HandshakeResult returns the result of a handshake, or of hello.Read, that ended with
// err: one of the words above. nil is ok.
func HandshakeResult(err error) string {
	if err == nil {
		return ResultOK
	}
	var timeout net.Error
	var record tls.RecordHeaderError
	var verification *tls.CertificateVerificationError
	switch {
	case errors.Is(err, conn.ErrCut):
		return ResultCut
	case errors.Is(err, ErrNoCertificate): // check this before timeouts, because a timeout may be its reason
		return ResultUnknownName
	case errors.Is(err, ErrRevoked):
		return ResultRevoked
	case errors.Is(err, ErrRevocationUnknown):
		return ResultRevocationUnknown
	case errors.As(err, &verification), errors.Is(err, ErrClientCertificate):
		return resultOfVerification(err)
	case errors.As(err, &record):
		return resultOfRecord(string(record.RecordHeader[:]))
	case errors.Is(err, hello.ErrTooLong), errors.Is(err, hello.ErrMalformed), errors.Is(err, hello.ErrBadSSLv2):
		return ResultBadRecord
	case errors.As(err, &timeout) && timeout.Timeout():
		return ResultTimeout
	}
	if alert := (*net.OpError)(nil); errors.As(err, &alert) {
		switch alert.Op {
		case "remote error":
			return ResultClientRefused
		case "local error":
			return ResultBadRecord
		}
	}
	if conn.Routine(err) {
		return ResultClientClosed
	}
	return resultOfText(err.Error())
}

// resultOfRecord returns the result for a connection that begins with these five bytes
// instead of a TLS record.
func resultOfRecord(begin string) string {
	switch begin {
	case "PROXY", "\r\n\r\n\x00":
		return ResultProxyHeader
	case "GET /", "HEAD ", "POST ", "PUT /", "PATCH", "DELET", "OPTIO", "CONNE", "TRACE", "PRI *":
		return ResultPlainHTTP
	}
	if hello.BeginsSSLv2(begin) {
		return ResultSSLv2Hello
	}
	return ResultBadRecord
}

// resultOfVerification returns a special result if only the algorithm of a signature made
// the verification of a client certificate fail. crypto/x509 reports that only in the
// text of its error.
func resultOfVerification(err error) string {
	var unknown x509.UnknownAuthorityError
	if !errors.As(err, &unknown) {
		return ResultClientCertificate
	}
	switch hint := unknown.Error(); {
	case strings.Contains(hint, "cannot verify signature: insecure algorithm"):
		return ResultClientCertificateSHA1
	case strings.Contains(hint, x509.ErrUnsupportedAlgorithm.Error()):
		return ResultClientCertificateSignature
	}
	return ResultClientCertificate
}

// causes are texts of crypto/tls errors that have no type or value of their own. A test
// produces each of them, so that it detects a change in Go.
var causes = []struct{ text, result string }{
	{"tls: handshake message of length", ResultBadRecord},
	{"tls: received unexpected handshake message", ResultBadRecord},
	{"tls: too many ignored records", ResultBadRecord},
	{"tls: client offered only unsupported versions", ResultNoCommonVersion},
	{"tls: client using inappropriate protocol fallback", ResultNoCommonVersion},
	{"tls: no cipher suite supported by both client and server", ResultNoCommonSuite},
	{"tls: no key exchanges supported by both client and server", ResultNoCommonSuite},
	{"tls: peer doesn't support any of the certificate's signature algorithms", ResultNoCommonSignature},
	{"tls: missing signature_algorithms from TLS 1.2 peer", ResultNoCommonSignature},
	{"tls: client requested unsupported application protocols", ResultNoCommonProtocol},
	{"tls: no certificates configured", ResultUnknownName},
	{"tls: client didn't provide a certificate", ResultClientCertificate},
	{"tls: failed to parse client certificate: x509: negative serial number", ResultClientCertificateSerial},
	{"tls: failed to parse client certificate: x509: unsupported elliptic curve", ResultClientCertificateKey},
	{"tls: client certificate contains an unsupported public key", ResultClientCertificateKey},
	{"tls: failed to parse client certificate", ResultClientCertificate},
	{"tls: client sent certificate containing RSA key larger than", ResultClientCertificate},
	{"tls: client certificate ", ResultClientCertificate},
	{"tls: invalid signature by the client certificate", ResultClientCertificate},
}

func resultOfText(text string) string {
	for _, c := range causes {
		if strings.Contains(text, c.text) {
			return c.result
		}
	}
	return ResultOther
}
