package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// loadResult is the final result of a load generator.
type loadResult struct {
	Requests int
	Errors   int
	First    string // the first error
}

// shake is a kind of handshake. The zero value is a full handshake of TLS 1.3 with an
// ECDSA P-256 certificate.
type shake struct {
	Resumed, Old, RSA bool // Old means TLS 1.2
}

// handshakes is our own load generator, because wrk cannot make a new connection for each request. It makes a
// handshake of the row's kind on each connection, and checks every response.
func handshakes(s setup, r row, d time.Duration) []string {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return []string{self, "handshakes", "-address", fmt.Sprintf("127.0.0.1:%d", r.port(s)), "-for", d.String(), "-body", s.Body,
		fmt.Sprintf("-resumed=%t", r.shake.Resumed), fmt.Sprintf("-old=%t", r.shake.Old), fmt.Sprintf("-rsa=%t", r.shake.RSA)}
}

func handshakesMain(args []string) int {
	var kind shake
	flags := flag.NewFlagSet("handshakes", flag.ExitOnError)
	address := flags.String("address", "", "host:port")
	d := flags.Duration("for", time.Second, "how long")
	body := flags.String("body", "", "what every answer has to be")
	flags.BoolVar(&kind.Resumed, "resumed", false, "resume a session with each connection")
	flags.BoolVar(&kind.Old, "old", false, "TLS 1.2")
	flags.BoolVar(&kind.RSA, "rsa", false, "the certificate has an RSA key")
	flags.Parse(args)

	var result loadResult
	var lock sync.Mutex
	count := func(err error) {
		lock.Lock()
		defer lock.Unlock()
		result.Requests++
		if err != nil {
			if result.Errors++; result.First == "" {
				result.First = err.Error()
			}
		}
	}
	var workers sync.WaitGroup
	deadline := time.Now().Add(*d)
	for range connections {
		workers.Go(func() {
			config := kind.client()
			if kind.Resumed { // all other connections resume this session, which is created during the warm-up
				config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
				count(kind.once(*address, *body, config, false))
			}
			for time.Now().Before(deadline) {
				count(kind.once(*address, *body, config, kind.Resumed))
			}
		})
	}
	workers.Wait()
	json.NewEncoder(os.Stdout).Encode(result)
	return 0
}

// client returns the configuration of a client for one TLS version, with parameters that all proxies accept
// without a second round trip. Without a session cache, it resumes nothing. The client does not verify the
// certificate's chain. It does verify the signature over the handshake.
func (k shake) client() *tls.Config {
	config := &tls.Config{
		MinVersion:         tls.VersionTLS13,
		CurvePreferences:   []tls.CurveID{tls.X25519},
		ServerName:         "localhost",
		NextProtos:         []string{"http/1.1"},
		InsecureSkipVerify: true,
	}
	if k.Old {
		config.MinVersion, config.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		config.CipherSuites = []uint16{k.suite()}
		// With TLS 1.2, OpenSSL uses a P-256 certificate only if the client offers that
		// group.
		config.CurvePreferences = append(config.CurvePreferences, tls.CurveP256)
	}
	return config
}

func (k shake) suite() uint16 {
	switch {
	case !k.Old:
		return tls.TLS_AES_128_GCM_SHA256
	case k.RSA:
		return tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
	}
	return tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
}

func (k shake) version() uint16 {
	if k.Old {
		return tls.VersionTLS12
	}
	return tls.VersionTLS13
}

// once opens a connection, makes one request on it, and closes it.
func (k shake) once(address, body string, config *tls.Config, resumed bool) error {
	raw, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	c := tls.Client(raw, config)
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	if err := k.check(c.ConnectionState(), resumed); err != nil {
		return err
	}
	return checkResponse(bufio.NewReader(c), body)
}

// check returns an error unless the connection has the expected parameters, and is resumed if and only if it
// should be.
func (k shake) check(s tls.ConnectionState, resumed bool) error {
	key := x509.ECDSA
	if k.RSA {
		key = x509.RSA
	}
	if s.Version != k.version() || s.CipherSuite != k.suite() || s.DidResume != resumed || s.CurveID != tls.X25519 ||
		len(s.PeerCertificates) == 0 || s.PeerCertificates[0].PublicKeyAlgorithm != key {
		return fmt.Errorf("the handshake is not the one that was meant: %s, %s, group %s, resumed: %t",
			tls.VersionName(s.Version), tls.CipherSuiteName(s.CipherSuite), s.CurveID, s.DidResume)
	}
	return nil
}

func checkResponse(r *bufio.Reader, body string) error {
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != 200 || string(got) != body {
		return fmt.Errorf("the answer is not the backend's: %s, %d bytes", resp.Status, len(got))
	}
	return nil
}
