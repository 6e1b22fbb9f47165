package acme

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/weirproxy/weir/config"
)

// selfSignedFor makes a self-signed certificate for host that ends after life.
func selfSignedFor(t *testing.T, host string, life time.Duration) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{host}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(life), IsCA: true, BasicConstraintsValid: true,
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

// loopbackDNS is a name server that resolves every name to loopback.
func loopbackDNS(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0") // pebble sends its queries over TCP
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

// answerers answer the challenges for several processes, in turn, because an authority
// may reach any of them.
type answerers struct {
	mu  sync.Mutex
	all []*harness
	n   int
}

func (a *answerers) add(h *harness) *harness {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, h)
	return h
}

// next returns another process at each call, like a load balancer.
func (a *answerers) next() *harness {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n++
	return a.all[a.n%len(a.all)]
}

func (a *answerers) HTTP01(host, token string) (string, bool) { return a.next().HTTP01(host, token) }

// serveTLS answers TLS-ALPN-01 as weir's listener does.
func (a *answerers) serveTLS(t *testing.T) (port int) {
	t.Helper()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{NextProtos: []string{"acme-tls/1"},
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return a.next().TLSALPN01(h) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(patience))
				c.(*tls.Conn).Handshake()
			}()
		}
	}()
	return ln.Addr().(*net.TCPAddr).Port
}

func wantKey[K any](t *testing.T, c *tls.Certificate, name string) {
	t.Helper()
	if c == nil || c.Leaf.VerifyHostname(name) != nil {
		t.Fatalf("%+v is served for %s", c, name)
	}
	if _, ok := c.PrivateKey.(K); !ok {
		t.Errorf("the key for %s is a %T", name, c.PrivateKey)
	}
}

// Two processes with one storage obtain one certificate, whichever of them the authority
// reaches. A name in two entries with two kinds of keys gets both certificates.
func TestReplicasGetOneCertificate(t *testing.T) {
	var replicas answerers
	a, b := replicas.add(newHarness(t, nil)), replicas.add(newHarness(t, nil))
	p := startPebble(t, serveChallenges(t, replicas.HTTP01), replicas.serveTLS(t), 90*24*3600)
	dir := t.TempDir()
	ecdsaOf, rsaOf := p.entry(dir, "app.example.org"), p.entry(dir, "app.example.org")
	rsaOf.ACME.KeyType = "rsa2048"
	rsaOf.ACME.Challenges = []config.Challenge{config.ChallengeTLSALPN01}
	at := a.use(ecdsaOf, rsaOf)
	bt := b.use(ecdsaOf, rsaOf)
	if c := at[0].Certificate("app.example.org"); c != nil {
		t.Error("there is a certificate before one was obtained")
	}
	eventually(t, "both replicas have both certificates", func() bool {
		for _, e := range append(at, bt...) {
			if e.Certificate("app.example.org") == nil {
				return false
			}
		}
		return true
	})
	for i := range at {
		if one, two := at[i].Certificate("app.example.org"), bt[i].Certificate("app.example.org"); !one.Leaf.Equal(two.Leaf) {
			t.Errorf("the replicas have different certificates with the serial numbers %x and %x", one.Leaf.SerialNumber, two.Leaf.SerialNumber)
		}
	}
	wantKey[*ecdsa.PrivateKey](t, at[0].Certificate("app.example.org"), "app.example.org")
	wantKey[*rsa.PrivateKey](t, at[1].Certificate("app.example.org"), "app.example.org")
	if n := value(a.Metrics.obtained) + value(b.Metrics.obtained); n != 2 {
		t.Errorf("%v certificates were obtained", n)
	}

	// A revoked certificate is also replaced only once.
	revoked := at[0].Certificate("app.example.org").Leaf
	a.Replace(revoked)
	b.Replace(revoked)
	eventually(t, "both replicas have another certificate", func() bool {
		one, two := at[0].Certificate("app.example.org"), bt[0].Certificate("app.example.org")
		return !one.Leaf.Equal(revoked) && one.Leaf.Equal(two.Leaf)
	})
	if n := value(a.Metrics.renewed) + value(b.Metrics.renewed); n != 1 {
		t.Errorf("%v certificates were renewed", n)
	}
	if files, err := os.ReadDir(dir + "/certificates"); err != nil || len(files) != 1 {
		t.Errorf("the storage has %v, %v", files, err)
	}
}

// weir renews a certificate that ends soon while it serves it. A client that requests
// another name gets a certificate for that name.
func TestRenewalAndDemand(t *testing.T) {
	var replicas answerers
	h := replicas.add(newHarness(t, nil))
	p := startPebble(t, serveChallenges(t, replicas.HTTP01), freePort(t), 20)
	c := p.entry(t.TempDir(), "app.example.org")
	c.ACME.OnDemand = &config.OnDemand{Hosts: []string{"*.customers.example.org"}, Timeout: patience, Concurrent: 4}
	e := h.use(c)[0]
	h.expect(Obtained, "app.example.org")
	first := e.Certificate("app.example.org")
	wantKey[*ecdsa.PrivateKey](t, first, "app.example.org")

	var shakes sync.WaitGroup
	for range 5 {
		shakes.Go(func() {
			cert, err := ask(t, e, "one.customers.example.org")
			if err != nil || cert == nil || cert.Leaf.VerifyHostname("one.customers.example.org") != nil {
				t.Errorf("a name on demand gets %v, %v", cert, err)
			}
		})
	}
	shakes.Wait()

	h.expect(Renewed, "app.example.org")
	second := e.Certificate("app.example.org")
	if second.Leaf.Equal(first.Leaf) || !second.Leaf.NotAfter.After(first.Leaf.NotAfter) {
		t.Error("the certificate was renewed and is not served")
	}
	if n := value(h.Metrics.failed); n != 0 {
		t.Errorf("%v attempts failed", n)
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(3 * patience); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("it never came about that %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// value returns the value of a counter.
func value(c prometheus.Counter) float64 {
	var m dto.Metric
	c.Write(&m)
	return m.GetCounter().GetValue()
}
