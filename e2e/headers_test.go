package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// forgeable are the HTTP headers that applications trust, in their proper spelling.
var forgeable = []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port", "X-Forwarded-Prefix", "X-Real-IP", "X-Request-Id",
	"X-Client-Cert-Subject", "X-Client-Cert-SAN", "X-Client-Cert-SHA256", "Client-Cert", "Client-Cert-Chain", "X-SSL-Client-Verify",
	"True-Client-IP", "X-Client-IP", "CF-Connecting-IP", "X-Cluster-Client-IP", "Client-IP", "X-Original-URL", "X-Rewrite-URL"}

// In the variables that lighttpd makes for CGI programs, every byte that is neither a
// letter nor a digit becomes "_". weir drops all spellings that become the same variable.
func TestForgedHeadersBehindLighttpd(t *testing.T) {
	t.Parallel()
	lighttpd := need(t, "lighttpd")
	w := newWeir(t)
	root := t.TempDir()
	config := filepath.Join(root, "lighttpd.conf")
	_, port, _ := net.SplitHostPort(w.at("app"))
	for file, content := range map[string]string{
		config: fmt.Sprintf("server.document-root = %q\nserver.bind = \"127.0.0.1\"\nserver.port = %s\nserver.modules = (\"mod_cgi\")\ncgi.assign = (\".cgi\" => \"/bin/sh\")\n", root, port),
		filepath.Join(root, "env.cgi"): `printf 'Content-Type: text/plain\r\n\r\n'
env
`,
	} {
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	runPeer(t, lighttpd, "-D", "-f", config).listening(w.at("app"))
	w.start(`
listeners:
  web: {address: '@web', protocol: http, http2: {prior_knowledge: true}, drop_headers: [X-User]}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ['@app']}}
`)
	variables := func(name string, lines []string) string {
		t.Helper()
		c := dial(t, w.at(name))
		defer c.Close()
		resp, body, err := ask(c, bufio.NewReader(c), "GET", "app.example.org", "/env.cgi", lines...)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v, %v: %s", resp, err, body)
		}
		return string(body)
	}
	// Without weir, the program gets these forged variables.
	if direct := variables("app", []string{"X!Client!Cert!Subject: forged", "X~Forwarded~For: forged"}); !strings.Contains(direct, "HTTP_X_CLIENT_CERT_SUBJECT=forged") ||
		!strings.Contains(direct, "HTTP_X_FORWARDED_FOR=forged") {
		t.Fatalf("lighttpd names its variables in another way:\n%s", direct)
	}
	lines := []string{"Proxy: forged", "PROXY: forged"}
	for _, name := range append(forgeable, "X-User") {
		lines = append(lines, name+": forged")
		for _, c := range "!#$%&'*+.^_`|~" {
			lines = append(lines, strings.ReplaceAll(name, "-", string(c))+": forged", strings.Replace(strings.ToLower(name), "-", string(c), 1)+": forged")
		}
	}
	for len(lines) > 0 {
		part := lines[:min(len(lines), 90)]
		lines = lines[len(part):]
		args := []string{"--http2-prior-knowledge"}
		for _, line := range part {
			args = append(args, "-H", line)
		}
		for wire, got := range map[string]string{
			"HTTP/1.1": variables("web", append(part, "X-Honest: yes")),
			"HTTP/2":   string(curl(t, append(args, "-H", "X-Honest: yes", "http://"+w.at("web")+"/env.cgi")...)),
		} {
			if !strings.Contains(got, "HTTP_X_HONEST=yes") || !strings.Contains(got, "HTTP_X_REAL_IP=127.0.0.1\n") {
				t.Errorf("%s: the program does not get what it should:\n%s", wire, got)
			}
			if strings.Contains(got, "forged") || strings.Contains(got, "HTTP_PROXY=") {
				t.Errorf("%s: the program gets what was forged:\n%s", wire, got)
			}
		}
	}
}

// weir does not trust HTTP headers that a trusted proxy only passes on from its own
// clients. HAProxy and nginx append to X-Forwarded-For, set X-Forwarded-Proto, and pass on
// all others.
func TestClientsOfTrustedProxiesForgeNothing(t *testing.T) {
	t.Parallel()
	needLinux(t)
	for _, proxy := range []string{"haproxy", "nginx"} {
		t.Run(proxy, func(t *testing.T) {
			need(t, proxy)
			w := newWeir(t)
			w.address["app"] = newWebBackend(t, "app").address
			w.start(`
listeners:
  web: {address: '@web', protocol: http, trust_forwarded: [127.0.0.1/32]}
  more: {address: '@more', protocol: http, trust_forwarded: [127.0.0.1/32], trust: [for, proto, host]}
routes: [{listeners: [web, more], backend: app}]
backends: {app: {endpoints: ['@app']}}
`)
			w.log.awaits(t, `write \"trust: [for, proto]\" to confirm this`)
			at := map[string]string{"web": freePort(t), "more": freePort(t)}
			config := ""
			for name, address := range at {
				config += map[string]string{"haproxy": fmt.Sprintf(`
listen %s
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
    bind %s
    option forwardfor
    http-request set-header X-Forwarded-Proto https
    server weir %s source 127.0.0.1
`, name, address, w.at(name)), "nginx": fmt.Sprintf(`
    # %s
    server {
        listen %s;
        location / {
            proxy_pass http://%s;
            proxy_bind 127.0.0.1;
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto https;
        }
    }
`, name, address, w.at(name))}[proxy]
			}
			runProxy(t, proxy, w.dir, config).listening(at["web"], at["more"])
			var lines []string
			for _, name := range forgeable {
				if name != "X-Forwarded-Proto" && !strings.Contains(name, "Client-IP") && !strings.Contains(name, "Connecting") { // only CDNs set these HTTP headers
					lines = append(lines, name+": 6.6.6.6")
				}
			}
			lines = append(lines, "Forwarded: for=6.6.6.6;proto=http", "Connection: X-Forwarded-For, X-Real-IP, X-Forwarded-Proto, X-Request-Id")
			for name, host := range map[string]string{"web": "app.example.org", "more": "6.6.6.6"} {
				for i, from := range []string{"127.0.0.9", "127.0.0.10"} {
					c := dial(t, at[name], from)
					s, err := askSeen(c, "app.example.org", fmt.Sprintf("/%s/%d", name, i), lines...)
					c.Close()
					if err != nil {
						t.Fatal(err)
					}
					want := map[string]string{"X-Real-Ip": from, "X-Forwarded-Proto": "https", "X-Forwarded-Host": host,
						"Forwarded": fmt.Sprintf(`for=%s;host="%s";proto=https`, from, host), "X-Forwarded-For": "6.6.6.6, " + from + ", 127.0.0.1"}
					for name, value := range want {
						if got := s.Header[name]; len(got) != 1 || got[0] != value {
							t.Errorf("%s is %q, not %q", name, got, value)
						}
						s.Header.Del(name)
					}
					s.Header.Del("X-Request-Id") // says nothing about the client, and the proxy may pass it on
					if strings.Contains(fmt.Sprint(s.Header), "6.6.6.6") {
						t.Errorf("the backend got %v", s.Header)
					}
					e := w.logged("the request", func(e entry) bool { return e.text("target") == fmt.Sprintf("/%s/%d", name, i) })
					if e.text("client") != from || !strings.HasPrefix(e.text("sender"), "127.0.0.1:") || e.text("peer") != e.text("sender") {
						t.Errorf("the access log says %v", e)
					}
				}
			}
		})
	}
}

// The PROXY header of a load balancer names a proxy, and that proxy names the client.
// Nothing else that the proxy passes on changes which client weir uses.
func TestClientBehindALoadBalancerAndACDN(t *testing.T) {
	t.Parallel()
	needLinux(t)
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.start(`
listeners:
  edge: {address: '@edge', protocol: tls, proxy_protocol: edge, trust_forwarded: ["198.51.100.0/24", "2001:db8:c::/48"], trust: [for, proto]}
proxy_protocol: {edge: {rules: [{from: [127.0.0.0/8], header: require}]}}
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes: [{listeners: [edge], backend: app}]
backends: {app: {endpoints: ['@app']}}
`)
	n := 0
	f := func(from, client string, lists ...string) {
		t.Helper()
		var lines []string
		for _, list := range lists {
			lines = append(lines, "X-Forwarded-For: "+list)
		}
		to := "192.0.2.200:443"
		if strings.HasPrefix(from, "[") {
			to = "[2001:db8::200]:443"
		}
		c := tls.Client(dialWith(t, w.at("edge"), v2Header(from, to)), anyCertificate("app.example.org"))
		defer c.Close()
		n++
		s, err := askSeen(c, "app.example.org", fmt.Sprintf("/%d", n), lines...)
		if err != nil {
			t.Fatal(err)
		}
		address := strings.Trim(client, "[]")
		if got := s.Header["X-Real-Ip"]; len(got) != 1 || got[0] != address {
			t.Errorf("%q from %s: X-Real-IP is %q, not %s", lists, from, got, address)
		}
		if got := s.Header["Forwarded"]; len(got) != 1 || !strings.HasPrefix(got[0], "for="+address+";") && !strings.HasPrefix(got[0], `for="[`+address+`]";`) {
			t.Errorf("%q from %s: Forwarded is %q, not for %s", lists, from, got, address)
		}
		e := w.logged("the request", func(e entry) bool { return e.text("target") == fmt.Sprintf("/%d", n) })
		if e.text("peer") == "" || strings.HasPrefix(e.text("peer"), "198.") || !strings.Contains(e.text("client"), address) || (e.text("sender") != from) != (e.text("client") == from) {
			t.Errorf("%q from %s: the access log says %v", lists, from, e)
		}
	}
	const cdn = "198.51.100.7:1234"
	f(cdn, "203.0.113.9", "203.0.113.9")
	f(cdn, "203.0.113.9", "6.6.6.6, 203.0.113.9")
	f(cdn, "203.0.113.9", "6.6.6.6", "203.0.113.9, 198.51.100.8")
	f(cdn, "203.0.113.9", "6.6.6.6, ::ffff:203.0.113.9, [2001:db8:c::1]:443")
	f(cdn, "2001:db8::9", "6.6.6.6, [2001:db8::9]:5678")
	f("[2001:db8:c::7]:1234", "203.0.113.9", "6.6.6.6, 203.0.113.9:80")
	for _, bad := range []string{"unknown", "_hidden", `"6.6.6.6"`, "for=6.6.6.6", "6.6.6.6;x", "6.6.6.6.", "[6.6.6.6]", "fe80::1%", "-"} {
		f(cdn, "198.51.100.7", "6.6.6.6, "+bad)
		f(cdn, "198.51.100.8", "6.6.6.6, "+bad+", 198.51.100.8")
		f(cdn, "203.0.113.9", bad+", 203.0.113.9")
	}
	f(cdn, "198.51.100.8", "198.51.100.8, 198.51.100.9")
	f(cdn, "198.51.100.9", strings.Repeat("6.6.6.6,", 1000)+strings.Repeat("198.51.100.9,", 40)+"198.51.100.9")
	// weir ignores the HTTP headers of a sender that is no CDN.
	f("203.0.113.9:1234", "203.0.113.9", "6.6.6.6")
	f("[2001:db8::9]:1234", "2001:db8::9", "6.6.6.6, 198.51.100.7")
}
