package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The recipes for one feature each.

// startRecipe starts the recipe under a heading.
func startRecipe(t *testing.T, heading string, to map[string]string) *recipe {
	t.Helper()
	t.Parallel()
	r := newRecipe(t, heading, to)
	r.env = append(r.env, "WEIR_STICKY_KEY="+strings.Repeat("k", 32))
	writeUsers(t, r.weir, staffUsers)
	r.start(r.config)
	return r
}

// send sends a request with a method as a client, and checks its status.
func (r *recipe) send(method, client, target string, status int, lines ...string) (*http.Response, string) {
	r.t.Helper()
	c := r.dial("web", client, "app.example.org")
	defer c.Close()
	resp, body, err := ask(c, bufio.NewReader(c), method, "app.example.org", target, lines...)
	if err != nil {
		r.t.Fatalf("%s %s as %s: %v", method, target, client, err)
	}
	if resp.StatusCode != status {
		r.t.Errorf("%s %s %q as %s: %s, want %d: %s", method, target, lines, client, resp.Status, status, body)
	}
	return resp, string(body)
}

func TestRecipeRateLimit(t *testing.T) {
	r := startRecipe(t, "A rate limit", nil)
	for range 5 {
		r.send("POST", anyClient, "/login", 200, "Content-Length: 0")
	}
	if resp, _ := r.send("POST", anyClient, "/login", 429, "Content-Length: 0"); resp.Header.Get("Retry-After") == "" {
		t.Errorf("no Retry-After in %v", resp.Header)
	}
	r.send("POST", anyClient, "//login", 400, "Content-Length: 0")
	r.send("POST", "192.0.2.98", "/login", 200, "Content-Length: 0")
	r.send("GET", anyClient, "/login", 200)
	r.wantMetric(1, "weir_guard_requests_total", "guard", "rate_limit", "result", "rate_limited")
}

func TestRecipeInFlight(t *testing.T) {
	hold := make(chan struct{})
	app := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			<-hold
		}
	})
	r := startRecipe(t, "A limit for requests at the same time", map[string]string{"10.0.0.11:8080": app})
	open := func(client, target string) {
		c := r.dial("web", client, "")
		t.Cleanup(func() { c.Close() })
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: app.example.org\r\n\r\n", target)
	}
	open(anyClient, "/export")
	open(anyClient, "/export")
	r.wantMetric(2, "weir_in_flight_open", "route", "export")
	r.send("GET", anyClient, "/export", 503)
	open("192.0.2.98", "/export")
	r.wantMetric(3, "weir_in_flight_open", "route", "export")
	for i := range 20 {
		open(fmt.Sprintf("192.0.2.%d", i), "/search")
	}
	r.wantMetric(20, "weir_in_flight_open", "route", "search")
	r.send("GET", "192.0.2.97", "/search", 503)
	r.send("GET", "192.0.2.97", "/", 200)
	close(hold)
}

func TestRecipeConnections(t *testing.T) {
	r := startRecipe(t, "A limit for connections", nil)
	const many = 200 // more than the rate allows, even if they take ten seconds
	tries := func(client string) int {
		var served atomic.Int64
		var all sync.WaitGroup
		for i := range many {
			all.Go(func() {
				c, err := net.Dial("tcp", r.at("web"))
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				c.Write(v1Header(fmt.Sprintf("%s:%d", client, 10000+i), "192.0.2.1:443"))
				if _, _, err := ask(c, bufio.NewReader(c), "GET", "app.example.org", "/"); err == nil {
					served.Add(1)
				}
			})
		}
		all.Wait()
		return int(served.Load())
	}
	if n := tries(anyClient); n < 20 || n == many {
		t.Errorf("%d of %d connections are served", n, many)
	}
	if n := tries("203.0.113.7"); n != many {
		t.Errorf("%d of %d connections of the office are served", n, many)
	}
}

func TestRecipeBasicAuth(t *testing.T) {
	r := startRecipe(t, "Basic authentication", nil)
	resp := r.want("websecure", anyClient, "app.example.org", "/admin", 401, "")
	if got := resp.Header.Get("WWW-Authenticate"); got != `Basic realm="Staff", charset="UTF-8"` {
		t.Errorf("WWW-Authenticate is %q", got)
	}
	_, body := r.ask("websecure", anyClient, "app.example.org", "/admin", asAda)
	if !strings.Contains(body, `"X-Forwarded-User":["ada"]`) || strings.Contains(body, "Authorization") {
		t.Errorf("the endpoint got %s", body)
	}
	r.want("websecure", anyClient, "app.example.org", "/", 200, "10.0.0.11")
	r.reload(strings.Replace(r.config, "auth: staff,", "auth: staff, clients: {allow: [203.0.113.0/24]}, satisfy: any,", 1))
	r.want("websecure", "203.0.113.7", "app.example.org", "/admin", 200, "10.0.0.11")
	r.want("websecure", anyClient, "app.example.org", "/admin", 401, "")
}

func TestRecipeForwardAuth(t *testing.T) {
	own := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		switch c, err := r.Cookie("user"); {
		case err != nil:
			w.WriteHeader(403)
			fmt.Fprintf(w, "not %s %s", r.Header.Get("X-Forwarded-Method"), r.Header.Get("X-Forwarded-Uri"))
		case c.Value == "slow":
			<-r.Context().Done()
		default:
			w.Header().Set("X-User", c.Value)
		}
	})
	r := startRecipe(t, "Forward authentication", map[string]string{"10.0.0.21:9000": own})
	if _, body := r.send("PUT", anyClient, "/a?b", 403, "Content-Length: 0"); body != "not PUT /a?b" {
		t.Errorf("the client got %q", body)
	}
	if _, body := r.send("GET", anyClient, "/", 200, "Cookie: user=ada", "X-User: root"); !strings.Contains(body, `"X-User":["ada"]`) {
		t.Errorf("the endpoint got %s", body)
	}
	r.send("GET", anyClient, "/", 503, "Cookie: user=slow")
}

func TestRecipeClients(t *testing.T) {
	r := startRecipe(t, "Allow and deny client addresses", nil)
	r.send("GET", "203.0.113.7", "/admin", 200)
	r.send("GET", "203.0.113.66", "/admin", 403)
	r.send("GET", anyClient, "/admin/x", 403)
	r.send("GET", anyClient, "/%61dmin/x", 400)
	r.send("GET", anyClient, "/", 200)
}

func TestRecipeClosed(t *testing.T) {
	r := startRecipe(t, "Close paths to everyone", nil)
	for target, status := range map[string]int{"/metrics": 403, "/metrics/x": 403, "/%6Detrics": 400, "//metrics": 400, "/Metrics": 400, "/metrics;x": 400,
		"/.git/config": 403, "/a/b/.env": 403, "/a/.GIT/config": 400, "/a/%2egit": 400, "/.github": 403, "/": 200, "/a.git": 200, "/git": 200} {
		r.send("GET", anyClient, target, status)
	}
}

func TestRecipeRewrite(t *testing.T) {
	r := startRecipe(t, "Strip a prefix, and rewrite by an expression", nil)
	for target, want := range map[string]string{"/shop/cart": `"/cart"`, "/shop": `"/"`, "/v1/users/7?all": `"/api/1/users/7?all"`} {
		if _, body := r.send("GET", anyClient, target, 200); !strings.Contains(body, `"URI":`+want) {
			t.Errorf("%s becomes %s", target, body)
		}
	}
	if _, body := r.send("GET", anyClient, "/v2/x", 200); !strings.Contains(body, `"Host":"api.internal"`) {
		t.Errorf("the endpoint got %s", body)
	}
}

func TestRecipeHeaders(t *testing.T) {
	r := startRecipe(t, "Change HTTP headers", nil)
	resp, body := r.send("GET", anyClient, "/a?b", 200, "X-Tenant: red", "X-Debug-Level: 9")
	if !strings.Contains(body, `"X-Tenant":["blue"]`) || !strings.Contains(body, `"X-Original-Uri":["/a?b"]`) || strings.Contains(body, "X-Debug") {
		t.Errorf("the endpoint got %s", body)
	}
	for _, app := range r.apps {
		app.close()
	}
	own, _ := r.send("GET", anyClient, "/", 502)
	for _, h := range []http.Header{resp.Header, own.Header} {
		if h.Get("X-Frame-Options") != "DENY" || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "same-origin" || h.Get("Server") != "" {
			t.Errorf("the headers are %v", h)
		}
	}
}

func TestRecipeCORS(t *testing.T) {
	r := startRecipe(t, "CORS", nil)
	resp, _ := r.send("OPTIONS", anyClient, "/api", 204, "Origin: https://app.example.org", "Access-Control-Request-Method: DELETE", "Access-Control-Request-Headers: content-type")
	if h := resp.Header; h.Get("Access-Control-Allow-Origin") != "https://app.example.org" || !strings.Contains(h.Get("Access-Control-Allow-Methods"), "DELETE") || h.Get("Access-Control-Max-Age") != "3600" {
		t.Errorf("a preflight is answered with %v", h)
	}
	for _, app := range r.apps {
		app.close()
	}
	resp, _ = r.send("GET", anyClient, "/api", 502, "Origin: https://app.example.org")
	if h := resp.Header; h.Get("Access-Control-Allow-Origin") != "https://app.example.org" || h.Get("Access-Control-Allow-Credentials") != "true" {
		t.Errorf("an error has %v", h)
	}
}

func TestRecipeCompression(t *testing.T) {
	text := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/css")
		io.WriteString(w, packedText)
	})
	r := startRecipe(t, "Compression", map[string]string{"10.0.0.11:8080": text})
	for _, encoding := range []string{"zstd", "br", "gzip"} {
		resp, body := r.send("GET", anyClient, "/static/a.css", 200, "Accept-Encoding: "+encoding)
		if resp.Header.Get("Content-Encoding") != encoding || len(body) > len(packedText)/10 {
			t.Errorf("%s: %d bytes with %v", encoding, len(body), resp.Header)
		}
	}
	if resp, _ := r.send("GET", anyClient, "/", 200, "Accept-Encoding: gzip"); resp.Header.Get("Content-Encoding") != "" {
		t.Errorf("another path has %v", resp.Header)
	}
}

func TestRecipeErrorPages(t *testing.T) {
	r := startRecipe(t, "Error pages", map[string]string{"10.0.0.11:8080": freePort(t)})
	if _, body := r.send("GET", anyClient, "/", 502); !strings.Contains(body, `"URI":"/502.html"`) {
		t.Errorf("the page is %s", body)
	}
	for _, app := range r.apps {
		app.close()
	}
	if _, body := r.send("GET", anyClient, "/", 502); !strings.Contains(body, "no connection to an endpoint") {
		t.Errorf("without the pages the client gets %s", body)
	}
}

func TestRecipeUploads(t *testing.T) {
	r := startRecipe(t, "The largest upload", nil)
	r.send("POST", anyClient, "/", 413, "Content-Length: 1048577")
	r.send("POST", anyClient, "/uploads", 413, "Content-Length: 1073741825")
	r.send("POST", anyClient, "/uploads", 200, "Content-Length: 0")
	c := r.dial("web", anyClient, "")
	defer c.Close()
	fmt.Fprintf(c, "POST /uploads HTTP/1.1\r\nHost: app.example.org\r\nContent-Length: 2000000\r\n\r\n")
	if _, err := c.Write(make([]byte, 2_000_000)); err != nil {
		t.Error(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 200 {
		t.Errorf("an upload of 2 MB: %v, %v", resp, err)
	}
}

func TestRecipeMirror(t *testing.T) {
	r := startRecipe(t, "Mirror requests to a new version", nil)
	for range 10 {
		r.send("GET", anyClient, "/", 200)
		r.send("POST", anyClient, "/", 200, "Content-Length: 0")
	}
	r.wantMetric(5, "weir_mirrored_requests_total", "route", "reads", "backend", "new", "result", "sent")
	if n := r.apps["10.0.0.12:8080"].requests.Load(); n != 5 {
		t.Errorf("the new version got %d requests", n)
	}
}

func TestRecipeSticky(t *testing.T) {
	r := startRecipe(t, "Sticky sessions", nil)
	r.wantMetric(2, "weir_backend_endpoints_ready", "backend", "app")
	resp, body := r.send("GET", anyClient, "/", 200)
	cookie := cookieOf(t, resp)
	if cookie == nil || cookie.Name != "node" || cookie.MaxAge != 8*3600 {
		t.Fatalf("the cookie is %v", cookie)
	}
	mine := "10.0.0.11"
	if strings.Contains(body, "10.0.0.12") {
		mine = "10.0.0.12"
	}
	for range 10 {
		if _, body := r.send("GET", anyClient, "/", 200, "Cookie: node="+cookie.Value); !strings.Contains(body, mine) {
			t.Errorf("a client of %s got %s", mine, body)
		}
	}
	r.apps[mine+":8080"].close()
	if resp, body := r.send("GET", anyClient, "/", 200, "Cookie: node="+cookie.Value); strings.Contains(body, mine) || cookieOf(t, resp) == nil {
		t.Errorf("after the end of %s: %s with %v", mine, body, resp.Header)
	}
}

func TestRecipeRetries(t *testing.T) {
	bad := serve(t, func(c net.Conn) { c.Close() }) // it closes every connection
	r := startRecipe(t, "Timeouts, retries and ejection", map[string]string{"10.0.0.11:8080": bad})
	for range 30 {
		if _, body := r.send("GET", anyClient, "/", 200); !strings.Contains(body, "10.0.0.12") {
			t.Errorf("the client got %s", body)
		}
	}
	r.wantMetric(1, "weir_backend_ejections_total", "backend", "app")
	for _, app := range r.apps {
		app.close()
	}
	r.send("GET", anyClient, "/", 502)
}
