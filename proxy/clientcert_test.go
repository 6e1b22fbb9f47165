package proxy

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/header"
	"github.com/weirproxy/weir/proxy/filter"
	"github.com/weirproxy/weir/tls/policy"
)

// certified is a host that accepts client certificates, and a host that requests none.
const certified = `
listeners: {tls: {address: '@0', protocol: tls @trust}, web: {address: '@1', protocol: http @trust}}
certificates: [{self_signed: {hosts: [robots.example.org, open.example.org]}}]
tls_policies: {robots: {client_auth: {mode: request, ca: '@ca' @forward}}}
routes:
  - {listeners: [tls], hosts: [robots.example.org], tls_policy: robots, backend: app}
  - {listeners: [tls], hosts: [open.example.org], backend: app}
  - {listeners: [web], hosts: [open.example.org], backend: app}
backends: {app: {endpoints: ['@app']}}
`

const everyField = ", forward: [subject, san, fingerprint, certificate, chain]"

// issue signs a client certificate with unusual names by an intermediate CA. It returns the
// certificate with its chain.
func (a *authority) issue(extra ...pkix.Extension) (tls.Certificate, []*x509.Certificate) {
	between, key := a.sign(&x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "between"}, IsCA: true,
		BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}, a.cert, a.key)
	uri, err := url.Parse("spiffe://factory/robot-7")
	if err != nil {
		a.Fatal(err)
	}
	leaf, leafKey := a.sign(&x509.Certificate{SerialNumber: big.NewInt(8), Subject: pkix.Name{CommonName: "robot 7, \r\nX-Real-IP: 6", Organization: []string{"Wéir"}},
		DNSNames: []string{"robot-7.example.org"}, URIs: []*url.URL{uri}, EmailAddresses: []string{"robots@example.org"}, IPAddresses: []net.IP{{192, 0, 2, 7}},
		NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, ExtraExtensions: extra}, between, key)
	return tls.Certificate{Certificate: [][]byte{leaf.Raw, between.Raw}, PrivateKey: leafKey}, []*x509.Certificate{leaf, between, a.cert}
}

// told returns the fields for chain, in their order.
func told(chain []*x509.Certificate) []string {
	sum := sha256.Sum256(chain[0].Raw)
	sequence := func(c *x509.Certificate) string { return ":" + base64.StdEncoding.EncodeToString(c.Raw) + ":" }
	return []string{
		`X-Client-Cert-Subject: CN=robot 7\2C \0D\0AX-Real-IP: 6,O=W\C3\A9ir`,
		"X-Client-Cert-SAN: DNS:robot-7.example.org, email:robots@example.org, IP:192.0.2.7, URI:spiffe://factory/robot-7",
		"X-Client-Cert-SHA256: " + hex.EncodeToString(sum[:]),
		"Client-Cert: " + sequence(chain[0]),
		"Client-Cert-Chain: " + sequence(chain[1]) + ", " + sequence(chain[2]),
	}
}

// ofCertificate are the HTTP headers that a backend might read as information about a
// certificate.
func ofCertificate(head string) (lines []string) {
	for _, line := range strings.Split(head, "\r\n") {
		name, _, _ := strings.Cut(strings.ToLower(line), ":")
		name = strings.NewReplacer("_", "-", ".", "-").Replace(name)
		if strings.Contains(name, "cert") || strings.Contains(name, "ssl") || strings.Contains(name, "x-client") || strings.Contains(name, "mtls") {
			lines = append(lines, line)
		}
	}
	return lines
}

// forgeries are headers by which a client could pose as another client, in several spellings.
func forgeries() (lines string) {
	for _, name := range []string{"X-Client-Cert-Subject", "X-Client-Cert-SAN", "X-Client-Cert-SHA256", "Client-Cert", "Client-Cert-Chain",
		"X-Forwarded-Client-Cert", "X-Forwarded-Tls-Client-Cert-Info", "X-Client-Cert", "X-Client-Cert-Verified", "X-Client-Verify", "X-Client-DN",
		"X-SSL-Client-Verify", "X-SSL-Client-CN", "X-SSL-CERT", "ssl-client-subject-dn", "X-Amzn-Mtls-Clientcert-Subject", "X-ARR-ClientCert", "Cf-Client-Cert-Der-Base64"} {
		for _, spelling := range []string{name, strings.ToUpper(name), strings.ReplaceAll(name, "-", "_"), strings.ReplaceAll(name, "-", "."), strings.Replace(name, "-", "_", 1)} {
			lines += spelling + ": forged\r\n"
		}
	}
	return lines
}

// certRig serves certified in front of an endpoint that the test plays.
type certRig struct {
	*rig
	ca  *authority
	app *endpoint
}

func newCertRig(t testing.TB, trust, forward string) certRig {
	r := certRig{ca: writeCA(t), app: newEndpoint(t)}
	r.rig = newRig(t, certified, nil, "@ca", r.ca.file, "@app", r.app.address, "@trust", trust, "@forward", forward)
	return r
}

func presenting(certificates ...tls.Certificate) func(*tls.Config) {
	return func(c *tls.Config) { c.Certificates = certificates }
}

// hear sends a request with fields over c. It returns the certificate headers that the endpoint got.
func (r certRig) hear(c *peer, host, fields string) []string {
	r.Helper()
	c.write("GET / HTTP/1.1\r\nHost: %s\r\n%s\r\n", host, fields)
	s := r.app.accept()
	head := s.head()
	s.write(ok(""))
	c.wantResponse(200, "")
	s.Close() // before the next request, weir must notice that the connection is idle
	return ofCertificate(head)
}

const robots, open = "robots.example.org", "open.example.org"

// inParts splits lines into several requests, because of the limit of fields.
func inParts(lines string) (parts []string) {
	all := strings.SplitAfter(lines, "\r\n")
	for part := range slices.Chunk(all[:len(all)-1], 100) {
		parts = append(parts, strings.Join(part, ""))
	}
	return parts
}

// A backend gets certificate headers only from weir, and only about a certificate that the
// connection proved: for every sender, in every spelling, and in trailers, too.
func TestEndpointsHearOfCertificatesFromWeir(t *testing.T) {
	r := newCertRig(t, "", everyField)
	cert, chain := r.ca.issue()
	with, without := r.dialTLS("tls", robots, presenting(cert)), r.dialTLS("tls", robots, nil)
	elsewhere, plain := r.dialTLS("tls", open, presenting(cert)), r.dial("web")
	f := func(c *peer, host string, want ...string) {
		t.Helper()
		for _, forged := range append(inParts(forgeries()), "", "Connection: Client-Cert, X-Client-Cert-Subject, X-Client-Cert-SHA256\r\n") {
			if got := r.hear(c, host, forged); !slices.Equal(got, want) {
				t.Errorf("the endpoint got\n%q\nand not\n%q", got, want)
			}
		}
		c.write("POST / HTTP/1.1\r\nHost: %s\r\nTrailer: Client-Cert\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nClient-Cert: forged\r\nX_SSL_Client_CN: forged\r\nX-Kept: 1\r\n\r\n", host)
		s := r.app.accept()
		head := s.head()
		s.wantRead("0\r\nX-Kept: 1\r\n\r\n")
		s.write(ok(""))
		c.wantResponse(200, "")
		s.Close()
		if got := ofCertificate(head); !slices.Equal(got, want) {
			t.Errorf("the endpoint got %q", got)
		}
	}
	f(with, robots, told(chain)...)
	f(without, robots)
	f(elsewhere, open)
	f(plain, open)
	f(with, robots, told(chain)...)
}

// A trusted sender may send headers about a certificate that it has seen itself, if weir has seen
// none.
func TestCertificatesOfTheTrusted(t *testing.T) {
	r := newCertRig(t, ", trust_forwarded: [127.0.0.0/8], trust: [client_cert]", "")
	cert, chain := r.ca.issue()
	var kept []string // headers in the right spelling
	for _, line := range strings.Split(strings.TrimSuffix(forgeries(), "\r\n"), "\r\n") {
		if name, _, _ := strings.Cut(line, ":"); !strings.ContainsAny(name, "_.") {
			kept = append(kept, line)
		}
	}
	for _, c := range []*peer{r.dialTLS("tls", open, nil), r.dial("web")} {
		var got []string
		for _, part := range inParts(forgeries()) {
			got = append(got, r.hear(c, open, part)...)
		}
		if !slices.Equal(got, kept) {
			t.Errorf("the endpoint got %q, not %q", got, kept)
		}
	}
	c := r.dialTLS("tls", robots, presenting(cert))
	for _, part := range inParts(forgeries()) {
		if got := r.hear(c, robots, part); !slices.Equal(got, told(chain)[:4]) { // the chain is not among the defaults
			t.Errorf("the endpoint got %q", got)
		}
	}
}

func TestForwardedParts(t *testing.T) {
	f := func(forward string, want ...int) {
		t.Helper()
		r := newCertRig(t, ", trust_forwarded: [127.0.0.0/8], trust: [client_cert]", ", forward: ["+forward+"]")
		cert, chain := r.ca.issue()
		all := told(chain)
		var lines []string
		for _, i := range want {
			lines = append(lines, all[i])
		}
		if got := r.hear(r.dialTLS("tls", robots, presenting(cert)), robots, "Client-Cert: forged\r\nX-SSL-Client-Cert: forged\r\n"); !slices.Equal(got, lines) {
			t.Errorf("%q: the endpoint got %q", forward, got)
		}
	}
	f("")
	f("subject", 0)
	f("fingerprint, san", 1, 2)
	f("certificate", 3)
	f("chain", 3, 4) // always comes with the certificate
}

// Weir does not forward unverified certificates that a client sends along with its certificate.
func TestUnverifiedCertificatesStayHere(t *testing.T) {
	r := newCertRig(t, "", everyField)
	cert, chain := r.ca.issue()
	cert.Certificate = append(cert.Certificate, writeCA(t).client("root").Certificate[0])
	if got := r.hear(r.dialTLS("tls", robots, presenting(cert)), robots, ""); !slices.Equal(got, told(chain)) {
		t.Errorf("the endpoint got %q", got)
	}
	// A certificate that is itself the trust anchor has an empty chain.
	own := r.ca.client("own")
	parsed, err := x509.ParseCertificate(own.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	state := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{parsed}, VerifiedChains: [][]*x509.Certificate{{parsed}}}
	if got := headersOf(filter.NewClientCert(state, []config.ClientCertField{config.ClientCertChain})); len(got) != 1 || got["Client-Cert"] == "" {
		t.Errorf("%v", got)
	}
}

// A resumed session forwards the certificate of its full handshake.
func TestCertificatesOfResumedSessions(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		r := newCertRig(t, "", everyField)
		cert, chain := r.ca.issue()
		cache := tls.NewLRUClientSessionCache(1)
		for _, resumed := range []bool{false, true} {
			c := r.dialTLS("tls", robots, func(c *tls.Config) {
				c.Certificates, c.ClientSessionCache, c.MaxVersion = []tls.Certificate{cert}, cache, version
			})
			if got := r.hear(c, robots, inParts(forgeries())[0]); !slices.Equal(got, told(chain)) {
				t.Errorf("the endpoint got %q", got)
			}
			if got := c.Conn.(*tls.Conn).ConnectionState().DidResume; got != resumed {
				t.Errorf("the session is resumed: %t", got)
			}
		}
	}
}

// A certificate of any size that TLS accepts reaches the endpoint whole. It costs memory only in
// its own exchange.
func TestLargeCertificates(t *testing.T) {
	r := newCertRig(t, "", everyField)
	large := pkix.Extension{Id: []int{1, 2, 3, 4}, Value: make([]byte, 40<<10)}
	cert, chain := r.ca.issue(large)
	c := r.dialTLS("tls", robots, presenting(cert))
	for range 3 {
		if got := r.hear(c, robots, ""); !slices.Equal(got, told(chain)) {
			t.Errorf("the endpoint got %d lines", len(got))
		}
	}
	c.write("POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 10\r\n\r\n01234", robots)
	s := r.app.accept()
	head := s.head()
	c.write("56789")
	s.wantRead("0123456789")
	s.write(ok("2"))
	c.wantResponse(200, "2")
	if got := ofCertificate(head); !slices.Equal(got, told(chain)) {
		t.Errorf("the endpoint got %d lines", len(got))
	}
}

// The example of RFC 9440, appendix A.
func TestClientCertAsInTheRFC(t *testing.T) {
	var chain []*x509.Certificate
	for rest := []byte(rfc9440Chain); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, c)
	}
	state := &tls.ConnectionState{PeerCertificates: chain[:2], VerifiedChains: [][]*x509.Certificate{chain}}
	want := map[string]string{"Client-Cert": rfc9440Cert, "Client-Cert-Chain": rfc9440CertChain,
		"X-Client-Cert-Subject": "CN=BC", "X-Client-Cert-SAN": "email:bdc@example.com"}
	got := headersOf(filter.NewClientCert(state, []config.ClientCertField{config.ClientCertSubject, config.ClientCertSAN, config.ClientCertCertificate, config.ClientCertChain}))
	if len(got) != len(want) {
		t.Errorf("%d fields", len(got))
	}
	for name, value := range got {
		if w := strings.NewReplacer("\n ", "").Replace(want[name]); value != w {
			t.Errorf("%s is\n%s, not\n%s", name, value, w)
		}
	}
}

// headersOf returns the headers that a request gets.
func headersOf(c filter.ClientCert) map[string]string {
	x, all := new(exchange), make(map[string]string)
	c.EditRequest(x)
	for i := range x.req.Fields {
		all[string(x.req.Name(i))] = string(x.req.Value(i))
	}
	return all
}

// With certificate headers, an exchange costs only the copy of these headers.
func TestCertFieldsAllocateNothing(t *testing.T) {
	ca := writeCA(t)
	_, chain := ca.issue()
	s := &exchange{progress: progress{route: new(Route)}, clientSide: clientSide{edge: &edge{forwarding: filter.NewForwarding(new(config.Listener))}, origin: &conn.Origin{Header: new(header.Header), Client: netip.MustParseAddrPort("192.0.2.1:1"), Local: netip.MustParseAddrPort("203.0.113.1:443")},
		security: Security{Policy: &policy.Policy{ClientAuth: config.ClientAuthRequire}, cert: new(clientCert)}}}
	s.route = new(Route)
	s.security.cert.fields = filter.NewClientCert(&tls.ConnectionState{PeerCertificates: chain, VerifiedChains: [][]*x509.Certificate{chain}},
		[]config.ClientCertField{config.ClientCertSubject, config.ClientCertSAN, config.ClientCertFingerprint, config.ClientCertCertificate, config.ClientCertChain})
	n := testing.AllocsPerRun(100, func() {
		s.req.Reset()
		s.req.Host = s.req.StoreString(robots)
		s.rewrite("")
	})
	if n != 0 || len(s.security.cert.fields) != 5 {
		t.Errorf("rewriting allocates %v times, with %d fields", n, len(s.security.cert.fields))
	}
}

// The certificates and fields of RFC 9440, figures 1 to 3; its line breaks are for show.
const (
	rfc9440Chain = `
-----BEGIN CERTIFICATE-----
MIIBqDCCAU6gAwIBAgIBBzAKBggqhkjOPQQDAjA6MRswGQYDVQQKDBJMZXQncyBB
dXRoZW50aWNhdGUxGzAZBgNVBAMMEkxBIEludGVybWVkaWF0ZSBDQTAeFw0yMDAx
MTQyMjU1MzNaFw0yMTAxMjMyMjU1MzNaMA0xCzAJBgNVBAMMAkJDMFkwEwYHKoZI
zj0CAQYIKoZIzj0DAQcDQgAE8YnXXfaUgmnMtOXU/IncWalRhebrXmckC8vdgJ1p
5Be5F/3YC8OthxM4+k1M6aEAEFcGzkJiNy6J84y7uzo9M6NyMHAwCQYDVR0TBAIw
ADAfBgNVHSMEGDAWgBRm3WjLa38lbEYCuiCPct0ZaSED2DAOBgNVHQ8BAf8EBAMC
BsAwEwYDVR0lBAwwCgYIKwYBBQUHAwIwHQYDVR0RAQH/BBMwEYEPYmRjQGV4YW1w
bGUuY29tMAoGCCqGSM49BAMCA0gAMEUCIBHda/r1vaL6G3VliL4/Di6YK0Q6bMje
SkC3dFCOOB8TAiEAx/kHSB4urmiZ0NX5r5XarmPk0wmuydBVoU4hBVZ1yhk=
-----END CERTIFICATE-----
-----BEGIN CERTIFICATE-----
MIIB5jCCAYugAwIBAgIBFjAKBggqhkjOPQQDAjBWMQswCQYDVQQGEwJVUzEbMBkG
A1UECgwSTGV0J3MgQXV0aGVudGljYXRlMSowKAYDVQQDDCFMZXQncyBBdXRoZW50
aWNhdGUgUm9vdCBBdXRob3JpdHkwHhcNMjAwMTE0MjEzMjMwWhcNMzAwMTExMjEz
MjMwWjA6MRswGQYDVQQKDBJMZXQncyBBdXRoZW50aWNhdGUxGzAZBgNVBAMMEkxB
IEludGVybWVkaWF0ZSBDQTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABJf+aA54
RC5pyLAR5yfXVYmNpgd+CGUTDp2KOGhc0gK91zxhHesEYkdXkpS2UN8Kati+yHtW
CV3kkhCngGyv7RqjZjBkMB0GA1UdDgQWBBRm3WjLa38lbEYCuiCPct0ZaSED2DAf
BgNVHSMEGDAWgBTEA2Q6eecKu9g9yb5glbkhhVINGDASBgNVHRMBAf8ECDAGAQH/
AgEAMA4GA1UdDwEB/wQEAwIBhjAKBggqhkjOPQQDAgNJADBGAiEA5pLvaFwRRkxo
mIAtDIwg9D7gC1xzxBl4r28EzmSO1pcCIQCJUShpSXO9HDIQMUgH69fNDEMHXD3R
RX5gP7kuu2KGMg==
-----END CERTIFICATE-----
-----BEGIN CERTIFICATE-----
MIICBjCCAaygAwIBAgIJAKS0yiqKtlhoMAoGCCqGSM49BAMCMFYxCzAJBgNVBAYT
AlVTMRswGQYDVQQKDBJMZXQncyBBdXRoZW50aWNhdGUxKjAoBgNVBAMMIUxldCdz
IEF1dGhlbnRpY2F0ZSBSb290IEF1dGhvcml0eTAeFw0yMDAxMTQyMTI1NDVaFw00
MDAxMDkyMTI1NDVaMFYxCzAJBgNVBAYTAlVTMRswGQYDVQQKDBJMZXQncyBBdXRo
ZW50aWNhdGUxKjAoBgNVBAMMIUxldCdzIEF1dGhlbnRpY2F0ZSBSb290IEF1dGhv
cml0eTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABFoaHU+Z5bPKmGzlYXtCf+E6
HYj62fORaHDOrt+yyh3H/rTcs7ynFfGn+gyFsrSP3Ez88rajv+U2NfD0o0uZ4Pmj
YzBhMB0GA1UdDgQWBBTEA2Q6eecKu9g9yb5glbkhhVINGDAfBgNVHSMEGDAWgBTE
A2Q6eecKu9g9yb5glbkhhVINGDAPBgNVHRMBAf8EBTADAQH/MA4GA1UdDwEB/wQE
AwIBhjAKBggqhkjOPQQDAgNIADBFAiEAmAeg1ycKHriqHnaD4M/UDBpQRpkmdcRF
YGMg1Qyrkx4CIB4ivz3wQcQkGhcsUZ1SOImd/lq1Q0FLf09rGfLQPWDc
-----END CERTIFICATE-----
`
	rfc9440Cert = `:MIIBqDCCAU6gAwIBAgIBBzAKBggqhkjOPQQDAjA6MRswGQYDVQQKDBJ
 MZXQncyBBdXRoZW50aWNhdGUxGzAZBgNVBAMMEkxBIEludGVybWVkaWF0ZSBDQTAeFw0
 yMDAxMTQyMjU1MzNaFw0yMTAxMjMyMjU1MzNaMA0xCzAJBgNVBAMMAkJDMFkwEwYHKoZ
 Izj0CAQYIKoZIzj0DAQcDQgAE8YnXXfaUgmnMtOXU/IncWalRhebrXmckC8vdgJ1p5Be
 5F/3YC8OthxM4+k1M6aEAEFcGzkJiNy6J84y7uzo9M6NyMHAwCQYDVR0TBAIwADAfBgN
 VHSMEGDAWgBRm3WjLa38lbEYCuiCPct0ZaSED2DAOBgNVHQ8BAf8EBAMCBsAwEwYDVR0
 lBAwwCgYIKwYBBQUHAwIwHQYDVR0RAQH/BBMwEYEPYmRjQGV4YW1wbGUuY29tMAoGCCq
 GSM49BAMCA0gAMEUCIBHda/r1vaL6G3VliL4/Di6YK0Q6bMjeSkC3dFCOOB8TAiEAx/k
 HSB4urmiZ0NX5r5XarmPk0wmuydBVoU4hBVZ1yhk=:`
	rfc9440CertChain = `:MIIB5jCCAYugAwIBAgIBFjAKBggqhkjOPQQDAjBWMQsw
 CQYDVQQGEwJVUzEbMBkGA1UECgwSTGV0J3MgQXV0aGVudGljYXRlMSowKAYDVQQ
 DDCFMZXQncyBBdXRoZW50aWNhdGUgUm9vdCBBdXRob3JpdHkwHhcNMjAwMTE0Mj
 EzMjMwWhcNMzAwMTExMjEzMjMwWjA6MRswGQYDVQQKDBJMZXQncyBBdXRoZW50a
 WNhdGUxGzAZBgNVBAMMEkxBIEludGVybWVkaWF0ZSBDQTBZMBMGByqGSM49AgEG
 CCqGSM49AwEHA0IABJf+aA54RC5pyLAR5yfXVYmNpgd+CGUTDp2KOGhc0gK91zx
 hHesEYkdXkpS2UN8Kati+yHtWCV3kkhCngGyv7RqjZjBkMB0GA1UdDgQWBBRm3W
 jLa38lbEYCuiCPct0ZaSED2DAfBgNVHSMEGDAWgBTEA2Q6eecKu9g9yb5glbkhh
 VINGDASBgNVHRMBAf8ECDAGAQH/AgEAMA4GA1UdDwEB/wQEAwIBhjAKBggqhkjO
 PQQDAgNJADBGAiEA5pLvaFwRRkxomIAtDIwg9D7gC1xzxBl4r28EzmSO1pcCIQC
 JUShpSXO9HDIQMUgH69fNDEMHXD3RRX5gP7kuu2KGMg==:, :MIICBjCCAaygAw
 IBAgIJAKS0yiqKtlhoMAoGCCqGSM49BAMCMFYxCzAJBgNVBAYTAlVTMRswGQYDV
 QQKDBJMZXQncyBBdXRoZW50aWNhdGUxKjAoBgNVBAMMIUxldCdzIEF1dGhlbnRp
 Y2F0ZSBSb290IEF1dGhvcml0eTAeFw0yMDAxMTQyMTI1NDVaFw00MDAxMDkyMTI
 1NDVaMFYxCzAJBgNVBAYTAlVTMRswGQYDVQQKDBJMZXQncyBBdXRoZW50aWNhdG
 UxKjAoBgNVBAMMIUxldCdzIEF1dGhlbnRpY2F0ZSBSb290IEF1dGhvcml0eTBZM
 BMGByqGSM49AgEGCCqGSM49AwEHA0IABFoaHU+Z5bPKmGzlYXtCf+E6HYj62fOR
 aHDOrt+yyh3H/rTcs7ynFfGn+gyFsrSP3Ez88rajv+U2NfD0o0uZ4PmjYzBhMB0
 GA1UdDgQWBBTEA2Q6eecKu9g9yb5glbkhhVINGDAfBgNVHSMEGDAWgBTEA2Q6ee
 cKu9g9yb5glbkhhVINGDAPBgNVHRMBAf8EBTADAQH/MA4GA1UdDwEB/wQEAwIBh
 jAKBggqhkjOPQQDAgNIADBFAiEAmAeg1ycKHriqHnaD4M/UDBpQRpkmdcRFYGMg
 1Qyrkx4CIB4ivz3wQcQkGhcsUZ1SOImd/lq1Q0FLf09rGfLQPWDc:`
)

// Endpoints and the access log learn of a certificate only if weir has verified it, and it is good.
func TestOnlyGoodCertificatesAreVerified(t *testing.T) {
	_, chain := writeCA(t).issue()
	good, bad, none := filter.NewCertificate(chain[0], nil, "", false), filter.NewCertificate(chain[0], errors.New("it has expired"), "certificate has expired", false), filter.NewCertificate(nil, nil, "", false)
	for _, c := range []struct {
		name string
		auth config.ClientAuthMode
		sent []*x509.Certificate
		cert *clientCert
		want bool
	}{
		{"the policy requests none", config.ClientAuthNone, chain, nil, false},
		{"the policy decides", config.ClientAuthRequire, chain, new(clientCert), true},
		{"the policy decides, and the client sent none", config.ClientAuthRequest, nil, nil, false},
		{"routes decide about a good certificate", config.ClientAuthReport, chain, &clientCert{report: good}, true},
		{"routes decide about a bad certificate", config.ClientAuthReport, chain, &clientCert{report: bad}, false},
		{"routes decide, and the client sent none", config.ClientAuthReport, nil, &clientCert{report: none}, false},
		{"routes have not decided", config.ClientAuthReport, chain, nil, false},
	} {
		s := Security{Policy: &policy.Policy{ClientAuth: c.auth}, cert: c.cert}
		if got := s.verified(&tls.ConnectionState{PeerCertificates: c.sent}); got != c.want {
			t.Errorf("%s: verified is %t, want %t", c.name, got, c.want)
		}
	}
}
