package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// oldBackends has each backend twice: with the keys that it needs, and without them.
const oldBackends = `
listeners:
  web: {address: '@web', protocol: http}
routes:
  - {listeners: [web], hosts: [nginx], backend: nginx}
  - {listeners: [web], hosts: [tls10], backend: tls10}
  - {listeners: [web], hosts: [rsa], backend: rsa}
  - {listeners: [web], hosts: [sha1], backend: sha1}
  - {listeners: [web], hosts: [nginx.strict], backend: nginx-strict}
  - {listeners: [web], hosts: [tls10.strict], backend: tls10-strict}
  - {listeners: [web], hosts: [rsa.strict], backend: rsa-strict}
backends:
  nginx:
    protocol: https
    endpoints: ['@nginx']
    health_check: {http: {}}
    tls: &old {ca: '@@dir/old.crt', server_name: old.internal, min_version: "1.0", cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]}
  tls10: {protocol: https, endpoints: ['@tls10'], tls: *old}
  rsa:
    protocol: https
    endpoints: ['@rsa']
    tls: {ca: '@@dir/old.crt', server_name: old.internal, cipher_suites: [TLS_RSA_WITH_AES_128_GCM_SHA256]}
  sha1:
    protocol: https
    endpoints: ['@sha1']
    tls: {ca: '@@dir/old.crt', server_name: old.internal, sha1_signatures: true}
  nginx-strict: {protocol: https, endpoints: ['@nginx'], tls: &strict {ca: '@@dir/old.crt', server_name: old.internal}}
  tls10-strict: {protocol: https, endpoints: ['@tls10'], tls: *strict}
  rsa-strict: {protocol: https, endpoints: ['@rsa'], tls: *strict}
`

// Some real servers have only TLS 1.0, only RSA key exchange, or only SHA-1 signatures. weir reaches them if
// the keys of the backend allow it. Otherwise it does not, and the log names the missing key.
func TestOldHTTPSBackends(t *testing.T) {
	t.Parallel()
	openssl := need(t, "openssl")
	need(t, "nginx")
	w := newWeir(t)
	old := writeCertificate(t, w.dir, "old", true, "old.internal")
	if err := os.WriteFile(filepath.Join(w.dir, "page"), []byte("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nold"), 0o600); err != nil {
		t.Fatal(err)
	}
	runProxy(t, "nginx", w.dir, `server {
        listen `+w.at("nginx")+` ssl;
        ssl_certificate `+old.cert+`;
        ssl_certificate_key `+old.key+`;
        ssl_protocols TLSv1;
        ssl_ciphers AES128-SHA:@SECLEVEL=0;
        location / { return 200 "old"; }
    }
`).listening(w.at("nginx"))
	for name, options := range map[string][]string{
		"tls10": {"-tls1", "-cipher", "AES128-SHA:@SECLEVEL=0"},
		"rsa":   {"-tls1_2", "-cipher", "AES128-GCM-SHA256"},
		"sha1":  {"-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256:@SECLEVEL=0", "-sigalgs", "RSA+SHA1"},
	} {
		inDir := []string{"-c", `cd "$0" && exec "$@"`, w.dir, openssl, "s_server", "-accept", w.at(name), "-cert", old.cert, "-key", old.key, "-HTTP", "-quiet"}
		runPeer(t, "sh", append(inDir, options...)...).listening(w.at(name))
	}
	w.start(oldBackends)
	w.wantMetric(1, "weir_backend_endpoints_ready", "backend", "nginx") // its health check has passed

	for _, name := range []string{"nginx", "tls10", "rsa", "sha1"} {
		if got := string(curl(t, "http://"+w.at("web")+"/page", "-H", "Host: "+name)); got != "old" {
			t.Errorf("%s: %q", name, got)
		}
	}
	for name, key := range map[string]string{"nginx": "tls.min_version", "tls10": "tls.min_version", "rsa": "tls.cipher_suites"} {
		if got := string(curl(t, "http://"+w.at("web")+"/page", "-H", "Host: "+name+".strict", "-o", "/dev/null", "-w", "%{http_code}")); got != "502" && got != "503" {
			t.Errorf("%s without the keys: %s", name, got)
		}
		w.logged("the key for "+name, func(e entry) bool {
			return e.text("host") == name+".strict" && strings.Contains(e.text("error"), key)
		})
	}
	w.reload(strings.ReplaceAll(oldBackends, ", sha1_signatures: true", "")) // without sha1_signatures
	curl(t, "http://"+w.at("web")+"/page", "-H", "Host: sha1", "-o", "/dev/null")
	w.logged("the key for SHA-1", func(e entry) bool {
		return e.text("host") == "sha1" && strings.Contains(e.text("error"), "tls.sha1_signatures")
	})
}
