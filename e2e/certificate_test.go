package e2e

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// certificate is a self-signed certificate in files.
type certificate struct {
	cert, key, both string // paths; both contains the certificate and the key, as HAProxy expects
	pool            *x509.CertPool
	serial          *big.Int
}

// writeCertificate writes name.crt, name.key and name.pem to dir. It replaces existing files.
func writeCertificate(t testing.TB, dir, name string, rsaKey bool, hosts ...string) certificate {
	t.Helper()
	var key crypto.Signer
	var err error
	if rsaKey {
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	} else {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: hosts[0]},
		DNSNames: hosts, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:        true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	c := certificate{
		cert: filepath.Join(dir, name+".crt"), key: filepath.Join(dir, name+".key"), both: filepath.Join(dir, name+".pem"),
		pool: x509.NewCertPool(), serial: serial,
	}
	c.pool.AppendCertsFromPEM(certPEM)
	if err := errors.Join(
		os.WriteFile(c.cert, certPEM, 0o644),
		os.WriteFile(c.key, keyPEM, 0o644), // HAProxy may have changed to another user
		os.WriteFile(c.both, append(certPEM, keyPEM...), 0o644)); err != nil {
		t.Fatal(err)
	}
	return c
}

// anyCertificate is the configuration of a TLS client that accepts every certificate, for example those that
// weir signs itself.
func anyCertificate(serverName string) *tls.Config {
	return &tls.Config{ServerName: serverName, InsecureSkipVerify: true}
}

// tlsOver returns a TLS client on c that accepts every certificate.
func tlsOver(c net.Conn) net.Conn { return tls.Client(c, anyCertificate("app.example.org")) }
