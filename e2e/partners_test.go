package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// These tests put other proxies than HAProxy and nginx in front of weir and behind it, and use clients with
// other TLS libraries.

// writeFile writes a file to the test's directory and returns its path.
func writeFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// runHitch runs Hitch. It accepts TLS at the address at, and connects to the address to.
func runHitch(t *testing.T, dir, at, to, options string, cert certificate) {
	t.Helper()
	host, port, _ := strings.Cut(at, ":")
	toHost, toPort, _ := strings.Cut(to, ":")
	if os.Getuid() == 0 { // if root starts Hitch, it requires another user
		options += "\nuser = \"daemon\"\n"
	}
	config := writeFile(t, dir, "hitch.conf", fmt.Sprintf(`
frontend = { host = %q port = %q }
backend = "[%s]:%s"
pem-file = %q
workers = 1
daemon = off
%s
`, host, port, toHost, toPort, cert.both, options))
	runPeer(t, need(t, "hitch"), "--config="+config).listening(at)
}

// runStunnel runs stunnel with one service.
func runStunnel(t *testing.T, dir, name, at, service string) {
	t.Helper()
	config := writeFile(t, dir, name+".conf", fmt.Sprintf("foreground = yes\npid =\nsyslog = no\n[%s]\naccept = %s\n%s\n", name, at, service))
	runPeer(t, need(t, "stunnel4"), config).listening(at)
}

// runVarnish runs Varnish without a cache.
func runVarnish(t *testing.T, dir, name, at, vcl string) {
	t.Helper()
	file := writeFile(t, dir, name+".vcl", "vcl 4.1;\n"+vcl)
	runPeer(t, need(t, "varnishd"), "-F", "-n", filepath.Join(dir, name), "-a", at, "-f", file, "-s", "malloc,10m", "-j", "none").listening(strings.TrimSuffix(at, ",PROXY"))
}

// runApache runs Apache with the lines that every configuration needs, followed by config.
func runApache(t *testing.T, dir, modules, config string, at ...string) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "ServerRoot %[1]q\nPidFile apache.pid\nErrorLog apache.log\nDefaultRuntimeDir %[1]q\nServerName localhost\nUser daemon\nGroup daemon\n", dir)
	for _, m := range strings.Fields("mpm_event authz_core " + modules) {
		fmt.Fprintf(&b, "LoadModule %[1]s_module /usr/lib/apache2/modules/mod_%[1]s.so\n", m)
	}
	for _, a := range at {
		fmt.Fprintf(&b, "Listen %s\n", a)
	}
	file := writeFile(t, dir, "apache.conf", b.String()+config)
	runPeer(t, need(t, "apache2"), "-DFOREGROUND", "-f", file).listening(at...)
}

// The client's address in the PROXY header of Hitch, stunnel and Varnish reaches the
// application.
func TestMoreProxiesInFront(t *testing.T) {
	t.Parallel()
	needLinux(t)
	need(t, "hitch")
	need(t, "stunnel4")
	need(t, "varnishd")
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.start(`
listeners:
  web: {address: '@web', protocol: http, proxy_protocol: edge}
proxy_protocol: {edge: {rules: [{from: [127.0.0.0/8], header: require}]}}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ['@app']}}
`)
	cert := writeCertificate(t, w.dir, "front", true, "app.example.org")
	at := map[string]string{"hitch": freePort(t), "stunnel": freePort(t), "varnish": freePort(t)}
	runHitch(t, w.dir, at["hitch"], w.at("web"), "write-proxy-v2 = on", cert)
	runStunnel(t, w.dir, "stunnel", at["stunnel"], "connect = "+w.at("web")+"\ncert = "+cert.both+"\nprotocol = proxy")
	host, port, _ := strings.Cut(w.at("web"), ":")
	runVarnish(t, w.dir, "varnish", at["varnish"], fmt.Sprintf(`
backend weir { .host = %q; .port = %q; .proxy_header = 2; }
sub vcl_recv { return (pass); }
`, host, port))
	body := writeFile(t, w.dir, "body", string(pattern(300_000)))
	for i, name := range []string{"hitch", "stunnel", "varnish"} {
		from, base := fmt.Sprintf("127.0.0.%d", 31+i), "https://"+at[name]
		if name == "varnish" {
			base = "http://" + at[name]
		}
		s := curlSeen(t, base+"/"+name, "--interface", from, "-H", "X-Forwarded-For: 6.6.6.6", "--data-binary", "@"+body)
		if got := s.Header.Get("X-Forwarded-For"); got != from || s.Sum != sum256(pattern(300_000)) {
			t.Errorf("%s: the application sees a request of %s with the body %s; the client is %s", name, got, s.Sum, from)
		}
	}
}

// Apache, nginx and Varnish can read the PROXY headers that weir sends.
func TestMoreReceiversOfPROXYHeaders(t *testing.T) {
	t.Parallel()
	needLinux(t)
	need(t, "nginx")
	need(t, "apache2")
	need(t, "varnishd")
	w := newWeir(t)
	runProxy(t, "nginx", w.dir, fmt.Sprintf("    server { listen %s proxy_protocol; location / { return 200 $proxy_protocol_addr; } }\n", w.at("nginx"))).listening(w.at("nginx"))
	if err := os.Mkdir(filepath.Join(w.dir, "www"), 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := w.dir; dir != "/" && strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) { // Apache's user must be able to read the directory
		os.Chmod(dir, 0o755)
	}
	writeFile(t, filepath.Join(w.dir, "www"), "index.html", "apache")
	runApache(t, w.dir, "remoteip headers dir", fmt.Sprintf(`
RemoteIPProxyProtocol On
DocumentRoot %q
Header always set X-Client "expr=%%{REMOTE_ADDR}"
DirectoryIndex index.html
`, filepath.Join(w.dir, "www")), w.at("apache"))
	runVarnish(t, w.dir, "varnish", w.at("varnish")+",PROXY", `
backend none none;
sub vcl_recv { return (synth(200)); }
sub vcl_synth { set resp.http.X-Client = client.ip; return (deliver); }
`)
	var config strings.Builder
	config.WriteString("listeners: {web: {address: '@web', protocol: http}}\nroutes:\n")
	for _, name := range []string{"nginx", "apache", "varnish"} {
		for _, v := range []string{"v1", "v2"} {
			fmt.Fprintf(&config, "  - {listeners: [web], hosts: [%[1]s.%[2]s], backend: %[1]s-%[2]s}\n", name, v)
		}
	}
	config.WriteString("backends:\n")
	for _, name := range []string{"nginx", "apache", "varnish"} {
		for _, v := range []string{"v1", "v2"} {
			fmt.Fprintf(&config, "  %[1]s-%[2]s: {endpoints: ['@%[1]s'], send_proxy: %[2]s}\n", name, v)
		}
	}
	w.start(config.String())
	n := 40
	for _, name := range []string{"nginx", "apache", "varnish"} {
		for _, v := range []string{"v1", "v2"} {
			n++
			from := fmt.Sprintf("127.0.0.%d", n)
			out := string(curl(t, "http://"+w.at("web")+"/", "--interface", from, "-H", "Host: "+name+"."+v, "-i"))
			if !strings.HasSuffix(out, "\r\n\r\n"+from) && !strings.Contains(strings.ToLower(out), "\r\nx-client: "+from+"\r\n") {
				t.Errorf("%s by %s does not see %s:\n%s", name, v, from, out)
			}
		}
	}
}

// Requests, uploads and reused connections work if weir forwards them to Apache, Varnish, Hitch or stunnel in
// front of the application.
func TestMoreServersBehind(t *testing.T) {
	t.Parallel()
	needLinux(t)
	for _, name := range []string{"apache2", "hitch", "stunnel4", "varnishd"} {
		need(t, name)
	}
	w := newWeir(t)
	app := newWebBackend(t, "app").address
	w.address["app"] = app
	cert := writeCertificate(t, w.dir, "inside", true, "inside.example.org")
	runHitch(t, w.dir, w.at("hitch"), app, "alpn-protos = \"http/1.1\"", cert)
	runStunnel(t, w.dir, "stunnel", w.at("stunnel"), "connect = "+app+"\ncert = "+cert.both)
	host, port, _ := strings.Cut(app, ":")
	runVarnish(t, w.dir, "varnish", w.at("varnish"), fmt.Sprintf("backend app { .host = %q; .port = %q; }\nsub vcl_recv { return (pass); }\n", host, port))
	runApache(t, w.dir, "socache_shmcb ssl http2 proxy proxy_http", fmt.Sprintf(`
ProxyPass "/" "http://%s/"
ProxyPreserveHost On
Protocols h2 h2c http/1.1
SSLCertificateFile %q
SSLCertificateKeyFile %q
<VirtualHost %s>
SSLEngine on
</VirtualHost>
`, app, cert.cert, cert.key, w.at("apache-tls")), w.at("apache"), w.at("apache-tls"))
	names := []string{"apache", "apache-h2c", "apache-tls", "hitch", "stunnel", "varnish"}
	var config strings.Builder
	config.WriteString("listeners: {web: {address: '@web', protocol: http}}\nroutes:\n")
	for _, name := range names {
		fmt.Fprintf(&config, "  - {listeners: [web], hosts: [%[1]s], backend: %[1]s}\n", name)
	}
	fmt.Fprintf(&config, `
backends:
  apache: {endpoints: ['@apache']}
  apache-h2c: {protocol: h2c, endpoints: ['@apache']}
  varnish: {endpoints: ['@varnish']}
  apache-tls: {protocol: https, endpoints: ['@apache-tls'], tls: &inside {ca: '@@dir/inside.crt', server_name: inside.example.org}}
  hitch: {protocol: https, endpoints: ['@hitch'], tls: *inside}
  stunnel: {protocol: https, endpoints: ['@stunnel'], tls: *inside}
`)
	w.start(config.String())
	body := writeFile(t, w.dir, "body", string(pattern(300_000)))
	for _, name := range names {
		for range 3 {
			s := curlSeen(t, "http://"+w.at("web")+"/post", "-H", "Host: "+name, "--data-binary", "@"+body)
			if s.Method != "POST" || s.Host != name || s.Sum != sum256(pattern(300_000)) {
				t.Errorf("%s: %+v", name, s)
			}
			s = curlSeen(t, "http://"+w.at("web")+"/pieces", "-H", "Host: "+name, "-H", "Transfer-Encoding: chunked", "-H", "Expect:", "--data-binary", "@"+body)
			if s.Sum != sum256(pattern(300_000)) {
				t.Errorf("%s, chunked: %+v", name, s)
			}
			for _, path := range []string{"/bytes/200000", "/chunked/200000"} {
				if got := sum256(curl(t, "http://"+w.at("web")+path, "-H", "Host: "+name)); got != sum256(pattern(200_000)) {
					t.Errorf("%s%s: other bytes came", name, path)
				}
			}
			if got := curl(t, "http://"+w.at("web")+"/status/404", "-H", "Host: "+name, "-o", os.DevNull, "-w", "%{http_code}"); string(got) != "404" {
				t.Errorf("%s: %s instead of 404", name, got)
			}
		}
	}
}

// A client without TLS reaches weir through stunnel, which adds TLS.
func TestStunnelAsClient(t *testing.T) {
	t.Parallel()
	need(t, "stunnel4")
	w := startPartners(t)
	for _, host := range []string{"app.example.org", "legacy.example.org"} {
		at := freePort(t)
		options := "client = yes\nconnect = " + w.at("secure") + "\nsni = " + host
		if host == "legacy.example.org" {
			options += "\nsslVersionMax = TLSv1.1\nsslVersionMin = TLSv1\nciphers = ALL:@SECLEVEL=0"
		}
		runStunnel(t, w.dir, host, at, options)
		if s := curlSeen(t, "http://"+at+"/", "-H", "Host: "+host); s.Host != host {
			t.Errorf("%s: %+v", host, s)
		}
	}
}

// NSS, the TLS library of Firefox, connects with each TLS version.
func TestNSS(t *testing.T) {
	t.Parallel()
	tstclnt := need(t, "tstclnt")
	w := startPartners(t)
	host, port, _ := strings.Cut(w.at("secure"), ":")
	ask := func(name, version string) string {
		request := writeFile(t, w.dir, name, "GET /nss HTTP/1.1\r\nHost: "+name+"\r\nConnection: close\r\n\r\n")
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		out, err := exec.CommandContext(ctx, tstclnt, "-h", host, "-p", port, "-a", name, "-D", "-o", "-V", version+":"+version, "-A", request).CombinedOutput()
		return fmt.Sprint(string(out), err)
	}
	for name, versions := range map[string][]string{"app.example.org": {"tls1.2", "tls1.3"}, "legacy.example.org": {"tls1.0", "tls1.1", "tls1.2"}} {
		for _, v := range versions {
			if out := ask(name, v); !strings.Contains(out, "HTTP/1.1 200 OK") {
				t.Errorf("%s by %s: %s", name, v, out)
			}
		}
	}
	if out := ask("app.example.org", "tls1.0"); strings.Contains(out, "200 OK") || !strings.Contains(out, "PROTOCOL_VERSION") {
		t.Errorf("TLS 1.0 where it is not allowed: %s", out)
	}
}

// Java's two HTTP clients connect with each TLS version, without SNI, and with uploads.
func TestJava(t *testing.T) {
	t.Parallel()
	java := need(t, "java")
	w := startPartners(t)
	hosts := writeFile(t, w.dir, "hosts", "127.0.0.1 app.example.org legacy.example.org\n")
	allow := writeFile(t, w.dir, "allow.security", "jdk.tls.disabledAlgorithms=NULL, anon\njdk.tls.legacyAlgorithms=\njdk.certpath.disabledAlgorithms=\n")
	_, port, _ := strings.Cut(w.at("secure"), ":")
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, java, "-Djava.security.properties="+allow, "-Djdk.net.hosts.file="+hosts, "-Djdk.internal.httpclient.disableHostnameVerification=true",
		"-XX:TieredStopAtLevel=1", "-Xshare:auto", "testdata/Partner.java", port)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "all went well") {
		t.Errorf("%v\n%s", err, out)
	}
}
