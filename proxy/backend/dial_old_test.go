package backend

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// rsaPair is a self-signed certificate with an RSA key, as old servers have.
func rsaPair(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// weir connects to endpoints that speak only an old TLS if the backend allows it. Otherwise
// the error names the setting.
func TestOldEndpoints(t *testing.T) {
	pair := rsaPair(t)
	f := func(server *tls.Config, keys config.BackendTLS, version uint16, wantErr string) {
		t.Helper()
		server.Certificates, server.NextProtos = []tls.Certificate{pair}, []string{"http/1.1"}
		seen := make(chan tls.ConnectionState, 1)
		address := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
			s := tls.Server(c, server)
			if s.Handshake() == nil {
				seen <- s.ConnectionState()
				echo(s)
			}
			c.Close()
		})
		keys.InsecureSkipVerify = true
		s, err := dialOnce(t, secure(settings("app", address), keys), nil)
		if wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), wantErr) {
				t.Errorf("%+v: error %v, want one with %q", keys, err, wantErr)
			}
			return
		}
		if err != nil {
			t.Fatalf("%+v: %v", keys, err)
		}
		wantEcho(t, s)
		if state := <-seen; state.Version != version {
			t.Errorf("%+v: %s", keys, tls.VersionName(state.Version))
		}
	}
	cbc := []uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA}
	old := func() *tls.Config {
		return &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10, CipherSuites: cbc}
	}
	f(old(), config.BackendTLS{}, 0, "tls.min_version")
	f(old(), config.BackendTLS{MinVersion: tls.VersionTLS10}, 0, "tls.cipher_suites")
	f(old(), config.BackendTLS{MinVersion: tls.VersionTLS10, CipherSuites: cbc}, tls.VersionTLS10, "")
	f(old(), config.BackendTLS{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10, CipherSuites: cbc}, tls.VersionTLS10, "")
	f(old(), config.BackendTLS{MinVersion: tls.VersionTLS11, CipherSuites: cbc}, 0, "tls.min_version")
	rsaOnly := func() *tls.Config { return &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: cbc} }
	f(rsaOnly(), config.BackendTLS{}, 0, "tls.cipher_suites")
	f(rsaOnly(), config.BackendTLS{CipherSuites: cbc}, tls.VersionTLS12, "")
	f(&tls.Config{MinVersion: tls.VersionTLS13}, config.BackendTLS{MaxVersion: tls.VersionTLS12}, 0, "tls.max_version")
	f(&tls.Config{}, config.BackendTLS{MinVersion: tls.VersionTLS10, CipherSuites: cbc}, tls.VersionTLS13, "") // the handshake chooses the best of both
}

// handshakeMessage is a handshake message.
func handshakeMessage(kind byte, body ...byte) []byte {
	return slices.Concat([]byte{kind, 0, byte(len(body) >> 8), byte(len(body))}, body)
}

// Go's server does not send TLS 1.0 to a client that does not offer it. In TLS 1.2 it sends
// no SHA-1 signature to a client that does not accept one. The server in this test does both.
func TestOldEndpointsByHand(t *testing.T) {
	der := rsaPair(t).Certificate[0]
	f := func(want string, version byte, suite uint16, more ...byte) {
		t.Helper()
		serverHello := handshakeMessage(2, slices.Concat([]byte{3, version}, make([]byte, 32), []byte{0, byte(suite >> 8), byte(suite), 0})...)
		flight := slices.Concat(serverHello, more)
		address := serve(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
			c.Write(slices.Concat([]byte{22, 3, version, byte(len(flight) >> 8), byte(len(flight))}, flight))
			c.Read(make([]byte, 1<<10)) // the ClientHello; if it were unread, the close would be a reset
			c.Read(make([]byte, 1<<10)) // the alert
			c.Close()
		})
		_, err := dialOnce(t, secure(settings("app", address), config.BackendTLS{InsecureSkipVerify: true}), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	f("tls.min_version", 1, tls.TLS_RSA_WITH_AES_128_CBC_SHA)
	n := len(der)
	certificate := handshakeMessage(11, slices.Concat([]byte{0, byte((n + 3) >> 8), byte(n + 3), 0, byte(n >> 8), byte(n)}, der)...)
	key, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	exchange := handshakeMessage(12, slices.Concat([]byte{3, 0, 23, 65}, key.PublicKey().Bytes(), []byte{2, 1, 1, 0}, make([]byte, 256))...)
	f("tls.sha1_signatures", 3, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, slices.Concat(certificate, exchange)...)
}
