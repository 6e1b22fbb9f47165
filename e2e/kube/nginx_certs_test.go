//go:build linux

package kube

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"sync"
	"time"
)

// certsOfClients are the client certificates of the tests beside nginx, and the Secrets with their CAs.
type certsOfClients struct {
	pairs   map[string]tls.Certificate
	objects []string
	err     error // why there are none
}

// named returns a client certificate.
func (c *certsOfClients) named(name string) (*tls.Certificate, error) {
	p, known := c.pairs[name]
	if !known && c.err == nil {
		return nil, fmt.Errorf("there is no client certificate %s", name)
	}
	return &p, c.err
}

var clientCerts = sync.OnceValue(func() *certsOfClients {
	c := &certsOfClients{pairs: map[string]tls.Certificate{}}
	c.err = c.issue()
	return c
})

// issue issues the certificates.
func (c *certsOfClients) issue() error {
	var cas []*pair // the root, a stranger, and two CAs below the root
	for _, name := range []string{"root", "stranger", "middle", "lower"} {
		var by *pair // nil: the CA signs itself
		switch name {
		case "middle":
			by = cas[0]
		case "lower":
			by = cas[2]
		}
		ca, err := newPair(by, &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: []string{"Weir & Sons, Ltd."}}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign})
		if err != nil {
			return err
		}
		cas = append(cas, ca)
	}
	root, stranger, middle, lower := cas[0], cas[1], cas[2], cas[3]
	var revoked *big.Int
	for _, user := range []struct {
		name  string
		by    *pair // nil: the certificate signs itself
		usage x509.ExtKeyUsage
		chain []*pair // that the client sends too
	}{
		{"good", root, x509.ExtKeyUsageClientAuth, nil},
		{"revoked", root, x509.ExtKeyUsageClientAuth, nil},
		{"server", root, x509.ExtKeyUsageServerAuth, nil},
		{"between", middle, x509.ExtKeyUsageClientAuth, []*pair{middle}},
		{"deep", lower, x509.ExtKeyUsageClientAuth, []*pair{lower, middle}},
		{"alone", middle, x509.ExtKeyUsageClientAuth, nil},
		{"other", stranger, x509.ExtKeyUsageClientAuth, nil},
		{"foreign", stranger, x509.ExtKeyUsageClientAuth, []*pair{stranger}},
		{"self", nil, x509.ExtKeyUsageClientAuth, nil},
	} {
		p, err := newPair(user.by, &x509.Certificate{Subject: pkix.Name{CommonName: user.name, Organization: []string{"Größe, Inc."}, Country: []string{"DE"}}, ExtKeyUsage: []x509.ExtKeyUsage{user.usage}})
		if err != nil {
			return err
		}
		one := tls.Certificate{Certificate: [][]byte{p.parsed.Raw}, PrivateKey: p.signer}
		for _, ca := range user.chain {
			one.Certificate = append(one.Certificate, ca.parsed.Raw)
		}
		c.pairs[user.name] = one
		if user.name == "revoked" {
			revoked = p.parsed.SerialNumber
		}
	}
	list, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(24 * time.Hour),
		RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: revoked, RevocationTime: time.Now().Add(-time.Minute)}}}, root.parsed, root.signer)
	if err != nil {
		return err
	}
	ca := base64.StdEncoding.EncodeToString(root.cert)
	c.objects = []string{fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: client-ca}, data: {ca.crt: %s}}", ca),
		fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: client-crl}, data: {ca.crt: %s, ca.crl: %s}}", ca,
			base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: list})))}
	return nil
}
