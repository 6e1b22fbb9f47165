package config

// ClientCert is how a route treats the client certificates that its TLS policy requests with
// ClientAuthReport. It works as the annotations auth-tls-* of ingress-nginx do, and only objects of a
// cluster have it.
type ClientCert struct {
	Mode CertMode
	// Match is an expression (RE2) that must match a part of the subject of the certificate; empty: any subject.
	Match string
	// ErrorPage is the URL to which requests without a good certificate are redirected; empty: they get 400.
	ErrorPage string
	// Forward means that endpoints get the whole certificate.
	Forward bool
}

// CertMode is which client certificates a route accepts.
type CertMode string

// The modes.
const (
	CertRequired   CertMode = "on"             // only clients with a good certificate
	CertOptional   CertMode = "optional"       // also clients without one
	CertUnverified CertMode = "optional_no_ca" // also clients whose certificate is from another CA
	CertOff        CertMode = "off"            // every client; the policy requests no certificate
)

// mayRefuse reports whether the route may refuse requests because of certificates. c may be nil.
func (c *ClientCert) mayRefuse() bool { return c != nil && (c.Mode != CertOff || c.Match != "") }
