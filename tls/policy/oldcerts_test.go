package policy

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// oldCA issues client certificates with openssl, because Go refuses to issue certificates of the kinds that
// old authorities issued.
type oldCA struct {
	*testing.T
	openssl, dir string
	pool         []byte
}

func newOldCA(t *testing.T) *oldCA {
	t.Helper()
	ca := &oldCA{T: t, openssl: findOpenSSL(t), dir: t.TempDir()}
	ca.run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=old CA", "-days", "2", "-sha1")
	pool, err := os.ReadFile(filepath.Join(ca.dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	ca.pool = pool
	return ca
}

func (ca *oldCA) run(args ...string) {
	ca.Helper()
	cmd := exec.Command(ca.openssl, args...)
	cmd.Dir = ca.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		ca.Fatalf("openssl %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// issue makes name.key, a key of this kind, and name.crt, signed by the CA in the files
// named by.
func (ca *oldCA) issue(name, by, extensions string, key []string, sign ...string) {
	ca.Helper()
	file := filepath.Join(ca.dir, name+".ext")
	if err := os.WriteFile(file, []byte(extensions), 0o600); err != nil {
		ca.Fatal(err)
	}
	ca.run(append([]string{"genpkey", "-out", name + ".key", "-algorithm"}, key...)...)
	ca.run("req", "-new", "-key", name+".key", "-out", name+".csr", "-subj", "/CN="+name)
	ca.run(append([]string{"x509", "-req", "-in", name + ".csr", "-CA", by + ".crt", "-CAkey", by + ".key", "-days", "2", "-extfile", file, "-out", name + ".crt"}, sign...)...)
}

// Each kind of client certificate that OpenSSL accepts and crypto/x509 does not has its
// own result, under every policy.
func TestOldClientCertificates(t *testing.T) {
	ca := newOldCA(t)
	const client, authority = "extendedKeyUsage=clientAuth", "basicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign"
	rsa := []string{"RSA", "-pkeyopt", "rsa_keygen_bits:2048"}
	ca.issue("sha256", "ca", client, rsa, "-sha256", "-set_serial", "1")
	ca.issue("signed-pss", "ca", client, rsa, "-sha256", "-set_serial", "2", "-sigopt", "rsa_padding_mode:pss", "-sigopt", "rsa_pss_saltlen:-1")
	ca.issue("signed-long", "ca", client, rsa, "-sha256", "-set_serial", "11", "-sigopt", "rsa_padding_mode:pss", "-sigopt", "rsa_pss_saltlen:-2")
	ca.issue("sha1", "ca", client, rsa, "-sha1", "-set_serial", "3")
	ca.issue("md5", "ca", client, rsa, "-md5", "-set_serial", "4")
	ca.issue("between", "ca", authority, rsa, "-sha1", "-set_serial", "5")
	ca.issue("below-sha1", "between", client, rsa, "-sha256", "-set_serial", "6")
	ca.issue("key-pss", "ca", client, []string{"RSA-PSS", "-pkeyopt", "rsa_keygen_bits:2048"}, "-sha256", "-set_serial", "7")
	ca.issue("brainpool", "ca", client, []string{"EC", "-pkeyopt", "ec_paramgen_curve:brainpoolP256r1"}, "-sha256", "-set_serial", "8")
	ca.issue("ed448", "ca", client, []string{"ED448"}, "-sha256", "-set_serial", "9")
	ca.issue("negative", "ca", client, rsa, "-sha256", "-set_serial", "-10")

	server := newAuthority(t, "ca").issue(t, "a.example.org", true, time.Now().Add(time.Hour))
	f := func(p *Policy, name, want string, versions ...string) {
		t.Helper()
		if len(versions) == 0 {
			versions = []string{"-tls1_2", "-tls1_3"}
		}
		for _, version := range versions {
			args := []string{version, "-cert", filepath.Join(ca.dir, name+".crt"), "-key", filepath.Join(ca.dir, name+".key"), "-cipher", "ALL:@SECLEVEL=0"}
			if name == "below-sha1" {
				args = append(args, "-cert_chain", filepath.Join(ca.dir, "between.crt"))
			}
			if got, output := openSSL(t, p, args...); got != want {
				t.Errorf("%s under %s, %s: the result is %s, want %s; openssl says:\n%s", name, p.Name, version, got, want, output)
			}
		}
	}
	sha1 := config.TLSPolicy{Name: "sha1", SHA1: true, ClientAuth: config.ClientAuthRequire, ClientAuthPool: ca.pool}
	plain := sha1
	plain.Name, plain.SHA1 = "plain", false

	for _, c := range []config.TLSPolicy{plain, sha1} {
		if c.SHA1 {
			admitSHA1(t)
		}
		p := newPolicy(t, c, server, keyring{}.attach)
		f(p, "sha256", ResultOK)
		f(p, "signed-pss", ResultOK)
		f(p, "signed-long", ResultClientCertificateSignature)
		f(p, "sha1", ResultClientCertificateSHA1)
		f(p, "md5", ResultClientCertificateSHA1, "-tls1_2") // in TLS 1.3 the client sends no certificate
		f(p, "below-sha1", ResultClientCertificateSHA1)
		f(p, "negative", ResultClientCertificateSerial)
	}
	f(newPolicy(t, plain, server, keyring{}.attach), "key-pss", ResultClientCertificate) // the client sends none, because weir does not request this kind
	p := newPolicy(t, plain, server, keyring{}.attach)
	for name, want := range map[string]string{"key-pss": ResultClientCertificateKey, "ed448": ResultClientCertificateKey, "brainpool": ResultClientCertificateKey, "negative": ResultClientCertificateSerial} {
		pair, err := os.ReadFile(filepath.Join(ca.dir, name+".crt"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = shake(t, p.Config, client12(t, pair))
		if got := HandshakeResult(err); got != want {
			t.Errorf("%s: the result is %s (%v), want %s", name, got, err, want)
		}
	}
}

// client12 sends a certificate with a key that need not match.
func client12(t *testing.T, text []byte) *tls.Config {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("no PEM: %q", text)
	}
	return &tls.Config{MaxVersion: tls.VersionTLS12, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: testRSA()}, nil
	}}
}

// The report names the suites of a client if no policy can have any of them.
func TestOnlyMissingSuites(t *testing.T) {
	f := func(want string, suites ...uint16) {
		t.Helper()
		if got := strings.Join(OnlyMissing(&tls.ClientHelloInfo{CipherSuites: suites}), ", "); got != want {
			t.Errorf("%x: %q, want %q", suites, got, want)
		}
	}
	const grease = 0x2a2a
	f("")
	f("", 0x00ff)
	f("", grease, 0x1301)
	f("", 0x0033, 0x002f)
	f("", 0x0033, 0x1301, 0x000a)
	f("DHE", 0x0033, 0x00ff)
	f("DHE", grease, 0x1301, 0x0039, 0x0016, 0x5600)
	f("CAMELLIA", 0x0041)
	f("DHE, CAMELLIA", 0x0045, 0x0084)
	f("DHE, CAMELLIA, others", 0x0033, 0xc076, 0xc0ac)
	f("others", 0xabcd)
	f("others", 0x003d, 0xc028)

	c := NewClients()
	h := oldHandshake("192.0.2.1", 0x0033)
	c.Note(h)
	h.Err = errors.New("tls: no cipher suite supported by both client and server")
	c.Note(h)
	for _, s := range c.Seen().Clients {
		if got := strings.Join(s.OnlyMissing, ", "); got != map[string]string{ResultOK: "", ResultNoCommonSuite: "DHE"}[s.Result] {
			t.Errorf("%s: %q", s.Result, got)
		}
	}
}

// Every suite of OpenSSL with DHE or CAMELLIA has a name here.
func TestNamesOfMissingSuites(t *testing.T) {
	out, err := exec.Command(findOpenSSL(t), "ciphers", "-V", "-stdname", "ALL:COMPLEMENTOFALL:@SECLEVEL=0").Output()
	if err != nil {
		t.Fatal(err)
	}
	known := 0
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line) // 0x00,0x9E - NAME - ...
		if len(fields) < 3 {
			continue
		}
		name := fields[2]
		if !strings.Contains(name, "_DHE_RSA") && !strings.Contains(name, "_DHE_DSS") && (!strings.Contains(name, "CAMELLIA") || strings.Contains(name, "PSK") || strings.Contains(name, "anon")) {
			continue
		}
		id, err := strconv.ParseUint(strings.ReplaceAll(fields[0], ",0x", ""), 0, 16)
		if err != nil {
			t.Fatal(err)
		}
		if suitesOfOthers[uint16(id)] != name {
			t.Errorf("%s is %q here, not %s", fields[0], suitesOfOthers[uint16(id)], name)
		}
		known++
	}
	if known < 20 {
		t.Errorf("openssl knows %d such suites:\n%s", known, out)
	}
}
