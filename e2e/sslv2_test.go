package e2e

import (
	"encoding/binary"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const sslv2Config = `
listeners:
  openssl: {address: '@openssl-in', protocol: tls}
  haproxy: {address: '@haproxy-in', protocol: tls}
  nginx: {address: '@nginx-in', protocol: tls}
  secure: {address: '@secure', protocol: tls}
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes:
  - {listeners: [openssl], tls: passthrough, backend: openssl}
  - {listeners: [haproxy], tls: passthrough, backend: haproxy}
  - {listeners: [nginx], tls: passthrough, backend: nginx}
  - {listeners: [openssl, haproxy, nginx, secure], hosts: [app.example.org], backend: app}
backends:
  app: {endpoints: ['@app']}
  openssl: {protocol: tcp, endpoints: ['@openssl']}
  haproxy: {protocol: tcp, endpoints: ['@haproxy'], send_proxy: v2}
  nginx: {protocol: tcp, endpoints: ['@nginx'], send_proxy: v2}
`

// sslv2Hello is the first message of s_client of OpenSSL 0.9.8, with fewer cipher suites: a ClientHello for
// TLS 1.0 in the format of SSLv2 (RFC 5246, appendix E.2).
const sslv2Hello = "\x80\x32\x01\x03\x01\x00\x09\x00\x00\x00\x20" + "\x00\x00\x2f\x00\x00\x0a\x00\x00\xff" + "weir's challenge of thirty-two b"

// weir passes ClientHellos in the format of SSLv2 through to servers that can read them, on the same listener
// as hosts that it terminates. Otherwise it refuses them, and reports them in the log, the metrics and "weir
// tls report".
func TestSSLv2HelloIsPassedThrough(t *testing.T) {
	t.Parallel()
	openssl := need(t, "openssl")
	need(t, "haproxy")
	need(t, "nginx")
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	old := writeCertificate(t, w.dir, "old", true, "old.example.org")
	runPeer(t, openssl, "s_server", "-accept", w.at("openssl"), "-cert", old.cert, "-key", old.key, "-tls1", "-cipher", "AES128-SHA:@SECLEVEL=0", "-quiet").listening(w.at("openssl"))
	runProxy(t, "haproxy", w.dir, fmt.Sprintf(`
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend old
    bind %s accept-proxy ssl crt %s ssl-min-ver TLSv1.0 ciphers AES128-SHA:@SECLEVEL=0
    http-request return status 200
`, w.at("haproxy"), old.both)).listening(w.at("haproxy"))
	runProxy(t, "nginx", w.dir, `server {
        listen `+w.at("nginx")+` ssl proxy_protocol;
        ssl_certificate `+old.cert+`;
        ssl_certificate_key `+old.key+`;
        ssl_protocols TLSv1;
        ssl_ciphers AES128-SHA:@SECLEVEL=0;
    }
`).listening(w.at("nginx"))
	w.start(sslv2Config)

	for _, name := range []string{"openssl", "haproxy", "nginx"} {
		c := dial(t, w.at(name+"-in"))
		c.SetDeadline(time.Now().Add(patience))
		c.Write([]byte(sslv2Hello))
		// A record of a handshake in TLS 1.0, with a ServerHello that chose AES128-SHA.
		head := make([]byte, 5)
		if _, err := io.ReadFull(c, head); err != nil || string(head[:3]) != "\x16\x03\x01" {
			t.Errorf("%s answers %q, %v", name, head, err)
			continue
		}
		hello := make([]byte, binary.BigEndian.Uint16(head[3:]))
		_, err := io.ReadFull(c, hello)
		session := 4 + 2 + 32
		if err != nil || hello[0] != 2 || string(hello[session+1+int(hello[session]):][:2]) != "\x00\x2f" {
			t.Errorf("%s: a hello of %q, %v", name, hello, err)
		}
		c.Close()
		w.logged("the tunnel to "+name, func(e entry) bool { return e.text("listener") == name && e.text("kind") == "tunnel" })
		if _, err := askSeen(tlsOver(dial(t, w.at(name+"-in"))), "app.example.org", "/"); err != nil {
			t.Errorf("%s: a modern client on the same listener: %v", name, err)
		}
	}

	c := dial(t, w.at("secure"))
	c.SetDeadline(time.Now().Add(patience))
	c.Write([]byte(sslv2Hello))
	if got, _ := io.ReadAll(c); string(got) != "\x15\x03\x01\x00\x02\x02\x46" {
		t.Errorf("where weir terminates, the answer is %q", got)
	}
	w.logged("the refusal", func(e entry) bool {
		return e.text("listener") == "secure" && e.text("tls_result") == "sslv2_hello" && strings.Contains(e.text("error"), "tls: passthrough")
	})
	w.wantMetric(1, "weir_tls_handshakes_total", "listener", "secure", "result", "sslv2_hello")
	out, err := exec.Command(executable(t), "tls", "report", "http://"+w.at("admin")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "sslv2_hello (an SSLv2-format ClientHello") {
		t.Errorf("weir tls report: %v\n%s", err, out)
	}
}
