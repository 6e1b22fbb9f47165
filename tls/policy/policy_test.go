package policy

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
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// authority signs certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

func newKey(rsaKey bool) crypto.Signer {
	if rsaKey {
		return testRSA()
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
}

var testRSA = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

func newAuthority(t testing.TB, name string) authority {
	t.Helper()
	key := newKey(false)
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// manyCAs are certificates in PEM whose names do not fit into a handshake.
var manyCAs = sync.OnceValue(func() (all []byte) {
	key := newKey(false)
	for i := range 600 {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(1000 * time.Hour),
			Subject: pkix.Name{CommonName: fmt.Sprint("Partner ", i), Organization: []string{strings.Repeat("x", 64)}, OrganizationalUnit: []string{strings.Repeat("y", 64)}}}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			panic(err)
		}
		all = append(all, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return all
})

// issue makes a certificate for a client or server that ends at notAfter.
func (a authority) issue(t testing.TB, name string, rsaKey bool, notAfter time.Time) *tls.Certificate {
	t.Helper()
	key := newKey(rsaKey)
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: notAfter.Add(-100 * time.Hour), NotAfter: notAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, _ := x509.ParseCertificate(der)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func always(c *tls.Certificate) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c, nil }
}

// keyring attaches ticket keys as certs.Tickets does.
type keyring map[string][32]byte

func (k keyring) attach(scope string, c *tls.Config) {
	key, ok := k[scope]
	if !ok {
		rand.Read(key[:])
		k[scope] = key
	}
	c.SetSessionTicketKeys([][32]byte{key})
}

func newPolicy(t testing.TB, p config.TLSPolicy, cert *tls.Certificate, attach func(string, *tls.Config)) *Policy {
	t.Helper()
	if p.Name == "" {
		p.Name = "test"
	}
	if p.MinVersion == 0 {
		p.MinVersion = tls.VersionTLS12
	}
	if p.MaxVersion == 0 {
		p.MaxVersion = tls.VersionTLS13
	}
	if p.CipherSuites == nil {
		p.CipherSuites = ids(tls.CipherSuites())
	}
	made, err := New(p, always(cert), attach)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// ids returns the suites for TLS 1.0 to 1.2 among list.
func ids(list []*tls.CipherSuite) (all []uint16) {
	for _, s := range list {
		if s.SupportedVersions[0] < tls.VersionTLS13 {
			all = append(all, s.ID)
		}
	}
	return all
}

func allIDs() []uint16 { return append(ids(tls.CipherSuites()), ids(tls.InsecureCipherSuites())...) }

// anything is a policy that accepts everything that Go implements.
func anything() config.TLSPolicy {
	return config.TLSPolicy{Name: "anything", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS13, CipherSuites: allIDs()}
}

// shake does a handshake over loopback and returns the client's view and the server's error.
func shake(t testing.TB, server, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return shakeOver(a, b, server, client)
}

func shakeOver(a, b net.Conn, server, client *tls.Config) (tls.ConnectionState, error) {
	defer a.Close()
	client = client.Clone()
	client.InsecureSkipVerify = true
	a.SetDeadline(time.Now().Add(20 * time.Second))
	b.SetDeadline(time.Now().Add(20 * time.Second))
	result := make(chan error, 1)
	go func() {
		defer b.Close()
		s := tls.Server(b, server)
		err := s.Handshake()
		if err == nil {
			s.Write([]byte("x")) // when the client has this byte, it also has the tickets of TLS 1.3
			io.Copy(io.Discard, s)
		}
		result <- err
	}()
	c := tls.Client(a, client)
	c.Read(make([]byte, 1))
	state := c.ConnectionState()
	c.Close()
	return state, <-result
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

func TestEverySuiteAndVersion(t *testing.T) {
	ca := newAuthority(t, "ca")
	later := time.Now().Add(time.Hour)
	certs := map[string]*tls.Certificate{"ECDSA": ca.issue(t, "a.example.org", false, later), "RSA": ca.issue(t, "a.example.org", true, later)}
	tried := 0
	for _, suite := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		keyType := "RSA"
		if strings.Contains(suite.Name, "_ECDSA_") {
			keyType = "ECDSA"
		}
		for _, version := range suite.SupportedVersions {
			p := anything()
			client := &tls.Config{MinVersion: version, MaxVersion: version, CipherSuites: []uint16{suite.ID}}
			if version < tls.VersionTLS13 {
				p.CipherSuites = []uint16{suite.ID}
			}
			state, err := shake(t, newPolicy(t, p, certs[keyType], keyring{}.attach).Config, client)
			what := keyType + " " + suite.Name + " " + tls.VersionName(version)
			if err != nil {
				t.Errorf("%s: %v", what, err)
				continue
			}
			if state.Version != version || version < tls.VersionTLS13 && state.CipherSuite != suite.ID {
				t.Errorf("%s: got %s %s", what, tls.VersionName(state.Version), tls.CipherSuiteName(state.CipherSuite))
			}
			tried++
		}
	}
	if tried < 30 {
		t.Errorf("%d combinations were tried, want at least 30", tried)
	}
	for keyType, cert := range certs {
		for version := uint16(tls.VersionTLS10); version <= tls.VersionTLS13; version++ {
			client := &tls.Config{MinVersion: version, MaxVersion: version, CipherSuites: allIDs()}
			if state, err := shake(t, newPolicy(t, anything(), cert, keyring{}.attach).Config, client); err != nil || state.Version != version {
				t.Errorf("%s %s: %v", keyType, tls.VersionName(version), err)
			}
		}
	}
}

func TestAgainstTheDefault(t *testing.T) {
	cert := newAuthority(t, "ca").issue(t, "a.example.org", true, time.Now().Add(time.Hour))
	modern := newPolicy(t, config.TLSPolicy{}, cert, keyring{}.attach)
	f := func(what string, client *tls.Config, want string) {
		t.Helper()
		_, err := shake(t, modern.Config, client)
		if got := HandshakeResult(err); got != want {
			t.Errorf("%s: the result is %s (%v), want %s", what, got, err, want)
		}
	}
	f("a modern client", &tls.Config{}, ResultOK)
	f("TLS 1.2", &tls.Config{MaxVersion: tls.VersionTLS12}, ResultOK)
	f("TLS 1.0", &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10, CipherSuites: allIDs()}, ResultNoCommonVersion)
	f("TLS 1.1", &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11, CipherSuites: allIDs()}, ResultNoCommonVersion)
	for _, suite := range ids(tls.InsecureCipherSuites()) {
		f(tls.CipherSuiteName(suite), &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{suite}}, ResultNoCommonSuite)
	}
	_, err := shake(t, modern.Config, &tls.Config{NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Errorf("a client that offers h2 and http/1.1: %v", err)
	}
}

func TestCurves(t *testing.T) {
	cert := newAuthority(t, "ca").issue(t, "a.example.org", false, time.Now().Add(time.Hour))
	p := newPolicy(t, config.TLSPolicy{Curves: []uint16{uint16(tls.CurveP384)}}, cert, keyring{}.attach)
	if state, err := shake(t, p.Config, &tls.Config{}); err != nil || state.CurveID != tls.CurveP384 {
		t.Errorf("a policy of P-384 alone agreed on %v, error %v", state.CurveID, err)
	}
	if _, err := shake(t, p.Config, &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}); HandshakeResult(err) != ResultNoCommonSuite {
		t.Errorf("a client of X25519 alone: %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	ca := newAuthority(t, "ca")
	f := func(change func(*config.TLSPolicy), want string) {
		t.Helper()
		p := anything()
		change(&p)
		_, err := New(p, always(nil), keyring{}.attach)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "TLS policy anything") {
			t.Errorf("error %v, want one that says %q and names the policy", err, want)
		}
	}
	f(func(p *config.TLSPolicy) { p.MinVersion = 0 }, "min_version")
	f(func(p *config.TLSPolicy) { p.MaxVersion = 0 }, "max_version")
	f(func(p *config.TLSPolicy) { p.MinVersion, p.MaxVersion = tls.VersionTLS13, tls.VersionTLS12 }, "no TLS version")
	f(func(p *config.TLSPolicy) { p.CipherSuites = nil }, "cipher_suites")
	f(func(p *config.TLSPolicy) { p.CipherSuites = []uint16{0x0001} }, "cipher_suites")
	f(func(p *config.TLSPolicy) { p.CipherSuites = []uint16{tls.TLS_AES_128_GCM_SHA256} }, "cipher_suites")
	f(func(p *config.TLSPolicy) { p.ClientAuth, p.ClientAuthCA = config.ClientAuthRequire, "ca.crt" }, "ca.crt")
	f(func(p *config.TLSPolicy) {
		p.ClientAuth, p.ClientAuthPool = config.ClientAuthRequest, []byte("garbage")
	}, "client_auth")
	f(func(p *config.TLSPolicy) { p.ClientAuth, p.ClientAuthPool = "maybe", ca.pem }, "maybe")
}

func TestAllows(t *testing.T) {
	p := &Policy{}
	f := func(client string, want bool) {
		t.Helper()
		var a netip.Addr
		if client != "" {
			a = netip.MustParseAddr(client)
		}
		if got := p.Allows(a); got != want {
			t.Errorf("Allows(%q) with from %v is %v, want %v", client, p.From, got, want)
		}
	}
	f("192.0.2.1", true)
	f("", true)
	for _, n := range []string{"127.0.0.0/8", "198.51.100.0/24", "fd00::/8", "fe80::/10"} {
		p.From = append(p.From, netip.MustParsePrefix(n))
	}
	f("127.9.9.9", true)
	f("198.51.100.255", true)
	f("198.51.101.0", false)
	f("::ffff:198.51.100.1", true)
	f("fd12::1", true)
	f("fe80::1%eth0", true)
	f("fc00::1", false)
	f("", false)
}

// A plain HTTP request to a TLS port gets no plain-text answer: either nothing, or a TLS
// alert.
func TestPlainTextOnATLSPort(t *testing.T) {
	cert := newAuthority(t, "ca").issue(t, "a.example.org", false, time.Now().Add(time.Hour))
	p := newPolicy(t, anything(), cert, keyring{}.attach)
	listener := Server(func(*tls.ClientHelloInfo) (*Policy, error) { return p, nil }, nil)
	for _, config := range []*tls.Config{p.Config, listener} {
		for _, sent := range []string{
			"GET / HTTP/1.1\r\nHost: a.example.org\r\n\r\n", "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c............", "SSH-2.0-x\r\n",
			"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10................", "\x16\x03\x01\x00\x05hello", "\x15\x03\x01\x00\x02\x02\x28",
		} {
			a, b := net.Pipe()
			a.SetDeadline(time.Now().Add(20 * time.Second))
			result := make(chan error, 1)
			go func() {
				defer b.Close()
				result <- tls.Server(b, config).Handshake()
			}()
			go a.Write([]byte(sent))
			answer, _ := io.ReadAll(a)
			a.Close()
			alert := len(answer) == 7 && answer[0] == 21
			if len(answer) > 0 && !alert {
				t.Errorf("%q is answered with %q, want at most a TLS alert", sent, answer)
			}
			r, sslv2 := HandshakeResult(<-result), sent[0] == 0x80
			if sslv2 != (r == ResultSSLv2Hello) || !sslv2 && r != ResultBadRecord && r != ResultPlainHTTP && r != ResultProxyHeader && r != ResultClientRefused {
				t.Errorf("%q: the result is %s, want %s", sent, r, ResultBadRecord)
			}
		}
	}
}

func TestServerFailsClosed(t *testing.T) {
	cert := newAuthority(t, "ca").issue(t, "a.example.org", false, time.Now().Add(time.Hour))
	good := newPolicy(t, config.TLSPolicy{}, cert, keyring{}.attach)
	reason := errors.New("a passthrough host")
	f := func(choose func(*tls.ClientHelloInfo) (*Policy, error), want string) {
		t.Helper()
		_, err := shake(t, Server(choose, nil), client(tls.VersionTLS13))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	f(func(h *tls.ClientHelloInfo) (*Policy, error) { return good, nil }, "")
	f(func(h *tls.ClientHelloInfo) (*Policy, error) { return nil, nil }, "no TLS policy")
	f(func(h *tls.ClientHelloInfo) (*Policy, error) { return good, reason }, reason.Error())
	// A policy without ticket keys does not use the keys of another policy.
	bare := newPolicy(t, config.TLSPolicy{}, cert, func(string, *tls.Config) {})
	f(func(h *tls.ClientHelloInfo) (*Policy, error) { return bare, nil }, "session ticket keys unavailable")

	if !slices.Equal(good.Config.NextProtos, []string{"http/1.1", "http/1.0"}) {
		t.Errorf("offered by ALPN is %q", good.Config.NextProtos)
	}
}
