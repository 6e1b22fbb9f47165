package e2e

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// wikiPage is the page that a user of the tests wants to see. Its port is the default one, as in
// the recipe; the clients of the tests know the real port.
const wikiPage = "https://wiki.example.org/page?a=b&c=%2F"

// startOIDC runs the recipe for single sign-on in front of an auth server that signs users in at
// an OpenID provider.
func startOIDC(t *testing.T) (r *recipe, s *signIn, p *provider) {
	t.Helper()
	t.Parallel()
	p = newProvider(t)
	s = newSignIn(t, p)
	r = newRecipe(t, "Single sign-on", map[string]string{"127.0.0.1:4180": serveHTTP(t, s.ServeHTTP)})
	r.start(r.config)
	return r, s, p
}

// wikiReader is an HTTP client with cookies. It follows redirects and remembers them.
type wikiReader struct {
	*http.Client
	t   *testing.T
	way []string // scheme, host and path of each redirect of the last request
}

func newWikiReader(t *testing.T, r *recipe) *wikiReader {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address == "wiki.example.org:443" {
				address = r.at("websecure")
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	reader := &wikiReader{t: t}
	reader.Client = &http.Client{Transport: transport, Jar: jar, Timeout: patience, CheckRedirect: func(next *http.Request, _ []*http.Request) error {
		reader.way = append(reader.way, next.URL.Scheme+"://"+next.URL.Host+next.URL.Path)
		return nil
	}}
	return reader
}

// get requests a URL as a browser does, or as a program, which accepts no HTML. A reader always
// claims to be root.
func (c *wikiReader) get(target, accept string) (*http.Response, string) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), "GET", target, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("X-Auth-Request-User", "root")
	return c.do(req)
}

// post sends the form of the provider's page.
func (c *wikiReader) post(target *url.URL, user, password string) (*http.Response, string) {
	c.t.Helper()
	form := url.Values{"user": {user}, "password": {password}}
	req, err := http.NewRequestWithContext(c.t.Context(), "POST", target.String(), strings.NewReader(form.Encode()))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return c.do(req)
}

func (c *wikiReader) do(req *http.Request) (*http.Response, string) {
	c.t.Helper()
	c.way = nil
	resp, err := c.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp, string(body)
}

const asBrowser, asProgram = "text/html", "application/json" // values of Accept

// A user without a session is sent to the provider, signs in there, and comes back to the page that
// was requested first. The backend gets the user's name from the token, whatever the client claims.
func TestOIDCLogin(t *testing.T) {
	r, s, p := startOIDC(t)
	c := newWikiReader(t, r)
	want := func(status int, way ...string) func(resp *http.Response, body string) (*http.Response, string) {
		return func(resp *http.Response, body string) (*http.Response, string) {
			t.Helper()
			if resp.StatusCode != status || !slices.Equal(c.way, way) {
				t.Errorf("%s: %s after the redirects %q, not %d after %q: %s", resp.Request.URL, resp.Status, c.way, status, way, body)
			}
			return resp, body
		}
	}
	const wiki = "https://wiki.example.org"
	want(401)(c.get(wikiPage, asProgram))
	form, _ := want(200, wiki+"/oauth2/start", p.URL+"/authorize")(c.get(wikiPage, asBrowser))

	want(403)(c.post(form.Request.URL, "ada", "wrong"))
	want(401)(c.get(wikiPage, asProgram))

	page, seen := want(200, wiki+"/oauth2/callback", wiki+"/page")(c.post(form.Request.URL, "ada", adasPassword))
	for range 2 { // by the login itself, and by the session
		if page.Request.URL.String() != wikiPage || page.ProtoMajor != 2 || !strings.Contains(seen, `"URI":"/page?a=b\u0026c=%2F"`) ||
			!strings.Contains(seen, `"X-Auth-Request-User":["ada"]`) || !strings.Contains(seen, `"X-Auth-Request-Email":["ada@example.org"]`) {
			t.Errorf("the page %s by %s shows %s", page.Request.URL, page.Proto, seen)
		}
		page, seen = want(200)(c.get(wikiPage, asProgram))
	}

	stranger := newWikiReader(t, r) // has neither the session nor the cookie of the login
	if resp, body := stranger.get(wiki+"/oauth2/callback?code=a&state=b", asBrowser); resp.StatusCode != 403 {
		t.Errorf("a login that nobody began: %s %s", resp.Status, body)
	}
	if resp, body := stranger.get(wikiPage, asProgram); resp.StatusCode != 401 {
		t.Errorf("a stranger: %s %s", resp.Status, body)
	}

	session := c.Jar.Cookies(page.Request.URL)
	want(200, wiki+"/", wiki+"/oauth2/start", p.URL+"/authorize")(c.get(wiki+"/oauth2/sign_out", asBrowser))
	want(401)(c.get(wikiPage, asProgram))
	c.Jar.SetCookies(page.Request.URL, session) // the old cookie is worth nothing
	want(401)(c.get(wikiPage, asProgram))

	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.forged) > 0 {
		t.Errorf("the auth server got X-Auth-Request-User from clients: %q", s.forged)
	}
}

// The same login by a browser, which keeps the cookies by its own rules.
func TestChromiumSignsInByOIDC(t *testing.T) {
	r, _, p := startOIDC(t)
	tab := newBrowser(t, "MAP wiki.example.org "+r.at("websecure")).tab()
	signIn := func(password string) visited {
		t.Helper()
		tab.evaluate("document.forms[0].user.value = 'ada'; document.forms[0].password.value = '" + password + "'; document.forms[0].submit()")
		return tab.loaded()
	}
	if got := tab.visit(wikiPage); got.status != 200 || !strings.HasPrefix(tab.evaluate("location.href"), p.URL+"/authorize?") {
		t.Fatalf("the browser is at %s: %d %s", tab.evaluate("location.href"), got.status, got.text)
	}
	if got := signIn("wrong"); got.status != 403 {
		t.Errorf("a wrong password: %d %s", got.status, got.text)
	}
	tab.visit(wikiPage)
	for range 2 {
		got := signIn(adasPassword)
		if at := tab.evaluate("location.href"); at != wikiPage || got.status != 200 || !strings.Contains(got.text, `"X-Auth-Request-User":["ada"]`) {
			t.Fatalf("after the login the browser is at %s: %d %s", at, got.status, got.text)
		}
		if got := tab.visit(wikiPage + "d"); !strings.Contains(got.text, `"X-Auth-Request-User":["ada"]`) {
			t.Errorf("the session does not last: %d %s", got.status, got.text)
		}
		tab.visit("https://wiki.example.org/oauth2/sign_out")
		if tab.visit(wikiPage); !strings.HasPrefix(tab.evaluate("location.href"), p.URL+"/authorize?") {
			t.Fatalf("after signing out the browser is at %s", tab.evaluate("location.href"))
		}
	}
}
