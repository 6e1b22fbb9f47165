package proxy

import (
	"bufio"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// secretManifest is a Secret with these keys and values.
func secretManifest(name string, pairs ...string) string {
	namespace, name, _ := strings.Cut(name, "/")
	var data []string
	for i := 0; i < len(pairs); i += 2 {
		data = append(data, pairs[i]+": "+base64.StdEncoding.EncodeToString([]byte(pairs[i+1])))
	}
	return fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: %s, namespace: %s}, data: {%s}}\n---\n", name, namespace, strings.Join(data, ", "))
}

func pemText(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// leaf returns a client certificate that the template describes, with the certificates of its chain.
func (a *authority) leaf(template *x509.Certificate, chain ...*x509.Certificate) tls.Certificate {
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	leaf, key := a.sign(template, a.cert, a.key)
	c := tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	for _, one := range chain {
		c.Certificate = append(c.Certificate, one.Raw)
	}
	return c
}

// below returns a CA whose certificate a signed.
func (a *authority) below(name string) *authority {
	b := &authority{TB: a.TB}
	b.cert, b.key = a.sign(&x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}, a.cert, a.key)
	return b
}

// askAs is ask over TLS with a client certificate, and with another SNI if it is not empty.
func (i *ingressRig) askAs(sni, url, headers string, version uint16, certs ...tls.Certificate) reaction {
	i.Helper()
	host, path, _ := strings.Cut(url, "/")
	if sni == "" {
		sni = host
	}
	raw, err := net.Dial("tcp", i.addrs["websecure"])
	if err != nil {
		i.Fatal(err)
	}
	defer raw.Close()
	raw.SetDeadline(time.Now().Add(patience))
	c := tls.Client(raw, &tls.Config{ServerName: sni, InsecureSkipVerify: true, MaxVersion: version,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if len(certs) == 0 {
				return new(tls.Certificate), nil
			}
			return &certs[0], nil
		}})
	fmt.Fprintf(c, "GET /%s HTTP/1.1\r\nHost: %s\r\n%sConnection: close\r\n\r\n", path, host, headers)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		i.Fatalf("%s: %v", url, err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		i.Fatal(err)
	}
	line, _, _ := strings.Cut(string(body), "\n")
	return reaction{res, line, string(body)}
}

// about are the HTTP headers about the client's certificate that an endpoint got.
func (a reaction) about() (all string) {
	for line := range strings.SplitSeq(a.body, "\n") {
		if name, value, _ := strings.Cut(line, ": "); strings.HasPrefix(strings.ToLower(name), "ssl") || strings.Contains(strings.ToLower(name), "cert") {
			all += name[len("Ssl-Client-"):] + "=" + value + "\n"
		}
	}
	return all
}

// weir asks for client certificates and decides about requests as nginx does with auth-tls-*: the handshake
// always succeeds, and the certificate decides about each request.
func TestIngressAuthTLS(t *testing.T) {
	ca, stranger := writeCA(t), writeCA(t)
	between := ca.below("between")
	second := between.below("second")
	user := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	named := func(name string) *x509.Certificate {
		return &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: []string{"Shop, Inc."}}, ExtKeyUsage: user}
	}
	good, gone := ca.leaf(named("good")), ca.leaf(named("gone"))
	deep, deeper := between.leaf(named("deep"), between.cert), second.leaf(named("deeper"), second.cert, between.cert)
	old := ca.leaf(&x509.Certificate{Subject: pkix.Name{CommonName: "old"}, ExtKeyUsage: user, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(-time.Minute)})
	server := ca.leaf(&x509.Certificate{Subject: pkix.Name{CommonName: "server"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	other := stranger.below("unknown").leaf(named("other"))
	list, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour),
		RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: gone.Leaf.SerialNumber, RevocationTime: time.Now()}}}, ca.cert, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	text := pemText("CERTIFICATE", ca.cert.Raw)
	manifests := secretManifest("a/ca", "ca.crt", text) + secretManifest("a/crl", "ca.crt", text, "ca.crl", pemText("X509 CRL", list)) + secretManifest("a/none", "other", "x") +
		secretManifest("a/half", "ca.crt", pemText("CERTIFICATE", between.cert.Raw)) + secretManifest("b/ca", "ca.crt", text)
	var hosts []string
	age := 0
	add := func(host, path string, annotations ...string) {
		age++
		hosts = append(hosts, host+".test")
		manifests += ingress(fmt.Sprintf("a/%s-%d", host, age), age, host+".test Prefix "+path+" "+host, append(annotations, "tls: "+host+".test")...)
	}
	add("must", "/", "auth-tls-secret: a/ca", "auth-tls-pass-certificate-to-upstream: true")
	add("must", "/other") // its paths are on the same host
	add("optional", "/", "auth-tls-secret: a/ca", "auth-tls-verify-client: optional")
	add("noca", "/", "auth-tls-secret: a/ca", "auth-tls-verify-client: optional_no_ca")
	add("never", "/", "auth-tls-secret: a/ca", "auth-tls-verify-client: off")
	add("never-cn", "/", "auth-tls-secret: a/ca", "auth-tls-verify-client: off", "auth-tls-match-cn: CN=good")
	add("cn", "/", "auth-tls-secret: a/ca", "auth-tls-match-cn: CN=(deep|good),")
	add("page", "/", "auth-tls-secret: a/ca", "auth-tls-error-page: https://www.test/certificates")
	add("two", "/", "auth-tls-secret: a/ca", "auth-tls-verify-depth: 2")
	add("crl", "/", "auth-tls-secret: a/crl")
	add("half", "/", "auth-tls-secret: a/half")
	add("missing", "/", "auth-tls-secret: a/gone")
	add("missing", "/other")
	add("empty-ca", "/", "auth-tls-secret: a/none")
	add("foreign", "/", "auth-tls-secret: b/ca")
	add("inner", "/", "auth-tls-secret: a/ca", "auth-tls-error-page: /error")
	add("alone", "/", "auth-tls-verify-client: on", "auth-tls-match-cn: CN=x")
	add("open", "/")
	add("first", "/", "auth-tls-secret: a/ca", "auth-tls-match-cn: CN=good")
	add("first", "/later", "auth-tls-secret: a/crl", "auth-tls-match-cn: CN=gone")
	hosts = append(slices.Compact(hosts), "a.example") // the Ingresses of a host follow each other
	i := newIngressRig(t, strings.Replace(ingressFile, "a.example", strings.Join(hosts, `", "`), 1), manifests)

	certs := map[string][]tls.Certificate{"none": nil, "good": {good}, "gone": {gone}, "deep": {deep}, "deeper": {deeper}, "old": {old}, "server": {server}, "other": {other}}
	for _, c := range []struct{ url, want, certs string }{
		{"must.test/", "400", "none deeper old server other"},
		{"must.test/", "must GET /", "deep"},
		{"must.test/a", "must GET /a", "good"},
		{"must.test/other", "400", "none"},
		{"must.test/other", "must GET /other", "good"},
		{"optional.test/", "optional GET /", "none good"},
		{"optional.test/", "400", "other old"},
		{"noca.test/", "noca GET /", "none other deeper"}, // of the chain of deeper, OpenSSL reads no more than the depth
		{"noca.test/", "400", "old"},
		{"never.test/", "never GET /", "none other"},
		{"never-cn.test/", "403", "good"},
		{"cn.test/", "cn GET /", "good deep"},
		{"cn.test/", "403", "gone"},
		{"cn.test/", "400", "none"},
		{"page.test/", "302 https://www.test/certificates", "none other"},
		{"page.test/", "page GET /", "good"},
		{"two.test/", "two GET /", "deeper"},
		{"crl.test/", "crl GET /", "good"},
		{"crl.test/", "400", "gone deep"}, // the CA between has no list
		{"half.test/", "400", "deep"},
		{"missing.test/", "503", "good"},
		{"missing.test/other", "503", "good"},
		{"empty-ca.test/", "503", "good"},
		{"foreign.test/", "503", "good"},
		{"inner.test/", "503", "good"},
		{"alone.test/", "alone GET /", "none"},
		{"open.test/", "open GET /", "other"},
		{"first.test/later", "first GET /later", "good"},
		{"first.test/later", "403", "gone"},
	} {
		for _, name := range strings.Fields(c.certs) {
			for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
				if got := i.askAs("", c.url, "", version, certs[name]...).short(); got != c.want {
					t.Errorf("%s over %s with the certificate %s: %s, want %s", c.url, tls.VersionName(version), name, got, c.want)
				}
			}
		}
	}

	// What endpoints get.
	about := func(url, want string, certs ...tls.Certificate) {
		t.Helper()
		const forged = "ssl-client-verify: SUCCESS\r\nSSL-Client-Subject-DN: CN=root\r\nssl_client_cert: x\r\nSsl.Client.Issuer-Dn: CN=root\r\n"
		if got := i.askAs("", url, forged, 0, certs...).about(); got != want {
			t.Errorf("the endpoint of %s got %q, want %q", url, got, want)
		}
	}
	names := "Issuer-Dn=CN=test CA\nSubject-Dn=CN=good,O=Shop\\, Inc.\nVerify=SUCCESS\n"
	about("must.test/", "Cert="+strings.NewReplacer("+", "%2B", "=", "%3D").Replace(url.PathEscape(pemText("CERTIFICATE", good.Certificate[0])))+"\n"+names, good)
	about("optional.test/", names, good)
	about("optional.test/", "Verify=NONE\n")
	about("noca.test/", "Issuer-Dn=CN=unknown\nSubject-Dn=CN=other,O=Shop\\, Inc.\nVerify=FAILED:unable to verify the first certificate\n", other)
	about("never.test/", "Verify=NONE\n", good)
	about("open.test/", "", good)

	// A connection for another host does not help.
	for sni, want := range map[string]int{"open.test": 421, "optional.test": 400, "crl.test": 421, "never.test": 421, "b.example": 421} {
		if got := i.askAs(sni, "must.test/", "", 0).StatusCode; got != want {
			t.Errorf("a request over a connection for %s: %d, want %d", sni, got, want)
		}
	}

	// Without TLS there is no certificate.
	for _, url := range []string{"must.test/a", "must.test/other", "open.test/"} {
		if got, want := i.ask("GET http://"+url).short(), "308 https://"+url; got != want {
			t.Errorf("%s without TLS: %s, want %s", url, got, want)
		}
	}
}

// An Ingress that is closed because of another annotation still protects its host, for the paths of all Ingresses.
func TestIngressAuthTLSBesideOtherFaults(t *testing.T) {
	ca := writeCA(t)
	good := ca.leaf(&x509.Certificate{Subject: pkix.Name{CommonName: "good"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	manifests := secretManifest("a/ca", "ca.crt", pemText("CERTIFICATE", ca.cert.Raw))
	hosts := []string{"a.example"}
	for name, annotation := range map[string]string{
		"range": "whitelist-source-range: nonsense",
		"basic": "auth-secret: a/gone",
		"url":   "auth-url: http://127.0.0.1/",
		"ssl":   "proxy-ssl-secret: a/gone",
	} {
		host := name + ".test"
		hosts = append(hosts, host)
		more := []string{"tls: " + host, "auth-tls-secret: a/ca", annotation}
		if name == "basic" {
			more = append(more, "auth-type: basic")
		}
		manifests += ingress("a/"+name, 1, host+" Prefix / "+name, more...) + ingress("a/"+name+"-other", 2, host+" Prefix /other "+name, "tls: "+host)
	}
	i := newIngressRig(t, strings.Replace(ingressFile, `"a.example"`, `"`+strings.Join(hosts, `", "`)+`"`, 1), manifests)
	for _, host := range hosts[1:] {
		for path, want := range map[string][2]string{"/": {"503", "503"}, "/other": {"400", strings.TrimSuffix(host, ".test") + " GET /other"}} {
			if got := i.askAs("", host+path, "", 0).short(); got != want[0] {
				t.Errorf("%s%s without a certificate: %s, want %s", host, path, got, want[0])
			}
			if got := i.askAs("", host+path, "", 0, good).short(); got != want[1] {
				t.Errorf("%s%s with a certificate: %s, want %s", host, path, got, want[1])
			}
			if got := i.ask("GET http://" + host + path).StatusCode; got != 308 && got != 503 {
				t.Errorf("%s%s without TLS: %d", host, path, got)
			}
		}
	}
}

// An Ingress whose Secret is missing closes its hosts also if its rules have no paths.
func TestIngressAuthTLSWithoutPaths(t *testing.T) {
	const bare = `{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: bare, namespace: a, creationTimestamp: "2026-01-01T00:00:00Z",
  annotations: {nginx.ingress.kubernetes.io/auth-tls-secret: a/SECRET}}, spec: {ingressClassName: weir, tls: [{hosts: [a.example]}], rules: [{host: a.example}]}}
---
`
	ca := writeCA(t)
	for secret, want := range map[string]string{"gone": "503", "ca": "400"} {
		i := newIngressRig(t, "", secretManifest("a/ca", "ca.crt", pemText("CERTIFICATE", ca.cert.Raw))+strings.Replace(bare, "SECRET", secret, 1)+ingress("a/app", 2, "a.example Prefix / app"))
		if got := i.askAs("", "a.example/", "", 0).short(); got != want {
			t.Errorf("with the Secret %s: %s, want %s", secret, got, want)
		}
	}
}

// The case "should reload the nginx config when auth-tls-match-cn is updated" of ingress-nginx's
// test/e2e/annotations/authtls.go, and the same for auth-tls-verify-client.
func TestIngressAuthTLSChanges(t *testing.T) {
	ca := writeCA(t)
	good := ca.leaf(&x509.Certificate{Subject: pkix.Name{CommonName: "authtls"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	secret := secretManifest("a/ca", "ca.crt", pemText("CERTIFICATE", ca.cert.Raw))
	i := newIngressRig(t, "", secret)
	for _, c := range []struct{ annotation, with, without string }{
		{"auth-tls-verify-client: on", "app GET /", "400"},
		{"auth-tls-verify-client: off", "app GET /", "app GET /"},
		{"auth-tls-match-cn: CN=notvalid", "403", "400"},
		{"auth-tls-match-cn: CN=authtls", "app GET /", "400"},
		{"auth-tls-match-cn: CN=(itwillmatch|withthenextoption|authtls)", "app GET /", "400"},
		{"auth-tls-verify-depth: 2", "app GET /", "400"},
	} {
		i.change(secret + ingress("a/app", 1, "a.example Prefix / app", "tls: a.example", "auth-tls-secret: a/ca", c.annotation))
		if got := i.askAs("", "a.example/", "", 0, good).short(); got != c.with {
			t.Errorf("%s: with a certificate %s, want %s", c.annotation, got, c.with)
		}
		if got := i.askAs("", "a.example/", "", 0).short(); got != c.without {
			t.Errorf("%s: without a certificate %s, want %s", c.annotation, got, c.without)
		}
	}
}
