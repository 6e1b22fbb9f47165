package policy

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// admitSHA1 admits SHA-1 for a test, as cmd/weir/node does while a policy needs it.
func admitSHA1(t testing.TB) {
	AdmitSHA1(true)
	t.Cleanup(func() { AdmitSHA1(false) })
}

// sha1Policies returns a policy that admits SHA-1 and one that does not, both for TLS 1.2, with certs.
func sha1Policies(t testing.TB, certs ...*tls.Certificate) (with, without *Policy) {
	t.Helper()
	choose := func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { // as certs.Store does
		for _, c := range certs[:len(certs)-1] {
			if h.SupportsCertificate(c) == nil {
				return c, nil
			}
		}
		return certs[len(certs)-1], nil
	}
	p := config.TLSPolicy{Name: "without", MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, CipherSuites: allIDs()}
	var err error
	if without, err = New(p, choose, keyring{}.attach); err != nil {
		t.Fatal(err)
	}
	p.Name, p.SHA1 = "with", true
	if with, err = New(p, choose, keyring{}.attach); err != nil {
		t.Fatal(err)
	}
	return with, without
}

// helloWith returns a ClientHello of TLS 1.2, in one record, that offers schemes; nil:
// without the extension.
func helloWith(t testing.TB, schemes []tls.SignatureScheme) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer b.Close()
	go func() {
		defer a.Close()
		tls.Client(a, &tls.Config{ServerName: "a.example.org", MaxVersion: tls.VersionTLS12}).Handshake()
	}()
	b.SetDeadline(time.Now().Add(20 * time.Second))
	record := make([]byte, 5)
	if _, err := io.ReadFull(b, record); err != nil {
		t.Fatal(err)
	}
	hello := make([]byte, binary.BigEndian.Uint16(record[3:]))
	if _, err := io.ReadFull(b, hello); err != nil {
		t.Fatal(err)
	}
	at := 4 + 2 + 32 // message head, version, random
	at += 1 + int(hello[at])
	at += 2 + int(binary.BigEndian.Uint16(hello[at:]))
	at += 1 + int(hello[at])
	body, extensions := slices.Clone(hello[4:at]), hello[at+2:]
	var kept []byte
	for len(extensions) > 0 {
		n := 4 + int(binary.BigEndian.Uint16(extensions[2:]))
		if binary.BigEndian.Uint16(extensions) != 13 { // signature_algorithms
			kept = append(kept, extensions[:n]...)
		}
		extensions = extensions[n:]
	}
	if schemes != nil {
		kept = append(kept, 0, 13)
		kept = binary.BigEndian.AppendUint16(kept, uint16(2+2*len(schemes)))
		kept = binary.BigEndian.AppendUint16(kept, uint16(2*len(schemes)))
		for _, s := range schemes {
			kept = binary.BigEndian.AppendUint16(kept, uint16(s))
		}
	}
	body = binary.BigEndian.AppendUint16(body, uint16(len(kept)))
	body = append(body, kept...)
	message := append([]byte{1, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	return append([]byte{22, 3, 1, byte(len(message) >> 8), byte(len(message))}, message...)
}

// signedWith sends a ClientHello. It returns the signature scheme of the
// ServerKeyExchange, or the error of the server.
func signedWith(t testing.TB, p *Policy, hello []byte) (tls.SignatureScheme, error) {
	t.Helper()
	a, b := net.Pipe()
	deadline := time.Now().Add(20 * time.Second)
	a.SetDeadline(deadline)
	b.SetDeadline(deadline)
	result := make(chan error, 1)
	go func() {
		defer b.Close()
		result <- tls.Server(b, p.Config).Handshake()
	}()
	if _, err := a.Write(hello); err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var flight []byte
	for {
		record := make([]byte, 5)
		if _, err := io.ReadFull(a, record); err != nil {
			return 0, <-result
		}
		content := make([]byte, binary.BigEndian.Uint16(record[3:]))
		if _, err := io.ReadFull(a, content); err != nil {
			return 0, <-result
		}
		if record[0] != 22 {
			continue
		}
		flight = append(flight, content...)
		for len(flight) >= 4 {
			n := 4 + int(flight[1])<<16 + int(flight[2])<<8 + int(flight[3])
			if len(flight) < n {
				break
			}
			if flight[0] == 12 { // ServerKeyExchange: a named curve and a point, then the scheme
				key := flight[4:n]
				return tls.SignatureScheme(binary.BigEndian.Uint16(key[4+int(key[3]):])), nil
			}
			flight = flight[n:]
		}
	}
}

// A client that offers only SHA-1 is admitted by the policy with sha1_signatures and by
// no other. A client that offers better signatures never gets SHA-1.
func TestSHA1(t *testing.T) {
	admitSHA1(t)
	ca := newAuthority(t, "ca")
	later := time.Now().Add(time.Hour)
	ecdsaCert, rsaCert := ca.issue(t, "a.example.org", false, later), ca.issue(t, "a.example.org", true, later)
	const refused = tls.SignatureScheme(0)
	f := func(certs []*tls.Certificate, offered []tls.SignatureScheme, wantWith, wantWithout tls.SignatureScheme) {
		t.Helper()
		with, without := sha1Policies(t, certs...)
		for p, want := range map[*Policy]tls.SignatureScheme{with: wantWith, without: wantWithout} {
			for range 2 { // first made, then cached
				got, err := signedWith(t, p, helloWith(t, offered))
				if got != want {
					t.Errorf("policy %s, offered %v: signed with %v (%v), want %v", p.Name, offered, got, err, want)
				}
				if want == refused && HandshakeResult(err) != ResultNoCommonSignature {
					t.Errorf("policy %s, offered %v: the result is %s (%v)", p.Name, offered, HandshakeResult(err), err)
				}
			}
		}
	}
	type offers = []tls.SignatureScheme
	rsaOnly, ecdsaOnly, both := []*tls.Certificate{rsaCert}, []*tls.Certificate{ecdsaCert}, []*tls.Certificate{ecdsaCert, rsaCert}
	f(rsaOnly, offers{tls.PKCS1WithSHA1}, tls.PKCS1WithSHA1, refused)
	f(ecdsaOnly, offers{tls.ECDSAWithSHA1}, tls.ECDSAWithSHA1, refused)
	f(both, offers{tls.PKCS1WithSHA1, tls.ECDSAWithSHA1}, tls.ECDSAWithSHA1, refused)
	f(both, offers{tls.PKCS1WithSHA1}, tls.PKCS1WithSHA1, refused)
	f(rsaOnly, nil, tls.PKCS1WithSHA1, refused) // RFC 5246: means SHA-1
	f(both, nil, tls.ECDSAWithSHA1, refused)
	f(rsaOnly, offers{0x0202, tls.PKCS1WithSHA1, 0x0101, 0x0301}, tls.PKCS1WithSHA1, refused) // DSA, MD5, SHA-224
	f(rsaOnly, offers{tls.ECDSAWithP256AndSHA256, tls.PKCS1WithSHA1}, tls.PKCS1WithSHA1, refused)
	// Better signatures win, at any position in the client's list:
	f(rsaOnly, offers{tls.PKCS1WithSHA1, tls.PKCS1WithSHA256}, tls.PKCS1WithSHA256, tls.PKCS1WithSHA256)
	f(rsaOnly, offers{tls.PKCS1WithSHA1, tls.PSSWithSHA256}, tls.PSSWithSHA256, tls.PSSWithSHA256)
	f(ecdsaOnly, offers{tls.ECDSAWithSHA1, tls.ECDSAWithP384AndSHA384}, tls.ECDSAWithP384AndSHA384, tls.ECDSAWithP384AndSHA384)
	// The other certificate wins over SHA-1:
	f(both, offers{tls.ECDSAWithSHA1, tls.PKCS1WithSHA256}, tls.PKCS1WithSHA256, tls.PKCS1WithSHA256)
	f(both, offers{tls.PKCS1WithSHA1, tls.ECDSAWithP256AndSHA256}, tls.ECDSAWithP256AndSHA256, tls.ECDSAWithP256AndSHA256)

	// For a certificate with its own list of algorithms, both lists apply.
	picky := *rsaCert
	picky.SupportedSignatureAlgorithms = offers{tls.PKCS1WithSHA1, tls.PKCS1WithSHA384}
	f([]*tls.Certificate{&picky}, offers{tls.PKCS1WithSHA1, tls.PKCS1WithSHA256, tls.PKCS1WithSHA384}, tls.PKCS1WithSHA384, tls.PKCS1WithSHA384)
	picky.SupportedSignatureAlgorithms = offers{tls.PKCS1WithSHA1}
	_, without := sha1Policies(t, &picky)
	if got, err := signedWith(t, without, helloWith(t, offers{tls.PKCS1WithSHA1})); got != refused || err == nil {
		t.Errorf("a certificate for SHA-1 alone signed with %v under a policy without it", got)
	}
}

// While SHA-1 is off, no policy signs with it. AdmitSHA1 does not change other settings.
func TestAdmitSHA1(t *testing.T) {
	t.Setenv("GODEBUG", "madvdontneed=1,tlssha1=1,panicnil=0")
	AdmitSHA1(false)
	if got := os.Getenv("GODEBUG"); got != "madvdontneed=1,panicnil=0" {
		t.Errorf("GODEBUG is %q", got)
	}
	with, _ := sha1Policies(t, newAuthority(t, "ca").issue(t, "a.example.org", true, time.Now().Add(time.Hour)))
	hello := helloWith(t, []tls.SignatureScheme{tls.PKCS1WithSHA1})
	if got, err := signedWith(t, with, hello); err == nil {
		t.Errorf("signed with %v though it is switched off", got)
	}
	AdmitSHA1(true)
	if got := os.Getenv("GODEBUG"); got != "madvdontneed=1,panicnil=0,tlssha1=1" {
		t.Errorf("GODEBUG is %q", got)
	}
	if got, err := signedWith(t, with, hello); got != tls.PKCS1WithSHA1 {
		t.Errorf("signed with %v (%v) though it is switched on", got, err)
	}
	AdmitSHA1(false)
	if _, err := signedWith(t, with, hello); err == nil {
		t.Error("signed with SHA-1 after it was switched off")
	}
}

// The limits of certificates are computed once, so they cost nothing in later handshakes.
func TestCertificatesAreLimitedOnce(t *testing.T) {
	ca := newAuthority(t, "ca")
	cert := ca.issue(t, "a.example.org", true, time.Now().Add(time.Hour))
	s := &signer{certificate: always(cert)}
	usual := &tls.ClientHelloInfo{SignatureSchemes: []tls.SignatureScheme{tls.PKCS1WithSHA256, tls.PKCS1WithSHA1, tls.ECDSAWithP256AndSHA256, tls.ECDSAWithSHA1}}
	modern := &tls.ClientHelloInfo{SignatureSchemes: []tls.SignatureScheme{tls.PSSWithSHA256}}
	for _, h := range []*tls.ClientHelloInfo{usual, modern} {
		if n := testing.AllocsPerRun(100, func() { s.get(h) }); n > 0 {
			t.Errorf("%v: %v allocations", h.SignatureSchemes, n)
		}
	}
	if c, _ := s.get(modern); c != cert {
		t.Error("a client that cannot be given SHA-1 gets a copy")
	}
	if c, _ := s.get(usual); slices.ContainsFunc(c.SupportedSignatureAlgorithms, isSHA1) || c.SupportedSignatureAlgorithms == nil || c.Leaf != cert.Leaf {
		t.Errorf("the copy may sign with %v", c.SupportedSignatureAlgorithms)
	}
	other := ca.issue(t, "a.example.org", true, time.Now().Add(time.Hour)) // as after a renewal
	s.certificate = always(other)
	if c, _ := s.get(usual); c.Leaf != other.Leaf {
		t.Error("a copy of the certificate before is handed out")
	}
	s.certificate = always(nil)
	if c, err := s.get(usual); c != nil || err != nil {
		t.Errorf("no certificate became %v, error %v", c, err)
	}
	s.certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("none") }
	if _, err := s.get(usual); err == nil {
		t.Error("the error is lost")
	}
}

func TestCheckSHA1(t *testing.T) {
	sha1 := config.TLSPolicy{Name: "robots", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS12, SHA1: true}
	mtls := func(min, max uint16, sha1 bool) config.TLSPolicy {
		return config.TLSPolicy{Name: "partners", MinVersion: min, MaxVersion: max, ClientAuth: config.ClientAuthRequest, SHA1: sha1}
	}
	var backends []*config.Backend
	f := func(want bool, policies ...config.TLSPolicy) {
		t.Helper()
		if err := CheckSHA1(policies, backends); (err == nil) != want || err != nil && !strings.Contains(err.Error(), "TLS policy partners") {
			t.Errorf("%+v: %v", policies, err)
		}
	}
	f(true)
	f(true, mtls(tls.VersionTLS12, tls.VersionTLS13, false))
	f(true, sha1, config.TLSPolicy{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13})
	f(false, sha1, mtls(tls.VersionTLS12, tls.VersionTLS13, false))
	f(false, mtls(tls.VersionTLS10, tls.VersionTLS12, false), sha1)
	f(true, sha1, mtls(tls.VersionTLS13, tls.VersionTLS13, false))
	f(true, sha1, mtls(tls.VersionTLS10, tls.VersionTLS11, false)) // these versions have only SHA-1
	f(true, mtls(tls.VersionTLS12, tls.VersionTLS13, true))
	old := config.NewBackend("old")
	old.TLS.SHA1 = true
	backends = append(backends, new(config.NewBackend("app")), &old)
	f(true, mtls(tls.VersionTLS12, tls.VersionTLS13, false)) // the backend does not use TLS
	if WantsSHA1(nil, backends) {
		t.Error("a backend without TLS wants SHA-1")
	}
	backends[1].Protocol = config.ProtocolHTTPS
	f(true, mtls(tls.VersionTLS13, tls.VersionTLS13, false))
	f(true, mtls(tls.VersionTLS12, tls.VersionTLS13, true))
	f(false, mtls(tls.VersionTLS12, tls.VersionTLS13, false))
	if err := CheckSHA1([]config.TLSPolicy{mtls(tls.VersionTLS12, tls.VersionTLS13, false)}, backends); !strings.Contains(err.Error(), "the backend old") {
		t.Error(err)
	}
	if !WantsSHA1(nil, backends) || !WantsSHA1([]config.TLSPolicy{sha1}, nil) || WantsSHA1(nil, backends[:1]) {
		t.Error("the switch does not go by who wants it")
	}
}

func TestSHA1WithOpenSSL(t *testing.T) {
	admitSHA1(t)
	ca := newAuthority(t, "ca")
	later := time.Now().Add(time.Hour)
	for _, cert := range []*tls.Certificate{ca.issue(t, "a.example.org", false, later), ca.issue(t, "a.example.org", true, later)} {
		kind := "RSA"
		if cert.Leaf.PublicKeyAlgorithm == x509.ECDSA {
			kind = "ECDSA"
		}
		with, without := sha1Policies(t, cert)
		f := func(p *Policy, sigalgs, want, wantDigest string) {
			t.Helper()
			got, output := openSSL(t, p, "-tls1_2", "-cipher", "ALL:@SECLEVEL=0", "-sigalgs", strings.ReplaceAll(sigalgs, "+", kind+"+"))
			if got != want || want == ResultOK && !strings.Contains(output, "Peer signing digest: "+wantDigest) {
				t.Errorf("policy %s, %s %s: the result is %s, want %s with %s; openssl says:\n%s", p.Name, kind, sigalgs, got, want, wantDigest, output)
			}
		}
		if kind == "RSA" { // RSA key exchange needs no signature, so leave it out
			for _, p := range []*Policy{with, without} {
				p.Config.CipherSuites = slices.DeleteFunc(allIDs(), func(id uint16) bool { return strings.HasPrefix(tls.CipherSuiteName(id), "TLS_RSA") })
			}
		}
		f(with, "+SHA1", ResultOK, "SHA1")
		f(without, "+SHA1", ResultNoCommonSignature, "")
		f(with, "+SHA1:+SHA256", ResultOK, "SHA256")
		f(without, "+SHA1:+SHA256", ResultOK, "SHA256")
		// Old versions and resumption work as before.
		got, output := openSSL(t, tls10(t, cert), "-tls1", "-cipher", "ALL:@SECLEVEL=0")
		if got != ResultOK {
			t.Errorf("%s in TLS 1.0: %s; openssl says:\n%s", kind, got, output)
		}
	}
}

// tls10 is a policy for TLS 1.0 without SHA1 set; TLS 1.0 has only SHA-1.
func tls10(t testing.TB, cert *tls.Certificate) *Policy {
	return newPolicy(t, config.TLSPolicy{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10, CipherSuites: allIDs()}, cert, keyring{}.attach)
}

// A client that supports only SHA-1 needs no permission if weir signs nothing for it.
func TestRSAKeyExchangeNeedsNoSHA1(t *testing.T) {
	cert := newAuthority(t, "ca").issue(t, "a.example.org", true, time.Now().Add(time.Hour))
	p := newPolicy(t, config.TLSPolicy{CipherSuites: []uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA}}, cert, keyring{}.attach)
	if got, output := openSSL(t, p, "-tls1_2", "-cipher", "AES128-SHA:@SECLEVEL=0", "-sigalgs", "RSA+SHA1"); got != ResultOK {
		t.Errorf("the result is %s; openssl says:\n%s", got, output)
	}
}

// This is the reason for CheckSHA1: while SHA-1 is on, a client can sign with SHA-1 for
// its certificate under a policy without sha1_signatures. If crypto/tls ever refuses
// that, this test fails, and CheckSHA1 can be removed.
func TestClientsMaySignWithSHA1(t *testing.T) {
	ca := newAuthority(t, "ca")
	later := time.Now().Add(time.Hour)
	cert := ca.issue(t, "a.example.org", false, later)
	file := writePair(t, ca.issue(t, "client", true, later))
	f := func(version string, want string) {
		t.Helper()
		p := newPolicy(t, config.TLSPolicy{ClientAuth: config.ClientAuthRequire, ClientAuthPool: ca.pem}, cert, keyring{}.attach)
		got, output := openSSL(t, p, version, "-cert", file, "-key", file, "-cipher", "ALL:@SECLEVEL=0", "-client_sigalgs", "RSA+SHA1")
		if got != want {
			t.Errorf("%s: the result is %s, want %s; openssl says:\n%s", version, got, want, output)
		}
	}
	f("-tls1_2", ResultClientCertificate) // the client has no signature to offer, and sends no certificate
	admitSHA1(t)
	f("-tls1_2", ResultOK)
	f("-tls1_3", ResultClientCertificate) // no policy accepts SHA-1 in TLS 1.3
}

// writePair writes a certificate and its key to one file.
func writePair(t testing.TB, c *tls.Certificate) string {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "pair.pem")
	text := fmt.Sprintf("%s%s", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
