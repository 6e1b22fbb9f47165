package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/weirproxy/weir/config"
)

// Keys are made once, because RSA keys take long.
var testKeys = sync.OnceValue(func() map[string]crypto.Signer {
	p256, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	p224, _ := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return map[string]crypto.Signer{"ecdsa": p256, "rsa": r, "ed25519": ed, "p224": p224}
})

// dir is a directory of certificates.
type dir struct {
	t    testing.TB
	path string
}

func newDir(t testing.TB) dir { return dir{t, t.TempDir()} }

// write makes NAME.crt and NAME.key and returns their entry.
func (d dir) write(name, keyType string, template *x509.Certificate) config.Certificate {
	d.t.Helper()
	key := testKeys()[keyType]
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(24 * time.Hour)
	}
	if template.NotBefore.IsZero() {
		template.NotBefore = template.NotAfter.Add(-48 * time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		d.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		d.t.Fatal(err)
	}
	e := config.Certificate{CertFile: filepath.Join(d.path, name+".crt"), KeyFile: filepath.Join(d.path, name+".key")}
	d.put(e.CertFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	d.put(e.KeyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
	return e
}

func (d dir) put(path string, content []byte) {
	d.t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// names is a template for a certificate with these DNS names; id is the common name of
// its subject.
func names(id string, dns ...string) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: id}, DNSNames: dns}
}

func selfSigned(hosts ...string) config.Certificate { return config.Certificate{SelfSigned: hosts} }

func newStore(t testing.TB, entries ...config.Certificate) *Store {
	t.Helper()
	s := New(NewMetrics(prometheus.NewRegistry()))
	if err := s.Load(entries); err != nil {
		t.Fatal(err)
	}
	return s
}

// Clients whose support for keys and suites decides which key they get.
var (
	modern   = &tls.Config{}
	onlyRSA  = &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}}
	rsaKex   = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10, CipherSuites: []uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA}}
	onlyECDS = &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}}
)

// allSuites is the most permissive server configuration, with the certificates of s.
func allSuites(s *Store) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS10, GetCertificate: s.Get}
	for _, suite := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		c.CipherSuites = append(c.CipherSuites, suite.ID)
	}
	return c
}

// shake does a handshake and returns the client's view of it.
func shake(t testing.TB, server, client *tls.Config, serverName string) (tls.ConnectionState, error) {
	t.Helper()
	client = client.Clone()
	client.ServerName = serverName
	client.InsecureSkipVerify = true
	a, b := newPipe()
	defer a.Close()
	defer b.Close()
	a.SetDeadline(time.Now().Add(20 * time.Second))
	b.SetDeadline(time.Now().Add(20 * time.Second))
	result := make(chan error, 1)
	go func() {
		srv := tls.Server(b, server)
		err := srv.Handshake()
		if err == nil {
			_, err = srv.Write([]byte("x")) // tickets of TLS 1.3 come before this byte
		}
		if err != nil {
			b.Close()
		}
		result <- err
	}()
	conn := tls.Client(a, client)
	_, err := conn.Read(make([]byte, 1))
	serverErr := <-result
	return conn.ConnectionState(), errors.Join(serverErr, err)
}

// eager is an end of a pipe whose writes do not wait for the reader, as with a socket.
// With a plain net.Pipe, crypto/tls at both ends can block forever, because both write at
// the same time.
type eager struct {
	net.Conn
	writes chan []byte
	close  sync.Once
}

func newPipe() (a, b net.Conn) {
	a, b = net.Pipe()
	return newEager(a), newEager(b)
}

func newEager(c net.Conn) *eager {
	e := &eager{Conn: c, writes: make(chan []byte, 100)}
	go func() {
		for p := range e.writes {
			c.Write(p)
		}
		c.Close()
	}()
	return e
}

// Write must not be called after Close, nor by several goroutines at a time.
func (e *eager) Write(p []byte) (int, error) {
	e.writes <- slices.Clone(p)
	return len(p), nil
}

// Close closes the pipe after the written bytes have arrived.
func (e *eager) Close() error {
	e.close.Do(func() { close(e.writes) })
	return nil
}

// served returns the common name and the kind of key that a client gets.
func served(t testing.TB, s *Store, client *tls.Config, serverName string) (string, string) {
	t.Helper()
	state, err := shake(t, allSuites(s), client, serverName)
	if err != nil {
		return "refused", ""
	}
	leaf := state.PeerCertificates[0]
	return leaf.Subject.CommonName, leaf.PublicKeyAlgorithm.String()
}

func TestGetByName(t *testing.T) {
	d := newDir(t)
	s := newStore(t,
		d.write("first", "ecdsa", names("first", "first.example.org")),
		d.write("wild", "ecdsa", names("wild", "*.example.org", "*.Dev.Example.org")),
		d.write("exact", "ecdsa", names("exact", "app.example.org", "API.example.org")),
		d.write("cn", "ecdsa", names("cn.example.net")),
		d.write("san", "ecdsa", names("hidden.example.net", "shown.example.net")),
		d.write("ip", "ecdsa", &x509.Certificate{Subject: pkix.Name{CommonName: "ip"}, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 7)}}),
		selfSigned("self.example.com", "*.self.example.com"),
	)
	f := func(serverName, want string) {
		t.Helper()
		cert, err := s.Get(&tls.ClientHelloInfo{ServerName: serverName,
			SupportedVersions: []uint16{tls.VersionTLS13}, SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}})
		if err != nil {
			t.Errorf("Get(%q): %v", serverName, err)
			return
		}
		if got := cert.Leaf.Subject.CommonName; got != want {
			t.Errorf("Get(%q) is %s, want %s", serverName, got, want)
		}
	}
	f("", "first")
	f("first.example.org", "first")
	f("unlisted.example.com", "first")
	f("localhost", "first")
	f("app.example.org", "exact")
	f("APP.EXAMPLE.ORG", "exact")
	f("app.example.org.", "exact")
	f("api.example.org", "exact")
	f("other.example.org", "wild")
	f("Other.Example.ORG", "wild")
	f("a.dev.example.org", "wild")
	f("a.b.dev.example.org", "first") // a wildcard stands for one label
	f("example.org", "first")         // a wildcard does not match the domain itself
	f(".example.org", "first")
	f("*.example.org", "wild")
	f("cn.example.net", "cn.example.net")
	f("shown.example.net", "hidden.example.net")
	f("hidden.example.net", "first") // a common name does not count if there are alternative names
	f("192.0.2.7", "ip")
	f("192.0.2.8", "first")
	f("self.example.com", "weir self-signed")
	f("x.self.example.com", "weir self-signed")
}

// weir serves a name with a key that the client supports, ECDSA first. It never uses a
// wildcard or the first entry in place of an entry with the exact name.
func TestGetByKey(t *testing.T) {
	d := newDir(t)
	s := newStore(t,
		d.write("default-rsa", "rsa", names("default", "default.example.org")),
		d.write("both-rsa", "rsa", names("both", "both.example.org")),
		d.write("both-ecdsa", "ecdsa", names("both", "both.example.org")),
		d.write("ecdsa", "ecdsa", names("ecdsa", "ecdsa.example.org")),
		d.write("wild", "rsa", names("wild", "*.example.org")),
		d.write("ed", "ed25519", names("ed", "both.example.org")),
		selfSigned("self.example.org"),
	)
	f := func(client *tls.Config, serverName, wantName, wantKey string) {
		t.Helper()
		if name, key := served(t, s, client, serverName); name != wantName || key != wantKey {
			t.Errorf("%s: got %s %s, want %s %s", serverName, name, key, wantName, wantKey)
		}
	}
	f(modern, "both.example.org", "both", "ECDSA")
	f(onlyECDS, "both.example.org", "both", "ECDSA")
	f(onlyRSA, "both.example.org", "both", "RSA")
	f(rsaKex, "both.example.org", "both", "RSA")
	f(modern, "ecdsa.example.org", "ecdsa", "ECDSA")
	f(onlyRSA, "ecdsa.example.org", "refused", "") // though *.example.org has an RSA key
	f(rsaKex, "ecdsa.example.org", "refused", "")
	f(modern, "default.example.org", "default", "RSA")
	f(rsaKex, "unlisted.example.com", "default", "RSA")
	f(rsaKex, "", "default", "RSA")
	f(onlyECDS, "", "refused", "") // weir uses the first entry, not the first one that the client supports
	f(modern, "self.example.org", "weir self-signed", "ECDSA")
	f(onlyRSA, "self.example.org", "weir self-signed", "RSA")
	f(rsaKex, "self.example.org", "weir self-signed", "RSA")
}

// For clients without SNI, an ECDSA and an RSA entry for the same names are one
// certificate.
func TestFirstEntryInTwoKinds(t *testing.T) {
	d := newDir(t)
	s := newStore(t,
		d.write("e", "ecdsa", names("e", "a.example.org", "b.example.org")),
		d.write("r", "rsa", names("r", "b.example.org", "a.example.org")),
		d.write("o", "rsa", names("o", "other.example.org")),
	)
	for client, want := range map[*tls.Config]string{modern: "e", rsaKex: "r", onlyRSA: "r", onlyECDS: "e"} {
		if got, _ := served(t, s, client, ""); got != want {
			t.Errorf("a client without SNI got %s, want %s", got, want)
		}
	}
}

func TestWithoutCertificates(t *testing.T) {
	s := newStore(t)
	_, err := shake(t, allSuites(s), modern, "app.example.org")
	if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("a handshake without certificates ends with %v, want the alert unrecognized_name", err)
	}
	if cert, err := s.Get(&tls.ClientHelloInfo{}); cert != nil || err != nil {
		t.Errorf("Get = %v, %v; want nothing, so that the alert is unrecognized_name", cert, err)
	}
}

func TestSelfSigned(t *testing.T) {
	entry := selfSigned("app.example.org", "*.dev.example.org", "127.0.0.1", "::1")
	s := newStore(t, entry)
	for _, client := range []*tls.Config{modern, onlyRSA} {
		state, err := shake(t, allSuites(s), client, "app.example.org")
		if err != nil {
			t.Fatal(err)
		}
		leaf := state.PeerCertificates[0]
		pool := x509.NewCertPool()
		pool.AddCert(leaf)
		for _, name := range []string{"app.example.org", "x.dev.example.org", "127.0.0.1", "::1"} {
			if _, err := leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: pool}); err != nil {
				t.Errorf("who trusts the %s certificate cannot verify it for %s: %v", leaf.PublicKeyAlgorithm, name, err)
			}
		}
	}

	// After a reload, at another position and beside another entry, the keys are the
	// same.
	before := serial(t, s, "app.example.org")
	entry.Position = config.Position{File: "weir.yaml", Line: 9, Column: 3}
	if err := s.Load([]config.Certificate{selfSigned("new.example.org"), entry}); err != nil {
		t.Fatal(err)
	}
	for client, want := range before {
		if got := serial(t, s, "app.example.org")[client]; got != want {
			t.Error("a reload changed a self-signed certificate")
		}
	}
}

// serial returns the serial numbers of the certificates for an ECDSA and an RSA client.
func serial(t *testing.T, s *Store, name string) map[*tls.Config]string {
	got := make(map[*tls.Config]string)
	for _, client := range []*tls.Config{modern, onlyRSA} {
		state, err := shake(t, allSuites(s), client, name)
		if err != nil {
			t.Fatal(err)
		}
		got[client] = state.PeerCertificates[0].SerialNumber.String()
	}
	return got
}

// Many concurrent old clients cause only one RSA key.
func TestLazyKeyIsMadeOnce(t *testing.T) {
	s := newStore(t, selfSigned("app.example.org"))
	lazy := s.table.Load().first[1]
	certs := make([]*tls.Certificate, 8)
	var wg sync.WaitGroup
	for i := range certs {
		wg.Go(func() { certs[i], _ = lazy.get() })
	}
	wg.Wait()
	for _, c := range certs {
		if c == nil || c != certs[0] {
			t.Fatal("clients at the same time got different RSA certificates")
		}
	}
}

func TestGetAllocatesNothingOfItsOwn(t *testing.T) {
	d := newDir(t)
	one := d.write("one", "ecdsa", names("one", "one.example.org", "*.dev.example.org"))
	s := newStore(t, one)
	for _, name := range []string{"one.example.org", "a.dev.example.org", "unlisted.example.org", ""} {
		h := &tls.ClientHelloInfo{ServerName: name}
		if n := testing.AllocsPerRun(100, func() { s.Get(h) }); n != 0 {
			t.Errorf("Get(%q) allocates %v times", name, n)
		}
	}
	two := newStore(t, one, d.write("two", "rsa", names("two", "one.example.org")))
	h := &tls.ClientHelloInfo{ServerName: "one.example.org", SupportedVersions: []uint16{tls.VersionTLS13},
		SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}}
	cert := two.table.Load().entries[0].candidates[0]
	ecdsaCert, _ := cert.get()
	nameless := &tls.ClientHelloInfo{SupportedVersions: h.SupportedVersions, SignatureSchemes: h.SignatureSchemes}
	alone := testing.AllocsPerRun(100, func() { nameless.SupportsCertificate(ecdsaCert) })
	if n := testing.AllocsPerRun(100, func() { two.Get(h) }); n > alone {
		t.Errorf("Get allocates %v times, SupportsCertificate alone %v times", n, alone)
	}
	if h.ServerName != "one.example.org" {
		t.Error("Get left the ClientHelloInfo changed")
	}
}

func BenchmarkGet(b *testing.B) {
	d := newDir(b)
	bench := func(name string, s *Store) {
		h := &tls.ClientHelloInfo{ServerName: "one.example.org", SupportedVersions: []uint16{tls.VersionTLS13, tls.VersionTLS12},
			SignatureSchemes: []tls.SignatureScheme{tls.PSSWithSHA256, tls.ECDSAWithP256AndSHA256}}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Get(h)
			}
		})
	}
	one := d.write("one", "ecdsa", names("one", "one.example.org"))
	bench("one key", newStore(b, one))
	bench("two keys", newStore(b, one, d.write("two", "rsa", names("two", "one.example.org"))))
}
