package main

import (
	"crypto/tls"
	"encoding/base64"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weirproxy/weir/cmd/weir/node"
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

	_, err = node.Check(&config.Config{TLSPolicies: []config.TLSPolicy{
		{Name: "robots", MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, SHA1: true},
		{Name: "partners", MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13, ClientAuth: config.ClientAuthRequire},
	}})
	if err == nil || !strings.Contains(err.Error(), "policy partners") {
		t.Errorf("client_auth beside SHA-1: %v", err)
	}
}
