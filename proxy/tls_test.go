package proxy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority is a CA with which a test signs client certificates.
type authority struct {
	testing.TB
	file string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func writeCA(t testing.TB) *authority {
	t.Helper()
	a := &authority{TB: t, file: filepath.Join(t.TempDir(), "ca.pem")}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true,
		BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}
	a.cert, a.key = a.sign(template, template, nil)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	if err := os.WriteFile(a.file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *authority) sign(template, parent *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.Fatal(err)
	}
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		a.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.Fatal(err)
	}
	return cert, key
}

// client returns a client certificate with that name.
func (a *authority) client(name string) tls.Certificate {
	cert, key := a.sign(&x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, a.cert, a.key)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

// newTLSEndpoint returns an endpoint that speaks TLS; the test plays its part.
func newTLSEndpoint(t testing.TB) *endpoint {
	t.Helper()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{writeCA(t).client("endpoint")}})
	if err != nil {
		t.Fatal(err)
	}
	return startEndpoint(t, ln)
}

// A TLS endpoint works like a plain one: weir reuses connections, uploads bodies, waits longer than the
// interval of client checks, and notices ends.
func TestTLSEndpoints(t *testing.T) {
	long(t)
	e := newTLSEndpoint(t)
	r := newRig(t, strings.Replace(plain, "endpoints:", "protocol: https, tls: {insecure_skip_verify: true}, endpoints:", 1), nil, "@app", e.address)
	c := r.dial("web")
	c.write(get)
	s := serveOnce(e.accept(), ok("1"))
	c.wantResponse(200, "1")
	for range 3 {
		c.write(get)
		serveOnce(s, ok("2"))
		c.wantResponse(200, "2")
		c.write(post(10) + "12345")
		s.head()
		s.wantRead("12345")
		c.write("67890")
		s.wantRead("67890")
		s.write(ok("3"))
		c.wantResponse(200, "3")
	}
	for _, request := range []string{get, postChunked} {
		c.write(request)
		s.head()
		if request == postChunked {
			c.write("0\r\n\r\n")
			s.wantRead("0\r\n\r\n")
		}
		r.waitForClientChecks(1)
		s.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
		c.head()
		r.waitForClientChecks(1)
		s.write("k")
		c.wantRead("ok")
	}
	e.untouched()
	for _, unasked := range []string{"", ok("poison"), "x"} { // "": the endpoint closes the connection
		if s.write(unasked); unasked == "" {
			s.Close()
		}
		waitUntilArrived(t, s)
		c.write(get)
		s = serveOnce(e.accept(), ok("new"))
		c.wantResponse(200, "new")
	}
}

// A response that ends with the connection is complete only after a close_notify, because anyone on the
// network can end the connection without one.
func TestTLSEndpointTruncates(t *testing.T) {
	e := newTLSEndpoint(t)
	r := newRig(t, strings.Replace(plain, "endpoints:", "protocol: https, tls: {insecure_skip_verify: true}, endpoints:", 1), nil, "@app", e.address)
	f := func(response string, notify bool, reason any) {
		t.Helper()
		c := r.dial("web")
		c.write(get)
		s := e.accept()
		s.head()
		s.write(response)
		if notify {
			s.Close()
		} else {
			s.Conn.(*tls.Conn).NetConn().Close()
		}
		resp, body, err := c.tryResponse("GET")
		if (err == nil) != (reason == nil) {
			t.Errorf("%q, close_notify %t: %v, %q, %v", response, notify, resp, body, err)
		}
		r.record().want(t, "status", 200, "reason", reason)
	}
	f("HTTP/1.1 200 OK\r\n\r\nwhole", true, nil)
	f("HTTP/1.1 200 OK\r\n\r\nhalf", false, "response_cut_short")
	f("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole", false, nil)
	f("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nwhole\r\n0\r\n\r\n", false, nil)
	f("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhalf", true, "response_cut_short")
}
