package e2e

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// staffUsers are ada lovelace, bob builder and eve dropper, with three kinds of hashes.
const staffUsers = `ada:$2y$05$IrUeq4atFAJpxVbOKWx8QeQO4LYF/WCufaEfn6hr6iKfo6g6XXVCK
bob:$6$9O8Yjw3CtiUtPxKz$YopPBIocywm4sS5xxB7h2wqJWVRyY2HYiivOE.C9SdQZ/gjjGdyIU1oa64n7zqXSexzKD3wu2xZUldtCsiopf0
eve:$apr1$q3zQw7hZ$SftucehmZPLz9cxjjknYZ1
`

const authenticated = `
listeners:
  web: {address: '@web', protocol: http, proxy_protocol: edge}
  websecure: {address: '@websecure', protocol: tls, proxy_protocol: edge}
proxy_protocol: {edge: {rules: [{from: [127.0.0.0/8], header: optional}]}}
certificates: [{self_signed: {hosts: [guard.shop.test]}}]
auth:
  staff: {basic: {file: '@@dir/users.htpasswd', realm: Staff}}
routes:
  - {name: staff, listeners: [web, websecure], hosts: [guard.shop.test], paths: [/staff], auth: staff, backend: echo}
  - {name: either, listeners: [web, websecure], hosts: [guard.shop.test], paths: [/either], clients: {allow: [203.0.113.0/24]}, auth: staff, satisfy: any, backend: echo}
  - {name: open, listeners: [web, websecure], hosts: [guard.shop.test], paths: [/open], backend: echo}
backends: {echo: {endpoints: ['@echo']}}
`

func startAuth(t *testing.T) *weir {
	t.Helper()
	t.Parallel()
	w := newWeir(t)
	w.address["echo"] = newWebBackend(t, "echo").address
	writeUsers(t, w, staffUsers)
	return w.start(authenticated)
}

func writeUsers(t *testing.T, w *weir, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, "users.htpasswd"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// guarded sends a request for guard.shop.test to the listener web.
func guarded(t *testing.T, w *weir, target string, lines ...string) (*http.Response, []byte) {
	t.Helper()
	c := dial(t, w.at("web"))
	defer c.Close()
	resp, body, err := ask(c, bufio.NewReader(c), "GET", "guard.shop.test", target, lines...)
	if err != nil {
		t.Fatal(err)
	}
	return resp, body
}

func TestRouteStaff(t *testing.T) {
	w := startAuth(t)
	for _, user := range []string{"ada:lovelace", "bob:builder", "eve:dropper"} {
		for range 2 {
			got := curlSeen(t, "-u", user, "-H", "X-Forwarded-User: root", "-H", "x_forwarded_user: root", "-H", "Host: guard.shop.test", "http://"+w.at("web")+"/staff/a")
			name, _, _ := strings.Cut(user, ":")
			if h := got.Header; strings.Join(h["X-Forwarded-User"], " ") != name || h["Authorization"] != nil || h["X_forwarded_user"] != nil {
				t.Errorf("%s: the endpoint got %v", user, h)
			}
			if got := curlSeen(t, "--http2", "-u", user, "--connect-to", "::"+w.at("websecure"), "https://guard.shop.test/staff"); strings.Join(got.Header["X-Forwarded-User"], " ") != name {
				t.Errorf("%s by HTTP/2: the endpoint got %v", user, got.Header)
			}
		}
		w.logged("the user", func(e entry) bool { return e.text("user") == strings.Split(user, ":")[0] })
	}
	for _, lines := range [][]string{nil, {"Authorization: Basic YWRhOndyb25n"}, {"Authorization: Basic %%%"}, {"Authorization: Bearer a"}} {
		resp, body := guarded(t, w, "/staff", lines...)
		if resp.StatusCode != 401 || resp.Header.Get("WWW-Authenticate") != `Basic realm="Staff", charset="UTF-8"` {
			t.Errorf("%q: %s %v %s", lines, resp.Status, resp.Header, body)
		}
	}
	w.logged("the refusal", func(e entry) bool {
		return e.text("reason") == "auth_failed" && e.text("route") == "staff" && e.text("user") == ""
	})
	// Another spelling of the path avoids no password.
	if resp, _ := guarded(t, w, "/Staff"); resp.StatusCode == 200 {
		t.Errorf("another spelling: %s", resp.Status)
	}
}

func TestRouteEither(t *testing.T) {
	w := startAuth(t)
	f := func(client, credentials string, want int) {
		t.Helper()
		c := dial(t, w.at("web"))
		defer c.Close()
		if _, err := fmt.Fprintf(c, "PROXY TCP4 %s 192.0.2.1 1234 80\r\n", client); err != nil {
			t.Fatal(err)
		}
		var lines []string
		if credentials != "" {
			lines = []string{"Authorization: Basic " + credentials}
		}
		resp, body, err := ask(c, bufio.NewReader(c), "GET", "guard.shop.test", "/either", lines...)
		if err != nil || resp.StatusCode != want || strings.Contains(string(body), "Authorization") {
			t.Errorf("%s with %q: %v %v, %s", client, credentials, resp, err, body)
		}
	}
	f("203.0.113.7", "", 200)
	f("203.0.113.7", "YWRhOndyb25n", 200)
	f("198.51.100.7", "", 401)
	f("198.51.100.7", "YWRhOmxvdmVsYWNl", 200)
}

// Nobody can tell an endpoint another user, on any route, and nobody can remove the one that weir tells.
func TestRouteUserCannotBeForged(t *testing.T) {
	w := startAuth(t)
	_, body := guarded(t, w, "/open", "X-Forwarded-User: root", "X_Forwarded_User: root", "X-Forwarded.User: root", "Authorization: Basic YTpi")
	if text := string(body); strings.Contains(text, "root") || !strings.Contains(text, "Basic YTpi") {
		t.Errorf("an open route: %s", text)
	}
	_, body = guarded(t, w, "/staff", "Authorization: Basic YWRhOmxvdmVsYWNl", "Connection: X-Forwarded-User, close")
	if text := string(body); !strings.Contains(text, `"X-Forwarded-User":["ada"]`) {
		t.Errorf("a user whom Connection names: %s", text)
	}
}

// A changed file of users takes effect, and a broken one changes nothing.
func TestRouteUsersAreReadAgain(t *testing.T) {
	w := startAuth(t)
	status := func(want int) {
		t.Helper()
		eventually(t, fmt.Sprintf("ada gets %d", want), func() error {
			if resp, _ := guarded(t, w, "/staff", "Authorization: Basic YWRhOmxvdmVsYWNl"); resp.StatusCode != want {
				return fmt.Errorf("%s", resp.Status)
			}
			return nil
		})
	}
	status(200)
	writeUsers(t, w, "broken\n")
	eventually(t, "the log has the error", func() error {
		if !strings.Contains(w.log.String(), "a file of users or keys changed and cannot be used") {
			return fmt.Errorf("it has not")
		}
		return nil
	})
	status(200)
	writeUsers(t, w, strings.ReplaceAll(staffUsers, "ada:", "grace:"))
	status(401)
}
