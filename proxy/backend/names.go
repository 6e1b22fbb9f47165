package backend

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
)

var errNoAlternativeName = errors.New("the endpoint's certificate has none of the names that it must have")

// alternativeNames returns a check of an endpoint's certificate: authorities in roots signed it (nil:
// the authorities of the system), and it has one of the names or URIs. A wildcard among the names
// matches only the same wildcard in the certificate.
func alternativeNames(roots *x509.CertPool, names, uris []string) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
		for _, c := range s.PeerCertificates[1:] {
			options.Intermediates.AddCert(c)
		}
		leaf := s.PeerCertificates[0]
		if _, err := leaf.Verify(options); err != nil {
			return err
		}
		for _, name := range names {
			if slices.Contains(leaf.DNSNames, name) || leaf.VerifyHostname(name) == nil {
				return nil
			}
		}
		for _, uri := range leaf.URIs {
			if slices.Contains(uris, uri.String()) {
				return nil
			}
		}
		return errNoAlternativeName
	}
}
