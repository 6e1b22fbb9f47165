package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Real clients without SNI: old clients, clients that connect to an IP address, and proxies
// that send SNI only if configured.

const namelessConfig = `
listeners:
  listener: {address: '@listener', protocol: tls, tls_policy: partners}
  route: {address: '@route', protocol: tls}
  auth: {address: '@auth', protocol: tls, tls_policy: partners}
certificates:
  - self_signed: {hosts: [app.example.org, legacy.example.org, auth.example.org]}
tls_policies:
  partners:
    min_version: "1.0"
    max_version: "1.2"
    cipher_suites:
      - TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA
      - TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA
      - TLS_RSA_WITH_AES_128_CBC_SHA
  robots: {client_auth: {mode: require, ca: '@@dir/ca.crt'}}
routes:
  - {listeners: [listener, route, auth], hosts: [app.example.org], backend: app}
  - {listeners: [listener, route, auth], hosts: [legacy.example.org], tls_policy: partners, backend: app}
  - {listeners: [listener, route, auth], hosts: [auth.example.org], tls_policy: robots, backend: app}
  - {listeners: [listener], backend: app}
  - {listeners: [route], tls_policy: partners, backend: app}
  - {listeners: [auth], tls_policy: robots, backend: app}
backends:
  app: {endpoints: ['@app']}
`

type namelessClients struct {
	*weir
	t      *testing.T
	client certificate
}

func startNameless(t *testing.T) namelessClients {
	t.Helper()
	n := namelessClients{weir: newWeir(t), t: t}
	n.address["app"] = newWebBackend(t, "app").address
	ca := newAuthority(t, "robots' CA")
	_, n.client = ca.client(n.dir, "robot-7.example.org")
	if err := os.WriteFile(n.dir+"/ca.crt", ca.pem, 0o644); err != nil {
		t.Fatal(err)
	}
	n.start(namelessConfig)
	return n
}

// openSSL asks for a host with s_client, which sends no SNI, and returns the status line.
func (n namelessClients) openSSL(listener, host string, options ...string) string {
	n.t.Helper()
	args := append([]string{"s_client", "-connect", n.at(listener), "-noservername", "-ign_eof", "-quiet"}, options...)
	cmd := exec.Command(need(n.t, "openssl"), args...)
	cmd.Stdin = strings.NewReader("GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n")
	out, _ := cmd.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "HTTP/1.1 ") {
			return strings.TrimSpace(line)
		}
	}
	return "none"
}

const (
	answered    = "HTTP/1.1 200 OK"
	misdirected = "HTTP/1.1 421 Misdirected Request"
)

// A client with TLS 1.0 and without SNI gets the policy of the listener for such clients. The policy default
// is not weakened by that.
func TestOpenSSLWithoutSNI(t *testing.T) {
	t.Parallel()
	n := startNameless(t)
	_, port, _ := strings.Cut(n.at("listener"), ":")
	old := []string{"-tls1", "-cipher", "ALL:@SECLEVEL=0"}
	for _, listener := range []string{"listener", "route"} {
		for host, want := range map[string]string{
			"legacy.example.org": answered, "127.0.0.1:" + port: answered, "unknown.example.org": answered,
			"app.example.org": misdirected, "auth.example.org": misdirected, "AUTH.example.org.": misdirected,
		} {
			for version, options := range map[string][]string{"1.0": old, "1.2": {"-tls1_2"}} {
				if got := n.openSSL(listener, host, options...); got != want {
					t.Errorf("TLS %s to %s, Host %s: %s, want %s", version, listener, host, got, want)
				}
			}
		}
	}
	if err := openSSL(need(t, "openssl"), n.at("listener"), "app.example.org", old); err == nil {
		t.Error("TLS 1.0 is served to a client with SNI, whose host has the policy default")
	}
	if err := openSSL(need(t, "openssl"), n.at("listener"), "unknown.example.org", old); err == nil {
		t.Error("TLS 1.0 is served to a client with an unknown name in SNI")
	}
	n.logged("the old client's request", func(e entry) bool {
		return e.text("tls_policy") == "partners" && e.text("tls_version") == "TLS 1.0" && e.text("sni") == "" && e["status"] == float64(200)
	})
}

// A client without SNI cannot bypass the client certificates that another host requires, nor those that the
// route without hosts requires.
func TestClientCertificatesWithoutSNI(t *testing.T) {
	t.Parallel()
	n := startNameless(t)
	with := []string{"-cert", n.client.cert, "-key", n.client.key}
	for _, options := range [][]string{nil, {"-tls1_2"}, {"-tls1", "-cipher", "ALL:@SECLEVEL=0"}} {
		for _, host := range []string{"auth.example.org", "legacy.example.org", "app.example.org", "127.0.0.1"} {
			if got := n.openSSL("auth", host, options...); got != "none" {
				t.Errorf("without a certificate, %q, Host %s: %s", options, host, got)
			}
		}
		if got := n.openSSL("listener", "auth.example.org", append(options, with...)...); got != misdirected {
			t.Errorf("a certificate that nobody asked for, %q: %s", options, got)
		}
	}
	for host, want := range map[string]string{"auth.example.org": answered, "127.0.0.1": answered, "legacy.example.org": misdirected, "app.example.org": misdirected} {
		if got := n.openSSL("auth", host, with...); got != want {
			t.Errorf("with a certificate, Host %s: %s, want %s", host, got, want)
		}
	}
}

// curl sends no SNI if the URL contains an IP address.
func TestCurlToAnAddress(t *testing.T) {
	t.Parallel()
	n := startNameless(t)
	for _, listener := range []string{"listener", "route"} {
		for _, version := range []string{"--http1.1", "--http2"} {
			s := curlSeen(t, version, "https://"+n.at(listener)+"/")
			if s.Host != n.at(listener) {
				t.Errorf("%s %s: the backend saw %+v", listener, version, s)
			}
		}
	}
}

// nginx (proxy_ssl_server_name off) and HAProxy (no sni) send no SNI by default.
func TestProxiesWithoutSNI(t *testing.T) {
	t.Parallel()
	n := startNameless(t)
	for _, name := range []string{"nginx", "haproxy"} {
		t.Run(name, func(t *testing.T) {
			need(t, name)
			listener, route := freePort(t), freePort(t)
			config := fmt.Sprintf(`
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
listen listener
    bind %s
    server weir %s ssl verify none
listen route
    bind %s
    server weir %s ssl verify none
`, listener, n.at("listener"), route, n.at("route"))
			if name == "nginx" {
				config = fmt.Sprintf(`
    proxy_set_header Host $http_host;
    server { listen %s; location / { proxy_pass https://%s; } }
    server { listen %s; location / { proxy_pass https://%s; } }
`, listener, n.at("listener"), route, n.at("route"))
			}
			runProxy(t, name, n.dir, config).listening(listener, route)
			for _, address := range []string{listener, route} {
				for host, want := range map[string]int{"legacy.example.org": 200, address: 200, "app.example.org": 421, "auth.example.org": 421} {
					c := dial(t, address)
					resp, _, err := ask(c, bufio.NewReader(c), "GET", host, "/")
					if err != nil || resp.StatusCode != want {
						t.Errorf("Host %s: %v, %v; want %d", host, resp, err, want)
					}
					c.Close()
				}
			}
		})
	}
}

// A reload that changes a listener's policy for clients without SNI also affects open connections.
func TestReloadOfThePolicyWithoutSNI(t *testing.T) {
	t.Parallel()
	n := startNameless(t)
	c := tls.Client(dial(t, n.at("listener")), anyCertificate(""))
	r := bufio.NewReader(c)
	f := func(host string, want int) {
		t.Helper()
		resp, _, err := ask(c, r, "GET", host, "/")
		if err != nil || resp.StatusCode != want {
			t.Errorf("Host %s: %v, %v; want %d", host, resp, err, want)
		}
	}
	f("legacy.example.org", 200)
	f("unknown.example.org", 200)
	n.reload(strings.Replace(namelessConfig, "protocol: tls, tls_policy: partners}", "protocol: tls}", 1))
	f("legacy.example.org", 200)
	f("unknown.example.org", 421) // the connection also ends, because it was opened for that route
	if _, err := r.ReadByte(); err == nil {
		t.Error("the connection stays open")
	}
}
