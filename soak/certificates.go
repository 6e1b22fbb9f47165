package soak

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/net/http2"
)

// checkCertificates reads the files of --cert, --key and --ca.
func (o *Options) checkCertificates() error {
	overTLS := slices.ContainsFunc(o.plans, func(p *plan) bool { return p.TLS })
	switch {
	case !overTLS && (o.Cert != "" || o.Key != "" || o.CA != ""):
		return errors.New("--cert, --key and --ca need TLS: an https URL, or --tls")
	case o.Key != "" && o.Cert == "":
		return errors.New("--key needs --cert: name the file of the client certificate")
	}
	if o.Cert != "" {
		key := o.Key
		if key == "" {
			key = o.Cert
		}
		pair, err := tls.LoadX509KeyPair(o.Cert, key)
		if err != nil {
			return fmt.Errorf("cannot read the client certificate of --cert and --key: %w", err)
		}
		o.certificate = &pair
	}
	if o.CA == "" {
		return nil
	}
	if o.CA == SystemCA {
		roots, err := x509.SystemCertPool()
		if err != nil {
			return fmt.Errorf("cannot read the system's CA certificates for --ca system: %w", err)
		}
		o.roots = roots
		return nil
	}
	text, err := os.ReadFile(o.CA)
	if err != nil {
		return fmt.Errorf("cannot read the file of --ca: %w", err)
	}
	o.roots = x509.NewCertPool()
	if !o.roots.AppendCertsFromPEM(text) {
		return fmt.Errorf("the file of --ca, %s, has no certificate in PEM", o.CA)
	}
	return nil
}

// tlsConfig returns the TLS settings of all connections to the target; nil: no TLS.
func (p *plan) tlsConfig() *tls.Config {
	if !p.TLS {
		return nil
	}
	// crypto/tls would verify the name in SNI, and cannot verify without one. So verify
	// does it.
	c := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10}
	if p.SNI != NoSNI {
		c.ServerName = p.SNI
	}
	switch p.Protocol {
	case HTTP1, WebSocket:
		c.NextProtos = []string{"http/1.1"}
	case HTTP2, GRPC:
		c.NextProtos = []string{http2.NextProtoTLS}
	}
	if p.certificate != nil {
		// Send the certificate whatever CAs the server names: the test is whether the
		// server accepts it.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return p.certificate, nil }
	}
	if p.roots != nil {
		c.VerifyConnection = p.verify
	}
	return c
}

// verify verifies the certificate of the target.
func (p *plan) verify(s tls.ConnectionState) error {
	name := p.SNI
	if name == NoSNI {
		name = nameIn(p.Host)
	}
	o := x509.VerifyOptions{Roots: p.roots, DNSName: name, Intermediates: x509.NewCertPool()}
	for _, c := range s.PeerCertificates[1:] {
		o.Intermediates.AddCert(c)
	}
	if _, err := s.PeerCertificates[0].Verify(o); err != nil {
		return problemf(Handshake, "the certificate of the target is not valid: %v", err)
	}
	return nil
}
