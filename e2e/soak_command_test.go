package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// These tests run weir soak against weir, HAProxy and nginx, with correct and with wrong settings.

const soakedHAProxy = `
global
    maxconn 2000
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend web
    bind %[1]s
    http-request return status 200 content-type text/plain lf-string "client=%%[src]"
frontend secure
    bind %[2]s accept-proxy ssl crt %[3]s alpn h2,http/1.1
    http-request return status 200 content-type text/plain lf-string "client=%%[src]"
`

const soakedNginx = `
    set_real_ip_from 127.0.0.0/8;
    real_ip_header proxy_protocol;
    server {
        listen %[1]s;
        location / { return 200 "client=$remote_addr"; }
    }
    server {
        listen %[2]s ssl http2 proxy_protocol;
        ssl_certificate %[3]s;
        ssl_certificate_key %[4]s;
        location / { return 200 "client=$remote_addr"; }
    }
`

// soaked has the fields of a soak report that these tests read.
type soaked struct {
	Requests  int64                       `json:"requests"`
	Peak      int64                       `json:"connections_peak"`
	Outcomes  map[string]map[string]int64 `json:"outcomes"`
	Anomalies []struct {
		Kind     string `json:"kind"`
		Count    int64  `json:"count"`
		Examples []struct {
			Detail string `json:"detail"`
		} `json:"examples"`
	} `json:"anomalies"`
}

// soakFor runs weir soak. It expects anomalies of these kinds, and no others.
func soakFor(t *testing.T, kinds []string, args ...string) soaked {
	t.Helper()
	args = append([]string{"soak", "--json", "-", "-n", "50", "--connect-rate", "500/s", "-d", "1s", "--every", "300ms"}, args...)
	cmd := exec.Command(executable(t), args...)
	var text bytes.Buffer
	cmd.Stderr = &text
	out, err := cmd.Output()
	var s soaked
	if wrong := json.Unmarshal(out, &s); wrong != nil {
		t.Fatalf("weir %s: %v, %v:\n%s\n%s", strings.Join(args, " "), err, wrong, out, text.String())
	}
	var found []string
	for _, a := range s.Anomalies {
		found = append(found, a.Kind)
	}
	slices.Sort(found)
	status := cmd.ProcessState.ExitCode()
	want := []int{0}
	if len(kinds) > 0 {
		want = []int{3, 5} // 3: anomalies; 5: no response
	}
	if !slices.Equal(found, kinds) || !slices.Contains(want, status) {
		t.Errorf("weir %s: found %v, want %v; status %d\n%s", strings.Join(args, " "), found, kinds, status, text.String())
	}
	return s
}

// startSoaked starts HAProxy or nginx with a plain port, and with a TLS port that requires PROXY headers.
func startSoaked(t *testing.T, name, config string) (web, secure string) {
	t.Helper()
	dir := t.TempDir()
	web, secure = freePort(t), freePort(t)
	cert := writeCertificate(t, dir, name, false, "app.example.org")
	runProxy(t, name, dir, fmt.Sprintf(config+"%.0[4]s", web, secure, cert.both, cert.key)).listening(web)
	return web, secure
}

func TestSoakFindsNothingAtPeers(t *testing.T) {
	t.Parallel()
	needLinux(t)
	long(t)
	for _, p := range []struct{ name, config string }{{"haproxy", soakedHAProxy}, {"nginx", soakedNginx}} {
		t.Run(p.name, func(t *testing.T) {
			web, secure := startSoaked(t, p.name, p.config)
			pattern := []string{"--address-pattern", `client=(\S+)`, "--host", "app.example.org"}
			f := func(address string, args ...string) {
				t.Helper()
				if s := soakFor(t, nil, slices.Concat(pattern, args, []string{address})...); s.Peak < 1 || s.Requests < 1 {
					t.Errorf("%d requests on %d connections", s.Requests, s.Peak)
				}
			}
			f(web, "--churn", "500ms")
			f(web, "--body", "100000", "--open-bodies", "10%", "--slow-readers", "10%", "--processes", "2")
			f(secure, "--tls", "--proxy-header", "v1", "--churn", "500ms")
			f(secure, "--tls", "--protocol", "http2", "--proxy-header", "v2", "--clients", "10.0.0.0/8,2001:db8::/32")
			f(secure, "--tls", "--proxy-header", "v2", "--cut", "hello+50%", "--share", "50%")
		})
	}
}

// TestSoakFindsPlaintext names a plain port as the TLS port: weir soak reports the plain text.
func TestSoakFindsPlaintext(t *testing.T) {
	t.Parallel()
	needLinux(t)
	web, _ := startSoaked(t, "nginx", soakedNginx)
	s := soakFor(t, []string{"plaintext_on_tls"}, "--tls", web)
	if len(s.Anomalies) == 1 && !strings.Contains(s.Anomalies[0].Examples[0].Detail, "HTTP/1.1 400") {
		t.Errorf("the example is %+v", s.Anomalies[0].Examples[0])
	}
}

// TestSoakWeir runs weir soak against weir, with complete, late and truncated headers.
func TestSoakWeir(t *testing.T) {
	t.Parallel()
	needLinux(t)
	long(t)
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.start(strings.Replace(weirAsPeer, "header_timeout: 8s", "header_timeout: 3s", 1)) // half of the late headers exceed this timeout
	common := []string{"--host", "app.example.org", "--address-pattern", `"X-Forwarded-For":\["([^"]+)"`}
	f := func(address string, args ...string) soaked {
		t.Helper()
		return soakFor(t, nil, slices.Concat(common, args, []string{w.at(address)})...)
	}
	f("web", "--churn", "500ms")
	f("secure", "--tls", "--proxy-header", "v2", "--churn", "500ms")
	f("secure", "--tls", "--proxy-header", "v1", "--delay", "header+8=100ms", "--expect", "served")
	late := f("secure", "--tls", "--proxy-header", "v2", "-d", "6s", "--delay", "header+8=20s", "--share", "50%", "--expect", "closed")
	if late.Outcomes["faults"]["closed"] < 20 {
		t.Errorf("late headers: %v", late.Outcomes)
	}
	f("secure", "--tls", "--proxy-header", "v2", "--cut", "header+50%", "--share", "50%", "--expect", "closed")
	f("secure", "--tls", "--proxy-header", "v2", "--cut", "hello+10", "--share", "50%", "--expect", "closed")
	soakFor(t, []string{"closed"}, "--tls", w.at("secure")) // weir soak sends no PROXY headers
}

// TestSoakProtocols makes one run at a fixed rate with four targets behind weir, each with its own protocol.
func TestSoakProtocols(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	w.address["api"] = newGRPCBackend(t).address
	w.start(`
listeners:
  web: {address: '@web', protocol: http}
  secure: {address: '@secure', protocol: tls}
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes:
  - {listeners: [secure], paths: [/grpc.health.v1.Health/], backend: api}
  - {listeners: [web, secure], backend: app}
backends:
  app: {endpoints: ['@app']}
  api: {protocol: grpc, endpoints: ['@api']}
`)
	cmd := exec.Command(executable(t), "soak", "--json", "-", "--rate", "200/s", "-d", "1s", "-n", "12", "--timeout", "30s",
		"--host", "app.example.org", "--message", "echo", "--max-errors", "0", "--max-p99", "1m",
		"http://"+w.at("web")+"/a", "https://"+w.at("secure")+"/b", "wss://"+w.at("secure")+"/ws", "grpcs://"+w.at("secure"))
	var text bytes.Buffer
	cmd.Stderr = &text
	out, err := cmd.Output()
	var r struct {
		Result  string `json:"result"`
		Targets []struct {
			Protocol string           `json:"protocol"`
			Requests int64            `json:"requests"`
			GRPC     map[string]int64 `json:"grpc_statuses"`
		} `json:"targets"`
	}
	if wrong := json.Unmarshal(out, &r); wrong != nil || err != nil || r.Result != "ok" || len(r.Targets) != 4 {
		t.Fatalf("%v, %v, %+v\n%s", err, wrong, r, text.String())
	}
	for i, want := range []string{"http1", "http1", "websocket", "grpc"} {
		if got := r.Targets[i]; got.Protocol != want || got.Requests != 50 || want == "grpc" && got.GRPC["0"] != 50 {
			t.Errorf("target %d: %+v, want 50 requests by %s", i, got, want)
		}
	}
}

// TestSoakDemo checks that the commands in the help work with the addresses that weir demo prints.
func TestSoakDemo(t *testing.T) {
	t.Parallel()
	demo := runPeer(t, executable(t), "demo")
	proxied := regexp.MustCompile(`curl --haproxy-protocol http://(\S+)/`)
	var address string
	eventually(t, "the demo says where it listens", func() error {
		m := proxied.FindStringSubmatch(demo.log.String())
		if m == nil {
			return errNotYet
		}
		address = m[1]
		return nil
	})
	soakFor(t, nil, "--proxy-header", "v1", "--address-pattern", `X-Forwarded-For: (\S+)`, address)
}
