package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"
)

// haproxySends is a HAProxy in front of weir that sends PROXY headers in every way that it can. Its frontends
// forward plain TCP. Only "ssl" terminates TLS itself, and reports it to weir in TLVs.
const haproxySends = `
global
    maxconn 1000
defaults
    mode tcp
    timeout connect 5s
    timeout client 30s
    timeout server 30s
    unique-id-format unique-%%ci-%%cp-%%rt
listen v1
    bind %[1]s
    server weir %[5]s send-proxy
listen v2
    bind %[2]s
    server weir %[5]s send-proxy-v2
listen v2-tlvs
    bind %[3]s
    server weir %[5]s send-proxy-v2 proxy-v2-options crc32c,unique-id
listen ssl
    bind %[4]s ssl crt %[7]s ca-file %[8]s verify optional
    server weir %[6]s send-proxy-v2 proxy-v2-options ssl,cert-cn,ssl-cipher,authority,crc32c,unique-id
listen checked
    bind %[9]s
    server weir %[6]s send-proxy-v2 check check-send-proxy inter 200ms
`

const behindHAProxy = `
listeners:
  web: {address: '@web', protocol: http, proxy_protocol: edge}
  secure: {address: '@secure', protocol: tls, proxy_protocol: edge}
proxy_protocol:
  edge:
    header_timeout: 5s
    rules: [{from: [127.0.0.0/8], header: require}]
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes: [{listeners: [web, secure], hosts: [app.example.org], backend: app}]
backends:
  app: {endpoints: ['@app']}
`

func TestBehindHAProxy(t *testing.T) {
	t.Parallel()
	needLinux(t)
	need(t, "haproxy")
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.start(behindHAProxy)

	at := map[string]string{}
	for _, name := range []string{"v1", "v2", "v2-tlvs", "ssl", "checked"} {
		at[name] = freePort(t)
	}
	cert := writeCertificate(t, w.dir, "haproxy", true, "app.example.org")
	client := writeCertificate(t, w.dir, "client", false, "robot-7.example.org")
	config := fmt.Sprintf(haproxySends, at["v1"], at["v2"], at["v2-tlvs"], at["ssl"], w.at("secure"), w.at("web"), cert.both, client.cert, at["checked"])
	runProxy(t, "haproxy", w.dir, config).listening(at["checked"])

	// Each client has its own loopback address.
	tlsClient := func(c net.Conn, certs ...tls.Certificate) net.Conn {
		config := anyCertificate("app.example.org")
		config.Certificates = certs
		return tls.Client(c, config)
	}
	robot, err := tls.LoadX509KeyPair(client.cert, client.key)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range []struct {
		name  string
		conn  func(net.Conn) net.Conn
		proto string
		line  map[string]string // the values that the access log must have; "" accepts any value
	}{
		{"v1", func(c net.Conn) net.Conn { return tlsClient(c) }, "https", nil},
		{"v2", func(c net.Conn) net.Conn { return tlsClient(c) }, "https", nil},
		{"v2-tlvs", func(c net.Conn) net.Conn { return tlsClient(c) }, "https", map[string]string{"tlv_unique_id": ""}},
		{"ssl", func(c net.Conn) net.Conn { return tlsClient(c, robot) }, "https",
			map[string]string{"tlv_unique_id": "", "tlv_authority": "app.example.org", "tlv_ssl": "true", "tlv_ssl_verified": "true",
				"tlv_ssl_cn": "robot-7.example.org", "tlv_ssl_version": "TLSv1.3", "tlv_ssl_cipher": "TLS_AES_256_GCM_SHA384"}},
		{"checked", func(c net.Conn) net.Conn { return c }, "http", nil},
	} {
		t.Run(f.name, func(t *testing.T) {
			from := fmt.Sprintf("127.0.0.%d", 10+i)
			uri := "/" + f.name
			s, err := askSeen(f.conn(dial(t, at[f.name], from)), "app.example.org", uri)
			if err != nil {
				t.Fatal(err)
			}
			for field, want := range map[string]string{
				"X-Forwarded-For": from, "X-Real-Ip": from, "X-Forwarded-Proto": f.proto, "X-Forwarded-Host": "app.example.org",
			} {
				if got := s.Header.Get(field); got != want {
					t.Errorf("%s is %q, not %q", field, got, want)
				}
			}
			e := w.logged("the request", func(e entry) bool { return e.text("target") == uri })
			if !strings.HasPrefix(e.text("client"), from) || !strings.HasPrefix(e.text("peer"), "127.0.0.1") {
				t.Errorf("client and peer address are wrong: %v", e)
			}
			for field, want := range f.line {
				if got := e.text(field); got == "" || want != "" && got != want {
					t.Errorf("the line's %s is %q, not %q", field, got, want)
				}
			}
		})
	}
	// HAProxy's health checks send LOCAL. weir must not count them as client errors.
	eventually(t, "checks are counted as local", func() error {
		if w.metric("weir_proxy_headers_total", "result", "local") == 0 {
			return errNotYet
		}
		return nil
	})
	for _, result := range []string{"malformed", "checksum", "truncated", "missing", "late"} {
		if n := w.metric("weir_proxy_headers_total", "result", result); n != 0 {
			t.Errorf("%.0f headers of HAProxy counted as %s", n, result)
		}
	}
}

// If HAProxy terminates TLS and forwards plain HTTP, weir does not redirect the request to https again. An
// HTTP header or the PROXY header tells weir about the TLS.
func TestRedirectBehindHAProxy(t *testing.T) {
	t.Parallel()
	needLinux(t)
	need(t, "haproxy")
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.start(`
listeners:
  field: {address: '@field', protocol: http, trust_forwarded: [127.0.0.1/32]}
  header: {address: '@header', protocol: http, proxy_protocol: edge}
proxy_protocol: {edge: {rules: [{from: [127.0.0.0/8], header: require}]}}
routes: [{listeners: [field, header], redirect: https, backend: app}]
backends: {app: {endpoints: ['@app']}}
`)
	at := map[string]string{}
	for _, name := range []string{"field", "field-tls", "header", "header-tls"} {
		at[name] = freePort(t)
	}
	cert := writeCertificate(t, w.dir, "haproxy", true, "app.example.org")
	runProxy(t, "haproxy", w.dir, fmt.Sprintf(`
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
listen field
    bind %[1]s
    bind %[2]s ssl crt %[5]s
    http-request set-header X-Forwarded-Proto https if { ssl_fc }
    http-request set-header X-Forwarded-Proto http if !{ ssl_fc }
    server weir %[6]s
listen header
    mode tcp
    bind %[3]s
    bind %[4]s ssl crt %[5]s
    server weir %[7]s send-proxy-v2-ssl
`, at["field"], at["field-tls"], at["header"], at["header-tls"], cert.both, w.at("field"), w.at("header"))).listening(at["header-tls"])
	for name, address := range at {
		c, want := dial(t, address), 308
		if strings.HasSuffix(name, "-tls") {
			c, want = tls.Client(c, anyCertificate("app.example.org")), 200
		}
		resp, _, err := ask(c, bufio.NewReader(c), "GET", "app.example.org", "/a", "X-Forwarded-Proto: https")
		if err != nil || resp.StatusCode != want {
			t.Errorf("%s: %v, %v, want %d", name, resp, err, want)
		}
	}
}
