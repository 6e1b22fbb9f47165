package policy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"time"

	"github.com/weirproxy/weir/config"
)

// Try does handshakes in memory under the policy p, with certificates of its own. It returns an error if
// a client that supports everything cannot connect, so that no configuration makes each handshake
// fail.
func Try(p config.TLSPolicy) error {
	made, err := New(p, tryCertificate, func(string, *tls.Config) {})
	if err != nil {
		return err
	}
	c := made.Config.Clone()
	c.VerifyConnection = nil // the client has no certificate
	switch c.ClientAuth {
	case tls.RequireAnyClientCert:
		c.ClientAuth = tls.RequestClientCert
	case tls.RequireAndVerifyClientCert:
		c.ClientAuth = tls.VerifyClientCertIfGiven
	}
	if err := config.TryHandshakes(c); err != nil {
		return fmt.Errorf("TLS policy %s: %w", p.Name, err)
	}
	return nil
}

// tryCertificate makes a certificate with a key that fits the client.
func tryCertificate(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	small, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{h.ServerName}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &small.PublicKey, small)
	if err != nil {
		return nil, err
	}
	cert := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: small}
	if h.SupportsCertificate(cert) == nil {
		return cert, nil
	}
	large, err := rsa.GenerateKey(rand.Reader, 1024) // quickly made; it never leaves this process
	if err != nil {
		return nil, err
	}
	der, err = x509.CreateCertificate(rand.Reader, template, template, &large.PublicKey, large)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: large}, err
}
