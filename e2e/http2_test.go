package e2e

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const http2Config = `
listeners:
  web: {address: '@web', protocol: http, http2: {prior_knowledge: true}}
  secure: {address: '@secure', protocol: tls}
certificates: [{self_signed: {hosts: [app.example.org]}}]
routes:
  - {listeners: [web, secure], backend: app}
  - {listeners: [web, secure], paths: [/small], max_body: 1KiB, backend: app}
backends:
  app: {endpoints: ['@app']}
`

func startHTTP2(t *testing.T) (*weir, *webBackend) {
	t.Helper()
	app := newWebBackend(t, "app")
	w := newWeir(t)
	w.address["app"] = app.address
	return w.start(http2Config), app
}

// byHTTP2 waits for the line of the access log about a request for target, and fails the test if that request
// did not use HTTP/2.
func (w *weir) byHTTP2(target string) entry {
	w.t.Helper()
	e := w.logged("a request to "+target, func(e entry) bool { return e.text("target") == target })
	if got := e.text("http_version"); got != "2" {
		w.t.Errorf("%s is logged with HTTP version %q", target, got)
	}
	return e
}

// All tests of h2spec pass, with ALPN and with prior knowledge.
func TestH2spec(t *testing.T) {
	t.Parallel()
	h2spec := need(t, "h2spec")
	w, _ := startHTTP2(t)
	for listener, options := range map[string][]string{"web": nil, "secure": {"-t", "-k"}} {
		t.Run(listener, func(t *testing.T) {
			host, port, _ := net.SplitHostPort(w.at(listener))
			out, err := exec.Command(h2spec, append(options, "-h", host, "-p", port, "-o", "10")...).CombinedOutput()
			if err != nil || !bytes.Contains(out, []byte(" 0 skipped, 0 failed")) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func TestCurlByHTTP2(t *testing.T) {
	t.Parallel()
	need(t, "curl")
	w, _ := startHTTP2(t)
	payload := pattern(5 << 20)
	file := filepath.Join(w.dir, "payload")
	if err := os.WriteFile(file, payload, 0o600); err != nil {
		t.Fatal(err)
	}
	for option, base := range map[string]string{"--http2-prior-knowledge": "http://" + w.at("web"), "--http2": "https://" + w.at("secure")} {
		scheme, _, _ := strings.Cut(base, ":")
		t.Run(scheme, func(t *testing.T) {
			run := func(args ...string) string {
				t.Helper()
				return string(curl(t, append([]string{option}, args...)...))
			}
			report := func(args ...string) (s seen) {
				t.Helper()
				if out := run(args...); json.Unmarshal([]byte(out), &s) != nil {
					t.Fatalf("%q", out)
				}
				return s
			}
			if s := report(base+"/"+scheme+"?q=1;2&bad=%zz", "-H", "X-Forwarded-For: 6.6.6.6", "-H", "X_Forwarded_For: 6.6.6.6", "-H", "Cookie: a=b"); s.URI != "/"+scheme+"?q=1;2&bad=%zz" ||
				s.Header.Get("X-Forwarded-Proto") != scheme || s.Header.Get("X-Forwarded-For") != "127.0.0.1" || strings.Contains(fmt.Sprint(s.Header), "6.6.6.6") || s.Header.Get("Cookie") != "a=b" {
				t.Errorf("%+v", s)
			}
			if e := w.byHTTP2("/" + scheme + "?q=1;2&bad=%zz"); e.text("status") != "200" || e.text("method") != "GET" || e.text("bytes_in") == "" {
				t.Errorf("%v", e)
			}
			if s := report("-T", file, base+"/up"); s.Sum != sum256(payload) || s.Method != "PUT" {
				t.Errorf("%d bytes of an upload", s.Length)
			}
			if s := report("-H", "Expect: 100-continue", "--expect100-timeout", "20", "-T", file, base+"/up"); s.Sum != sum256(payload) {
				t.Errorf("%d bytes of an upload that asked first", s.Length)
			}
			// weir stops the rest of an upload, and the response arrives. Without TLS, curl 7 may read both
			// in one piece, and then loses the response.
			for target, want := range map[string]string{"/early": "403 2", "/small": "413 2"} {
				if scheme == "http" {
					break
				}
				if got := run("-o", "/dev/null", "-w", "%{http_code} %{http_version}", "-T", file, base+target); got != want {
					t.Errorf("an upload to %s that is refused early: %s", target, got)
				}
			}
			if got := run("--head", base+"/bytes/12345"); !strings.Contains(got, "content-length: 12345") {
				t.Errorf("%q", got)
			}
			if got := run(base + "/bytes/50000000"); sum256([]byte(got)) != sum256(pattern(50_000_000)) {
				t.Errorf("%d bytes of a download", len(got))
			}
			if got := run(base + "/chunked/1000000"); got != string(pattern(1_000_000)) {
				t.Errorf("%d bytes of a download without a length", len(got))
			}
			for _, status := range []string{"204", "304", "404", "500", "503"} {
				if scheme == "http" { // curl 7 cannot reuse such a connection, not even to nghttpd
					if out := run("-o", "/dev/null", "-w", "%{http_code}", base+"/status/"+status); out != status {
						t.Errorf("%s: %s", status, out)
					}
					continue
				}
				out := run("-o", "/dev/null", "-w", "%{http_code} %{num_connects}", base+"/status/"+status,
					"--next", option, "--silent", "--insecure", "-o", "/dev/null", "-w", " %{http_code} %{num_connects}", base+"/")
				if out != status+" 1 200 0" {
					t.Errorf("%s, then another on the same connection: %q", status, out)
				}
			}
			if got := run("-o", "/dev/null", "-w", "%{http_code}", "--path-as-is", base+"/a/%2e%2e/b"); got != "400" {
				t.Errorf("a dot segment: %s", got)
			}
		})
	}
}

// weir negotiates h2 only with clients that can use it.
func TestALPN(t *testing.T) {
	t.Parallel()
	w, _ := startHTTP2(t)
	f := func(what, want string, change func(c *tls.Config)) {
		t.Helper()
		config := anyCertificate("app.example.org")
		config.NextProtos = []string{"http/1.1", "h2"}
		change(config)
		c := tls.Client(dial(t, w.at("secure")), config)
		if err := c.Handshake(); err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		if got := c.ConnectionState().NegotiatedProtocol; got != want {
			t.Errorf("%s: ALPN chose %q, not %q, with %s", what, got, want, tls.CipherSuiteName(c.ConnectionState().CipherSuite))
		}
	}
	f("TLS 1.3", "h2", func(c *tls.Config) {})
	f("TLS 1.2", "h2", func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 })
	f("no h2", "http/1.1", func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} })
	f("http/1.0 alone", "http/1.0", func(c *tls.Config) { c.NextProtos = []string{"http/1.0"} })
	f("http/1.0 first", "http/1.1", func(c *tls.Config) { c.NextProtos = []string{"http/1.0", "http/1.1"} })
	f("no ALPN", "", func(c *tls.Config) { c.NextProtos = nil })
	old := strings.Replace(http2Config, "certificates:", `tls_policies:
  default: {min_version: "1.0", cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]}
certificates:`, 1)
	w.reload(old)
	f("TLS 1.0", "http/1.1", func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS10 })
	f("a suite of the block list", "http/1.1", func(c *tls.Config) {
		c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}
	})
	f("one outside of it, too", "h2", func(c *tls.Config) {
		c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}
	})
	f("one outside of it, for RSA", "h2", func(c *tls.Config) {
		c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}
	})
	w.reload(strings.Replace(http2Config, "protocol: tls}", "protocol: tls, http2: false}", 1))
	f("turned off", "http/1.1", func(c *tls.Config) {})
}

// curl --http1.0 offers http/1.0 and no other protocol.
func TestCurlHTTP10(t *testing.T) {
	t.Parallel()
	w, _ := startHTTP2(t)
	out := curl(t, "--http1.0", "--write-out", "%{http_version}", "--output", filepath.Join(w.dir, "body"), "https://"+w.at("secure")+"/bytes/100")
	body, err := os.ReadFile(filepath.Join(w.dir, "body"))
	if !strings.HasPrefix(string(out), "1") || err != nil || !bytes.Equal(body, pattern(100)) {
		t.Errorf("HTTP/%s, %q, %v", out, body, err)
	}
}

// Without prior_knowledge, weir refuses the HTTP/2 preface as an invalid request.
func TestPriorKnowledgeHasToBeAllowed(t *testing.T) {
	t.Parallel()
	w, _ := startHTTP2(t)
	w.reload(strings.Replace(http2Config, ", http2: {prior_knowledge: true}", "", 1))
	c := dialWith(t, w.at("web"), []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	got, _ := readToEnd(c)
	if !strings.HasPrefix(string(got), "HTTP/1.1 ") {
		t.Errorf("%q", got)
	}
}

var h2loadDone = regexp.MustCompile(`requests: (\d+) total, (\d+) started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout`)

// h2load runs h2load. Every request must succeed.
func h2load(t *testing.T, n string, args ...string) {
	t.Helper()
	out, err := exec.Command(need(t, "h2load"), append([]string{"-n", n}, args...)...).CombinedOutput()
	m := h2loadDone.FindSubmatch(out)
	if err != nil || m == nil || string(m[4]) != n || !bytes.Contains(out, []byte(n+" 2xx")) {
		t.Errorf("h2load %v: %v\n%s", args, err, out)
	}
}

func TestH2load(t *testing.T) {
	w, app := startHTTP2(t)
	body := filepath.Join(w.dir, "body")
	if err := os.WriteFile(body, pattern(100_000), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, base := range []string{"http://" + w.at("web"), "https://" + w.at("secure")} {
		h2load(t, "2000", "-c", "4", "-m", "100", base+"/bytes/1000")
		h2load(t, "200", "-c", "2", "-m", "10", base+"/bytes/1000000")
		h2load(t, "200", "-c", "2", "-m", "10", "-d", body, base+"/")
		h2load(t, "20", "-c", "2", "-m", "10", "-w", "10", "-W", "10", base+"/bytes/300000") // windows of 1 KiB
	}
	if n := app.requests.Load(); n != 2*2420 {
		t.Errorf("%d requests arrived", n)
	}
}

func TestNghttp(t *testing.T) {
	t.Parallel()
	nghttp := need(t, "nghttp")
	w, _ := startHTTP2(t)
	for _, base := range []string{"http://" + w.at("web"), "https://" + w.at("secure")} {
		args := []string{"--no-verify-peer", "-v", "--no-content-length", "--trailer", "x-trailer: end", "-H", ":method: POST", "-d", "testdata/keepalive.js", base + "/nghttp"}
		out, err := exec.Command(nghttp, args...).CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte(`"X-Trailer":["end"]`)) {
			t.Errorf("%v\n%s", err, out)
		}
		w.byHTTP2("/nghttp")
	}
}

func TestNodeByHTTP2(t *testing.T) {
	t.Parallel()
	node := need(t, "node")
	w, app := startHTTP2(t)
	for _, base := range []string{"http://" + w.at("web"), "https://" + w.at("secure")} {
		out, err := exec.Command(node, "testdata/http2.js", base).CombinedOutput()
		var result struct {
			OK     int
			Errors []string
		}
		if err != nil || json.Unmarshal(out, &result) != nil || result.OK != 300 || len(result.Errors) > 0 {
			t.Errorf("%v: %s", err, out)
		}
	}
	if n := app.connections.Load(); n > 250 {
		t.Errorf("weir opened %d connections to the backend", n)
	}
}

// debianPython is the Python for which Debian packages its modules.
const debianPython = "/usr/bin/python3"

// needPython skips a test if Debian's Python lacks a module; in CI the test fails.
func needPython(t *testing.T, modules ...string) {
	t.Helper()
	if err := exec.Command(debianPython, "-c", "import "+strings.Join(modules, ", ")).Run(); err != nil {
		lacking(t, "%s cannot import %s", debianPython, strings.Join(modules, ", "))
	}
}

// httpx ends a request with a separate frame after the body. If the stream is reset before that frame, httpx
// reports a failure, even if it has the whole response.
func TestHTTPXByHTTP2(t *testing.T) {
	t.Parallel()
	needPython(t, "httpx", "h2")
	w, app := startHTTP2(t)
	for target, want := range map[string][2]string{"/post": {"600", "200"}, "/small": {"3000", "413"}} {
		out, err := exec.Command(debianPython, "testdata/httpx_posts.py", "https://"+w.at("secure")+target, "180", "90", want[0], want[1]).CombinedOutput()
		var result struct {
			OK     int
			Errors []string
		}
		if err != nil || json.Unmarshal(out, &result) != nil || result.OK != 180 || len(result.Errors) > 0 {
			t.Errorf("%s: %v: %s", target, err, out)
		}
		w.byHTTP2(target)
	}
	if n := app.connections.Load(); n > 120 {
		t.Errorf("weir opened %d connections to the backend for 90 posts at once", n)
	}
}

// goHTTP2 returns Go's HTTP client for HTTP/2, with prior knowledge or with ALPN.
func goHTTP2(t testing.TB, prior bool) *http.Client {
	var protocols http.Protocols
	protocols.SetHTTP2(!prior)
	protocols.SetUnencryptedHTTP2(prior)
	tr := &http.Transport{Protocols: &protocols, TLSClientConfig: anyCertificate("app.example.org")}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 3 * patience}
}

// The body and the response of one exchange flow at the same time, and trailers pass in both directions.
func TestBothWaysAtOnceByHTTP2(t *testing.T) {
	t.Parallel()
	echo := newHalfwayBackend(t)
	w := newWeir(t)
	w.address["app"] = echo
	w.start(http2Config)
	for _, base := range []string{"http://" + w.at("web"), "https://" + w.at("secure")} {
		pr, pw := io.Pipe()
		req, _ := http.NewRequest("POST", base+"/echo", pr)
		req.Trailer = http.Header{"X-Up": {"1"}}
		res, err := goHTTP2(t, strings.HasPrefix(base, "http:")).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			fmt.Fprintf(pw, "%03d", i)
			var got [3]byte
			if _, err := io.ReadFull(res.Body, got[:]); err != nil || string(got[:]) != fmt.Sprintf("%03d", i) {
				t.Fatalf("%q, %v", got, err)
			}
		}
		pw.Close()
		if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 || res.Trailer.Get("X-Down") != "1" {
			t.Errorf("%q, %v, trailers %v", rest, err, res.Trailer)
		}
		res.Body.Close()
	}
}

// newHalfwayBackend echoes a body while it arrives. It ends the response with the trailer X-Down, whose value
// is the value of the request's X-Up.
func newHalfwayBackend(t *testing.T) string {
	t.Helper()
	return serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		c.EnableFullDuplex()
		w.Header().Set("Trailer", "X-Down")
		c.Flush()
		buf := make([]byte, 1000)
		for {
			n, err := r.Body.Read(buf)
			w.Write(buf[:n])
			c.Flush()
			if err != nil {
				break
			}
		}
		w.Header().Set("X-Down", r.Trailer.Get("X-Up"))
	})
}

// serveHTTP serves HTTP/1.1 until the test ends, and returns its address.
func serveHTTP(t *testing.T, handle http.HandlerFunc) string {
	t.Helper()
	l, err := net.Listen("tcp", freePort(t))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handle}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return l.Addr().String()
}

// A slow reader delays only its own stream.
func TestSlowReaderByHTTP2(t *testing.T) {
	t.Parallel()
	w, _ := startHTTP2(t)
	client := goHTTP2(t, false)
	slow, err := client.Get("https://" + w.at("secure") + "/bytes/50000000")
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Body.Close()
	for range 50 {
		res, err := client.Get("https://" + w.at("secure") + "/bytes/200000")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(res.Body); err != nil || !bytes.Equal(got, pattern(200_000)) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		res.Body.Close()
	}
	got, err := io.ReadAll(slow.Body)
	if err != nil || sum256(got) != sum256(pattern(50_000_000)) {
		t.Errorf("%d bytes in the end, %v", len(got), err)
	}
	w.wantMetric(1, "weir_connections_total", "listener", "secure")
}

// weir refuses a request for a host whose TLS policy differs from that of the connection.
func TestMisdirectedByHTTP2(t *testing.T) {
	t.Parallel()
	app := newWebBackend(t, "app")
	w := newWeir(t)
	w.address["app"] = app.address
	w.start(`
listeners:
  secure: {address: '@secure', protocol: tls}
certificates: [{self_signed: {hosts: [app.example.org, old.example.org]}}]
tls_policies:
  old: {min_version: "1.2"}
routes:
  - {listeners: [secure], backend: app}
  - {listeners: [secure], hosts: [old.example.org], tls_policy: old, backend: app}
backends:
  app: {endpoints: ['@app']}
`)
	h := dialH2(t, w, "secure")
	h.get(1)
	if status, _, err := h.answer(1); status != "200" || err != nil {
		t.Errorf("%s, %v", status, err)
	}
	h.head(3, true, ":method: GET", ":scheme: https", ":path: /", ":authority: old.example.org")
	if status, _, err := h.answer(3); status != "421" || err != nil {
		t.Errorf("%s, %v", status, err)
	}
	h.get(5)
	if status, _, err := h.answer(5); status != "200" || err != nil {
		t.Errorf("%s, %v", status, err)
	}
}

// discard reads the body of a request and returns its length.
func discard(r *http.Request) (int64, error) { return io.Copy(io.Discard, r.Body) }
