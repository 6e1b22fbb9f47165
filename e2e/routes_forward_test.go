package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const singleSignOn = `
listeners:
  web: {address: '@web', protocol: http}
  websecure: {address: '@websecure', protocol: tls}
certificates: [{self_signed: {hosts: [guard.shop.test]}}]
auth:
  sso: {forward: {url: "http://@auth/check", headers: [X-Auth-User, X-Auth-Groups], sign_in: "https://login.shop.test/?rd={url}", timeout: 2s}}
  loop: {forward: {url: "http://@web/loop"}}
routes:
  - {name: sso, listeners: [web, websecure], hosts: [guard.shop.test], paths: [/sso], auth: sso, backend: echo}
  - {name: open, listeners: [web, websecure], hosts: [guard.shop.test], paths: [/open], backend: echo}
  - {name: packed, listeners: [web], hosts: [guard.shop.test], paths: [/packed], auth: sso, compress: true, backend: echo}
  - {name: loop, listeners: [web], paths: [/loop], auth: loop, backend: echo}
backends: {echo: {endpoints: ['@echo']}}
`

// newAuthServer starts an auth server, which knows a user by the cookie "user" and answers with
// another status for the cookie "status".
func newAuthServer(w *weir, name, group string) {
	w.serve(name, func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		for _, wrong := range []string{"Range", "If-None-Match", "Upgrade", "Expect", "Content-Type", "X-Auth-User"} {
			if r.Header.Get(wrong) != "" || len(body) > 0 || r.Method != "GET" || r.URL.Path != "/check" {
				rw.WriteHeader(500)
				return
			}
		}
		if c, err := r.Cookie("status"); err == nil {
			status := 0
			fmt.Sscan(c.Value, &status)
			if status == 0 {
				select { // weir gives up earlier
				case <-r.Context().Done():
				case <-time.After(10 * time.Second):
				}
				return
			}
			rw.Header().Set("Location", "/elsewhere")
			rw.WriteHeader(status)
			io.WriteString(rw, "of the server")
			return
		}
		c, err := r.Cookie("user")
		if err != nil {
			rw.WriteHeader(401)
			return
		}
		rw.Header().Set("X-Auth-User", c.Value)
		rw.Header().Set("X-Auth-Groups", group)
		rw.Header().Set("X-Seen", "x")
		rw.Header().Add("Set-Cookie", "seen="+strings.Join([]string{r.Header.Get("X-Forwarded-Method"), r.Header.Get("X-Forwarded-Proto"), r.Header.Get("X-Forwarded-Host"), r.Header.Get("X-Forwarded-Uri"),
			r.Header.Get("X-Forwarded-For"), r.Header.Get("X-Original-Method"), r.Header.Get("X-Original-Url")}, "|"))
		io.WriteString(rw, strings.Repeat("ignored ", 100000))
	})
}

func startForward(t *testing.T) *weir {
	t.Helper()
	t.Parallel()
	w := newWeir(t)
	w.address["echo"] = newWebBackend(t, "echo").address
	newAuthServer(w, "auth", "first")
	newAuthServer(w, "other", "second")
	return w.start(singleSignOn)
}

func TestRouteSSO(t *testing.T) {
	w := startForward(t)
	resp, body := called(t, w, "PUT", "guard.shop.test", "/sso/a?b=c", "Cookie: user=ada", "Range: bytes=0-1", "If-None-Match: x", "Content-Type: a/b", "Content-Length: 0")
	if resp.StatusCode != 200 || !strings.Contains(string(body), `"X-Auth-User":["ada"]`) || !strings.Contains(string(body), `"Range":["bytes=0-1"]`) || strings.Contains(string(body), "X-Seen") {
		t.Errorf("%s: %s", resp.Status, body)
	}
	if got, want := resp.Header.Get("Set-Cookie"), "seen=PUT|http|guard.shop.test|/sso/a?b=c|127.0.0.1|PUT|http://guard.shop.test/sso/a?b=c"; got != want {
		t.Errorf("the auth server got %q", got)
	}
	got := curlSeen(t, "--http2", "-H", "Cookie: user=ada", "-H", "X-Auth-User: root", "--data-binary", "0123456789", "--connect-to", "::"+w.at("websecure"), "https://guard.shop.test/sso")
	if strings.Join(got.Header["X-Auth-User"], " ") != "ada" || strings.Join(got.Header["X-Auth-Groups"], " ") != "first" {
		t.Errorf("by HTTP/2 the endpoint got %v", got.Header)
	}
	for _, test := range []struct {
		method, cookie, accept string
		status                 int
		location, body         string
	}{
		{"GET", "", "text/html", 302, "https://login.shop.test/?rd=http%3A%2F%2Fguard.shop.test%2Fsso%3Fa%3D1%26b", "sign in first\n"},
		{"HEAD", "", "text/html", 302, "https://login.shop.test/?rd=http%3A%2F%2Fguard.shop.test%2Fsso%3Fa%3D1%26b", ""},
		{"POST", "", "text/html", 401, "", ""},
		{"GET", "", "application/json", 401, "", ""},
		{"GET", "status=403", "text/html", 403, "/elsewhere", "of the server"},
		{"GET", "status=303", "text/html", 303, "/elsewhere", "of the server"},
		{"GET", "status=500", "text/html", 503, "", "the server that decides about this request failed or did not answer\n"},
		{"GET", "status=0", "text/html", 503, "", "the server that decides about this request failed or did not answer\n"},
	} {
		lines := []string{"Accept: " + test.accept}
		if test.cookie != "" {
			lines = append(lines, "Cookie: "+test.cookie)
		}
		resp, body := called(t, w, test.method, "guard.shop.test", "/sso?a=1&b", lines...)
		if resp.StatusCode != test.status || resp.Header.Get("Location") != test.location || string(body) != test.body {
			t.Errorf("%+v: %s %v %q", test, resp.Status, resp.Header, body)
		}
	}
	w.wantMetric(2, "weir_guard_failures_total", "route", "sso", "guard", "auth", "reason", "auth_unavailable")
	w.logged("the failure", func(e entry) bool { return e.text("reason") == "auth_unavailable" && e.text("route") == "sso" })
}

// A client cannot forge the HTTP headers that the auth server sets.
func TestRouteSSOCannotBeForged(t *testing.T) {
	w := startForward(t)
	for _, lines := range [][]string{
		{"X-Auth-User: root"}, {"x-auth-user: root"}, {"X_Auth_User: root"}, {"X-Auth_User: root"}, {"X.Auth.User: root"}, {"X-AUTH-USER: root", "X-Auth-User: root"},
		{"X_AUTH_GROUPS: root"}, {"Connection: X-Auth-User"}, {"Connection: x-auth-user, X-Auth-Groups, close"}, {"Connection: Cookie"},
		{"X-Auth-User: root", "Connection: X-Auth-User"}, {"X-Forwarded-Uri: /open"}, {"X-Original-URL: /open"}, {"X_Forwarded_Uri: /open"}, {"X-HTTP-Method-Override: HEAD"},
		{"X-Forwarded-User: root", "Cookie: user=ada", "X-Auth-User: root"},
	} {
		for _, target := range []string{"/open", "/sso"} {
			resp, body := called(t, w, "GET", "guard.shop.test", target, append([]string{"Cookie: user=ada"}, lines...)...)
			text := string(body)
			if strings.Contains(text, `"X-Auth-User":["root`) || strings.Contains(strings.ToLower(text), "auth_user") || strings.Contains(text, "X.Auth") || strings.Contains(strings.ToLower(text), `groups":["root`) {
				t.Errorf("%s with %q: %s", target, lines, text)
			}
			named := strings.Contains(text, `"X-Auth-User":["ada"]`) && strings.Contains(text, `"X-Auth-Groups":["first"]`)
			if target == "/sso" && !named && resp.StatusCode == 200 || target == "/open" && named {
				t.Errorf("%s with %q: %s %s", target, lines, resp.Status, text)
			}
			if seen := resp.Header.Get("Set-Cookie"); target == "/sso" && resp.StatusCode == 200 && !strings.HasSuffix(seen, "|GET|http://guard.shop.test/sso") {
				t.Errorf("%q: the auth server got %q", lines, seen)
			}
		}
	}
}

// Requests after a reload go to the new URL, also over a connection that is open, and none fails.
func TestRouteSSOReload(t *testing.T) {
	w := startForward(t)
	c := dial(t, w.at("web"))
	defer c.Close()
	br := bufio.NewReader(c)
	f := func(group string) error {
		resp, body, err := ask(c, br, "GET", "guard.shop.test", "/sso", "Cookie: user=ada")
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		if !strings.Contains(string(body), `"X-Auth-Groups":["`+group+`"]`) {
			return fmt.Errorf("%s", body)
		}
		return nil
	}
	if err := f("first"); err != nil {
		t.Error(err)
	}
	w.reload(strings.Replace(singleSignOn, "@auth/", "@other/", 1))
	eventually(t, "the other server decides", func() error { return f("second") })
}

// A response with a cookie of the auth server is not compressed.
func TestRouteSSOCookiesAreNotCompressed(t *testing.T) {
	w := startForward(t)
	resp, _ := called(t, w, "GET", "guard.shop.test", "/packed", "Cookie: user=ada", "Accept-Encoding: gzip", "X-Long: "+strings.Repeat("long ", 1000))
	if resp.StatusCode != 200 || resp.Header.Get("Set-Cookie") == "" || resp.Header.Get("Content-Encoding") != "" {
		t.Errorf("%s %v", resp.Status, resp.Header)
	}
}

// An auth server that is weir itself ends in a refusal, not in endless requests.
func TestRouteSSOLoop(t *testing.T) {
	w := startForward(t)
	resp, _ := called(t, w, "GET", "any.test", "/loop")
	if resp.StatusCode != 503 {
		t.Errorf("%s", resp.Status)
	}
	w.logged("the loop", func(e entry) bool { return strings.Contains(e.text("error"), "routing loop") })
}

// A client that does not wait for the auth server is no failure of the guard.
func TestRouteSSOClientGone(t *testing.T) {
	w := startForward(t)
	out, err := exec.Command("curl", "-sk", "--http2", "--max-time", "0.5", "-H", "Cookie: status=0", "--connect-to", "::"+w.at("websecure"), "https://guard.shop.test/sso").CombinedOutput()
	if err == nil {
		t.Errorf("curl got %s", out)
	}
	w.logged("the client has gone", func(e entry) bool { return e.text("reason") == "client_gone" && e.text("route") == "sso" })
	if n := w.metric("weir_guard_failures_total", "route", "sso", "guard", "auth", "reason", "auth_unavailable"); n != 0 {
		t.Errorf("%v failures were counted", n)
	}
}
