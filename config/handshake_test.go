package config

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
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
