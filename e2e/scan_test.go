package e2e

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"encoding/xml"
	"flag"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// These tests run two TLS scanners on the policy default, a modern and a legacy one. docs/tls.md has the
// findings. For the policy default there is no finding above low.

var scanAll = flag.Bool("scan", false, "TestScanners runs testssl.sh on all policies, not only on default: it starts tens of thousands of processes for each")

const scanConfig = `
listeners: {secure: {address: '@secure', protocol: tls, proxy_protocol: bare}}
proxy_protocol: {bare: {rules: [{from: [127.0.0.0/8], header: none}]}}
certificates:
  - {cert: '@@dir/ecdsa.crt', key: '@@dir/ecdsa.key'}
  - {cert: '@@dir/rsa.crt', key: '@@dir/rsa.key'}
tls_policies:
  modern: {min_version: "1.3"}
  legacy:
    min_version: "1.0"
    cipher_suites:
      - TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
      - TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
      - TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA
      - TLS_RSA_WITH_AES_128_CBC_SHA
      - TLS_RSA_WITH_3DES_EDE_CBC_SHA
routes:
  - {listeners: [secure], hosts: [default.example.org], backend: app}
  - {listeners: [secure], hosts: [modern.example.org], tls_policy: modern, backend: app}
  - {listeners: [secure], hosts: [legacy.example.org], tls_policy: legacy, backend: app}
backends:
  app: {endpoints: ['@app']}
`

// scanned are the names of the policies, which are the first labels of their hosts, in the order of the
// tables' columns.
var scanned = []string{"default", "modern", "legacy"}

// severities are the severities of testssl.sh for which a finding is in the table, the worst last. WARN means
// that a check did not work, which is as bad as any finding.
var severities = []string{"LOW", "MEDIUM", "HIGH", "CRITICAL", "WARN", "FATAL"}

func TestScanners(t *testing.T) {
	t.Parallel()
	long(t)
	testssl, sslscan := need(t, "testssl"), need(t, "sslscan")
	needVersion(t, "testssl.sh 3.0.8", testssl, "--version")
	needVersion(t, "sslscan 2.0.7", sslscan, "--version")
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	ca := writeScanCertificates(t, w.dir)
	w.start(scanConfig)

	findings := make([]map[string]string, len(scanned))
	suites := make([]map[string]string, len(scanned))
	var scans sync.WaitGroup
	for i, policy := range scanned {
		scans.Go(func() {
			suites[i] = runSSLScan(t, sslscan, w.dir, policy, w.at("secure"))
			if policy == "default" || *scanAll {
				findings[i] = runTestSSL(t, testssl, w.dir, policy, w.at("secure"), ca)
			}
		})
	}
	scans.Wait()
	if t.Failed() {
		return
	}
	for id, severity := range findings[0] {
		if severity != "LOW" {
			t.Errorf("of the default policy testssl.sh says %s: %s", id, severity)
		}
	}
	wantTable(t, "testssl.sh", findings)
	wantTable(t, "sslscan", suites)
}

// needVersion skips a test that expects the output of one version of a peer, if another
// version is installed; in CI the test fails.
func needVersion(t *testing.T, version, path, argument string) {
	t.Helper()
	name, number, _ := strings.Cut(version, " ")
	out, err := exec.Command(path, argument).CombinedOutput()
	if strings.Contains(string(out), number) {
		return
	}
	if inCI() {
		t.Fatalf("%s is another version than %s, whose findings docs/tls.md has: %v\n%s", name, number, err, out)
	}
	t.Skipf("%s is another version than %s, whose findings docs/tls.md has", name, number)
}

// writeScanCertificates makes an ECDSA and an RSA certificate that are signed by a CA, as public ones are.
// Otherwise the scanners would report the shortcuts of the test.
func writeScanCertificates(t *testing.T, dir string) (ca string) {
	t.Helper()
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "weir test CA"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour)}
	rootKey := scanKey(t, false)
	root = signScan(t, filepath.Join(dir, "ca"), root, root, rootKey, rootKey)
	for _, name := range []string{"ecdsa", "rsa"} {
		serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
		if err != nil {
			t.Fatal(err)
		}
		leaf := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: "default.example.org"},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(89 * 24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, CRLDistributionPoints: []string{"http://crl.example.org/ca.crl"}}
		for _, policy := range scanned {
			leaf.DNSNames = append(leaf.DNSNames, policy+".example.org")
		}
		if name == "rsa" {
			leaf.KeyUsage |= x509.KeyUsageKeyEncipherment
		}
		signScan(t, filepath.Join(dir, name), leaf, root, scanKey(t, name == "rsa"), rootKey)
	}
	return filepath.Join(dir, "ca.crt")
}

func scanKey(t *testing.T, rsaKey bool) (key crypto.Signer) {
	t.Helper()
	var err error
	if rsaKey {
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	} else {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// signScan writes a certificate to path.crt and its key to path.key.
func signScan(t *testing.T, path string, template, parent *x509.Certificate, key, by crypto.Signer) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for suffix, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(path+suffix, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// scan runs a scanner. Its timeout is longer than any scanner needs.
//
// testssl.sh warns if this machine's OpenSSL lacks an engine for GOST (engine_problem). That says nothing
// about weir, so NO_ENGINE turns the check off.
func scan(t *testing.T, dir string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "NO_ENGINE=true")
	if out, err := cmd.CombinedOutput(); err != nil && ctx.Err() != nil {
		t.Errorf("%s: not done in time:\n%s", args[0], out)
	} // the exit status of testssl.sh is its number of findings; the file shows whether it ran
}

// runTestSSL returns the severity of each finding that is at least low.
func runTestSSL(t *testing.T, testssl, dir, policy, address, ca string) map[string]string {
	host, port, _ := net.SplitHostPort(address)
	file := filepath.Join(dir, policy+".json")
	scan(t, dir, testssl, "--quiet", "--color", "0", "--warnings", "off", "--ip", host, "--nodns", "none", "--add-ca", ca,
		"--protocols", "--standard", "--fs", "--server-defaults", "--server-preference", "--vulnerable",
		"--jsonfile", file, policy+".example.org:"+port)
	text, err := os.ReadFile(file)
	var all []struct{ ID, Severity, Finding string }
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil || len(all) < 50 {
		t.Errorf("testssl.sh on %s: %d findings, error %v", policy, len(all), err)
		return nil
	}
	found := make(map[string]string)
	for _, f := range all {
		id, _, _ := strings.Cut(f.ID, " ") // some findings also name the certificate
		if worse(f.Severity, found[id]) {
			found[id] = f.Severity
			t.Logf("%s: %s %s: %s", policy, f.Severity, f.ID, f.Finding)
		}
	}
	return found
}

func worse(severity, than string) bool {
	return slices.Index(severities, severity) > slices.Index(severities, than)
}

// runSSLScan returns what sslscan reports about versions, cipher suites and vulnerabilities.
func runSSLScan(t *testing.T, sslscan, dir, policy, address string) map[string]string {
	file := filepath.Join(dir, policy+".xml")
	scan(t, dir, sslscan, "--no-colour", "--sni-name="+policy+".example.org", "--xml="+file, address)
	var report struct {
		Test struct {
			Protocols []struct {
				Version string `xml:"version,attr"`
				Enabled int    `xml:"enabled,attr"`
			} `xml:"protocol"`
			Heartbleed []struct {
				Vulnerable int `xml:"vulnerable,attr"`
			} `xml:"heartbleed"`
			Ciphers []struct {
				Strength string `xml:"strength,attr"`
			} `xml:"cipher"`
		} `xml:"ssltest"`
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = xml.Unmarshal(text, &report)
	}
	if err != nil || len(report.Test.Ciphers) == 0 {
		t.Errorf("sslscan on %s: %d suites, error %v", policy, len(report.Test.Ciphers), err)
		return nil
	}
	said := map[string]string{"heartbleed": "no"}
	for _, p := range report.Test.Protocols {
		if p.Enabled != 0 {
			said["versions"] = strings.TrimPrefix(said["versions"]+", "+p.Version, ", ")
		}
	}
	for _, h := range report.Test.Heartbleed {
		if h.Vulnerable != 0 {
			said["heartbleed"] = "yes"
		}
	}
	counts := make(map[string]int)
	for _, c := range report.Test.Ciphers {
		counts[c.Strength]++
	}
	for strength, n := range counts {
		said["suites: "+strength] = fmt.Sprint(n)
	}
	if policy == "default" {
		for _, strength := range []string{"null", "anonymous", "weak", "medium"} {
			if counts[strength] > 0 {
				t.Errorf("of the default policy sslscan says that %d suites are %s", counts[strength], strength)
			}
		}
	}
	return said
}

// wantTable compares a table of docs/tls.md with the findings. name is the heading of its first column. There
// is a row for each key, a column for each policy, and a last column for explanations, which must not be
// empty. The column of a policy without findings (nil) is not compared.
func wantTable(t *testing.T, name string, found []map[string]string) {
	t.Helper()
	text, err := os.ReadFile("../docs/tls.md")
	if err != nil {
		t.Fatal(err)
	}
	head := "| " + name + " | " + strings.Join(scanned, " | ") + " |"
	_, rest, ok := strings.Cut(string(text), "\n"+head)
	if !ok {
		t.Fatalf("docs/tls.md has no table that begins with %q", head)
	}
	var got []string
	for i, line := range slices.Collect(strings.Lines(rest)) {
		if i < 2 {
			continue // the other headings, and the line below them
		}
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < len(scanned)+3 {
			break // the table ends
		}
		why := strings.TrimSpace(cells[len(scanned)+2])
		if why == "" {
			t.Errorf("docs/tls.md: the row of %s does not say why", cells[1])
		}
		row, empty := cells[1]+"|", true
		for i := range scanned {
			if found[i] != nil {
				row += cells[i+2] + "|"
				empty = empty && strings.TrimSpace(cells[i+2]) == "-"
			}
		}
		if !empty {
			got = append(got, "|"+row)
		}
	}
	keys := make(map[string]bool)
	for _, f := range found {
		for key := range f {
			keys[key] = true
		}
	}
	var want []string
	for key := range keys {
		row := "| `" + key + "` |"
		for _, f := range found {
			if f == nil {
				continue
			}
			cell := f[key]
			if cell == "" {
				cell = "-"
			}
			row += " " + strings.ToLower(cell) + " |"
		}
		want = append(want, row)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the table of %s in docs/tls.md has\n%s\nand ought to have\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
