package certs

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/ocsp"

	"github.com/weirproxy/weir/config"
)

// responder is an authority with an OCSP responder. The test sets its answers.
type responder struct {
	t      *testing.T
	url    string
	issuer *x509.Certificate
	key    crypto.Signer

	mu     sync.Mutex
	answer func(*ocsp.Request) ([]byte, int)
	asked  int
}

func newResponder(t *testing.T) *responder {
	t.Helper()
	r := &responder{t: t, key: testKeys()["ecdsa"]}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(240 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	r.issuer = r.sign(template, template, r.key.Public())
	srv := httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(srv.Close)
	r.url = srv.URL
	return r
}

func (r *responder) sign(template, parent *x509.Certificate, key crypto.PublicKey) *x509.Certificate {
	r.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key, r.key)
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *responder) serve(w http.ResponseWriter, req *http.Request) {
	if req.Method == http.MethodGet { // the issuer's certificate
		w.Write(r.issuer.Raw)
		return
	}
	body, _ := io.ReadAll(req.Body)
	question, err := ocsp.ParseRequest(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	r.asked++
	answer := r.answer
	r.mu.Unlock()
	text, status := answer(question)
	w.WriteHeader(status)
	w.Write(text)
}

// say makes the responder answer with a response made from template.
func (r *responder) say(template ocsp.Response) {
	r.does(func(q *ocsp.Request) ([]byte, int) {
		one := template
		if one.SerialNumber == nil {
			one.SerialNumber = q.SerialNumber
		}
		text, err := ocsp.CreateResponse(r.issuer, r.issuer, one, r.key)
		if err != nil {
			r.t.Error(err)
		}
		return text, http.StatusOK
	})
}

func (r *responder) does(answer func(*ocsp.Request) ([]byte, int)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *responder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

// write makes the files of a certificate with the responder's URL.
func (r *responder) write(d dir, name string, chain bool) config.Certificate {
	r.t.Helper()
	e := d.write(name, "ecdsa", names(name, name)) // write makes the key, and chooses the names of the files
	leaf := r.sign(&x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(200 * time.Hour),
		OCSPServer: []string{r.url}, IssuingCertificateURL: []string{r.url}}, r.issuer, testKeys()["ecdsa"].Public())
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})
	if chain {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.issuer.Raw})...)
	}
	d.put(e.CertFile, text)
	return e
}

func good(life time.Duration) ocsp.Response {
	return ocsp.Response{Status: ocsp.Good, ThisUpdate: time.Now().Add(-time.Minute), NextUpdate: time.Now().Add(life)}
}

// stapled returns the OCSP response that a client gets.
func stapled(t *testing.T, s *Store, serverName string) []byte {
	t.Helper()
	state, err := shake(t, allSuites(s), modern, serverName)
	if err != nil {
		t.Fatal(err)
	}
	return state.OCSPResponse
}

func TestStaples(t *testing.T) {
	r, d := newResponder(t), newDir(t)
	var told []OCSPEvent
	f := func(entry config.Certificate, want bool, wantErr string) *Store {
		t.Helper()
		s := New(NewMetrics(prometheus.NewRegistry()))
		told = nil
		s.Stapled = func(e OCSPEvent) { told = append(told, e) }
		if err := s.Load([]config.Certificate{entry}); err != nil {
			t.Fatal(err)
		}
		name := s.table.Load().entries[0].names[0]
		if stapled(t, s, name) != nil {
			t.Error("something is stapled before anybody was asked")
		}
		s.staple(t.Context())
		if got := stapled(t, s, name); (got != nil) != want {
			t.Errorf("stapled are %d bytes, wanted some: %v", len(got), want)
		}
		switch {
		case wantErr == "" && len(told) == 1 && told[0].Err == nil:
		case wantErr != "" && len(told) == 1 && told[0].Err != nil && strings.Contains(told[0].Err.Error(), wantErr):
		default:
			t.Errorf("told is %+v, want the error %q", told, wantErr)
		}
		return s
	}
	file := r.write(d, "app.example.org", true)
	r.say(good(time.Hour))
	f(file, true, "")
	f(r.write(d, "alone.example.org", false), true, "") // weir fetches the issuer's certificate
	withoutEnd := good(time.Hour)
	withoutEnd.NextUpdate = time.Time{}
	r.say(withoutEnd)
	f(file, true, "")
	s := f(file, true, "")
	if len(s.table.Load().withResponder()) != 1 {
		t.Error("the certificate with a responder is not listed")
	}
	unstapled := file
	unstapled.NoOCSP = true
	if err := s.Load([]config.Certificate{unstapled}); err != nil {
		t.Fatal(err)
	}
	s.staple(t.Context())
	if stapled(t, s, "app.example.org") != nil {
		t.Error("stapled although the entry does not want that")
	}
	chain, err := os.ReadFile(file.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(file.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	theirs := config.Certificate{Pair: &config.Pair{Name: "team/app", Hosts: []string{"app.example.org"}, CertPEM: chain, KeyPEM: config.Secret(key)}}
	if err := s.Load([]config.Certificate{theirs}); err != nil {
		t.Fatal(err)
	}
	if len(s.table.Load().withResponder()) != 0 {
		t.Error("whoever gives a pair says whom weir asks")
	}

	bad := func(change func(*ocsp.Response), wantErr string) {
		t.Helper()
		one := good(time.Hour)
		change(&one)
		r.say(one)
		f(file, false, wantErr)
	}
	bad(func(o *ocsp.Response) { o.Status, o.RevokedAt = ocsp.Revoked, time.Now().Add(-time.Hour) }, "")
	if told[0].Revoked.IsZero() || told[0].Leaf == nil || told[0].Names[0] != "app.example.org" {
		t.Errorf("a revoked certificate is told of as %+v", told)
	}
	bad(func(o *ocsp.Response) { o.Status = ocsp.Unknown }, "does not know")
	bad(func(o *ocsp.Response) { o.NextUpdate = time.Now().Add(-time.Second) }, "expired on")
	bad(func(o *ocsp.Response) { o.ThisUpdate = time.Now().Add(time.Hour) }, "future")
	bad(func(o *ocsp.Response) { o.ThisUpdate, o.NextUpdate = time.Now().Add(-24*time.Hour), time.Time{} }, "old")
	bad(func(o *ocsp.Response) { o.SerialNumber = big.NewInt(42) }, "does not accept the OCSP response")
	r.does(func(*ocsp.Request) ([]byte, int) { return []byte("hello"), http.StatusOK })
	f(file, false, "does not accept the OCSP response")
	r.does(func(*ocsp.Request) ([]byte, int) { return nil, http.StatusServiceUnavailable })
	f(file, false, "503")

	// A certificate of the issuer that is not for OCSP cannot sign the response.
	stranger := r.sign(&x509.Certificate{SerialNumber: big.NewInt(7), NotAfter: time.Now().Add(time.Hour), Subject: pkix.Name{CommonName: "web server"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, r.issuer, testKeys()["rsa"].Public())
	delegate := func(by *x509.Certificate) {
		r.does(func(q *ocsp.Request) ([]byte, int) {
			one := good(time.Hour)
			one.SerialNumber, one.Certificate = q.SerialNumber, by
			text, err := ocsp.CreateResponse(r.issuer, by, one, testKeys()["rsa"])
			if err != nil {
				t.Error(err)
			}
			return text, http.StatusOK
		})
	}
	delegate(stranger)
	f(file, false, "is not for OCSP")
	delegate(r.sign(&x509.Certificate{SerialNumber: big.NewInt(8), NotAfter: time.Now().Add(time.Hour), Subject: pkix.Name{CommonName: "responder"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageOCSPSigning}}, r.issuer, testKeys()["rsa"].Public()))
	f(file, true, "")
}

// A staple survives reloads and a responder that is down, until the staple ends. weir
// asks for a new one before that. A revocation removes the staple.
func TestStaplesOverTime(t *testing.T) {
	r, d := newResponder(t), newDir(t)
	file := r.write(d, "app.example.org", true)
	s := newStore(t, file)
	var told []OCSPEvent
	s.Stapled = func(e OCSPEvent) { told = append(told, e) }
	r.say(good(time.Hour))
	s.staple(t.Context())
	first := stapled(t, s, "app.example.org")
	if first == nil {
		t.Fatal("nothing is stapled")
	}
	if err := s.Load([]config.Certificate{selfSigned("self.example.org"), file}); err != nil {
		t.Fatal(err)
	}
	s.staple(t.Context())
	if string(stapled(t, s, "app.example.org")) != string(first) || r.count() != 1 {
		t.Errorf("a reload took the staple away, or asked again: %d times", r.count())
	}

	leaf := s.table.Load().withResponder()[0].Leaf
	one := (*s.staples.known.Load())[leaf]
	if left := time.Until(one.due); left < 20*time.Minute || left > 31*time.Minute {
		t.Errorf("an answer that is good for an hour is asked for again in %s", left)
	}
	due := func() { // makes the staple due, as if time had passed
		now := *(*s.staples.known.Load())[leaf]
		now.due = time.Now().Add(-time.Second)
		s.staples.known.Store(&map[*x509.Certificate]*staple{leaf: &now})
	}
	r.does(func(*ocsp.Request) ([]byte, int) { return nil, http.StatusServiceUnavailable })
	for range 2 {
		due()
		s.staple(t.Context())
	}
	if string(stapled(t, s, "app.example.org")) != string(first) {
		t.Error("a responder that is down takes a good staple away")
	}
	if n := len(told); n != 2 || told[1].Err == nil {
		t.Errorf("told is %+v", told)
	}
	ended := *(*s.staples.known.Load())[leaf]
	ended.until = time.Now().Add(-time.Second)
	s.staples.known.Store(&map[*x509.Certificate]*staple{leaf: &ended})
	if stapled(t, s, "app.example.org") != nil {
		t.Error("a staple that has ended is served")
	}
	r.say(good(time.Hour))
	due()
	s.staple(t.Context())
	if stapled(t, s, "app.example.org") == nil {
		t.Error("a responder that is back is not heard")
	}
	r.say(ocsp.Response{Status: ocsp.Revoked, RevokedAt: time.Now(), ThisUpdate: time.Now().Add(-time.Minute), NextUpdate: time.Now().Add(time.Hour)})
	due()
	s.staple(t.Context())
	if stapled(t, s, "app.example.org") != nil {
		t.Error("a revoked certificate keeps its staple")
	}
	if last := told[len(told)-1]; last.Revoked.IsZero() {
		t.Errorf("told is %+v", last)
	}
}

// A responder that hangs delays neither handshakes nor the end of the process. weir
// staples certificates from authorities like those from files.
func TestResponderHangs(t *testing.T) {
	r, d := newResponder(t), newDir(t)
	hang := make(chan struct{})
	asked := make(chan struct{}, 10)
	r.does(func(*ocsp.Request) ([]byte, int) {
		asked <- struct{}{}
		<-hang
		return nil, http.StatusServiceUnavailable
	})
	t.Cleanup(func() { close(hang) })
	file := r.write(d, "app.example.org", true)
	pair, err := tls.LoadX509KeyPair(file.CertFile, file.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	a := new(authority)
	a.give("app.example.org", &pair)
	s := New(NewMetrics(prometheus.NewRegistry()))
	load(t, s, []*authority{a}, acmeEntry("p256", "app.example.org"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	<-asked
	start := time.Now()
	if stapled(t, s, "app.example.org") != nil {
		t.Error("something is stapled")
	}
	if took := time.Since(start); took > ocspTimeout {
		t.Errorf("a handshake took %s", took)
	}
	cancel()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("Run does not end")
	}
	r.say(good(time.Hour))
	s.staple(t.Context())
	s.staples.known.Store(new(map[*x509.Certificate]*staple))
	s.staple(t.Context())
	if stapled(t, s, "app.example.org") == nil {
		t.Error("a certificate from an authority is not stapled")
	}
}
