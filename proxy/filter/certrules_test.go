package filter

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/weirproxy/weir/config"
)

// Names have the form that nginx takes from OpenSSL.
func TestNamesAsOpenSSL(t *testing.T) {
	path, err := exec.LookPath("openssl")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("openssl is not installed, and CI has to test with it")
		}
		t.Skip("openssl is not installed")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	f := func(attributes ...attribute) {
		t.Helper()
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1), RawSubject: nameOf(attributes...), NotAfter: time.Now().Add(time.Hour)},
			&x509.Certificate{RawSubject: nameOf(attributes...)}, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(path, "x509", "-noout", "-subject", "-nameopt", "RFC2253")
		cmd.Stdin = bytes.NewReader(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		want := strings.TrimSuffix(strings.TrimPrefix(string(out), "subject="), "\n")
		if got := string(openssl.append(nil, nameOf(attributes...))); got != want {
			t.Errorf("%q, and openssl says %q", got, want)
		}
	}
	var all []attribute
	for _, text := range []string{"robot 7", "a, b", " ", "  a ", "#a", "a#", `a"b`, `a\b`, "a+b", "a<b>", "a;b", "a=b", "a\r\nb", "\x00", "Wéir", "日本", "\x7f", "a/b", "*"} {
		all = append(all, attribute{commonName, cbasn1.UTF8String, text, false})
	}
	for _, kinds := range []map[string]string{opensslNames, attributeNames} {
		for kind := range kinds {
			all = append(all, attribute{identifier(t, kind), cbasn1.UTF8String, "a", false})
		}
	}
	all = append(all, attribute{commonName, cbasn1.T61String, "W\xe9ir", false}, attribute{commonName, cbasn1.Tag(30), "\x00a\x26\x3a", false},
		attribute{odd, cbasn1.UTF8String, "a\xc3\xa9", false})
	f(all...)
	f(attribute{country, cbasn1.PrintableString, "DE", false}, attribute{unit, cbasn1.PrintableString, "x", false}, attribute{commonName, cbasn1.PrintableString, "y", true})
}

func identifier(t *testing.T, text string) (id asn1.ObjectIdentifier) {
	t.Helper()
	for part := range strings.SplitSeq(text, ".") {
		n, ok := new(big.Int).SetString(part, 10)
		if !ok {
			t.Fatal(text)
		}
		id = append(id, int(n.Int64()))
	}
	return id
}

// Each mode decides as nginx does, and a connection without an exam is none with a certificate.
func TestCertRules(t *testing.T) {
	none := NewCertificate(nil, nil, "", false)
	good := &Certificate{Sent: true, verify: "SUCCESS", subject: []byte("CN=good,O=Shop")}
	bad := &Certificate{Sent: true, Err: errors.New("expired"), verify: "FAILED:x", subject: []byte("CN=good")}
	unknown := &Certificate{Sent: true, Err: errors.New("unknown"), Unknown: true, verify: "FAILED:y", subject: []byte("CN=good")}
	f := func(c config.ClientCert, cert *Certificate, want string) {
		t.Helper()
		r := Compile(&config.Route{Backend: "b", ClientCert: &c}, nil)
		x := newExchange("GET", "/")
		x.cert, x.terminated = cert, cert != nil
		if answered := r.Answer(x); answered != (want != "") || x.answer != want {
			t.Errorf("%+v answers %q to %+v, not %q", c, x.answer, cert, want)
		}
		if (x.cause != nil) != strings.Contains(x.answer, "client_cert_invalid") && c.ErrorPage == "" {
			t.Errorf("the cause is %v", x.cause)
		}
	}
	const missing, invalid = "400 client_cert_missing", "400 client_cert_invalid"
	for mode, want := range map[config.CertMode][5]string{ // without TLS, none, good, bad, unknown
		config.CertRequired:   {missing, missing, "", invalid, invalid},
		config.CertOptional:   {"", "", "", invalid, invalid},
		config.CertUnverified: {"", "", "", invalid, ""},
		config.CertOff:        {"", "", "", "", ""},
	} {
		for n, cert := range []*Certificate{nil, none, good, bad, unknown} {
			f(config.ClientCert{Mode: mode}, cert, want[n])
		}
	}
	f(config.ClientCert{Mode: config.CertRequired, Match: "CN=(a|good)"}, good, "")
	f(config.ClientCert{Mode: config.CertRequired, Match: "CN=good$"}, good, "403 client_cert_name")
	f(config.ClientCert{Mode: config.CertOptional, Match: "CN=good"}, none, "403 client_cert_name")
	f(config.ClientCert{Mode: config.CertOff, Match: "CN=good"}, nil, "403 client_cert_name")
	f(config.ClientCert{Mode: config.CertRequired, ErrorPage: "https://a.example/x"}, none, "302 client_cert_missing a client certificate is needed")
	f(config.ClientCert{Mode: config.CertRequired, ErrorPage: "https://a.example/x"}, bad, "302 client_cert_invalid a client certificate is needed")
}

// Endpoints get the headers from weir alone, also if the listener keeps those of a proxy.
func TestCertHeaders(t *testing.T) {
	r := Compile(&config.Route{Backend: "b", ClientCert: &config.ClientCert{Mode: config.CertOptional, Forward: true}}, nil)
	for _, terminated := range []bool{false, true} {
		x := newExchange("GET", "/")
		x.terminated = terminated
		x.req.AddField("ssl-client-verify", "SUCCESS")
		x.req.AddField("SSL_Client_Cert", "x")
		x.req.AddField("X-Other", "x")
		r.EditRequest(x)
		var got []string
		for i := range x.req.Fields {
			if !x.req.Fields[i].Dropped {
				got = append(got, string(x.req.Name(i))+": "+string(x.req.Value(i)))
			}
		}
		want := "X-Other: x"
		if terminated {
			want += ", ssl-client-verify: NONE"
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("terminated %t: %q", terminated, got)
		}
	}
}
