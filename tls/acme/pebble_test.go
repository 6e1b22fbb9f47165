package acme

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/weirproxy/weir/config"
)

// selfSigned makes a certificate for host.
func selfSigned(t *testing.T, host string) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{host}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// loopbackDNS is a name server to which every name is at loopback.
func loopbackDNS(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0") // pebble asks by TCP
	if err != nil {
		t.Fatal(err)
	}
	srv := &dns.Server{Listener: ln, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg).SetReply(r)
		if q := r.Question[0]; q.Qtype == dns.TypeA {
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(127, 0, 0, 1)})
		}
		w.WriteMsg(m)
	})}
	go srv.ActivateAndServe()
	t.Cleanup(func() { srv.Shutdown() })
	return ln.Addr().String()
}

func (p *pebble) entry(dir string, hosts ...string) config.Certificate {
	return config.Certificate{ACME: &config.ACME{Hosts: hosts, Directory: p.directory, CAPool: p.ca, KeyType: "p256",
		Challenges: []config.Challenge{config.ChallengeHTTP01}, Storage: config.Secret(dir)}}
}

func (h *harness) use(entries ...config.Certificate) []*Entry {
	h.t.Helper()
	plan, err := h.Prepare(entries)
	if err != nil {
		h.t.Fatal(err)
	}
	plan.Commit()
	var all []*Entry
	for _, c := range entries {
		all = append(all, plan.Entry(c.ACME))
	}
	return all
}

func TestPebble(t *testing.T) {
	h := newHarness(t, nil)
	p := startPebble(t, serveChallenges(t, h.HTTP01), freePort(t), 90*24*3600)
	dir := t.TempDir()
	start := time.Now()
	e := h.use(p.entry(dir, "app.example.org", "www.example.org"))[0]
	if c := e.Certificate("app.example.org"); c != nil {
		t.Error("a certificate before it was obtained")
	}
	h.expect(Obtained, "app.example.org")
	t.Log(time.Since(start))
	c := e.Certificate("app.example.org")
	if c == nil || c.Leaf.VerifyHostname("app.example.org") != nil {
		t.Fatalf("%+v is served", c)
	}
	if _, ok := c.PrivateKey.(*ecdsa.PrivateKey); !ok {
		t.Errorf("the key is a %T", c.PrivateKey)
	}
	_ = tls.Certificate{}
}
