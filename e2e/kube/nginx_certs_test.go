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
	err     error
}

func (c *certsOfClients) named(name string) (*tls.Certificate, error) {
	p, known := c.pairs[name]
	if !known && c.err == nil {
		return nil, fmt.Errorf("there is no client certificate %s", name)
	}
	return &p, c.err
}

var clientCerts = sync.OnceValue(func() *certsOfClients {
	c := &certsOfClients{pairs: map[string]tls.Certificate{}}
	make := func(by *pair, t *x509.Certificate) *pair {
		p, err := newPair(by, t)
		if err != nil && c.err == nil {
			c.err = err
		}
		return p
	}
	authority := func(by *pair, name string) *pair {
		return make(by, &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: []string{"Weir & Sons, Ltd."}}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign})
	}
	user := func(name string, by *pair, usage x509.ExtKeyUsage, chain ...*pair) *pair {
		p := make(by, &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: []string{"Größe, Inc."}, Country: []string{"DE"}}, ExtKeyUsage: []x509.ExtKeyUsage{usage}})
		if c.err != nil {
			return p
		}
		one := tls.Certificate{Certificate: [][]byte{p.parsed.Raw}, PrivateKey: p.signer}
		for _, ca := range chain {
			one.Certificate = append(one.Certificate, ca.parsed.Raw)
		}
		c.pairs[name] = one
		return p
	}
	root, stranger := authority(nil, "root"), authority(nil, "stranger")
	if c.err != nil {
		return c
	}
	middle := authority(root, "middle")
	lower := authority(middle, "lower")
	if c.err != nil {
		return c
	}
	const client = x509.ExtKeyUsageClientAuth
	user("good", root, client)
	revoked := user("revoked", root, client)
	user("server", root, x509.ExtKeyUsageServerAuth)
	user("between", middle, client, middle)
	user("deep", lower, client, lower, middle)
	user("alone", middle, client)
	user("other", stranger, client)
	user("foreign", stranger, client, stranger)
	user("self", nil, client)
	if c.err != nil {
		return c
	}
	list, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(24 * time.Hour),
		RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: revoked.parsed.SerialNumber, RevocationTime: time.Now().Add(-time.Minute)}}}, root.parsed, root.signer)
	if c.err = err; err != nil {
		return c
	}
	ca := base64.StdEncoding.EncodeToString(root.cert)
	c.objects = []string{fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: client-ca}, data: {ca.crt: %s}}", ca),
		fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: client-crl}, data: {ca.crt: %s, ca.crl: %s}}", ca,
			base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: list})))}
	return c
})
