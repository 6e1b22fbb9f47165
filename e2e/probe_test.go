package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// probed is the part of the report of "weir probe --json" that these tests check.
type probed struct {
	Verdict, Protocol string
	Reads             struct {
		V1, V2, Unknown, Local, TLVs, CRC32C bool
		WrongCRC32C                          bool `json:"wrong_crc32c"`
	}
	Late, Stalled, Truncated, Malformed, Duplicated, Spoofed, Plaintext string
	Seconds                                                             float64
	Connections                                                         int
}

// runProbe runs "weir probe". The endpoints of these tests close late connections after three seconds.
func runProbe(t *testing.T, address string) (r probed) {
	t.Helper()
	cmd := exec.Command(executable(t), "probe", "--json", "--wait", "15s", "--host", "app.example.org", address)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", cmd, err, out)
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if r.Seconds > 60 || r.Connections > 40 {
		t.Errorf("%s: %d connections in %.1f s", address, r.Connections, r.Seconds)
	}
	return r
}

// weir probe finds how weir, HAProxy, nginx, Apache, Varnish and Hitch treat PROXY headers.
func TestProbe(t *testing.T) {
	t.Parallel()
	needLinux(t)
	for _, name := range []string{"haproxy", "nginx", "apache2", "varnishd", "hitch"} {
		need(t, name)
	}
	w := newWeir(t)
	app := newWebBackend(t, "app").address
	w.address["app"] = app
	cert := writeCertificate(t, w.dir, "probed", true, "app.example.org")
	w.start(`
listeners:
  plain: {address: '@plain', protocol: http}
  plain-tls: {address: '@plain-tls', protocol: tls}
  requires: {address: '@requires', protocol: http, proxy_protocol: requires}
  requires-tls: {address: '@requires-tls', protocol: tls, proxy_protocol: requires}
  accepts-tls: {address: '@accepts-tls', protocol: tls, proxy_protocol: accepts}
proxy_protocol:
  requires: {header_timeout: 3s, rules: [{from: [127.0.0.0/8], header: require}]}
  accepts: {header_timeout: 3s, rules: [{from: [127.0.0.0/8], header: optional}]}
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes: [{listeners: [plain, plain-tls, requires, requires-tls, accepts-tls], backend: app}]
backends: {app: {endpoints: ['@app']}}
`)
	at := func(name string) string { return w.at(name) }
	runProxy(t, "haproxy", w.dir, fmt.Sprintf(`
defaults
    mode http
    timeout connect 5s
    timeout client 3s
    timeout http-request 3s
    timeout server 20s
frontend plain
    bind %[1]s
    bind %[2]s accept-proxy
    bind %[3]s accept-proxy ssl crt %[4]s
    default_backend app
backend app
    server app %[5]s
`, at("haproxy"), at("haproxy-requires"), at("haproxy-requires-tls"), cert.both, app)).listening(at("haproxy-requires-tls"))
	runProxy(t, "nginx", w.dir, fmt.Sprintf(`
    client_header_timeout 3s;
    server { listen %[1]s; location / { return 200; } }
    server { listen %[2]s proxy_protocol; location / { return 200; } }
    server { listen %[3]s ssl proxy_protocol; ssl_certificate %[4]s; ssl_certificate_key %[5]s; location / { return 200; } }
`, at("nginx"), at("nginx-requires"), at("nginx-requires-tls"), cert.cert, cert.key)).listening(at("nginx-requires-tls"))
	for dir := w.dir; dir != "/" && strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) { // Apache's user must be able to read the directory
		os.Chmod(dir, 0o755)
	}
	runApache(t, w.dir, "remoteip", "RemoteIPProxyProtocol On\nTimeout 3\n", at("apache-requires"))
	runVarnish(t, w.dir, "varnish", at("varnish-requires")+",PROXY", "backend none none;\nsub vcl_recv { return (synth(200)); }\n")
	runHitch(t, w.dir, at("hitch-tls"), app, "", cert)

	for _, one := range []struct {
		name, verdict, protocol    string
		late, malformed, plaintext string
		ignores                    string // which kinds of PROXY headers it does not read, and what it does not check
	}{
		{"plain", "does not read", "http", "closes", "answers", "", ""},
		{"plain-tls", "does not read", "tls", "closes", "closes", "closes", ""},
		{"requires", "requires", "http", "closes", "closes", "", ""},
		{"requires-tls", "requires", "tls", "closes", "closes", "closes", ""},
		{"accepts-tls", "accepts", "tls", "closes", "closes", "closes", ""},
		{"health", "accepts", "http", "closes", "closes", "", ""},
		{"haproxy", "does not read", "http", "answers", "answers", "", ""},
		{"haproxy-requires", "requires", "http", "closes", "closes", "", ""},
		{"haproxy-requires-tls", "requires", "tls", "closes", "closes", "closes", ""},
		{"nginx", "does not read", "http", "closes", "answers", "", ""},
		{"nginx-requires", "requires", "http", "closes", "closes", "", "CRC32C"},
		{"nginx-requires-tls", "requires", "tls", "closes", "closes", "answers", "CRC32C"},
		{"apache-requires", "requires", "http", "waits", "closes", "", "UNKNOWN CRC32C"}, // it does not accept a silent connection (TCP_DEFER_ACCEPT),
		{"varnish-requires", "requires", "http", "closes", "closes", "", "UNKNOWN"},
		{"hitch-tls", "does not read", "tls", "closes", "closes", "closes", ""},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			r := runProbe(t, at(one.name))
			got := []string{r.Verdict, r.Protocol, r.Late, r.Malformed, r.Plaintext}
			want := []string{one.verdict, one.protocol, one.late, one.malformed, one.plaintext}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%q, want %q: %+v", got, want, r)
			}
			k := r.Reads
			if r.Verdict != "does not read" && (!k.V1 || !k.V2 || !k.Local || !k.TLVs || !k.CRC32C ||
				k.Unknown == strings.Contains(one.ignores, "UNKNOWN") || k.WrongCRC32C != strings.Contains(one.ignores, "CRC32C")) {
				t.Errorf("it reads %+v", k)
			}
			if r.Verdict != "does not read" && (r.Truncated != "closes" || r.Stalled != "closes" || r.Spoofed != "serves" || r.Duplicated == "serves") {
				t.Errorf("%+v", r)
			}
		})
	}
}
