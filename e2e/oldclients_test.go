package e2e

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// weir names clients that Go's TLS cannot serve in its log and in weir tls report.

const oldClientsConfig = `
listeners:
  secure: {address: '@secure', protocol: tls, tls_policy: partners}
certificates: [{self_signed: {hosts: [edi.example.org, robots.example.org]}}]
tls_policies:
  partners:
    min_version: "1.0"
    cipher_suites:
      - TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
      - TLS_RSA_WITH_AES_128_CBC_SHA
  robots: {client_auth: {mode: require, ca: '@@dir/ca.crt'}}
routes:
  - {listeners: [secure], tls_policy: partners, backend: app}
  - {listeners: [secure], hosts: [robots.example.org], tls_policy: robots, backend: app}
backends: {app: {endpoints: ['@app']}}
`

// run runs a client in the directory of the test, with an empty standard input, and returns its output.
func (w *weir) run(name string, args ...string) string {
	w.t.Helper()
	cmd := exec.Command(need(w.t, name), args...)
	cmd.Dir = w.dir
	cmd.Stdin = bytes.NewReader(nil)
	out, _ := cmd.CombinedOutput()
	return string(out)
}

// oldCertificate makes name.crt and name.key, signed by the CA in ca.crt and ca.key.
func (w *weir) oldCertificate(name, algorithm string, options ...string) {
	w.t.Helper()
	out := w.run("openssl", "genpkey", "-algorithm", algorithm, "-pkeyopt", "rsa_keygen_bits:2048", "-out", name+".key")
	out += w.run("openssl", "req", "-new", "-key", name+".key", "-subj", "/CN="+name, "-out", name+".csr")
	out += w.run("openssl", append([]string{"x509", "-req", "-in", name + ".csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-days", "2", "-out", name + ".crt"}, options...)...)
	if _, err := os.Stat(filepath.Join(w.dir, name+".crt")); err != nil {
		w.t.Fatalf("openssl makes no certificate %s: %s", name, out)
	}
}

func TestClientsThatGoCannotServe(t *testing.T) {
	t.Parallel()
	need(t, "openssl")
	need(t, "gnutls-cli")
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=old CA", "-days", "2")
	w.oldCertificate("sha1", "RSA", "-sha1", "-set_serial", "1")
	w.oldCertificate("pss", "RSA", "-set_serial", "2", "-sigopt", "rsa_padding_mode:pss", "-sigopt", "rsa_pss_saltlen:-2")
	w.oldCertificate("negative", "RSA", "-set_serial", "-3")
	w.oldCertificate("good", "RSA", "-set_serial", "4")
	w.start(oldClientsConfig)

	secure := w.at("secure")
	host, port, _ := net.SplitHostPort(secure)
	openssl := func(options ...string) {
		w.run("openssl", append([]string{"s_client", "-connect", secure}, options...)...)
	}
	gnutls := func(priorities string, options ...string) string {
		return w.run("gnutls-cli", append([]string{"--insecure", "--port", port, "--priority", priorities, host}, options...)...)
	}
	refused := func(result, text string) {
		t.Helper()
		w.logged("a client that is refused by "+result, func(e entry) bool {
			return e.text("kind") == "refused" && e.text("tls_result") == result && strings.Contains(e.text("error"), text)
		})
	}
	// Cipher suites that weir supports, and suites that it cannot support.
	if out := gnutls("NORMAL:-VERS-ALL:+VERS-TLS1.0:-KX-ALL:+RSA:%COMPAT", "--disable-sni"); !strings.Contains(out, "Handshake was completed") {
		t.Errorf("GnuTLS with TLS 1.0, RSA key exchange and without SNI: %s", out)
	}
	gnutls("NORMAL:-VERS-ALL:+VERS-TLS1.2:-KX-ALL:+DHE-RSA", "--disable-sni")
	refused("no_common_suite", "the client offers only cipher suites that no TLS policy of weir can have (DHE)")
	openssl("-noservername", "-tls1_2", "-cipher", "CAMELLIA128-SHA:ECDHE-RSA-CAMELLIA128-SHA256:@SECLEVEL=0")
	refused("no_common_suite", "(CAMELLIA)")

	// The client certificates that weir refuses.
	present := func(name string) {
		openssl("-servername", "robots.example.org", "-tls1_2", "-cert", name+".crt", "-key", name+".key", "-cipher", "ALL:@SECLEVEL=0")
	}
	present("good")
	present("sha1")
	refused("client_certificate_sha1", "is signed with SHA-1 or MD5, which weir never accepts (sha1_signatures does not apply to certificates)")
	present("pss")
	refused("client_certificate_signature", "has a signature that weir cannot verify, such as RSA-PSS with an unusual salt length")
	present("negative")
	refused("client_certificate_serial", "the serial number of the client certificate is negative")
	w.wantMetric(1, "weir_tls_handshakes_total", "policy", "robots", "result", "ok") // the good certificate

	out, err := exec.Command(executable(t), "tls", "report", "http://"+w.at("admin")).CombinedOutput()
	for _, want := range []string{"TLS 1.2, only DHE ", "TLS 1.2, only CAMELLIA ", "client_certificate_sha1 (the client's certificate, or its CA's, is signed with SHA-1 or MD5): 1 handshake",
		"client_certificate_signature (", "client_certificate_serial ("} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("the report has no %q: %v\n%s", want, err, out)
		}
	}
}
