package e2e

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const adminSecret = "e2e-0123456789abcdef"

// sendTo sends a request with a Host header and other HTTP headers to one of weir's ports.
func (w *weir) sendTo(method, name, path, host string, header ...string) (status int, body string) {
	w.t.Helper()
	req, err := http.NewRequest(method, "http://"+w.at(name)+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if host != "" {
		req.Host = host
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := control.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// A web page can neither read from the admin port nor change anything there: neither by DNS
// rebinding nor by a script of another site.
func TestAttackDNSRebinding(t *testing.T) {
	t.Parallel()
	w := newWeir(t).start(`
listeners: {web: {address: '@web', protocol: http}}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ['127.0.0.1:1']}}
admin: {address: '@admin', hosts: [edge.example]}
metrics: {address: '@metrics'}
`)
	want := func(status int, method, path, host string, header ...string) {
		t.Helper()
		if got, body := w.sendTo(method, "admin", path, host, header...); got != status {
			t.Errorf("%s %s for %q with %q is answered %d, not %d: %.200s", method, path, host, header, got, status, body)
		}
	}
	begun := time.Now()
	for _, path := range []string{"/status", "/config", "/metrics", "/debug/pprof/heap", "/debug/pprof/profile?seconds=30", "/debug/pprof/trace?seconds=30"} {
		for _, method := range []string{"GET", "POST", "HEAD"} {
			want(421, method, path, "evil.example")
			want(421, method, path, "evil.example:8087")
			want(403, method, path, "", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors")
			want(403, method, path, "", "Origin", "https://evil.example")
		}
		if strings.HasPrefix(path, "/debug") {
			want(403, "GET", path, "")
			want(403, "POST", path, "")
		}
	}
	want(421, "POST", "/drain", "evil.example")
	want(403, "POST", "/drain", "", "Origin", "http://localhost:3000")
	if took := time.Since(begun); took > 25*time.Second {
		t.Errorf("a profile was made: it took %v", took)
	}
	want(200, "GET", "/status", "edge.example")
	want(200, "GET", "/status", "localhost")
	want(200, "GET", "/status", "")
	want(403, "POST", "/drain", "")
	resp, err := trusted.Post("http://"+w.at("admin")+"/debug/pprof/profile?seconds=1", "", nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("a profile by the socket of the port: %v", err)
	}
	resp.Body.Close()
	w.wantVerdict(200)
	if n := w.metric("weir_admin_refused_total", "reason", "host"); n < 30 {
		t.Errorf("%v refusals are counted", n)
	}

	for _, path := range []string{"/", "/status", "/config", "/drain", "/reload", "/debug/pprof/", "/debug/pprof/heap"} {
		for _, method := range []string{"GET", "POST"} {
			if got, _ := w.sendTo(method, "metrics", path, ""); got != 404 {
				t.Errorf("%s %s on the metrics port is answered %d", method, path, got)
			}
		}
	}
	if got, body := w.sendTo("GET", "metrics", "/metrics", ""); got != 200 || !strings.Contains(body, "weir_build_info") {
		t.Errorf("the metrics are %d", got)
	}
}

// If other machines can reach the admin port, it authenticates its clients, or weir does
// not start.
func TestAttackOpenAdminPort(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "weir.yaml")
	base := "listeners: {web: {address: '127.0.0.1:1', protocol: http}}\nroutes: [{listeners: [web], backend: app}]\nbackends: {app: {endpoints: ['127.0.0.1:1']}}\n"
	check := func(admin string) (string, error) {
		if err := os.WriteFile(file, []byte(base+admin), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(executable(t), "check", "-c", file).CombinedOutput()
		return string(out), err
	}
	if out, err := check("admin: {address: ':8087'}\n"); err == nil || !strings.Contains(out, "admin.token") || !strings.Contains(out, "admin.tls") || !strings.Contains(out, "metrics.address") {
		t.Errorf("weir check says %v: %s", err, out)
	}
	if out, err := check("admin: {address: ':8087', token: " + adminSecret + "}\n"); err != nil || strings.Contains(out, adminSecret) || !strings.Contains(out, "unencrypted") {
		t.Errorf("with a token weir check says %v: %s", err, out)
	}

	w := newWeir(t).start(`
listeners: {web: {address: '@web', protocol: http}}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ['127.0.0.1:1']}}
admin: {address: '@admin', token: ` + adminSecret + `}
metrics: {address: '@metrics'}
`)
	for _, c := range []struct {
		method, path, header string
		status               int
	}{
		{"POST", "/drain", "", 401}, {"GET", "/status", "", 401}, {"GET", "/metrics", "", 401}, {"POST", "/debug/pprof/heap", "", 401},
		{"POST", "/drain", "Bearer " + adminSecret[:19], 401}, {"GET", "/status", "Bearer " + adminSecret, 200},
		{"GET", "/debug/pprof/heap", "Bearer " + adminSecret, 200}, {"GET", "/config", "Bearer " + adminSecret, 200},
	} {
		if got, body := w.sendTo(c.method, "admin", c.path, "", "Authorization", c.header); got != c.status || strings.Contains(body, adminSecret) {
			t.Errorf("%s %s with %q is answered %d, not %d: %.300s", c.method, c.path, c.header, got, c.status, body)
		}
	}
	w.wantVerdict(200)
	if strings.Contains(w.log.String(), adminSecret) {
		t.Error("the token is in the log")
	}
	// go tool pprof requests the profile itself.
	out, err := exec.Command("go", "tool", "pprof", "-proto", "-output", filepath.Join(dir, "profile"), "http://weir:"+adminSecret+"@"+w.at("admin")+"/debug/pprof/heap").CombinedOutput()
	if err != nil {
		t.Errorf("go tool pprof: %v\n%s", err, out)
	}
	report := exec.Command(executable(t), "tls", "report", "http://"+w.at("admin"))
	report.Env = append(os.Environ(), "WEIR_ADMIN_TOKEN="+adminSecret)
	if out, err := report.CombinedOutput(); err != nil || strings.Contains(string(out), adminSecret) {
		t.Errorf("weir tls report: %v\n%s", err, out)
	}
}

// A list of guessed passwords finds nothing in weir_config_hash: the hash is the same for
// every secret.
func TestAttackWordListOnHash(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	hashes := map[string]bool{}
	for _, token := range []string{"first-0123456789abcdef", "second-0123456789abcdef"} {
		w.start(`
listeners: {web: {address: '@web', protocol: http}}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ['127.0.0.1:1']}}
admin: {address: '@admin', token: ` + token + `}
metrics: {address: '@metrics'}
`)
		_, text, err := w.get("metrics", "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(text, `weir_config_hash{hash="`)
		hash, _, _ := strings.Cut(after, `"`)
		hashes[hash] = true
		if status := w.terminate(); status != 0 {
			t.Errorf("weir ends with %d", status)
		}
	}
	if len(hashes) != 1 || hashes[""] {
		t.Errorf("the hashes are %v", hashes)
	}
}

// A profile takes the requested time, even if that is longer than the limit for other
// requests.
func TestProfileOfManySeconds(t *testing.T) {
	long(t)
	t.Parallel()
	w := newWeir(t).start("listeners: {web: {address: '@web', protocol: http}}\nroutes: [{listeners: [web], backend: app}]\nbackends: {app: {endpoints: ['127.0.0.1:1']}}\n")
	begun := time.Now()
	resp, err := (&http.Client{Timeout: time.Minute, Transport: trusted.Transport}).Post("http://"+w.at("admin")+"/debug/pprof/profile?seconds=12", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 || time.Since(begun) < 11*time.Second {
		t.Errorf("the profile is answered %s after %v, %v", resp.Status, time.Since(begun), err)
	}
}
