package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// testdata/routes.yaml has a line for everything that a route can do. The tests of this file load it, and try each line over
// HTTP/1.1, over TLS and over HTTP/2. The other files routes_*_test.go try the features more closely.

var (
	fileAddress = regexp.MustCompile(`127\.0\.0\.1:(\d+)`)
	fileRoute   = regexp.MustCompile(`(?m)^  - \{?name: ([a-z-]+)`)
)

// fileTest is a weir with the file, and one way in which clients reach it.
type fileTest struct {
	*weir
	listener string // web, websecure
	http2    bool
	clients  int // so far

	release chan struct{} // closed: requests to /slow go on
	copied  chan string   // requests that the backend next got from the mirror
	asked   atomic.Int64  // requests to the backend broken
}

// The file loads as it stands, beside its two other files, and without a warning but that a new key of sticky sessions is
// made at each start, and that one listener has a rule which SSH does not like.
func TestRoutesFileLoads(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	text, err := os.ReadFile("testdata/routes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, w.dir, "routes.yaml", string(text))
	writeUsers(t, w, staffUsers)
	writeKeys(t, w, tokenKey)
	out, err := exec.Command(executable(t), "check", "-c", filepath.Join(w.dir, "routes.yaml")).CombinedOutput()
	if err != nil || strings.Count(string(out), "warning:") != 2 || !strings.Contains(string(out), "sticky") || !strings.Contains(string(out), `tcp listener "raw"`) {
		t.Errorf("weir check: %v\n%s", err, out)
	}
}

func TestRoutesFile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/routes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range fileRoute.FindAllStringSubmatch(string(text), -1) {
		if fileTests[m[1]] == nil {
			t.Errorf("nothing tests the route %s", m[1])
		}
	}
	for name, listener := range map[string]string{"HTTP/1.1": "web", "HTTP/1.1 over TLS": "websecure", "HTTP/2": "websecure"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startRoutesFile(t, string(text), listener, name == "HTTP/2")
			for _, m := range fileRoute.FindAllStringSubmatch(string(text), -1) {
				if test := fileTests[m[1]]; test != nil {
					t.Run(m[1], func(t *testing.T) { f.t = t; test(f) })
				}
			}
			f.t = t
		})
	}
}

func startRoutesFile(t *testing.T, text, listener string, http2 bool) *fileTest {
	w := newWeir(t)
	f := &fileTest{weir: w, listener: listener, http2: http2, release: make(chan struct{}), copied: make(chan string, 100)}
	writeUsers(t, w, staffUsers)
	writeKeys(t, w, tokenKey)
	names := map[string]string{"23080": "web", "23443": "websecure", "23022": "raw", "23086": "health", "23087": "admin", "24001": "auth",
		"24010": "echo", "24011": "echo2", "24012": "next", "24013": "broken", "24014": "pages", "24015": "lines"}
	for _, name := range []string{"echo", "echo2", "next"} {
		f.serve(name, f.endpoint(name))
	}
	f.serve("broken", f.broken)
	f.serve("pages", func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/501.html" {
			rw.WriteHeader(404)
		}
		fmt.Fprintf(rw, "page %s %s", r.Method, r.URL.Path)
	})
	newAuthServer(w, "auth", "first")
	w.address["lines"] = newEchoBackend(t).address
	text = fileAddress.ReplaceAllStringFunc(text, func(m string) string { return "@" + names[m[len("127.0.0.1:"):]] })
	for old, now := range map[string]string{
		"path: access.log": "path: '@@access'", "sample: 0.1": "sample: 1", // TestAccessLogHasASample tries a smaller one
		"request: 1s, try: 400ms": "request: 5s, try: 2s", // for slow machines
	} {
		if !strings.Contains(text, old) {
			t.Fatalf("the file has no %s", old)
		}
		text = strings.Replace(text, old, now, 1)
	}
	w.start(strings.ReplaceAll(text, "users.htpasswd", "@@dir/users.htpasswd"))
	return f
}

// endpoint reports the request that it received. Some paths do something else.
func (f *fileTest) endpoint(name string) http.HandlerFunc {
	report := &webBackend{name: name}
	return func(rw http.ResponseWriter, r *http.Request) {
		switch first, _, _ := strings.Cut(r.URL.Path[1:], "/"); first {
		case "slow":
			select {
			case <-f.release:
			case <-r.Context().Done():
			}
		case "text":
			serveText(rw, r)
			return
		case "headers":
			rw.Header().Set("Server", "endpoint")
			rw.Header().Set("X-Powered-By", "endpoint")
			rw.Header().Set("Vary", "Cookie")
		case "cors":
			rw.Header().Set("Access-Control-Allow-Origin", "*")
		case "m":
			if n, _ := io.Copy(io.Discard, r.Body); name == "next" {
				f.copied <- fmt.Sprintf("%s %s %d", r.Method, r.URL.Path, n)
			}
		}
		report.report(rw, r)
	}
}

func (f *fileTest) broken(rw http.ResponseWriter, r *http.Request) {
	n, status := f.asked.Add(1), 0
	switch _, last, _ := strings.Cut(r.URL.Path[1:], "/"); {
	case last == "slow" || last == "late" && n == 1:
		<-r.Context().Done()
	case last == "busy" && n < 3:
		rw.WriteHeader(503)
	default:
		if status, _ = strconv.Atoi(last); status > 0 {
			rw.WriteHeader(status)
		}
		io.WriteString(rw, "original")
	}
}

// client returns an HTTP client with an address of its own.
func (f *fileTest) client(ip string) (c *http.Client, address string) {
	f.t.Helper()
	f.clients++
	address = net.JoinHostPort(ip, strconv.Itoa(10000+f.clients))
	t := &http.Transport{DisableCompression: true, TLSClientConfig: anyCertificate(""), ForceAttemptHTTP2: f.http2,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, f.at(f.listener))
			if err == nil {
				_, err = c.Write(v1Header(address, "192.0.2.2:80"))
			}
			return c, err
		}}
	f.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: 2 * patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, address
}

// fileAnswer is a response, and what the access log has about it.
type fileAnswer struct {
	*http.Response
	body string
	seen seen // what an endpoint that reports has received
}

func (f *fileTest) scheme() string {
	if f.listener == "web" {
		return "http"
	}
	return "https"
}

// ask sends a request such as "PUT shop.test/cart from 203.0.113.7". Of lines, those behind an empty one are the body.
func (f *fileTest) ask(c *http.Client, request string, lines ...string) fileAnswer {
	f.t.Helper()
	method, target, _ := strings.Cut(request, " ")
	var body io.Reader
	if i := slices.Index(lines, ""); i >= 0 {
		body, lines = strings.NewReader(lines[i+1]), lines[:i]
	}
	req, err := http.NewRequest(method, f.scheme()+"://"+target, body)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Add(name, value)
	}
	resp, err := c.Do(req)
	if err != nil {
		f.t.Fatalf("%s: %v", request, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatalf("%s: %v", request, err)
	}
	if want := map[bool]int{false: 1, true: 2}[f.http2]; resp.ProtoMajor != want {
		f.t.Errorf("%s is answered by %s", request, resp.Proto)
	}
	a := fileAnswer{Response: resp, body: string(text)}
	if json.Unmarshal(text, &a.seen) != nil && resp.Header.Get("Content-Type") == "application/json" {
		f.t.Errorf("%s: %s", request, text)
	}
	return a
}

// wants sends a request as a new client, and checks the status, and the route and the reason in the access log.
func (f *fileTest) wants(status int, route, reason, request string, lines ...string) fileAnswer {
	f.t.Helper()
	request, from, given := strings.Cut(request, " from ")
	if !given {
		from = "192.0.2.1"
	}
	c, address := f.client(from)
	a := f.ask(c, request, lines...)
	e := f.logged("the client "+address, func(e entry) bool { return e.text("client") == address })
	if a.StatusCode != status || e.text("route") != route || e.text("reason") != reason {
		f.t.Errorf("%s %q: %s by the route %q with the reason %q, want %d by %q with %q: %s", request, lines, a.Status, e.text("route"), e.text("reason"), status, route, reason, a.body)
	}
	return a
}

// goes checks that a request reaches an endpoint of the backend by the route.
func (f *fileTest) goes(route, backend, request string, lines ...string) fileAnswer {
	f.t.Helper()
	a := f.wants(200, route, "", request, lines...)
	if strings.TrimSuffix(a.seen.Backend, "2") != backend {
		f.t.Errorf("%s %q goes to %s, not %s", request, lines, a.seen.Backend, backend)
	}
	return a
}

// has checks headers, as lines. An empty value means that there is no such header.
func (f *fileTest) has(what string, h http.Header, lines ...string) {
	f.t.Helper()
	for _, line := range lines {
		name, want, _ := strings.Cut(line, ": ")
		if got := strings.Join(h[http.CanonicalHeaderKey(name)], ", "); got != want {
			f.t.Errorf("%s has %s: %q, not %q", what, name, got, want)
		}
	}
}

const (
	asAda   = "Authorization: Basic YWRhOmxvdmVsYWNl"
	asNoOne = "Authorization: Basic YWRhOndyb25n"
)

// fileTests has a test for each route of the file.
var fileTests = map[string]func(f *fileTest){
	"plain": func(f *fileTest) {
		if a := f.goes("plain", "echo", "GET shop.test/a?b=c"); a.seen.URI != "/a?b=c" || a.seen.Host != "shop.test" {
			f.t.Errorf("the endpoint got %+v", a.seen)
		}
		f.goes("plain", "echo", "GET SHOP.test./")
		f.wants(404, "", "no_route", "GET other.test/")
	},
	"one-label": func(f *fileTest) {
		f.goes("one-label", "echo", "GET www.shop.test/")
		f.goes("one-label", "echo", "POST www.shop.test/cart") // no fall-through to the paths of another host
		f.goes("one-label", "echo", "GET eu.shop.test/")
		f.wants(404, "", "no_route", "GET a.b.shop.test/")
	},
	"any-depth": func(f *fileTest) {
		f.goes("any-depth", "echo", "GET a.eu.shop.test/")
		f.goes("any-depth", "echo", "GET a.b.eu.shop.test/")
	},
	"expression": func(f *fileTest) {
		f.goes("expression", "echo", "GET shop.test/v1/items")
		f.goes("expression", "echo", "GET shop.test/v22/items/7?x=1")
		f.goes("plain", "echo", "GET shop.test/v1/itemsx")
		f.goes("plain", "echo", "GET shop.test/x/v1/items")
		f.goes("plain", "echo", "GET shop.test/V1/items")
	},
	"by-method": func(f *fileTest) {
		f.goes("by-method", "next", "POST shop.test/cart")
		f.goes("by-method", "next", "PUT shop.test/cart/7")
		f.goes("plain", "echo", "DELETE shop.test/cart")
		f.goes("plain", "echo", "POST shop.test/carts")
	},
	"by-header": func(f *fileTest) {
		f.goes("by-header", "echo", "POST shop.test/cart", "X-Canary: always")
		f.goes("by-method", "next", "POST shop.test/cart", "X-Canary: Always")
		f.goes("by-method", "next", "PUT shop.test/cart", "X-Canary: always")
		f.goes("by-method", "next", "POST shop.test/cart", "X-Canary: never", "X-Canary: always")
	},
	"by-query": func(f *fileTest) {
		f.goes("by-query", "next", "GET shop.test/cart?beta&v=12")
		f.goes("by-query", "next", "GET shop.test/cart?v=%31&beta=on")
		f.goes("plain", "echo", "GET shop.test/cart?beta&v=12x")
		f.goes("plain", "echo", "GET shop.test/cart?v=12")
	},
	"by-cookie": func(f *fileTest) {
		f.goes("by-cookie", "next", "GET shop.test/cart", "Cookie: a=b; tester=yes")
		f.goes("plain", "echo", "GET shop.test/cart", "Cookie: tester=yes1")
	},
	"by-client": func(f *fileTest) {
		f.goes("by-client", "next", "GET shop.test/admin/x from 203.0.113.7")
		f.goes("plain", "echo", "GET shop.test/admin/x from 198.51.100.7")
	},
	"allowed": func(f *fileTest) {
		f.goes("allowed", "echo", "GET guard.shop.test/lan from 203.0.113.7")
		f.wants(403, "allowed", "client_denied", "GET guard.shop.test/lan from 203.0.113.66")
		f.wants(403, "allowed", "client_denied", "GET guard.shop.test/lan from 198.51.100.7")
		f.wantMetric(1, "weir_guard_requests_total", "route", "allowed", "guard", "clients", "result", "allowed")
		f.wantMetric(2, "weir_guard_requests_total", "route", "allowed", "guard", "clients", "result", "client_denied")
	},
	"searched": func(f *fileTest) {
		a := f.goes("searched", "echo", "GET guard.shop.test/search")
		f.has("the response", a.Header, `RateLimit-Policy: "search";q=20;w=2`)
		const many = 100
		c, _ := f.client("192.0.2.1")
		var served atomic.Int64
		refused := make(chan http.Header, many)
		var all sync.WaitGroup
		for range many {
			all.Go(func() {
				resp, err := c.Get(f.scheme() + "://guard.shop.test/search")
				if err != nil {
					f.t.Error(err)
					return
				}
				resp.Body.Close()
				switch resp.StatusCode {
				case 200:
					served.Add(1)
				case 429:
					refused <- resp.Header
				default:
					f.t.Errorf("%s", resp.Status)
				}
			})
		}
		all.Wait()
		if served.Load() < 19 || len(refused) == 0 {
			f.t.Fatalf("%d requests were served, and %d refused", served.Load(), len(refused))
		}
		f.has("the refusal", <-refused, "Retry-After: 1")
		f.goes("searched", "echo", "GET guard.shop.test/search from 192.0.2.2")
	},
	"keyed": func(f *fileTest) {
		for _, key := range []string{"a", "b", ""} { // without a header it is one key
			var lines []string
			if key != "" {
				lines = []string{"X-Api-Key: " + key}
			}
			for i := range 3 {
				f.goes("keyed", "echo", fmt.Sprintf("GET guard.shop.test/keys from 192.0.2.%d", 10+i), lines...)
			}
			a := f.wants(503, "keyed", "rate_limited", "GET guard.shop.test/keys", lines...)
			if after, _ := strconv.Atoi(a.Header.Get("Retry-After")); after < 1 || after > 60 {
				f.t.Errorf("Retry-After is %v", a.Header["Retry-After"])
			}
		}
		f.wantMetric(3, "weir_rate_limit_keys", "rate_limit", "keys")
	},
	"crowded": func(f *fileTest) {
		c, _ := f.client("192.0.2.1")
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if resp, err := c.Get(f.scheme() + "://guard.shop.test/slow"); err != nil || resp.StatusCode != 200 {
					f.t.Error(resp, err)
				} else {
					resp.Body.Close()
				}
			})
		}
		f.wantMetric(2, "weir_in_flight_open", "route", "crowded")
		f.wants(503, "crowded", "in_flight", "GET guard.shop.test/slow")
		close(f.release)
		f.goes("crowded", "echo", "GET guard.shop.test/slow from 192.0.2.2")
		all.Wait()
		f.wantMetric(0, "weir_in_flight_open", "route", "crowded")
	},
	"staff": func(f *fileTest) {
		for user, credentials := range map[string]string{"ada": asAda, "bob": "Authorization: Basic Ym9iOmJ1aWxkZXI=", "eve": "Authorization: Basic ZXZlOmRyb3BwZXI="} {
			a := f.goes("staff", "echo", "GET guard.shop.test/staff", credentials, "X-Forwarded-User: root", "X_forwarded_user: root")
			f.has("the request", a.seen.Header, "X-Forwarded-User: "+user, "X_forwarded_user", "Authorization")
			f.logged(user, func(e entry) bool { return e.text("user") == user && e.text("route") == "staff" })
		}
		a := f.wants(401, "staff", "auth_required", "GET guard.shop.test/staff")
		f.has("the refusal", a.Header, `WWW-Authenticate: Basic realm="Staff", charset="UTF-8"`)
		f.wants(401, "staff", "auth_failed", "GET guard.shop.test/staff", asNoOne)
		f.wants(404, "", "no_route", "GET guard.shop.test/Staff")
	},
	"sso": func(f *fileTest) {
		a := f.goes("sso", "echo", "PUT guard.shop.test/sso/a?b=c", "Cookie: user=ada", "X-Auth-User: root", "Range: bytes=0-1", "Content-Type: a/b", "", "body")
		f.has("the request", a.seen.Header, "X-Auth-User: ada", "X-Auth-Groups: first", "X-Seen", "Content-Type: a/b")
		own := f.scheme() + "://guard.shop.test/sso"
		f.has("the response", a.Header, "Set-Cookie: seen=PUT|"+f.scheme()+"|guard.shop.test|/sso/a?b=c|192.0.2.1|PUT|"+own+"/a?b=c")
		a = f.wants(302, "sso", "auth_sign_in", "GET guard.shop.test/sso?a=1&b", "Accept: text/html")
		f.has("the sign-in", a.Header, "Location: https://login.shop.test/?rd="+url.QueryEscape(own+"?a=1&b"))
		f.wants(401, "sso", "auth_denied", "GET guard.shop.test/sso", "Accept: application/json")
		f.wants(401, "sso", "auth_denied", "POST guard.shop.test/sso", "Accept: text/html")
		if a = f.wants(403, "sso", "auth_denied", "GET guard.shop.test/sso", "Cookie: status=403"); a.body != "of the server" {
			f.t.Errorf("the client got %q", a.body)
		}
		f.wants(303, "sso", "auth_denied", "GET guard.shop.test/sso", "Cookie: status=303")
		f.wants(503, "sso", "auth_unavailable", "GET guard.shop.test/sso", "Cookie: status=500")
		f.wants(503, "sso", "auth_unavailable", "GET guard.shop.test/sso", "Cookie: status=0")
		f.wantMetric(2, "weir_guard_failures_total", "route", "sso", "guard", "auth", "reason", "auth_unavailable")
		a = f.goes("plain", "echo", "GET shop.test/", "X-Auth-User: root", "X_Auth_Groups: root") // on all routes
		f.has("the request", a.seen.Header, "X-Auth-User", "X_Auth_Groups")
	},
	"token": func(f *fileTest) {
		claims := fmt.Sprintf(`{"iss":"https://issuer.test","aud":"shop","sub":"ada","exp":%d}`, time.Now().Add(time.Hour).Unix())
		a := f.goes("token", "echo", "GET guard.shop.test/token", "Authorization: Bearer "+signToken(f.t, tokenKey, claims), "X-User: root")
		f.has("the request", a.seen.Header, "X-User: ada")
		a = f.wants(401, "token", "auth_required", "GET guard.shop.test/token")
		f.has("the refusal", a.Header, `WWW-Authenticate: Bearer realm="token"`)
		a = f.wants(401, "token", "auth_failed", "GET guard.shop.test/token", "Authorization: Bearer "+signToken(f.t, tokenKey, strings.Replace(claims, "issuer.test", "evil.test", 1)))
		f.has("the refusal", a.Header, `WWW-Authenticate: Bearer realm="token", error="invalid_token"`)
		f.logged("the issuer of the token", func(e entry) bool { return strings.Contains(e.text("error"), `its iss is "https://evil.test"`) })
	},
	"either": func(f *fileTest) {
		f.goes("either", "echo", "GET guard.shop.test/either from 203.0.113.7")
		f.goes("either", "echo", "GET guard.shop.test/either from 198.51.100.7", asAda)
		f.wants(401, "either", "auth_required", "GET guard.shop.test/either from 198.51.100.7")
		f.wants(401, "either", "auth_failed", "GET guard.shop.test/either from 198.51.100.7", asNoOne)
	},
	"edited": func(f *fileTest) {
		a := f.goes("edited", "echo", "GET edit.shop.test/headers?a=b from 203.0.113.7", "X-Tenant: red", "X_tenant: red", "X-Via: client", "X-Debug: 1", "X-Internal-User: root")
		f.has("the request", a.seen.Header, "X-Tenant: blue", "X_tenant", "X-Client: 203.0.113.7", "X-Url: "+f.scheme()+"://edit.shop.test/headers?a=b", "X-Via: client, weir", "X-Debug", "X-Internal-User")
		f.has("the response", a.Header, "X-Frame-Options: DENY", "X-Request-Id: "+a.seen.Header.Get("X-Request-Id"), "Vary: Cookie, Accept", "Server", "X-Powered-By")
	},
	"prefix": func(f *fileTest) {
		for target, want := range map[string]string{"/old/a?b": "/new/a?b", "/old": "/new", "/old?b": "/new?b", "/old/": "/new/"} {
			if a := f.goes("prefix", "echo", "GET edit.shop.test"+target); a.seen.URI != want {
				f.t.Errorf("%s becomes %s", target, a.seen.URI)
			}
		}
	},
	"whole": func(f *fileTest) {
		if a := f.goes("whole", "echo", "GET edit.shop.test/any/a?b=c"); a.seen.URI != "/fixed?b=c" {
			f.t.Errorf("the endpoint got %s", a.seen.URI)
		}
	},
	"groups": func(f *fileTest) {
		if a := f.goes("groups", "echo", "GET edit.shop.test/g/a/b/c?d"); a.seen.URI != "/x/b/c/a?d" {
			f.t.Errorf("the endpoint got %s", a.seen.URI)
		}
	},
	"rehost": func(f *fileTest) {
		a := f.goes("rehost", "echo", "GET edit.shop.test/host/a")
		if a.seen.Host != "internal.test" || a.seen.URI != "/host/a" {
			f.t.Errorf("the endpoint got %+v", a.seen)
		}
		f.has("the request", a.seen.Header, "X-Forwarded-Host: edit.shop.test")
	},
	"moved": func(f *fileTest) {
		f.has("the redirect", f.wants(301, "moved", "redirect", "GET edit.shop.test/moved/a?b").Header, "Location: https://www.shop.test/here/moved/a?b")
	},
	"swapped": func(f *fileTest) {
		f.has("the redirect", f.wants(302, "swapped", "redirect", "GET edit.shop.test/swap/a?b").Header, "Location: https://other.test:8443/swapped/a?b")
	},
	"closed": func(f *fileTest) {
		a := f.wants(503, "closed", "respond", "GET edit.shop.test/closed/a")
		f.has("the response", a.Header, "Retry-After: 120", "Content-Type: text/plain", "Content-Length: 10")
		if a.body != "back soon\n" {
			f.t.Errorf("the body is %q", a.body)
		}
	},
	"pages": func(f *fileTest) {
		for target, want := range map[string]string{"/pages/500": "page GET /500.html", "/pages/599": "page GET /599.html", "/pages/404": "original", "/pages/501": "original"} {
			status, _ := strconv.Atoi(target[len("/pages/"):])
			c, _ := f.client("192.0.2.1")
			if a := f.ask(c, "GET edit.shop.test"+target); a.StatusCode != status || a.body != want {
				f.t.Errorf("%s: %s with %q", target, a.Status, a.body)
			}
		}
		f.wantMetric(2, "weir_error_pages_total", "route", "pages", "result", "sent")
		f.wantMetric(1, "weir_error_pages_total", "route", "pages", "result", "failed")
	},
	"cross-origin": func(f *fileTest) {
		a := f.wants(204, "cross-origin", "cors_preflight", "OPTIONS edit.shop.test/cors", "Origin: https://a.app.test", "Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: x-token")
		f.has("the preflight", a.Header, "Access-Control-Allow-Origin: https://a.app.test", "Access-Control-Allow-Credentials: true", "Access-Control-Allow-Methods: GET, PUT",
			"Access-Control-Allow-Headers: X-Token", "Access-Control-Max-Age: 600")
		a = f.wants(204, "cross-origin", "cors_preflight", "OPTIONS edit.shop.test/cors", "Origin: https://a.b.app.test", "Access-Control-Request-Method: PUT")
		f.has("the preflight of another origin", a.Header, "Access-Control-Allow-Origin", "Access-Control-Allow-Methods")
		a = f.goes("cross-origin", "echo", "GET edit.shop.test/cors", "Origin: https://app.test", asAda)
		f.has("the response", a.Header, "Access-Control-Allow-Origin: https://app.test", "Access-Control-Expose-Headers: X-Total", "Vary: Origin")
		a = f.wants(401, "cross-origin", "auth_required", "GET edit.shop.test/cors", "Origin: https://app.test")
		f.has("the refusal", a.Header, "Access-Control-Allow-Origin: https://app.test")
		a = f.goes("cross-origin", "echo", "GET edit.shop.test/cors", "Origin: https://evil.test", asAda)
		f.has("the response to another origin", a.Header, "Access-Control-Allow-Origin")
	},
	"packed": func(f *fileTest) {
		for accept, want := range map[string]string{"gzip": "gzip", "br;q=1, gzip;q=0.5": "br", "zstd": "zstd", "gzip, br, zstd": "zstd", "identity": "", "": ""} {
			a := f.wants(200, "packed", "", "GET edit.shop.test/text", "Accept-Encoding: "+accept)
			f.has("the response for "+accept, a.Header, "Content-Encoding: "+want, "Vary: Accept-Encoding")
			if small := len(a.body) < len(packedText)/10; small != (want != "") {
				f.t.Errorf("for %q there are %d bytes", accept, len(a.body))
			}
		}
		f.has("a small response", f.wants(200, "packed", "", "GET edit.shop.test/text/small", "Accept-Encoding: gzip").Header, "Content-Encoding")
		f.has("a part", f.wants(206, "packed", "", "GET edit.shop.test/text/range", "Accept-Encoding: gzip", "Range: bytes=0-2000").Header, "Content-Encoding")
	},
	"small": func(f *fileTest) {
		f.goes("small", "echo", "POST edit.shop.test/upload", "", strings.Repeat("x", 1024))
		f.wants(413, "small", "body_too_large", "POST edit.shop.test/upload", "", strings.Repeat("x", 1025))
	},
	"weighted": func(f *fileTest) {
		c, _ := f.client("192.0.2.1")
		got := map[string]int{}
		for range 1000 {
			got[strings.TrimSuffix(f.ask(c, "GET split.shop.test/w").seen.Backend, "2")]++
		}
		if got["echo"] < 880 || got["echo"] > 920 || got["echo"]+got["next"] != 1000 {
			f.t.Errorf("the backends got %v", got)
		}
	},
	"mirrored": func(f *fileTest) {
		for i := range 10 {
			f.goes("mirrored", "echo", fmt.Sprintf("POST split.shop.test/m/%d", i), "", strings.Repeat("x", 6000*i))
		}
		for range 5 {
			select {
			case one := <-f.copied:
				var i, n int
				if fmt.Sscanf(one, "POST /m/%d %d", &i, &n); i%2 != 1 || n != 6000*i {
					f.t.Errorf("the mirror got %s", one)
				}
			case <-time.After(patience):
				f.t.Fatal("the mirror got too little")
			}
		}
		for range 2 {
			f.goes("mirrored", "echo", "POST split.shop.test/m/large", "", strings.Repeat("x", 64<<10+1))
		}
		f.wantMetric(5, "weir_mirrored_requests_total", "route", "mirrored", "result", "sent")
		f.wantMetric(1, "weir_mirrored_requests_total", "route", "mirrored", "result", "too_large")
	},
	"stuck": func(f *fileTest) {
		a := f.wants(200, "stuck", "", "GET split.shop.test/s")
		set := a.Cookies()
		if len(set) != 1 {
			f.t.Fatalf("the cookies are %v", set)
		}
		if c := set[0]; c.Name != "weir" || c.MaxAge != 3600 || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Secure != (f.listener == "websecure") || strings.Contains(c.Value, "127.0") {
			f.t.Errorf("the cookie is %v", c)
		}
		for range 10 {
			if b := f.wants(200, "stuck", "", "GET split.shop.test/s", "Cookie: weir="+set[0].Value); b.seen.Backend != a.seen.Backend || len(b.Cookies()) > 0 {
				f.t.Errorf("a client of %s got %s and %v", a.seen.Backend, b.seen.Backend, b.Cookies())
			}
		}
	},
	"timed": func(f *fileTest) {
		for _, test := range []struct {
			path   string
			status int
			reason string
			asked  int64
		}{{"slow", 504, "request_timeout", 3}, {"late", 200, "", 2}, {"busy", 200, "", 3}, {"503", 503, "", 3}, {"500", 500, "", 1}} {
			f.asked.Store(0)
			f.wants(test.status, "timed", test.reason, "GET split.shop.test/t/"+test.path)
			if n := f.asked.Load(); n != test.asked {
				f.t.Errorf("%s: %d attempts, not %d", test.path, n, test.asked)
			}
		}
		f.wantMetric(3, "weir_retries_total", "route", "timed", "reason", "timeout")
		f.wantMetric(4, "weir_retries_total", "route", "timed", "reason", "status")
	},
	"quiet": func(f *fileTest) {
		c, address := f.client("192.0.2.1")
		if a := f.ask(c, "GET split.shop.test/quiet"); a.StatusCode != 200 {
			f.t.Errorf("%s", a.Status)
		}
		f.goes("plain", "echo", "GET shop.test/")
		if all := f.accessLog(); slices.ContainsFunc(all, func(e entry) bool { return e.text("client") == address }) {
			f.t.Error("the access log has a line")
		}
		f.wantMetric(1, "weir_http_request_duration_seconds_count", "route", "quiet")
	},
	"tcp-allowed": func(f *fileTest) {
		for from, want := range map[string]string{"203.0.113.7": "hello", "198.51.100.7": ""} {
			c := dialWith(f.t, f.at("raw"), append(v1Header(from+":4711", "192.0.2.2:22"), "hello"...))
			got := make([]byte, 5)
			c.SetDeadline(time.Now().Add(patience))
			n, _ := io.ReadFull(c, got)
			c.Close()
			if !bytes.Equal(got[:n], []byte(want)) {
				f.t.Errorf("the client %s got %q", from, got[:n])
			}
		}
		f.wantMetric(1, "weir_tunnels_ended_total", "route", "tcp-allowed", "reason", "client_denied")
	},
}

// The limits of the file count the connections of a client over all listeners, before the handshake.
func TestRoutesFileLimits(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/routes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f := startRoutesFile(t, string(text), "websecure", false)
	var held []net.Conn
	open := func(listener, ip string) net.Conn {
		f.clients++
		return dialWith(t, f.at(listener), v1Header(fmt.Sprintf("%s:%d", ip, 10000+f.clients), "192.0.2.2:80"))
	}
	for i := range 300 {
		held = append(held, open([]string{"web", "websecure", "raw"}[i%3], "203.0.113.9"))
	}
	f.wantMetric(300, "weir_connections_open")
	for _, listener := range []string{"web", "websecure", "raw"} {
		c := open(listener, "203.0.113.9")
		c.SetDeadline(time.Now().Add(patience))
		if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil || os.IsTimeout(err) {
			t.Errorf("the connection 301 on %s: %d bytes, %v", listener, n, err)
		}
		c.Close()
	}
	f.logged("the refusal", func(e entry) bool {
		return e.text("reason") == "client_connections" && strings.HasPrefix(e.text("client"), "203.0.113.9:")
	})
	f.goes("plain", "echo", "GET shop.test/ from 203.0.113.10")
	for _, c := range held {
		c.Close()
	}
	f.wantMetric(1, "weir_connections_open") // that of the client before
	f.goes("plain", "echo", "GET shop.test/ from 203.0.113.9")
}
