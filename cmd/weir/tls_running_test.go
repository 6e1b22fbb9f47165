package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const retiring = `
listeners: {websecure: {address: '@tls', protocol: tls}}
certificates: [{self_signed: {hosts: ["*.example.org"]}}]
tls_policies:
  partners: {min_version: "1.0", cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_RSA_WITH_3DES_EDE_CBC_SHA]}
routes:
  - {name: edi, listeners: [websecure], hosts: [edi.example.org], tls_policy: partners, backend: app}
  - {name: www, listeners: [websecure], hosts: [www.example.org], backend: app}
backends: {app: {endpoints: ['127.0.0.1:1']}}
admin: {address: '@admin'}
`

// A handshake of a client appears in the report for an operator.
func TestReportOfARunningWeir(t *testing.T) {
	r := newRunning(t, retiring, "tls", "admin")
	shake := func(host string, version uint16, suites ...uint16) {
		t.Helper()
		d := &net.Dialer{Timeout: patience}
		c, err := tls.DialWithDialer(d, "tcp", r.address("tls"), &tls.Config{ServerName: host, InsecureSkipVerify: true,
			MinVersion: tls.VersionTLS10, MaxVersion: version, CipherSuites: suites})
		if err == nil {
			c.Close()
		}
	}
	shake("edi.example.org", tls.VersionTLS13)
	shake("edi.example.org", tls.VersionTLS12)
	shake("edi.example.org", tls.VersionTLS10, tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA)
	shake("www.example.org", tls.VersionTLS11)
	f := func(args string, wants ...string) {
		t.Helper()
		eventually(t, "weir tls report "+args, func() error {
			out, err, status := weir(append([]string{"tls", "report", r.address("admin")}, strings.Fields(args)...)...)
			if status != 0 {
				return fmt.Errorf("status %d: %s", status, err)
			}
			for _, want := range wants {
				if !strings.Contains(out, want) {
					return fmt.Errorf("no %q in\n%s", want, out)
				}
			}
			return nil
		})
	}
	f("", "POLICY partners (TLS 1.0 to 1.3, 1 old suite)", "edi.example.org on websecure (route edi): 3 handshakes, 2 below TLS 1.3",
		`no, it would refuse 1 of 3 handshakes (33.3 %): 1 network, 1 fingerprint`, "127.0.0.0/24", "no_common_version", "TLS 1.1")
	f("--policy default", "POLICY default", "No handshake succeeded", "no_common_version")
	f("--json", `"breaks": 1`, `"result": "no_common_version"`)

	out, _, _ := weir("tls", "report", "--json", "http://"+r.address("admin")+"/")
	var report tlsReport
	if err := json.Unmarshal([]byte(out), &report); err != nil || len(report.Policies) != 2 || report.Policies[0].Changes[1].Breaks != 1 {
		t.Errorf("the JSON is %s, %v", out, err)
	}
	r.load(strings.ReplaceAll(retiring, "name: edi", "name: edi2")) // the report is also right after a reload
	f("", "(route edi2): 3 handshakes")
}

// Clients without SNI have no host. If the listener has a route without hosts, weir counts them for that
// route.
func TestReportOfClientsWithoutSNI(t *testing.T) {
	r := newRunning(t, retiring, "tls", "admin")
	shake := func(host string, version uint16) {
		t.Helper()
		c, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", r.address("tls"), &tls.Config{ServerName: host, InsecureSkipVerify: true,
			MinVersion: tls.VersionTLS10, MaxVersion: version})
		if err == nil {
			c.Close()
		}
	}
	f := func(wants ...string) {
		t.Helper()
		eventually(t, "weir tls report", func() error {
			out, err, status := weir("tls", "report", r.address("admin"))
			for _, want := range wants {
				if status != 0 || !regexp.MustCompile(want).MatchString(out) {
					return fmt.Errorf("no %q in\n%s%s", want, out, err)
				}
			}
			return nil
		})
	}
	shake("", tls.VersionTLS12)
	shake("", tls.VersionTLS10) // the handshake fails
	f(`\n  \(no SNI\) on websecure \(no route without hosts\): 1 handshake, 1 below`, `\n    1\.3  .* \(no SNI\)  t12i`, `\n    TLS 1\.0  .* \(no SNI\)  t10i`)
	shake("x.example.org", tls.VersionTLS12)
	f(`\n  \(no SNI, or unknown host\) on websecure \(no route without hosts\): 2 handshakes`, `\n    1\.3  .* \(unknown host\)  t12d`)
	r.load(strings.Replace(retiring, "routes:\n", "routes:\n  - {name: rest, listeners: [websecure], backend: app}\n", 1))
	shake("", tls.VersionTLS12)
	f(`\n  \(no SNI, or unknown host\) on websecure \(route rest\): 2 handshakes`, `\n  \* on websecure \(route rest\): 1 handshake,`,
		`(?s)\n    1\.3 [^\n]* \(no SNI\)  *t12i.*\n    1\.3 [^\n]* \(no SNI\)  *t12i`)
}

// The flags and the environment variable authenticate to an admin port.
func TestReportOfAGuardedPort(t *testing.T) {
	const someToken = "correct-horse-battery"
	unadmined, _, _ := strings.Cut(retiring, "admin:")
	dir := t.TempDir()
	writeTestPair(t, dir)
	r := newRunning(t, unadmined+"admin: {address: '@admin', tls: {cert: '"+dir+"/pair.crt', key: '"+dir+"/pair.key', client_ca: '"+dir+"/pair.crt'}}\n", "tls", "admin")
	out, errText, status := weir("tls", "report", "--ca", dir+"/pair.crt", "--cert", dir+"/pair.crt", "--key", dir+"/pair.key", "https://"+r.address("admin"))
	if status != 0 || !strings.Contains(out, "POLICY default") {
		t.Errorf("weir tls report: %d, %s%s", status, out, errText)
	}

	r.load(unadmined + "admin: {address: '@admin', token: " + someToken + "}\n")
	if out, errText, status := weir("tls", "report", r.address("admin")); status != 0 || !strings.Contains(out, "POLICY default") {
		t.Errorf("weir tls report without a token, by the socket of the port: %d, %s", status, errText)
	}
	if _, errText, status := weir("tls", "report", "http://weir:another-token-0123@"+r.address("admin")); status == 0 || !strings.Contains(errText, "admin.token") {
		t.Errorf("weir tls report with another token: %d, %s", status, errText)
	}
	if err := os.WriteFile(dir+"/mine", []byte(someToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--token-file", dir + "/mine", r.address("admin")}, {"http://weir:" + someToken + "@" + r.address("admin")}} {
		if out, errText, status := weir(append([]string{"tls", "report"}, args...)...); status != 0 || !strings.Contains(out, "POLICY default") {
			t.Errorf("weir tls report %s: %d, %s%s", args, status, out, errText)
		}
	}
	t.Setenv(tokenVariable, someToken)
	if out, errText, status := weir("tls", "report", r.address("admin")); status != 0 || !strings.Contains(out, "POLICY default") {
		t.Errorf("with %s: %d, %s%s", tokenVariable, status, out, errText)
	}
	if _, errText, status := weir("tls", "report", "http://weir:hunter2@127.0.0.1:1"); status == 0 || strings.Contains(errText, "hunter2") {
		t.Errorf("an error shows the token: %s", errText)
	}
}

// writeTestPair writes a certificate that is its own CA, for 127.0.0.1 and for a client.
func writeTestPair(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"pair.crt": {Type: "CERTIFICATE", Bytes: der}, "pair.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
