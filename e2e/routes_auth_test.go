package e2e

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
  token: {jwt: {issuer: "https://issuer.test", audience: [shop], keys: '@@dir/jwks.json', headers: {sub: X-User}}}
routes:
  - {name: staff, listeners: [web, websecure], hosts: [guard.shop.test], paths: [/staff], auth: staff, backend: echo}
  - {name: either, listeners: [web, websecure], hosts: [guard.shop.test], paths: [/either], clients: {allow: [203.0.113.0/24]}, auth: staff, satisfy: any, backend: echo}
  - {name: token, listeners: [web, websecure], hosts: [guard.shop.test], paths: [/token], auth: token, backend: echo}
  - {name: open, listeners: [web, websecure], hosts: [guard.shop.test], paths: [/open], backend: echo}
backends: {echo: {endpoints: ['@echo']}}
`

func startAuth(t *testing.T) *weir {
	t.Helper()
	t.Parallel()
	w := newWeir(t)
	w.address["echo"] = newWebBackend(t, "echo").address
	writeUsers(t, w, staffUsers)
	writeKeys(t, w, tokenKey)
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

// tokenKey signs the tokens of the tests.
var tokenKey, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)

func writeKeys(t *testing.T, w *weir, key *ecdsa.PrivateKey) {
	t.Helper()
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	x, y := base64.RawURLEncoding.EncodeToString(point[1:33]), base64.RawURLEncoding.EncodeToString(point[33:])
	if err := os.WriteFile(filepath.Join(w.dir, "jwks.json"), fmt.Appendf(nil, `{"keys":[{"kty":"EC","crv":"P-256","kid":"ec-1","use":"sig","x":%q,"y":%q}]}`, x, y), 0o644); err != nil {
		t.Fatal(err)
	}
}

// signToken returns a token with these claims.
func signToken(t *testing.T, key *ecdsa.PrivateKey, claims string) string {
	t.Helper()
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","kid":"ec-1"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
	sum := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	var signature [64]byte
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return text + "." + base64.RawURLEncoding.EncodeToString(signature[:])
}

func TestRouteToken(t *testing.T) {
	w := startAuth(t)
	claims := fmt.Sprintf(`{"iss":"https://issuer.test","aud":"shop","sub":"ada","exp":%d}`, time.Now().Add(time.Hour).Unix())
	good := signToken(t, tokenKey, claims)
	for range 2 {
		got := curlSeen(t, "--http2", "-H", "Authorization: Bearer "+good, "-H", "X-User: root", "-H", "x_user: root", "--connect-to", "::"+w.at("websecure"), "https://guard.shop.test/token")
		if h := got.Header; strings.Join(h["X-User"], " ") != "ada" || h["X_user"] != nil {
			t.Errorf("the endpoint got %v", h)
		}
	}
	w.logged("the user", func(e entry) bool { return e.text("route") == "token" && e.text("user") == "ada" })
	next, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	f := func(want string, lines ...string) {
		t.Helper()
		resp, _ := guarded(t, w, "/token", lines...)
		if got := resp.Header.Get("WWW-Authenticate"); resp.StatusCode != 401 || got != want {
			t.Errorf("%.80q: %s %q", lines, resp.Status, got)
		}
	}
	f(`Bearer realm="token"`)
	f(`Bearer realm="token", error="invalid_token"`, "Authorization: Bearer "+signToken(t, next, claims))
	f(`Bearer realm="token", error="invalid_token"`, "Authorization: Bearer "+signToken(t, tokenKey, strings.Replace(claims, "shop", "other", 1)))
	writeKeys(t, w, next)
	eventually(t, "the new keys are in use", func() error {
		if resp, _ := guarded(t, w, "/token", "Authorization: Bearer "+good); resp.StatusCode != 401 {
			return fmt.Errorf("%s", resp.Status)
		}
		return nil
	})
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

// A client can neither forge nor remove the HTTP header with the user, on any route.
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
