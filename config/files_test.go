package config_test

import (
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
)

const day = 24 * time.Hour

// folder is a temporary folder with certificates and keys.
type folder struct {
	*testing.T
	path string
}

func (f folder) write(name string, data []byte) {
	f.Helper()
	if err := os.WriteFile(filepath.Join(f.path, name), data, 0o600); err != nil {
		f.Fatal(err)
	}
}

// certificate writes NAME.crt and NAME.key.
func (f folder) certificate(name string, curve elliptic.Curve, until time.Time, hosts ...string) {
	f.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{}, DNSNames: hosts, NotBefore: until.Add(-90 * day), NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, template, template, crypto.PublicKey(&key.PublicKey), key)
	if err != nil {
		f.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		f.Fatal(err)
	}
	f.write(name+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	f.write(name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

// parse parses text as a file in the folder, and removes the folder's name from errors.
func (f folder) parse(text string) (*config.Config, string) {
	c, err := file.Parse(filepath.Join(f.path, "weir.yaml"), []byte(text), environment)
	if err == nil {
		return c, ""
	}
	return nil, strings.ReplaceAll(err.Error(), f.path+"/", "")
}

func TestCertificateFiles(t *testing.T) {
	dir := folder{t, t.TempDir()}
	later := time.Now().Add(20 * day)
	dir.certificate("a", elliptic.P256(), later, "A.example")
	dir.certificate("b", elliptic.P256(), later, "b.example")
	dir.certificate("old", elliptic.P256(), time.Date(2020, 1, 2, 0, 0, 0, 0, time.UTC), "old.example")
	dir.certificate("p224", elliptic.P224(), later, "c.example")
	dir.certificate("nameless", elliptic.P256(), later)
	soon := time.Now().Add(13 * day)
	dir.certificate("soon", elliptic.P256(), soon, "soon.example")
	dir.write("empty.pem", nil)
	dir.write("broken.crt", []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	dir.write("large.pem", make([]byte, config.MaxPEM+1))
	const head = "listeners: {web: {address: ':443', protocol: tls}}\nbackends: {app: {endpoints: ['a:1']}}\nroutes: [{listeners: [web], hosts: [a.example, b.example], tls_policy: p, backend: app}]\n"
	f := func(text, want string) {
		t.Helper()
		if _, got := dir.parse(head + text); got != want {
			t.Errorf("%s\ngot\n%s\nwant\n%s", text, got, want)
		}
	}
	policy := "tls_policies: {p: {}}\n"
	f(policy+"certificates: [{cert: a.crt, key: a.key}, {cert: b.crt, key: b.key}]\n", "")
	f(policy+"certificates: [{cert: a.crt, key: b.key}]\n",
		`weir.yaml:5:35: certificates[0].key: "b.key" cannot be used with its certificate: private key does not match public key; give the private key in PEM that the certificate was made for`)
	f(policy+"certificates: [{cert: a.crt, key: a.crt}]\n",
		`weir.yaml:5:35: certificates[0].key: "a.crt" cannot be used with its certificate: found a certificate rather than a key in the PEM for the private key; give the private key in PEM that the certificate was made for`)
	f(policy+"certificates: [{cert: a.key, key: a.key}]\n",
		`weir.yaml:5:23: certificates[0].cert: "a.key" has no certificate; give a file in PEM, with a line "-----BEGIN CERTIFICATE-----"`)
	f(policy+"certificates: [{cert: empty.pem, key: empty.pem}, {cert: broken.crt, key: a.key}]\n",
		`weir.yaml:5:23: certificates[0].cert: "empty.pem" has no certificate; give a file in PEM, with a line "-----BEGIN CERTIFICATE-----"`+"\n"+
			`weir.yaml:5:58: certificates[1].cert: "broken.crt" has a broken certificate, number 1 in the file; create it again`)
	f(policy+"certificates: [{cert: p224.crt, key: p224.key}, {cert: nameless.crt, key: nameless.key}]\n",
		`weir.yaml:5:23: certificates[0].cert: "p224.crt" has a P-224 key, which TLS cannot sign with; make it with a P-256 key`+"\n"+
			`weir.yaml:5:56: certificates[1].cert: "nameless.crt" names no host; make it with subject alternative names`)
	f(policy+"certificates: [{cert: large.pem, key: '${SECRET}'}]\n",
		`weir.yaml:5:23: certificates[0].cert: "large.pem" cannot be read: it is larger than 1 MiB; give the path of a PEM file, starting at the configuration's folder`+"\n"+
			`weir.yaml:5:39: certificates[0].key: the value from the environment cannot be read: no such file or directory; give the path of a PEM file, starting at the configuration's folder`)
	f("certificates: [{cert: a.crt, key: a.key}]\ntls_policies: {p: {client_auth: {mode: require, ca: a.key}}}\n",
		`weir.yaml:5:53: tls_policies.p.client_auth.ca: "a.key" has no certificate; give a file in PEM, with a line "-----BEGIN CERTIFICATE-----"`)

	text := head + "certificates: [{cert: a.crt, key: a.key}, {cert: old.crt, key: old.key}, {cert: soon.crt, key: soon.key}]\ntls_policies: {p: {client_auth: {mode: require, ca: b.crt}}, q: {client_auth: {mode: require, ca: old.crt}}}\n"
	c, errs := dir.parse(text)
	if c == nil {
		t.Fatal(errs)
	}
	if len(c.Warnings) != 5 || !strings.Contains(c.Warnings[0].Error(), "routes[0].hosts[1]: no certificate names this host") ||
		!strings.HasSuffix(c.Warnings[1].Error(), "certificates[1].cert: the certificate expired on 2020-01-02; clients will refuse it") ||
		!strings.HasSuffix(c.Warnings[2].Error(), "certificates[2].cert: the certificate expires on "+soon.UTC().Format(time.DateOnly)+"; renew it") ||
		!strings.HasSuffix(c.Warnings[4].Error(), "tls_policies.q.client_auth.ca: all its certificates have expired, the last one on 2020-01-02; no certificate that they signed is accepted") {
		t.Errorf("warnings are\n%v", c.Warnings)
	}
	if want, _ := os.ReadFile(filepath.Join(dir.path, "b.crt")); string(c.TLSPolicies[0].ClientAuthPool) != string(want) {
		t.Errorf("the pool is %q", c.TLSPolicies[0].ClientAuthPool)
	}
	var want []string
	for _, name := range []string{"a.crt", "a.key", "b.crt", "old.crt", "old.key", "soon.crt", "soon.key"} {
		want = append(want, filepath.Join(dir.path, name))
	}
	if got := c.Files(); !slices.Equal(got, want) {
		t.Errorf("files are %q, want %q", got, want)
	}
	if text := string(file.Effective(c)); strings.Contains(text, "PRIVATE") || strings.Contains(text, "BEGIN") {
		t.Errorf("the effective configuration shows what is in files:\n%s", text)
	}
	reloads(t, c)
}

// An ACME entry without hosts gets the hosts that the certificate files do not cover.
func TestRouteHostsBesideFiles(t *testing.T) {
	dir := folder{t, t.TempDir()}
	dir.certificate("a", elliptic.P256(), time.Now().Add(20*day), "a.example.org", "*.dev.example.org")
	c, errs := dir.parse(certified("- {cert: a.crt, key: a.key}\n- acme: {}\n") +
		"routes: [{listeners: [secure], hosts: [a.example.org, x.dev.example.org, '*.dev.example.org', b.example.org], backend: app}]\n")
	if errs != "" {
		t.Fatal(errs)
	}
	if got := c.Certificates[1].ACME.Hosts; !slices.Equal(got, []string{"b.example.org"}) {
		t.Errorf("hosts are %q", got)
	}
	reloads(t, c)
}

func TestECHFiles(t *testing.T) {
	dir := folder{t, t.TempDir()}
	x25519, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(x25519)
	if err != nil {
		t.Fatal(err)
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	list := pem.EncodeToMemory(&pem.Block{Type: "ECHCONFIG", Bytes: []byte{0, 4, 0xfe, 0x0d, 0, 0}})
	good := slices.Concat(key, list)
	dir.write("ech.pem", good)
	dir.write("reverse.pem", slices.Concat(list, key))
	dir.write("twice.pem", slices.Concat(list, key, key))
	dir.write("key.pem", key)
	dir.write("list.pem", list)
	dir.write("cut.pem", slices.Concat(key, pem.EncodeToMemory(&pem.Block{Type: "ECHCONFIG", Bytes: []byte{0, 5, 0xfe, 0x0d, 0, 0}})))
	dir.write("wrong.pem", slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der[1:]}), list))
	f := func(keys, want string) {
		t.Helper()
		if _, got := dir.parse(small + "ech: {keys: " + keys + "}\n"); got != want {
			t.Errorf("%s\ngot\n%s\nwant\n%s", keys, got, want)
		}
	}
	line := 1 + strings.Count(small, "\n")
	wrong := func(file, why string) string {
		return fmt.Sprintf("weir.yaml:%d:14: ech.keys[0]: %q %s", line, file, why)
	}
	const blocks = `is not a file with an ECH key; give one in PEM with one block "PRIVATE KEY" and one "ECHCONFIG", as weir ech and OpenSSL make it`
	f("[ech.pem, reverse.pem]", "")
	f("[twice.pem]", wrong("twice.pem", blocks))
	f("[key.pem]", wrong("key.pem", blocks))
	f("[list.pem]", wrong("list.pem", blocks))
	f("[cut.pem]", wrong("cut.pem", "has a block ECHCONFIG that is not a list of configurations; create the file again with weir ech"))
	f("[wrong.pem]", wrong("wrong.pem", "has a private key that cannot be read; create the file again"))

	c, errs := dir.parse(small + "ech: {keys: [reverse.pem, ech.pem]}\n")
	if errs != "" {
		t.Fatal(errs)
	}
	ech := filepath.Join(dir.path, "ech.pem")
	if k := c.ECHKeys[1]; len(c.ECHKeys) != 2 || k.File != ech || string(k.PEM) != string(good) || k.Position.Line != line {
		t.Errorf("the keys are %+v", c.ECHKeys)
	}
	if !slices.Contains(c.Files(), ech) {
		t.Errorf("files are %q", c.Files())
	}
	if text := string(file.Effective(c)); strings.Contains(text, "PRIVATE") || !strings.Contains(text, ech) {
		t.Errorf("the effective configuration is\n%s", text)
	}
	reloads(t, c)
}

// weir watches every file that it reads.
func TestFilesOfTLS(t *testing.T) {
	dir := folder{t, t.TempDir()}
	ca, err := os.ReadFile("testdata/ca.pem")
	if err != nil {
		t.Fatal(err)
	}
	dir.write("acme-ca.pem", ca)
	c, errs := dir.parse(certified("- acme: {hosts: [a.example.org], ca: acme-ca.pem, storage: state}\n"))
	if errs != "" {
		t.Fatal(errs)
	}
	if got, want := c.Files(), []string{filepath.Join(dir.path, "acme-ca.pem")}; !slices.Equal(got, want) {
		t.Errorf("files are %q, want %q", got, want)
	}
	if a := c.Certificates[0].ACME; string(a.CAPool) != string(ca) || string(a.Storage) != filepath.Join(dir.path, "state") {
		t.Errorf("the pool is %q, the storage %q", a.CAPool, string(a.Storage))
	}
}

// An encrypted key gets an error of its own, whichever of the two forms it has.
func TestEncryptedKeys(t *testing.T) {
	dir := folder{t, t.TempDir()}
	dir.certificate("site", elliptic.P256(), time.Now().Add(365*day), "app.example.org")
	for label, headers := range map[string]string{"ENCRYPTED PRIVATE KEY": "", "RSA PRIVATE KEY": "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n"} {
		dir.write("site.key", []byte("-----BEGIN "+label+"-----\n"+headers+"AAAA\n-----END "+label+"-----\n"))
		if _, errs := dir.parse(certified("- {cert: site.crt, key: site.key}\n") + oneRoute); !strings.Contains(errs, "encrypted with a password") {
			t.Errorf("%s: %s", label, errs)
		}
	}
}
