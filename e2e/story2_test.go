package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// Story 2 of the design: very old partners. weir offers old versions and cipher suites only to the names and
// source networks that need them, and counts the clients that still use them.

const partnersConfig = `
listeners:
  secure: {address: '@secure', protocol: tls, proxy_protocol: edge}
proxy_protocol:
  edge:
    header_timeout: 5s
    rules: [{from: [127.0.0.0/8], header: optional}]
certificates:
  - self_signed: {hosts: [app.example.org, legacy.example.org, far.example.org]}
tls_policies:
  partners:
    min_version: "1.0"
    max_version: "1.2"
    cipher_suites: &old
      - TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA
      - TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA
      - TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256
      - TLS_RSA_WITH_AES_128_CBC_SHA
      - TLS_RSA_WITH_3DES_EDE_CBC_SHA
    from: [127.0.0.0/8, 198.51.100.0/24]
  far:
    min_version: "1.0"
    max_version: "1.2"
    cipher_suites: *old
    from: [198.51.100.0/24]
routes:
  - {listeners: [secure], hosts: [app.example.org], backend: app}
  - {listeners: [secure], hosts: [legacy.example.org], tls_policy: partners, backend: app}
  - {listeners: [secure], hosts: [far.example.org], tls_policy: far, backend: app}
backends:
  app: {endpoints: ['@app']}
`

func startPartners(t *testing.T) *weir {
	t.Helper()
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	return w.start(partnersConfig)
}

func TestStory2OldTLSOnlyWhereItIsNeeded(t *testing.T) {
	t.Parallel()
	openssl := need(t, "openssl")
	w := startPartners(t)
	direct := w.at("secure")
	partner := shim(t, direct, v2Header("198.51.100.7:4000", "192.0.2.1:443"))
	stranger := shim(t, direct, v1Header("203.0.113.9:4000", "192.0.2.1:443"))

	old := map[string][]string{
		"TLS 1.0":               {"-tls1", "-cipher", "ALL:@SECLEVEL=0"},
		"TLS 1.1":               {"-tls1_1", "-cipher", "ALL:@SECLEVEL=0"},
		"RSA key exchange":      {"-tls1_2", "-cipher", "AES128-SHA:@SECLEVEL=0"},
		"RSA key exchange, 1.0": {"-tls1", "-cipher", "AES128-SHA:@SECLEVEL=0"},
		"CBC":                   {"-tls1_2", "-cipher", "ECDHE-RSA-AES128-SHA256:@SECLEVEL=0"},
	}
	modern := map[string][]string{
		"TLS 1.2": {"-tls1_2", "-cipher", "ECDHE+AESGCM"},
		"TLS 1.3": {"-tls1_3"},
	}
	f := func(clients map[string][]string, from, address, host string, want bool) {
		t.Helper()
		for name, options := range clients {
			err := openSSL(openssl, address, host, options)
			if want && err != nil {
				t.Errorf("%s from %s to %s: %v", name, from, host, err)
			}
			if !want && err == nil {
				t.Errorf("%s from %s to %s went through", name, from, host)
			}
		}
	}
	f(old, "here", direct, "legacy.example.org", true)
	f(old, "a partner", partner, "legacy.example.org", true)
	f(old, "a partner", partner, "far.example.org", true)
	f(old, "a stranger", stranger, "legacy.example.org", false)
	f(old, "here", direct, "far.example.org", false)
	f(old, "here", direct, "app.example.org", false)
	f(old, "a partner", partner, "app.example.org", false)
	f(modern, "here", direct, "app.example.org", true)
	f(modern, "a stranger", stranger, "legacy.example.org", true)
	f(modern, "a partner", partner, "far.example.org", false)

	if n := w.metric("weir_tls_handshakes_total", "policy", "partners", "version", "TLS 1.0"); n == 0 {
		t.Error("nobody counted who still speaks TLS 1.0")
	}
	w.logged("the partner's request", func(e entry) bool {
		return e.text("tls_policy") == "partners" && e.text("tls_version") == "TLS 1.0" &&
			e.text("sni") == "legacy.example.org" && strings.HasPrefix(e.text("client"), "198.51.100.7")
	})
}

// openSSL makes one request with s_client and returns true if it was answered.
func openSSL(path, address, host string, options []string) error {
	args := append([]string{"s_client", "-connect", address, "-servername", host, "-ign_eof", "-quiet"}, options...)
	cmd := exec.Command(path, args...)
	cmd.Stdin = strings.NewReader("GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n")
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "HTTP/1.1 200 OK") {
		return nil
	}
	return fmt.Errorf("no answer: %v: %.300s", err, out)
}

func TestStory2TripleDES(t *testing.T) {
	t.Parallel()
	w := startPartners(t)
	config := &tls.Config{
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS12,
		CipherSuites: []uint16{tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA},
	}
	f := func(host string, want bool) {
		t.Helper()
		c := config.Clone()
		c.ServerName = host
		_, err := askSeen(tls.Client(dial(t, w.at("secure")), c), host, "/")
		if (err == nil) != want {
			t.Errorf("3DES to %s: %v", host, err)
		}
	}
	f("legacy.example.org", true)
	f("app.example.org", false)
}

// A connection that was opened under one policy must not carry requests for a host with another policy.
func TestStory2HostOfAnotherPolicy(t *testing.T) {
	t.Parallel()
	w := startPartners(t)
	f := func(sni, host string, want int) {
		t.Helper()
		c := tls.Client(dial(t, w.at("secure")), anyCertificate(sni))
		resp, _, err := ask(c, bufio.NewReader(c), "GET", host, "/")
		if err != nil || resp.StatusCode != want {
			t.Errorf("SNI %s, Host %s: %v, %v; want %d", sni, host, resp, err, want)
		}
	}
	f("app.example.org", "app.example.org", 200)
	f("app.example.org", "APP.example.org.:443", 200)
	f("app.example.org", "legacy.example.org", 421)
	f("legacy.example.org", "app.example.org", 421)
	f("legacy.example.org", "legacy.example.org", 200)
	f("", "app.example.org", 200)
	f("", "legacy.example.org", 421)
	f("app.example.org", "far.example.org", 200) // both have the policy default for this client's network
	f("app.example.org", "nobody.example.org", 404)
}
