package policy

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weirproxy/weir/config"
)

// Exam is the result of the verification of a client certificate under a policy with
// config.ClientAuthReport. The handshake succeeds with every certificate and without one; routes decide.
type Exam struct {
	// Leaf is the client's certificate; nil: the client sent none, and the other fields are zero.
	Leaf *x509.Certificate
	// Err is why the certificate is not good; nil: it is.
	Err error
	// Reason is Err in the words of OpenSSL, which nginx sends to endpoints.
	Reason string
	// Unknown means that the only flaw of the certificate is that no CA of the policy issued it.
	Unknown bool
}

// exam examines client certificates as OpenSSL does for nginx.
type exam struct {
	roots, between *x509.CertPool      // the CAs that signed themselves, and the other CAs
	cas            []*x509.Certificate // all CAs
	depth          int                 // the maximum number of intermediate CAs
	revoked        *revocation         // nil: there are no revocation lists
	of             string              // where the CAs are, for messages
}

// request makes c request client certificates, and returns the exam for them. A CA certificate is a trust
// anchor only if it is signed with its own key, as in OpenSSL.
func request(c *tls.Config, p config.TLSPolicy) (*exam, error) {
	cas, err := config.Authorities(p.ClientAuthPool)
	if err != nil {
		return nil, fmt.Errorf("%s %w", p.ClientAuthCA, err)
	}
	e := &exam{roots: x509.NewCertPool(), between: x509.NewCertPool(), cas: cas, depth: p.ClientAuthDepth, of: p.ClientAuthCA}
	if config.NamesFit(cas) {
		c.ClientCAs = x509.NewCertPool() // their names tell clients which certificate to choose
	}
	for _, ca := range cas {
		if c.ClientCAs != nil {
			c.ClientCAs.AddCert(ca)
		}
		if isSelfSigned(ca) {
			e.roots.AddCert(ca)
		} else {
			e.between.AddCert(ca)
		}
	}
	c.ClientAuth = tls.RequestClientCert
	if len(p.ClientAuthLists) == 0 {
		return e, nil
	}
	lists, err := config.ParseRevocationLists(p.ClientAuthLists)
	if err != nil {
		return nil, fmt.Errorf("the revocation list of %s %w", p.ClientAuthCA, err)
	}
	content := &crlLists{version: 1}
	for _, l := range lists {
		content.lists = append(content.lists, &signedList{RevocationList: l})
	}
	file := &crlFile{path: p.ClientAuthCA}
	file.lists.Store(content)
	e.revoked = &revocation{anchors: cas, files: []*crlFile{file}}
	return e, nil
}

// isSelfSigned reports whether a certificate is signed with its own key.
func isSelfSigned(c *x509.Certificate) bool {
	return bytes.Equal(c.RawIssuer, c.RawSubject) && c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature) == nil
}

// Examine verifies the client certificate of a connection, whether or not the session is resumed. It
// returns nil if p decides about certificates itself, or requests none.
func (p *Policy) Examine(s *tls.ConnectionState, now time.Time) *Exam {
	switch {
	case p.exam == nil:
		return nil
	case len(s.PeerCertificates) == 0:
		return &Exam{}
	}
	x := &Exam{Leaf: s.PeerCertificates[0]}
	x.Reason, x.Err, x.Unknown = p.exam.verify(s.PeerCertificates, now)
	return x
}

// verify returns why the first certificate is not good; err nil: it is good. The client sent the others
// with it.
func (e *exam) verify(sent []*x509.Certificate, now time.Time) (reason string, err error, unknown bool) {
	options := x509.VerifyOptions{Roots: e.roots, Intermediates: e.between.Clone(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range sent[1:] {
		options.Intermediates.AddCert(c)
	}
	chains, err := sent[0].Verify(options)
	if err != nil {
		reason, unknown = e.translate(sent, now, err)
		return reason, err, unknown
	}
	var fit [][]*x509.Certificate
	for _, chain := range chains {
		if len(chain)-2 <= e.depth {
			fit = append(fit, chain)
		}
	}
	if len(fit) == 0 {
		err := fmt.Errorf("there are more than %d intermediate CAs between the client certificate and its root (auth-tls-verify-depth)", e.depth)
		if slices.ContainsFunc(chains[0][1:e.depth+2], func(c *x509.Certificate) bool { return slices.ContainsFunc(e.cas, c.Equal) }) {
			return "unable to get issuer certificate", err, false
		}
		return "unable to get local issuer certificate", err, true // OpenSSL looks no further
	}
	switch err := e.revoked.check(fit, now); {
	case errors.Is(err, ErrRevoked):
		return "certificate revoked", err, false
	case err != nil:
		return "unable to get certificate CRL", fmt.Errorf("no valid revocation list in %s covers the certificate", e.of), false
	}
	return "", nil, false
}

// translate translates err, with which x509 refuses a certificate, into the words of OpenSSL 3. unknown is
// Exam.Unknown.
func (e *exam) translate(sent []*x509.Certificate, now time.Time, err error) (reason string, unknown bool) {
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) {
		switch invalid.Reason {
		case x509.Expired:
			if invalid.Cert != nil && now.Before(invalid.Cert.NotBefore) {
				return "certificate is not yet valid", false
			}
			return "certificate has expired", false
		case x509.IncompatibleUsage:
			return "unsuitable certificate purpose", false
		case x509.TooManyIntermediates:
			return "path length constraint exceeded", false
		case x509.NotAuthorizedToSign:
			return "invalid CA certificate", false
		}
		return "permitted subtree violation", false
	}
	if !errors.As(err, new(x509.UnknownAuthorityError)) {
		return "unhandled critical extension", false
	}
	return e.unknown(sent)
}

// unknown returns why no chain leads from a certificate to a root, in the words of OpenSSL 3.
func (e *exam) unknown(sent []*x509.Certificate) (reason string, isUnknown bool) {
	last, rest := sent[0], sent[1:] // follow the issuers that the client sent
	for len(rest) > 0 && rest[0] != last && issued(rest[0], last) {
		last, rest = rest[0], rest[1:]
	}
	if isSelfSigned(last) {
		if last == sent[0] {
			return "self-signed certificate", true
		}
		return "self-signed certificate in certificate chain", true
	}
	for _, ca := range e.cas {
		switch {
		case !issued(ca, last):
		case last.CheckSignatureFrom(ca) != nil:
			return "certificate signature failure", false
		case !isSelfSigned(ca):
			return "unable to get issuer certificate", false // the root is missing in ca.crt
		default:
			return "invalid CA certificate", false
		}
	}
	if last == sent[0] {
		return "unable to verify the first certificate", true
	}
	return "unable to get local issuer certificate", true
}

// issued reports whether ca has the name, and the key identifier if there is one, of c's issuer.
func issued(ca, c *x509.Certificate) bool {
	return bytes.Equal(ca.RawSubject, c.RawIssuer) && (len(ca.SubjectKeyId) == 0 || len(c.AuthorityKeyId) == 0 || bytes.Equal(ca.SubjectKeyId, c.AuthorityKeyId))
}
