package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"
)

// bodies has the routes cross-origin, groups, packed and quiet. The routes small, down and failing make weir answer itself.
const bodies = `
listeners:
  web: {address: '@web', protocol: http, http2: {prior_knowledge: true}}
  websecure: {address: '@websecure', protocol: tls}
certificates: [{self_signed: {hosts: [edit.shop.test, split.shop.test]}}]
routes:
  - {name: cross-origin, listeners: [web, websecure], hosts: [edit.shop.test], paths: [/cors], cors: {origins: ["https://app.test", "https://*.app.test"], methods: [GET, PUT], headers: [X-Token], expose: [X-Total], credentials: true, max_age: 10m}, backend: echo}
  - {name: small, listeners: [web, websecure], hosts: [edit.shop.test], paths: [/cors/small], cors: {origins: ["https://app.test"]}, max_body: 1B, backend: echo}
  - {name: down, listeners: [web, websecure], hosts: [edit.shop.test], paths: [/cors/down], cors: {origins: ["https://app.test"]}, backend: down}
  - {name: groups, listeners: [web, websecure], hosts: [edit.shop.test], paths: ["~/g/([^/]+)/(.*)"], rewrite: {path: "/x/$2/$1"}, backend: echo}
  - {name: packed, listeners: [web, websecure], hosts: [edit.shop.test], paths: [/text], compress: true, backend: text}
  - {name: quiet, listeners: [web, websecure], hosts: [split.shop.test], paths: [/quiet], access_log: false, backend: echo}
  - {name: failing, listeners: [web], hosts: [split.shop.test], paths: [/quiet/down], access_log: false, backend: down}
  - {name: loud, listeners: [web], hosts: [split.shop.test], backend: echo}
backends: {echo: {endpoints: ['@echo']}, text: {endpoints: ['@text']}, down: {endpoints: ['@down'], retries: {attempts: 1}}}
`

func startBodies(t *testing.T, more string) *weir {
	t.Helper()
	t.Parallel()
	w := newWeir(t)
	w.address["echo"], w.address["down"] = newWebBackend(t, "echo").address, freePort(t)
	w.address["text"] = serveHTTP(t, serveText)
	return w.start(bodies + more)
}

// packedText is what the backend of the route packed serves.
var packedText = strings.Repeat("A text that has few different words is a text that gets small.\n", 200)

func serveText(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("ETag", `"a"`)
	switch r.URL.Path {
	case "/text/cookie":
		w.Header().Set("Set-Cookie", "a=b")
	case "/text/range":
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(packedText))
		return
	case "/text/small":
		io.WriteString(w, "hello")
		return
	case "/text/chunked":
		w.(http.Flusher).Flush()
	}
	io.WriteString(w, packedText)
}

func TestRouteAllowsOtherOrigins(t *testing.T) {
	w := startBodies(t, "")
	const origin = "Origin: https://a.app.test"
	resp, body := edited(t, w, "OPTIONS", "/cors/a", origin, "Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: x-token")
	h := resp.Header
	if resp.StatusCode != 204 || len(body) != 0 || h.Get("Access-Control-Allow-Origin") != "https://a.app.test" || h.Get("Access-Control-Allow-Credentials") != "true" ||
		h.Get("Access-Control-Allow-Methods") != "GET, PUT" || h.Get("Access-Control-Allow-Headers") != "X-Token" || h.Get("Access-Control-Max-Age") != "600" || h.Get("Vary") != "Origin" {
		t.Errorf("a preflight is answered with %s %v", resp.Status, h)
	}
	w.logged("the preflight", func(e entry) bool { return e.text("reason") == "cors_preflight" && e.text("route") == "cross-origin" })
	resp, _ = edited(t, w, "OPTIONS", "/cors/a", "Origin: https://evil.test", "Access-Control-Request-Method: PUT")
	for name := range resp.Header {
		if strings.HasPrefix(name, "Access-Control-") {
			t.Errorf("another origin gets %s", name)
		}
	}
	for target, status := range map[string]int{"/cors": 200, "/cors/small": 413, "/cors/down": 502} { // weir's own answers, too
		resp, _ := edited(t, w, "PUT", target, "Origin: https://app.test", "Content-Length: 2", "", "ab")
		if resp.StatusCode != status || resp.Header.Get("Access-Control-Allow-Origin") != "https://app.test" || resp.Header.Get("Vary") != "Origin" {
			t.Errorf("%s: %s %v", target, resp.Status, resp.Header)
		}
	}
}

// corsPage asks weir from another origin, and reports what the page sees.
const corsPage = `<!doctype html><script>
async function seen(name, path, options) {
	try {
		const r = await fetch("https://edit.shop.test:%s/" + path, options)
		return name + ": " + r.status
	} catch (e) { return name + ": refused" }
}
Promise.all([
	seen("simple", "cors", {}),
	seen("put", "cors", {method: "PUT", headers: {"X-Token": "a"}, credentials: "include"}),
	seen("delete", "cors", {method: "DELETE"}),
	seen("header", "cors", {headers: {"X-Other": "a"}}),
	seen("error", "cors/down", {}),
	seen("elsewhere", "x", {}),
]).then(all => fetch("/result?" + encodeURIComponent(all.join(", "))))
</script>`

func TestChromiumAllowsOtherOrigins(t *testing.T) {
	needLinux(t)
	chromium := need(t, "chromium-headless-shell")
	page := newPageServer(t)
	w := startBodies(t, "")
	_, port, _ := strings.Cut(w.at("websecure"), ":")
	f := func(host, want string) {
		t.Helper()
		page.content = strings.ReplaceAll(corsPage, "%s", port)
		_, own, _ := strings.Cut(page.server.Listener.Addr().String(), ":")
		rules := "MAP edit.shop.test 127.0.0.1, MAP " + host + " 127.0.0.1:" + own
		browser := runPeer(t, chromium, "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--ignore-certificate-errors", "--no-proxy-server",
			"--user-data-dir="+t.TempDir(), "--remote-debugging-port=0", "--host-resolver-rules="+rules, "https://"+host+"/")
		defer browser.kill()
		select {
		case got := <-page.result:
			if got != want {
				t.Errorf("a page of %s sees\n%s\nnot\n%s", host, got, want)
			}
		case <-time.After(3 * patience):
			t.Errorf("the page of %s sends no result", host)
		}
	}
	f("app.test", "simple: 200, put: 200, delete: refused, header: refused, error: 502, elsewhere: refused")
	f("evil.test", "simple: refused, put: refused, delete: refused, header: refused, error: refused, elsewhere: refused")
}

func TestRouteFillsInGroups(t *testing.T) {
	w := startBodies(t, "")
	f := func(target, want string) {
		t.Helper()
		c := dial(t, w.at("web"))
		defer c.Close()
		if got, err := askSeen(c, "edit.shop.test", target); err != nil || got.URI != want {
			t.Errorf("%s becomes %s, not %s: %v", target, got.URI, want, err)
		}
	}
	f("/g/a/b?c=d", "/x/b/a?c=d")
	f("/g/a/b/c", "/x/b/c/a")
	f("/g/a/", "/x/a")
	got := curlSeen(t, "--http2", "--connect-to", "::"+w.at("websecure"), "https://edit.shop.test/g/a/b?c")
	if got.URI != "/x/b/a?c" {
		t.Errorf("over HTTP/2 the path becomes %s", got.URI)
	}
}

func TestRouteIsQuiet(t *testing.T) {
	w := startBodies(t, "")
	for _, target := range []string{"/quiet", "/quiet/down", "/loud"} {
		c := dial(t, w.at("web"))
		askSeen(c, "split.shop.test", target)
		c.Close()
	}
	w.logged("the last request", func(e entry) bool { return e.text("route") == "loud" })
	for _, e := range w.accessLog() {
		if r := e.text("route"); r == "quiet" || r == "failing" {
			t.Errorf("the access log has %v", e)
		}
	}
	for _, route := range []string{"quiet", "failing"} {
		w.wantMetric(1, "weir_http_request_duration_seconds_count", "route", route)
	}
}

func TestAccessLogHasASample(t *testing.T) {
	w := startBodies(t, "access_log: {path: '@@access', sample: 0.1}\n")
	const many = 1000
	c := dial(t, w.at("web"))
	defer c.Close()
	for range many {
		if _, err := askSeen(c, "split.shop.test", "/loud"); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		edited(t, w, "GET", "/nowhere")
	}
	f := func() (sampled, refused int) {
		data, _ := os.ReadFile(w.access)
		for line := range strings.Lines(string(data)) {
			switch {
			case strings.Contains(line, `"sample":0.1`) && strings.Contains(line, `"status":200`):
				sampled++
			case strings.Contains(line, `"status":404`) && !strings.Contains(line, "sample"):
				refused++
			}
		}
		return sampled, refused
	}
	eventually(t, "all refused requests are in the access log", func() error {
		if _, refused := f(); refused != 3 {
			return fmt.Errorf("%d lines", refused)
		}
		return nil
	})
	if sampled, _ := f(); sampled < many/20 || sampled > many/5 { // five standard deviations are 47
		t.Errorf("%d of %d good requests have a line", sampled, many)
	}
}

func TestRouteCompresses(t *testing.T) {
	need(t, "curl")
	w := startBodies(t, "")
	f := func(target, encoding, want string, args ...string) {
		t.Helper()
		for _, more := range [][]string{{"--http1.1"}, {"--http2"}} {
			all := append([]string{"--compressed", "--dump-header", "-", "--connect-to", "::" + w.at("websecure"), "-H", "Accept-Encoding: " + encoding}, args...)
			head, body, _ := bytes.Cut(curl(t, append(append(all, more...), "https://edit.shop.test"+target)...), []byte("\r\n\r\n"))
			got := ""
			for line := range strings.Lines(strings.ToLower(string(head))) {
				if value, ok := strings.CutPrefix(line, "content-encoding: "); ok {
					got = strings.TrimSpace(value)
				}
			}
			if got != want || !strings.HasPrefix(packedText, string(body)) && string(body) != "hello" || len(body) == 0 {
				t.Errorf("%s for %q with %q: %q with %d bytes\n%s", target, encoding, more, got, len(body), head)
			}
		}
	}
	for _, encoding := range []string{"zstd", "br", "gzip"} { // curl decodes them
		f("/text", encoding, encoding)
		f("/text/chunked", encoding, encoding)
	}
	f("/text", "gzip;q=0.5, br;q=0.9, zstd;q=0", "br")
	f("/text", "identity", "")
	f("/text/small", "gzip", "")
	f("/text/cookie", "gzip", "")
	f("/text/range", "gzip", "", "-H", "Range: bytes=0-2000")
	f("/text/range", "gzip", "gzip")
	eventually(t, "the compression is counted", func() error {
		in := w.metric("weir_http_compressed_bytes_total", "route", "packed", "encoding", "zstd", "direction", "in")
		out := w.metric("weir_http_compressed_bytes_total", "route", "packed", "encoding", "zstd", "direction", "out")
		if in != float64(4*len(packedText)) || out == 0 || out > in/10 {
			return fmt.Errorf("%v bytes become %v", in, out)
		}
		return nil
	})
}

// pageServer serves a page over TLS, and receives the result that its script sends.
type pageServer struct {
	server  *httptest.Server
	content string
	result  chan string
}

func newPageServer(t *testing.T) *pageServer {
	t.Helper()
	p := &pageServer{result: make(chan string, 1)}
	p.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/result":
			if text, err := url.QueryUnescape(r.URL.RawQuery); err == nil {
				p.result <- text
			}
		default:
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, p.content)
		}
	}))
	t.Cleanup(p.server.Close)
	return p
}
