package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	pb "google.golang.org/grpc/interop/grpc_testing"
)

// Each configuration in docs/recipes.md is loaded as it stands, apart from addresses, and does
// what its text says. The listeners also take a PROXY header, so that a test can be any client.

const recipesPage = "../docs/recipes.md"

var (
	recipeParts     = regexp.MustCompile("(?ms)^## (.*?)\n(.*?)```yaml\n(.*?)```")
	recipeListener  = regexp.MustCompile(`(?m)^  (\w+): \{address: "[^"]*", protocol: (\w+)(, tls_policy: \w+)?\}`)
	recipeEndpoint  = regexp.MustCompile(`10\.0\.0\.\d+:\d+|127\.0\.0\.1:4180`)
	recipePEM       = regexp.MustCompile(`tls/(\w+)\.crt`)
	recipeHealth    = regexp.MustCompile(`(?m)^health: .*\n`)
	recipeACMEPlace = "storage: /var/lib/weir"
)

// recipe is a configuration of the page, with the addresses of a test.
type recipe struct {
	*weir
	config string
	apps   map[string]*webBackend // by the address in the page
}

// newRecipe reads the configuration under a heading. Each endpoint of the page becomes a
// backend that answers with its address in the page, unless to has an address for it.
func newRecipe(t *testing.T, heading string, to map[string]string) *recipe {
	t.Helper()
	page, err := os.ReadFile(recipesPage)
	if err != nil {
		t.Fatal(err)
	}
	r := &recipe{weir: newWeir(t), apps: map[string]*webBackend{}}
	for _, m := range recipeParts.FindAllStringSubmatch(string(page), -1) {
		if m[1] == heading {
			r.config = m[3]
		}
	}
	if r.config == "" {
		t.Fatalf("%s has no configuration under %q", recipesPage, heading)
	}
	r.config = recipeListener.ReplaceAllString(r.config, "  $1: {address: '@$1', protocol: $2$3, proxy_protocol: edge}") +
		"proxy_protocol: {edge: {rules: [{from: [127.0.0.0/8], header: optional}]}}\n"
	r.config = recipeHealth.ReplaceAllString(r.config, "")
	r.config = recipeEndpoint.ReplaceAllStringFunc(r.config, func(page string) string {
		if to[page] != "" {
			return to[page]
		}
		if r.apps[page] == nil {
			r.apps[page] = newWebBackend(t, page)
		}
		return r.apps[page].address
	})
	for _, m := range recipePEM.FindAllStringSubmatch(r.config, -1) {
		dir := filepath.Join(r.dir, "tls")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		writeCertificate(t, dir, m[1], m[1] == "partners", m[1]+".example.org")
	}
	return r
}

// ask sends a GET request as the client with an address, by a PROXY header.
func (r *recipe) ask(listener, client, host, target string, lines ...string) (*http.Response, string) {
	r.t.Helper()
	c := r.dial(listener, client, host)
	defer c.Close()
	resp, body, err := ask(c, bufio.NewReader(c), "GET", host, target, lines...)
	if err != nil {
		r.t.Fatalf("GET %s%s as %s: %v", host, target, client, err)
	}
	return resp, string(body)
}

// dial opens a connection as the client with an address. A listener that is called websecure
// speaks TLS.
func (r *recipe) dial(listener, client, host string) net.Conn {
	r.t.Helper()
	c := dial(r.t, r.at(listener))
	if _, err := c.Write(v1Header(client+":4711", "192.0.2.1:443")); err != nil {
		r.t.Fatal(err)
	}
	if listener == "web" {
		return c
	}
	return tls.Client(c, anyCertificate(host))
}

// want checks the status of an answer, and a text of its body or of its Location.
func (r *recipe) want(listener, client, host, target string, status int, text string, lines ...string) *http.Response {
	r.t.Helper()
	resp, body := r.ask(listener, client, host, target, lines...)
	if resp.StatusCode != status || !strings.Contains(resp.Header.Get("Location")+body, text) {
		r.t.Errorf("GET %s%s as %s: %s, %v, %q; want %d with %q", host, target, client, resp.Status, resp.Header, body, status, text)
	}
	return resp
}

const anyClient = "192.0.2.99"

func TestRecipeACME(t *testing.T) {
	t.Parallel()
	ca := newPebble(t, pebbleOptions{}).run()
	r := newRecipe(t, "Two sites with certificates from Let's Encrypt", nil)
	if !strings.Contains(r.config, recipeACMEPlace) {
		t.Fatalf("no %s in\n%s", recipeACMEPlace, r.config)
	}
	authority := fmt.Sprintf("storage: '@@dir/acme'\n      directory: 'https://%s/dir'\n      ca: '%s'", ca.address, ca.own.cert)
	ca.forward(r.at("web"), r.at("websecure"))
	r.config = strings.Replace(r.config, "ops@example.org", "'${OPERATOR}'", 1) // in tests an @ begins the name of an address
	r.env = []string{"OPERATOR=ops@example.org"}
	r.start(strings.Replace(r.config, recipeACMEPlace, authority, 1))
	roots := ca.roots()
	for host, endpoints := range map[string][]string{"shop.example.org": {"10.0.0.11:8080", "10.0.0.12:8080"}, "blog.example.org": {"10.0.0.21:8080"}} {
		served(t, r.at("websecure"), host, roots)
		resp := r.want("websecure", anyClient, host, "/", 200, "")
		if resp.Header.Get("Strict-Transport-Security") == "" {
			t.Errorf("%s: no Strict-Transport-Security in %v", host, resp.Header)
		}
		_, body := r.ask("websecure", anyClient, host, "/")
		if !slices.ContainsFunc(endpoints, func(e string) bool { return strings.Contains(body, e) }) {
			t.Errorf("%s is served by %s", host, body)
		}
		r.want("web", anyClient, host, "/a?b", 308, "https://"+host+"/a?b")
	}
}

func TestRecipeMaintenance(t *testing.T) {
	t.Parallel()
	r := newRecipe(t, "A maintenance page", nil)
	r.start(r.config)
	resp := r.want("web", anyClient, "shop.example.org", "/any", 503, "opens again at noon")
	if h := resp.Header; h.Get("Retry-After") != "3600" || h.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("the headers are %v", h)
	}
	r.want("web", "203.0.113.7", "shop.example.org", "/any", 200, "10.0.0.11")
}

func TestRecipeOldPartners(t *testing.T) {
	t.Parallel()
	r := newRecipe(t, "Partners with old TLS", nil)
	r.start(r.config)
	r.want("websecure", anyClient, "shop.example.org", "/", 200, "10.0.0.11")
	old := func(client, host string) error {
		c := dial(t, r.at("websecure"))
		if _, err := c.Write(v1Header(client+":4711", "192.0.2.1:443")); err != nil {
			t.Fatal(err)
		}
		cfg := anyCertificate(host)
		cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS10, tls.VersionTLS10
		cfg.CipherSuites = []uint16{tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA}
		return tls.Client(c, cfg).Handshake()
	}
	if err := old("198.51.100.7", "partners.example.org"); err != nil {
		t.Errorf("a partner is refused: %v", err)
	}
	if old(anyClient, "partners.example.org") == nil || old("198.51.100.7", "shop.example.org") == nil {
		t.Error("old TLS is served to others, or for another name")
	}
	if r.linesWith(`"warn"`, "tls_policy") != 0 {
		t.Errorf("weir warns of the recipe:\n%s", &r.log)
	}
}

func TestRecipeWebSockets(t *testing.T) {
	t.Parallel()
	r := newRecipe(t, "WebSockets", nil)
	r.start(r.config)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws://"+r.at("web")+"/ws", &websocket.DialOptions{Host: "chat.example.org"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, got, err := c.Read(ctx); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestRecipeGRPC(t *testing.T) {
	t.Parallel()
	b := newGRPCBackend(t)
	other := newGRPCBackend(t)
	r := newRecipe(t, "gRPC", map[string]string{"10.0.0.11:50051": b.address, "10.0.0.12:50051": other.address})
	r.start(r.config)
	r.wantMetric(2, "weir_backend_endpoints_ready", "backend", "api")
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	answer, err := grpcClientFor(t, r.at("websecure"), "api.example.org").UnaryCall(ctx, &pb.SimpleRequest{ResponseSize: 7})
	if err != nil || len(answer.GetPayload().GetBody()) != 7 {
		t.Errorf("%v, %v", answer, err)
	}
}

func TestRecipeRedirects(t *testing.T) {
	t.Parallel()
	r := newRecipe(t, "Redirects", nil)
	r.start(r.config)
	r.want("web", anyClient, "www.example.org", "/a?b", 308, "http://example.org/a?b")
	r.want("web", anyClient, "example.org", "/blog/2026?b", 308, "http://example.org/news/2026?b")
	r.want("web", anyClient, "old.example.net", "/a?b", 301, "https://example.org/from-net/a?b")
	r.want("web", anyClient, "example.net", "/", 301, "https://example.org/from-net/")
	r.want("web", anyClient, "example.org", "/", 200, "10.0.0.11")
}

func TestRecipeSSH(t *testing.T) {
	t.Parallel()
	s := startSSH(t)
	r := newRecipe(t, "SSH beside HTTPS", map[string]string{"10.0.0.11:22": s.address})
	r.start(r.config)
	r.want("websecure", anyClient, "git.example.org", "/", 200, "10.0.0.11:3000")
	s.transfer(t, r.at("websecure"), pattern(2<<20))
}

func TestRecipeAPI(t *testing.T) {
	t.Parallel()
	r := newRecipe(t, "An API with tokens and limits", nil)
	writeKeys(t, r.weir, tokenKey)
	r.start(r.config)
	token := "Authorization: Bearer " + signToken(t, tokenKey, fmt.Sprintf(`{"iss":"https://login.example.org","aud":"api","sub":"ada","exp":%d}`, time.Now().Add(time.Hour).Unix()))
	if resp := r.want("websecure", anyClient, "api.example.org", "/", 401, ""); resp.Header.Get("WWW-Authenticate") == "" {
		t.Errorf("no WWW-Authenticate in %v", resp.Header)
	}
	r.want("websecure", anyClient, "api.example.org", "/", 200, `"ada"`, token, "X-User: root")
	r.want("websecure", anyClient, "api.example.org", "/", 413, "", token, "Content-Length: 2000000")
	for range 10 {
		r.want("websecure", "192.0.2.98", "api.example.org", "/reports", 200, "10.0.0.11", token, "X-Api-Key: a")
	}
	if resp := r.want("websecure", "192.0.2.98", "api.example.org", "/reports", 429, "", token, "X-Api-Key: a"); resp.Header.Get("Retry-After") == "" {
		t.Errorf("no Retry-After in %v", resp.Header)
	}
	r.want("websecure", "192.0.2.98", "api.example.org", "/reports", 200, "10.0.0.11", token, "X-Api-Key: b")
}

func TestRecipeCanary(t *testing.T) {
	t.Parallel()
	r := newRecipe(t, "A canary that gets 10 % of the requests", nil)
	r.start(r.config)
	got := 0
	for range 100 {
		if _, body := r.ask("web", anyClient, "shop.example.org", "/"); strings.Contains(body, "10.0.0.12") {
			got++
		}
	}
	if got < 8 || got > 12 {
		t.Errorf("the new version gets %d of 100 requests", got)
	}
	for range 5 {
		r.want("web", anyClient, "shop.example.org", "/", 200, "10.0.0.12", "X-Canary: always")
	}
}

// The page's single sign-on, with a server in the place of oauth2-proxy that knows one cookie.
func TestRecipeSingleSignOn(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := r.Cookie("session")
		switch {
		case r.URL.Path != "/oauth2/auth":
			fmt.Fprintf(w, "sign in, then go to %s", r.URL.Query().Get("rd"))
		case err != nil || c.Value != "ada":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			w.Header().Set("X-Auth-Request-User", c.Value)
			w.WriteHeader(http.StatusAccepted)
		}
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	r := newRecipe(t, "Single sign-on", map[string]string{"127.0.0.1:4180": l.Addr().String()})
	r.start(r.config)
	resp := r.want("websecure", anyClient, "wiki.example.org", "/page?a=b", 302, "https://wiki.example.org/oauth2/start?rd=https%3A%2F%2Fwiki.example.org%2Fpage%3Fa%3Db", "Accept: text/html")
	location, err := resp.Location()
	if err != nil {
		t.Fatal(err)
	}
	r.want("websecure", anyClient, "wiki.example.org", location.RequestURI(), 200, "go to https://wiki.example.org/page?a=b")
	r.want("websecure", anyClient, "wiki.example.org", "/page", 401, "")
	r.want("websecure", anyClient, "wiki.example.org", "/page", 200, `"X-Auth-Request-User":["ada"]`, "Cookie: session=ada", "X-Auth-Request-User: root")
	server.Close()
	r.want("websecure", anyClient, "wiki.example.org", "/page", 503, "", "Cookie: session=ada")
}
