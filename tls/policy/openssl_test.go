package policy

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// Old clients do not use crypto/tls. OpenSSL with old versions and suites is more similar to them.
func TestOpenSSL(t *testing.T) {
	path := findOpenSSL(t)
	suites, err := exec.Command(path, "ciphers", "ALL:@SECLEVEL=0").Output()
	if err != nil {
		t.Fatalf("openssl cannot list its suites: %v", err)
	}
	cert := newAuthority(t, "ca").issue(t, "a.example.org", true, time.Now().Add(time.Hour))
	partners := newPolicy(t, config.TLSPolicy{
		Name: "partners", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS12,
		CipherSuites: []uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA, tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256},
	}, cert, keyring{}.attach)
	modern := newPolicy(t, config.TLSPolicy{}, cert, keyring{}.attach)

	f := func(p *Policy, version, suite, want string) {
		t.Helper()
		t.Run(p.Name+version+" "+suite, func(t *testing.T) {
			t.Helper()
			if !strings.Contains(":"+strings.TrimSpace(string(suites))+":", ":"+suite+":") {
				t.Skipf("this openssl was built without %s", suite)
			}
			got, output := openSSL(t, p, version, "-cipher", suite+":@SECLEVEL=0")
			if got != want {
				t.Errorf("the result is %s, want %s; openssl says:\n%s", got, want, output)
			}
			if agreed := strings.Contains(output, "Cipher is "+suite); agreed != (want == ResultOK) {
				t.Errorf("openssl agreed on %s: %v; it says:\n%s", suite, agreed, output)
			}
		})
	}
	f(partners, "-tls1", "AES128-SHA", ResultOK)
	f(partners, "-tls1_1", "AES128-SHA", ResultOK)
	f(partners, "-tls1_2", "AES128-SHA", ResultOK)
	f(partners, "-tls1", "DES-CBC3-SHA", ResultOK)
	f(partners, "-tls1_2", "ECDHE-RSA-AES128-SHA256", ResultOK)
	f(partners, "-tls1_2", "ECDHE-RSA-AES128-GCM-SHA256", ResultNoCommonSuite)
	f(modern, "-tls1", "AES128-SHA", ResultNoCommonVersion)
	f(modern, "-tls1_2", "AES128-SHA", ResultNoCommonSuite)
	f(modern, "-tls1_2", "ECDHE-RSA-AES128-GCM-SHA256", ResultOK)
}

// findOpenSSL returns the path of openssl. If there is none, it skips the test; in CI the
// test fails.
func findOpenSSL(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("openssl")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("openssl is not installed, and CI has to test with it")
		}
		t.Skip("openssl is not installed")
	}
	return path
}

// openSSL runs s_client against p. It returns the result of the server's handshake and
// the output of openssl.
func openSSL(t *testing.T, p *Policy, args ...string) (result, output string) {
	t.Helper()
	path := findOpenSSL(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() { served <- serveOnce(l, p.Config) }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	args = append([]string{"s_client", "-connect", l.Addr().String(), "-servername", "a.example.org"}, args...)
	text, _ := exec.CommandContext(ctx, path, args...).CombinedOutput()
	l.Close() // openssl may not have connected at all
	return HandshakeResult(<-served), string(text)
}

// serveOnce does one handshake and ends the connection.
func serveOnce(l net.Listener, c *tls.Config) error {
	nc, err := l.Accept()
	if err != nil {
		return err
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(20 * time.Second))
	s := tls.Server(nc, c)
	if err := s.Handshake(); err != nil {
		return err
	}
	return s.Close()
}
