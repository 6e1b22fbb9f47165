package config

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A configuration with which every handshake fails gets an error.
func TestHandshakesThatFail(t *testing.T) {
	f := func(what string, c *tls.Config, want string) {
		t.Helper()
		begun := time.Now()
		if err := TryHandshakes(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", what, err)
		}
		if time.Since(begun) > handshakeTime/2 {
			t.Errorf("%s: both ends waited for each other", what)
		}
	}
	both := func(c *tls.Config) *tls.Config {
		c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS13
		return c
	}
	f("no certificate", both(&tls.Config{}), "no certificates configured")
	f("a broken certificate", both(&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{[]byte("x")}}}}), "TLS 1.2")
	many := x509.NewCertPool()
	for range 70 {
		many.AddCert(&x509.Certificate{Raw: []byte(time.Now().String()), RawSubject: make([]byte, 1000)})
	}
	only13 := &tls.Config{MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS13, ClientAuth: tls.RequestClientCert, ClientCAs: many}
	f("names of CAs that do not fit", only13, "TLS 1.3")
}

// signed returns a certificate for a key.
func signed(t *testing.T, key crypto.PublicKey, by *ecdsa.PrivateKey) []byte {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key, by)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Go's client refuses chains with RSA keys of more than 8192 bits, and Go's server does not: such a certificate is
// accepted without a handshake.
func TestCertificatesThatOnlyGosClientRefuses(t *testing.T) {
	key := newKey(t)
	for bits, want := range map[int]string{8192: "", 8193: "a handshake in memory failed"} {
		modulus := new(big.Int).SetBit(big.NewInt(1), bits-1, 1)
		pair := &tls.Certificate{PrivateKey: key, Certificate: [][]byte{signed(t, &key.PublicKey, key), signed(t, &rsa.PublicKey{N: modulus, E: 65537}, key)}}
		if err := new(draft).tryPair(pair); err != nil {
			t.Errorf("%d bits: %v", bits, err)
		}
		err := TryHandshakes(&tls.Config{Certificates: []tls.Certificate{*pair}, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13})
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("the handshake with %d bits ends with %v", bits, err)
		}
	}
}

// decrypter has an RSA key that nobody needs.
type decrypter struct{ rsa.PublicKey }

func (d *decrypter) Public() crypto.PublicKey { return &d.PublicKey }

func (d *decrypter) Decrypt(io.Reader, []byte, crypto.DecrypterOpts) ([]byte, error) {
	return nil, errors.New("not needed")
}

// Both ends of a handshake in memory have a deadline. This server fails when it has read the first part of what the client
// writes at once, 1024 bytes of RSA among it, and nobody reads the rest.
func TestHandshakesEnd(t *testing.T) {
	by, key := newKey(t), &decrypter{rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), 8191, 1), E: 65537}}
	pair := tls.Certificate{PrivateKey: key, Certificate: [][]byte{signed(t, &key.PublicKey, by)}}
	synctest.Test(t, func(t *testing.T) {
		err := TryHandshakes(&tls.Config{Certificates: []tls.Certificate{pair}, CipherSuites: []uint16{tls.TLS_RSA_WITH_AES_128_GCM_SHA256},
			ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12})
		if err == nil || !strings.Contains(err.Error(), "didn't provide a certificate") {
			t.Error(err)
		}
	})
}
