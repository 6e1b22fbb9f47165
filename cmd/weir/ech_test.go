package main

import (
	"crypto/tls"
	"encoding/base64"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/tls/policy"
)

func TestECHCommand(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ech.pem")
	out, stderr, status := weir("ech", "cover.example.org", "-o", path)
	if status != 0 || stderr != "" {
		t.Fatalf("status %d, printed %q and %q", status, out, stderr)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of the key is %v, error %v", info.Mode(), err)
	}
	if strings.Contains(out, "PRIVATE KEY") {
		t.Errorf("the key is printed:\n%s", out)
	}
	keys, err := policy.ParseECH([]config.ECHKey{{File: path, PEM: text}})
	if err != nil || len(keys) != 1 {
		t.Fatalf("%d keys, error %v", len(keys), err)
	}
	record := regexp.MustCompile(`HOST\. 300 IN HTTPS 1 \. ech="([^"]+)"`).FindStringSubmatch(out)
	if record == nil {
		t.Fatalf("there is no record in\n%s", out)
	}
	list, err := base64.StdEncoding.DecodeString(record[1])
	if err != nil || string(list[2:]) != string(keys[0].Config) || strings.Count(out, record[1]) != 2 {
		t.Errorf("published is %x, error %v; the key is for %x", list, err, keys[0].Config)
	}

	if _, stderr, status = weir("ech", "cover.example.org", "-o", path); status != statusError || !strings.Contains(stderr, "exists") {
		t.Errorf("a second time: status %d, %q", status, stderr)
	}
	if again, err := os.ReadFile(path); err != nil || string(again) != string(text) {
		t.Errorf("the key was replaced, error %v", err)
	}
	if out, _, status = weir("ech", "cover.example.org", "-o", "-"); status != 0 || !strings.HasPrefix(out, "-----BEGIN PRIVATE KEY-----\n") {
		t.Errorf("to standard output: status %d, %q", status, out)
	}
	if _, stderr, status = weir("ech", "192.0.2.1", "-o", path+"2"); status != statusError || !strings.Contains(stderr, "public name") {
		t.Errorf("an address: status %d, %q", status, stderr)
	}
	if _, stderr, status = weir("ech"); status != statusUsage || !strings.Contains(stderr, "write one public name") {
		t.Errorf("no name: status %d, %q", status, stderr)
	}
}

// Check reads key files, and reports policies that contradict each other.
func TestCheckTLS(t *testing.T) {
	dir := t.TempDir()
	key, other := filepath.Join(dir, "ech.pem"), filepath.Join(dir, "other.pem")
	for _, path := range []string{key, other} {
		if _, stderr, status := weir("ech", "cover.example.org", "-o", path); status != 0 {
			t.Fatal(stderr)
		}
	}
	file := filepath.Join(dir, "weir.yaml")
	f := func(more, want string) {
		t.Helper()
		text := `
listeners: {tls: {address: ":443", protocol: tls}}
certificates: [{self_signed: {hosts: [a.example.org]}}]
backends: {app: {endpoints: ["127.0.0.1:9"]}, raw: {protocol: tcp, endpoints: ["127.0.0.1:9"]}}
` + more
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, stderr, status := weir("check", "-c", file)
		if want == "" && status != 0 || want != "" && (status != statusError || !strings.Contains(stderr, want)) {
			t.Errorf("%s\nstatus %d, %q; want %q", more, status, stderr, want)
		}
	}
	const open = "routes:\n  - {listeners: [tls], hosts: [a.example.org], backend: app}\n"
	f(open+"ech: {keys: ["+key+", "+other+"]}\n", "")
	f(open+"  - {listeners: [tls], hosts: [cover.example.org], tls: passthrough, backend: raw}\nech: {keys: ["+key+"]}\n", "passes TLS for cover.example.org through")
	a, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	cut := strings.Index(string(a), "-----BEGIN ECHCONFIG")
	mixed := string(a)[:cut] + string(b)[strings.Index(string(b), "-----BEGIN ECHCONFIG"):]
	if err := os.WriteFile(other, []byte(mixed), 0o600); err != nil {
		t.Fatal(err)
	}
	f(open+"ech: {keys: ["+key+", "+other+"]}\n", "other.pem")

	_, err = checkTLS(&config.Config{TLSPolicies: []config.TLSPolicy{
		{Name: "robots", MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, SHA1: true},
		{Name: "partners", MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13, ClientAuth: config.ClientAuthRequire},
	}})
	if err == nil || !strings.Contains(err.Error(), "policy partners") {
		t.Errorf("client_auth beside SHA-1: %v", err)
	}
}

// A reload rotates ECH keys. SHA-1 is switched on only while a policy needs it.
func TestReloadOfTLS(t *testing.T) {
	dir := t.TempDir()
	var lists [][]byte
	for _, name := range []string{"0.pem", "1.pem"} {
		text, list, err := policy.NewECH("cover.example.org")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
		lists = append(lists, list)
	}
	base := `
listeners: {tls: {address: '@tls', protocol: tls}}
certificates: [{self_signed: {hosts: [a.example.org, cover.example.org]}}]
routes: [{listeners: [tls], backend: app}]
backends: {app: {endpoints: ["127.0.0.1:9"]}}
`
	keys := func(names ...string) string {
		for i, name := range names {
			names[i] = filepath.Join(dir, name)
		}
		return base + "ech: {keys: [" + strings.Join(names, ", ") + "]}\n"
	}
	r := newRunning(t, keys("0.pem"), "tls")
	f := func(list []byte, want bool) {
		t.Helper()
		nc, err := net.Dial("tcp", r.address("tls"))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		nc.SetDeadline(time.Now().Add(patience))
		c := tls.Client(nc, &tls.Config{ServerName: "a.example.org", InsecureSkipVerify: true, EncryptedClientHelloConfigList: list,
			EncryptedClientHelloRejectionVerify: func(tls.ConnectionState) error { return nil }})
		if err := c.Handshake(); (err == nil) != want || want != c.ConnectionState().ECHAccepted {
			t.Errorf("accepted %v, error %v; want %v", c.ConnectionState().ECHAccepted, err, want)
		}
	}
	f(lists[0], true)
	f(lists[1], false)
	r.load(keys("1.pem", "0.pem"))
	f(lists[0], true)
	f(lists[1], true)
	r.load(keys("1.pem"))
	f(lists[0], false)
	f(lists[1], true)

	admitted := func() bool { return strings.Contains(os.Getenv("GODEBUG"), "tlssha1=1") }
	if admitted() {
		t.Error("SHA-1 is possible and no policy wants it")
	}
	r.load(base + "tls_policies: {robots: {max_version: '1.2', sha1_signatures: true}}\n")
	if !admitted() {
		t.Error("SHA-1 is not possible and a policy wants it")
	}
	r.load(base)
	if admitted() {
		t.Error("SHA-1 is still possible and no policy wants it any more")
	}
}
