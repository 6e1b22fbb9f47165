package proxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/overlay"
	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/route"

	"github.com/prometheus/client_golang/prometheus"
)

// tableOf builds the table of a configuration, without real backends.
func tableOf(t testing.TB, text string) *Table {
	t.Helper()
	cfg, err := file.Parse("test", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	set := backend.NewSet(backend.Options{})
	t.Cleanup(set.Close)
	backends, err := set.Update(cfg.Backends, backend.NodeInfo{})
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable(cfg, Parts{Backends: backends, Metrics: NewMetrics(prometheus.NewRegistry())})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// routed returns the name of the route for a host and path on a listener, or "".
func (t *Table) routed(listener, host, path string) string {
	s := &exchange{progress: progress{route: new(Route)}, clientSide: clientSide{edge: t.edges[listener]}}
	req := new(message.Request)
	req.Host, req.Path = req.StoreString(host), req.StoreString(path)
	r, _ := s.routeOf(req)
	if r == nil {
		return ""
	}
	return r.name
}

const routing = `
listeners:
  web: {address: "127.0.0.1:1", protocol: http}
  other: {address: "127.0.0.1:2", protocol: http}
routes:
  - {name: app, listeners: [web], hosts: [app.example.org], backend: b}
  - {name: app-api, listeners: [web], hosts: [app.example.org], paths: [/api, =/status], backend: b}
  - {name: app-api-v2, listeners: [web], hosts: [app.example.org], paths: [/api/v2, /trailing/], backend: b}
  - {name: app-api-exact, listeners: [web], hosts: [app.example.org], paths: [=/api], backend: b}
  - {name: wild, listeners: [web], hosts: ["*.example.org"], paths: [/], backend: b}
  - {name: deep, listeners: [web], hosts: ["*.dev.example.org"], paths: [/only], backend: b}
  - {name: any, listeners: [web], paths: [/any], backend: b}
  - {name: v6, listeners: [web], hosts: ["2001:db8::1"], backend: b}
  - {name: elsewhere, listeners: [other], hosts: [app.example.org], backend: b}
backends: {b: {endpoints: ["127.0.0.1:9"]}}
`

func TestRoutes(t *testing.T) {
	table := tableOf(t, routing)
	f := func(host, path, want string) {
		t.Helper()
		if got := table.routed("web", host, path); got != want {
			t.Errorf("%s%s goes to %q, not %q", host, path, got, want)
		}
	}
	// The most specific host decides first.
	f("app.example.org", "/", "app")
	f("www.example.org", "/any", "wild")
	f("a.dev.example.org", "/only", "deep")
	f("a.dev.example.org", "/any", "") // the host has no such path, and weir tries no less specific host
	f("a.b.dev.example.org", "/any", "any")
	f("example.org", "/any", "any") // a wildcard does not match the apex
	f("a.b.example.org", "/", "")   // nor names with two more labels
	f(".example.org", "/", "")
	f("", "/any", "any")
	f("unknown", "/any", "any")
	f("unknown", "/", "")
	f("dev.example.org", "/", "wild")
	// Case, port and a trailing dot do not matter.
	f("APP.Example.ORG", "/", "app")
	f("app.example.org:8080", "/", "app")
	f("app.example.org.", "/", "app")
	f("App.example.org.:80", "/", "app")
	f("app.example.org:", "/", "app")
	f("WWW.EXAMPLE.ORG.:1", "/", "wild")
	f("[2001:db8::1]:80", "/", "v6")
	f("[2001:DB8::1]", "/", "v6")
	f("app.example.org..", "/", "")
	f(strings.Repeat("a", 300)+".example.org", "/any", "any")
	// Then the longest path, at segment borders.
	f("app.example.org", "/api/", "app-api")
	f("app.example.org", "/api/x", "app-api")
	f("app.example.org", "/apis", "app")
	f("app.example.org", "/ap", "app")
	f("app.example.org", "/api/v2", "app-api-v2")
	f("app.example.org", "/api/v2/x", "app-api-v2")
	f("app.example.org", "/api/v21", "app-api")
	f("app.example.org", "/api", "app-api-exact") // an exact path comes before an equal prefix
	f("app.example.org", "/status", "app-api")
	f("app.example.org", "/status/", "app")
	f("app.example.org", "/trailing/x", "app-api-v2")
	f("app.example.org", "/trailing/", "app-api-v2")
	f("app.example.org", "/trailing", "app")
	// A byte that only an endpoint may take for a border is not a border.
	f("app.example.org", "/api%2fv2", "app")
	f("app.example.org", "/api%2Fx", "app")
	f("app.example.org", "//api", "app")
	f("app.example.org", "/api//v2", "app-api")
	f("app.example.org", "/API", "app")
	f("app.example.org", "*", "app")

	if got := table.routed("other", "app.example.org", "/api"); got != "elsewhere" {
		t.Errorf("the other listener routes to %q", got)
	}
	if got := table.routed("other", "www.example.org", "/any"); got != "" {
		t.Errorf("the other listener has the route %q of this one", got)
	}
}

func TestTablesRefuseWhatDoesNotExist(t *testing.T) {
	f := func(cfg config.Config, backends *overlay.Map[*backend.Backend]) {
		t.Helper()
		if table, err := NewTable(&cfg, Parts{Backends: backends, Metrics: NewMetrics(prometheus.NewRegistry())}); err == nil {
			t.Errorf("a table %v was built", table)
		}
	}
	b := overlay.Of(map[string]*backend.Backend{"b": nil})
	f(config.Config{Routes: []*config.Route{{Name: "r", Backend: "b"}}}, b)
	b = overlay.Of(map[string]*backend.Backend{"b": new(backend.Backend)})
	f(config.Config{Routes: []*config.Route{{Name: "r", Backend: "b", Listeners: []string{"l"}}}}, b)
	f(config.Config{Routes: []*config.Route{{Name: "r", Backend: "b", Listeners: []string{"l"}}}}, nil)
}

func BenchmarkLookup(b *testing.B) {
	text := strings.Replace(routing, "routes:\n", "routes:\n"+onePathEach(10000), 1)
	s := &exchange{progress: progress{route: new(Route)}, clientSide: clientSide{edge: tableOf(b, text).edges["web"]}}
	req := new(message.Request)
	req.Host, req.Path = req.StoreString("H4321.example.com:8080"), req.StoreString("/p1/x")
	b.ReportAllocs()
	for b.Loop() {
		if r, _ := s.routeOf(req); r == nil {
			b.Fatal("no route")
		}
	}
}

// onePathEach returns n routes, with two paths for each host.
func onePathEach(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "  - {listeners: [web], hosts: [h%d.example.com], paths: [/p%d], backend: b}\n", i/2, i%2)
	}
	return b.String()
}

func TestLookupAllocatesNothing(t *testing.T) {
	s := &exchange{progress: progress{route: new(Route)}, clientSide: clientSide{edge: tableOf(t, strings.Replace(routing, "routes:\n", "routes:\n"+onePathEach(100), 1)).edges["web"]}}
	req := new(message.Request)
	req.Host, req.Path = req.StoreString("H4.example.com:8080"), req.StoreString("/p1/x")
	if n := testing.AllocsPerRun(100, func() { s.routeOf(req) }); n != 0 {
		t.Errorf("a lookup allocates %v times", n)
	}
}

const misdirection = `
listeners:
  tls: {address: '@0', protocol: tls}
  web: {address: '@1', protocol: http}
certificates: [{self_signed: {hosts: [a.example.org]}}]
tls_policies:
  strict: {min_version: "1.3"}
  near: {max_version: "1.2", from: [127.0.0.0/8]}
  far: {max_version: "1.2", from: [192.0.2.0/24]}
routes:
  - {listeners: [tls, web], hosts: [plain1, plain2], backend: app}
  - {listeners: [tls], hosts: [strict1, strict2], tls_policy: strict, backend: app}
  - {listeners: [tls], hosts: [near], tls_policy: near, backend: app}
  - {listeners: [tls], hosts: [far], tls_policy: far, backend: app}
  - {listeners: [tls], hosts: ["*.strict.example.org"], tls_policy: strict, backend: app}
  - {listeners: [tls], hosts: [through], tls: passthrough, backend: raw}
backends:
  app: {endpoints: ['@app']}
  raw: {protocol: tcp, endpoints: ['@app']}
`

// A connection is made for one policy: requests for hosts with another policy get 421.
func TestMisdirected(t *testing.T) {
	app := newHandler(t, echo)
	r := newRig(t, misdirection, nil, "@app", app)
	f := func(sni, host string, want int) {
		t.Helper()
		c := r.dialTLS("tls", sni, nil)
		for range 2 { // the connection continues after a 421
			c.write("GET /x HTTP/1.1\r\nHost: %s\r\n\r\n", host)
			resp, _ := c.response("GET")
			if resp.StatusCode != want {
				t.Errorf("SNI %q and Host %s: %d, not %d", sni, host, resp.StatusCode, want)
			}
			reason := map[int]any{421: "misdirected", 404: "no_route"}[want]
			r.record().want(t, "status", want, "reason", reason, "sni", map[bool]any{true: sni}[sni != ""])
		}
		c.Close()
	}
	for _, sni := range []string{"plain1", "unknown", "far", ""} { // all have the policy default
		f(sni, "plain1", 200)
		f(sni, "PLAIN2.:443", 200)
		f(sni, "strict1", 421)
		f(sni, "near", 421)
		f(sni, "far", 200) // from another network the policy is default
		f(sni, "through", 421)
		f(sni, "nowhere", 404)
	}
	f("strict1", "strict1", 200)
	f("strict1", "strict2", 200) // another host of the same policy
	f("strict1", "x.strict.example.org", 200)
	f("x.strict.example.org", "y.strict.example.org", 200)
	f("strict1", "plain1", 421)
	f("strict1", "through", 421)
	f("near", "near", 200)
	f("near", "plain1", 421)
	f("near", "far", 421)
	f("near", "strict1", 421)

	c := r.dial("web") // without TLS, no policy can differ
	c.write("GET /x HTTP/1.1\r\nHost: plain1\r\n\r\n")
	c.wantResponse(200, "/x ")
}

// If a reload gives a host another policy, or gives the policy another content, old connections cannot
// serve the host any more.
func TestMisdirectedAfterReload(t *testing.T) {
	app := newHandler(t, echo)
	ca := writeCA(t)
	text := `
listeners: {tls: {address: '@0', protocol: tls}}
certificates: [{self_signed: {hosts: [a]}}]
tls_policies:
  strict: {min_version: "1.3"@auth}
routes:
  - {listeners: [tls], hosts: [a], tls_policy: strict, backend: app}
  - {listeners: [tls], hosts: [b], backend: app}
backends: {app: {endpoints: ['@app']}}
`
	r := newRig(t, text, nil, "@app", app, "@auth", "")
	a, b, own := r.dialTLS("tls", "a", nil), r.dialTLS("tls", "b", nil), r.dialTLS("tls", "a", nil)
	last := func(c *peer, host string, want int) bool {
		t.Helper()
		c.write("GET /x HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		resp, _ := c.response("GET")
		if resp.StatusCode != want {
			t.Errorf("%s: %d, not %d", host, resp.StatusCode, want)
		}
		return resp.Close
	}
	ask := func(c *peer, host string, want int) {
		t.Helper()
		if last(c, host, want) {
			t.Errorf("%s: %d ends the connection", host, want)
		}
	}
	end := func(c *peer, host string) { // the connection was made for this host
		t.Helper()
		if !last(c, host, 421) {
			t.Errorf("%s: the connection goes on", host)
		}
		c.wantEnd(false)
	}
	ask(own, "a", 200)
	ask(a, "a", 200)
	ask(b, "b", 200)
	r.load(text, nil, "@app", app, "@auth", "") // the reload changes nothing
	ask(a, "a", 200)
	ask(b, "b", 200)
	r.load(text, nil, "@app", app, "@auth", ", client_auth: {mode: require, ca: "+ca.file+"}")
	end(own, "a") // weir never requested a certificate on it
	ask(a, "b", 421)
	ask(b, "b", 200)
	r.load(strings.Replace(text, "hosts: [b]", "hosts: [b], tls_policy: strict", 1), nil, "@app", app, "@auth", "")
	ask(b, "a", 421)
	end(b, "b")
	ask(a, "b", 200)
}

// If a listener becomes a TLS listener, its old plain connections must not reach routes that now require
// TLS and client certificates.
func TestListenerBecomesTLS(t *testing.T) {
	app := newHandler(t, echo)
	r := newRig(t, plain, nil, "@app", app)
	c := r.dial("web")
	c.write("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n")
	c.wantResponse(200, "/1 ")
	secret := newEndpoint(t)
	r.load(`
listeners: {web: {address: '@0', protocol: tls}}
certificates: [{self_signed: {hosts: [a]}}]
routes: [{listeners: [web], backend: secret}]
backends: {secret: {endpoints: ['@secret']}}
`, nil, "@secret", secret.address)
	c.write("GET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
	if resp := c.wantResponse(200, "/2 "); !resp.Close { // by the old route, and only once
		t.Error("the connection goes on")
	}
	c.wantEnd(false)
	secret.untouched()
}

func TestNoRoute(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, strings.Replace(plain, "[web]", "[web], hosts: [a], paths: [/x]", 1), nil, "@app", e.address)
	c := r.dial("web")
	for _, request := range []string{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET /x HTTP/1.1\r\nHost: b\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"} {
		c.write(request)
		resp := c.wantResponse(404, refuseNoRoute.Detail+"\n")
		if resp.Close || resp.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("%v", resp)
		}
		r.record().want(t, "status", 404, "reason", "no_route", "route", nil, "backend", nil, "endpoint", nil)
	}
	c.write("HEAD / HTTP/1.1\r\nHost: a\r\n\r\nHEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
	for range 2 {
		if resp, _ := c.response("HEAD"); resp.StatusCode != 404 {
			t.Error(resp)
		}
	}
	eventually(t, "all are counted", func() error { // weir may count a request after it has sent the response
		if n := r.counter("weir_http_requests_total", "route", "", "code", "404"); n != 5 {
			return fmt.Errorf("%v requests without a route", n)
		}
		return nil
	})
	e.untouched()
}

// Of two equally long paths, the path with the exact spelling comes before a path that is closed in every
// spelling.
func TestSpellingGoesBeforeClosed(t *testing.T) {
	for _, paths := range [][]config.Path{
		{{Value: "/ADMIN", Closed: true}, {Value: "/admin"}, {Value: "/"}},
		{{Value: "/"}, {Value: "/admin"}, {Value: "/ADMIN", Closed: true}},
	} {
		h := hostWith(t, paths...)
		for of, want := range map[string]string{"/admin/x": "/admin", "/ADMIN": "/ADMIN", "/%61dmin": "/ADMIN", "/administrator": "/"} {
			if got := h.routed(of); got != want {
				t.Errorf("%s goes to %q, not %q", of, got, want)
			}
		}
	}
}

// hostWith builds a host with these paths. The name of each route is its path.
func hostWith(t *testing.T, paths ...config.Path) *host {
	t.Helper()
	h := &host{}
	for _, p := range paths {
		h.routes = append(h.routes, &Route{name: p.String(), config: &config.Route{Paths: []config.Path{p}}})
	}
	compiled, err := route.Compile(h.matches(&edge{}))
	if err != nil {
		t.Fatal(err)
	}
	h.paths = compiled
	return h
}

// routed returns the name of the route for a path, or "".
func (h *host) routed(path string) string {
	req := new(message.Request)
	req.Path = req.StoreString(path)
	if r, found := h.paths.Find(&route.Request{Head: req}); found {
		return r.name
	}
	return ""
}

// A closed path is closed in every spelling that an endpoint may take for the same path.
func TestClosedPaths(t *testing.T) {
	f := func(c config.Path, path string, want bool) {
		t.Helper()
		c.Closed = true
		if got := hostWith(t, c).routed(path) != ""; got != want {
			t.Errorf("%v matches %q: %t, want %t", c, path, got, want)
		}
		if c.Closed = false; !want && hostWith(t, c).routed(path) != "" {
			t.Errorf("%v matches %q, but not where it is closed", c, path)
		}
	}
	admin := config.Path{Value: "/admin"}
	for _, path := range []string{"/admin", "/admin/", "/admin/x", "//admin", "/admin//x", "///admin/", "/%61dmin", "/adm%69n/x", "/admin%2fx", "/admin%2Fx", "%2fadmin", "/ADMIN", "/%41dmin", "//%61DMIN%2F"} {
		f(admin, path, true)
	}
	for _, path := range []string{"/", "//", "*", "", "/adm", "/administrator", "/x/admin", "/%2561dmin", "/admin%20", "/admi", "/admi/n", "/admin;x"} {
		f(admin, path, false)
	}
	begins := config.Path{Value: "/swagger", Begins: true}
	for _, path := range []string{"/swagger", "/swagger-ui/", "/Swagger.json", "//swagger-resources", "/%73wagger%2dui"} {
		f(begins, path, true)
	}
	f(begins, "/swagge", false)
	exact := config.Path{Exact: true, Value: "/metrics"}
	for _, path := range []string{"/metrics", "//metrics", "/metric%73", "/METRICS"} {
		f(exact, path, true)
	}
	for _, path := range []string{"/metrics/", "/metrics/x", "/metricsx", "/"} {
		f(exact, path, false)
	}
	for _, path := range []string{"/", "/x", "//", "*", "/%2f"} {
		f(config.Path{Value: "/"}, path, true)
	}
	f(config.Path{Exact: true, Value: "/"}, "//", true)
	f(config.Path{Exact: true, Value: "/"}, "/x", false)
	f(config.Path{Value: "/a%20b"}, "/a%20b/c", true) // the spelling of the configuration is closed, too
	f(config.Path{Value: "/é"}, "/%c3%a9", true)
}
