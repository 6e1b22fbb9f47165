package kube

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash/fnv"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
)

// This file has the TLS to Services by annotations of ingress-nginx. An Ingress with such annotations
// has a backend of its own for its Service.

// proxySSL is the TLS to the Services of an Ingress.
type proxySSL struct {
	suffix string // of the names of backends
	tls    config.BackendTLS
}

// readProxySSL returns the TLS that an Ingress asks for.
func (v *conversion) readProxySSL(owner *claim.Owner, p annotation.ProxySSL) (*proxySSL, error) {
	name := config.ObjectName{Namespace: owner.Name.Namespace, Name: p.Secret}
	s := v.secret(name)
	if s == nil {
		return nil, unread{fmt.Errorf("the Secret %s, which proxy-ssl-secret names, does not exist; create it", name)}
	}
	t := config.BackendTLS{InsecureSkipVerify: true, MinVersion: p.MinVersion, MaxVersion: p.MaxVersion, CAPEM: s.Data[caKey],
		CertPEM: s.Data[corev1.TLSCertKey], KeyPEM: config.Secret(s.Data[corev1.TLSPrivateKeyKey])}
	if err := checkProxySSL(&t); err != nil {
		return nil, fmt.Errorf("the Secret %s, which proxy-ssl-secret names, %w", name, err)
	}
	if p.SendName {
		t.ServerName = p.Name
	}
	if p.Verify && len(t.CAPEM) > 0 { // nginx verifies nothing without CAs
		t.InsecureSkipVerify, t.Names = false, []string{p.Name}
	}
	hash := fnv.New32a()
	fmt.Fprintf(hash, "%+v", p)
	return &proxySSL{fmt.Sprintf("/tls/%s/%08x", p.Secret, hash.Sum32()), t}, nil
}

// checkProxySSL returns why the content of a Secret is not usable, or nil. The error follows the name of
// the Secret. A certificate without a key counts as missing, and so does a key without a certificate.
func checkProxySSL(t *config.BackendTLS) error {
	if len(t.CertPEM) == 0 || len(t.KeyPEM) == 0 {
		t.CertPEM, t.KeyPEM = nil, ""
	} else if _, err := tls.X509KeyPair(t.CertPEM, []byte(t.KeyPEM)); err != nil {
		return fmt.Errorf("has no usable certificate: %w", err)
	}
	switch {
	case len(t.CAPEM) == 0 && len(t.CertPEM) == 0:
		return errors.New("has neither tls.crt with tls.key nor ca.crt; store one of them")
	case len(t.CAPEM) > 0 && !x509.NewCertPool().AppendCertsFromPEM(t.CAPEM):
		return errors.New("has no certificate in ca.crt; store the CAs there in PEM")
	}
	return nil
}

// secureAs gives b, a backend of an Ingress, the TLS that the Ingress asks for.
func (v *conversion) secureAs(b *Backend, owner *claim.Owner) {
	if p := v.proxySSL[owner]; p != nil && b.UsesTLS() {
		b.Name += p.suffix
		b.TLS = p.tls
	}
}
