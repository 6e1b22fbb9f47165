package proxy

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/header"
	"github.com/weirproxy/weir/proxy/accesslog"
	"github.com/weirproxy/weir/proxy/message"
)

// rewriting has routes that rewrite, beside guarded ones. All guards refuse the clients of the tests.
const rewriting = `
listeners: {web: {address: '@0', protocol: http}}
routes:
- {name: plain, listeners: [web], hosts: [a.test], backend: b}
- {name: admin, listeners: [web], hosts: [a.test], paths: [/admin, =/only], clients: {allow: [192.0.2.0/24]}, backend: b}
- {name: versions, listeners: [web], hosts: [a.test], paths: ["~/v[0-9]+/secret(/|$)"], clients: {allow: [192.0.2.0/24]}, backend: b}
- {name: posted, listeners: [web], hosts: [a.test], paths: [/posted], match: {methods: [POST]}, clients: {allow: [192.0.2.0/24]}, backend: b}
- {name: free, listeners: [web], hosts: [a.test], paths: [/admin/free], backend: c}
- {name: strip, listeners: [web], hosts: [a.test], paths: [/pub, /pub/deep], rewrite: {prefix: /}, backend: b}
- {name: weighted, listeners: [web], hosts: [a.test], paths: [/w], rewrite: {prefix: /}, backends: [{name: c}, {name: b, weight: 0}]}
- {name: mirrored, listeners: [web], hosts: [a.test], paths: [/m], rewrite: {prefix: /}, backend: c, mirror: [{backend: b}]}
- {name: other, listeners: [web], hosts: [a.test], paths: [/other], rewrite: {prefix: /}, backend: c}
- {name: groups, listeners: [web], hosts: [a.test], paths: ["~/g/([^/]*)/(.*)"], rewrite: {path: /$2/$1}, backend: b}
- {name: whole, listeners: [web], hosts: [a.test], paths: [/fixed], rewrite: {path: /admin/x}, backend: b}
- {name: same, listeners: [web], hosts: [a.test], paths: [/same], clients: {allow: [127.0.0.0/8]}, rewrite: {prefix: /same/below}, backend: b}
- {name: alias, listeners: [web], hosts: [alias.test], rewrite: {host: a.test}, backend: b}
- {name: away, listeners: [web], hosts: [a.test], paths: [/away], rewrite: {host: none.test, prefix: /}, backend: b}
- {name: everything, listeners: [web], hosts: [all.test], clients: {allow: [192.0.2.0/24]}, backend: b}
- {name: exception, listeners: [web], hosts: [all.test], paths: [/api], rewrite: {prefix: /}, backend: b}
- {name: expressions, listeners: [web], hosts: [regex.test], paths: ["~/(.*)"], clients: {allow: [192.0.2.0/24]}, backend: b}
- {name: excepted, listeners: [web], hosts: [regex.test], paths: [/api], rewrite: {prefix: /}, backend: b}
backends: {b: {endpoints: ['@b']}, c: {endpoints: ['@c']}}
`

// A guarded path cannot be reached by a route that rewrites other paths into it.
func TestRewriteIntoGuardedPaths(t *testing.T) {
	echo := func(name string) string {
		return newHandler(t, func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(name + " " + r.RequestURI)) })
	}
	r := newRig(t, rewriting, nil, "@b", echo("b"), "@c", echo("c"))
	c := r.dial("web")
	f := func(method, target, want string) {
		t.Helper()
		host, path, _ := strings.Cut(target, "/")
		c.write("%s", method+" /"+path+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
		res, got := c.response(method)
		if rec := r.record(); res.StatusCode != http.StatusOK {
			got, _ = rec["reason"].(string)
		}
		if got != want {
			t.Errorf("%s %s is answered with %q, want %q", method, target, got, want)
		}
	}
	for _, path := range []string{"admin", "admin/x", "Admin", "%2fadmin", "%61dmin", "admin;a=b", "admin%2fx?y", "only", "ONLY", "v1/secret", "V1//Secret", "v1/secre%74/x"} {
		f("GET", "a.test/pub/"+path, "guarded_path")
		f("GET", "a.test/pub/deep/"+path, "guarded_path")
		f("GET", "a.test/w/"+path, "guarded_path")
		f("GET", "a.test/m/"+path, "guarded_path")
		f("GET", "alias.test/"+path, "guarded_path")
		f("GET", "a.test/away/"+path, "guarded_path")
		f("GET", "a.test/other/"+path, "c /"+path)
	}
	f("GET", "a.test/pub//admin", "rewrite")
	f("GET", "alias.test//admin", "guarded_path")
	f("GET", "a.test/g/x/admin", "guarded_path")
	f("GET", "a.test/g/x/adm", "b /adm/x")
	f("GET", "a.test/g/secret/V1", "guarded_path")
	f("GET", "a.test/fixed", "guarded_path")
	f("GET", "a.test/pub/x?/admin", "b /x?/admin")
	f("GET", "a.test/pub/administrator", "b /administrator")
	f("GET", "a.test/pub/only/x", "b /only/x")
	f("GET", "a.test/pub/admin/free/x", "b /admin/free/x") // this path is not guarded
	f("GET", "a.test/pub/posted", "b /posted")
	f("POST", "a.test/pub/posted", "guarded_path")
	f("GET", "a.test/same/x", "b /same/below/x")
	f("GET", "alias.test/x", "b /x")
	f("GET", "all.test/api/x", "b /x") // a guard for all paths has exceptions
	f("GET", "all.test/x", "client_denied")
	f("GET", "regex.test/api/x", "b /x")
	f("GET", "a.test/admin", "client_denied")
	c.write("GET /pub/ADMIN HTTP/1.1\r\nHost: a.test\r\n\r\n")
	c.wantResponse(400, refuseGuardedRewrite.Detail+"\n")
	r.record().wantError(t, "the route admin restricts this path")
	c.write("GET /ADMIN HTTP/1.1\r\nHost: a.test\r\n\r\n")
	c.wantResponse(400, refuseGuardedPath.Detail+"\n")
	r.record().wantError(t, "the route admin restricts this path")
}

// redirecting has routes that redirect, beside guarded ones.
const redirecting = `
listeners: {web: {address: '@0', protocol: http}}
routes:
- {name: plain, listeners: [web], hosts: [a.test], backend: b}
- {name: staff, listeners: [web], hosts: [a.test], paths: [/staff], clients: {allow: [192.0.2.0/24]}, backend: b}
- {name: moved, listeners: [web], hosts: [a.test], paths: [/old], redirect: {prefix: /}}
- {name: whole, listeners: [web], hosts: [a.test], paths: [/whole], redirect: {to: "{scheme}://{host}/%73taff"}}
- {name: away, listeners: [web], hosts: [a.test], paths: [/away], redirect: {host: b.test, prefix: /}}
- {name: open, listeners: [web], hosts: [b.test], paths: [/old], redirect: {prefix: /}}
backends: {b: {endpoints: ['@b']}}
`

// A redirect to another spelling of a guarded path is refused at once: the next request would be.
func TestRedirectToGuardedPaths(t *testing.T) {
	r := newRig(t, redirecting, nil, "@b", "127.0.0.1:1")
	c := r.dial("web")
	f := func(host, path, want string) {
		t.Helper()
		c.write("%s", "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
		res, _ := c.response("GET")
		got := res.Header.Get("Location")
		rec := r.record()
		if res.StatusCode == 400 {
			got, _ = rec["reason"].(string)
			rec.wantError(t, "the route staff restricts this path")
		}
		if got != want {
			t.Errorf("%s%s is answered with %d %q, want %q", host, path, res.StatusCode, got, want)
		}
	}
	for _, path := range []string{"STAFF", "%73taff/x", "staff;a=b", "staff%2fx?y", "Staff//x"} {
		f("a.test", "/old/"+path, "guarded_path")
		f("a.test", "/away/"+path, "http://b.test/"+path) // perhaps another server
		f("b.test", "/old/"+path, "http://b.test/"+path)
	}
	f("a.test", "/whole", "guarded_path")
	f("a.test", "/old/staff", "http://a.test/staff") // the guard decides about the next request
	f("a.test", "/old/staff/x?y", "http://a.test/staff/x?y")
	f("a.test", "/old/other", "http://a.test/other")
	f("a.test", "/old/x?/STAFF", "http://a.test/x?/STAFF")
	c.write("GET /old/STAFF HTTP/1.1\r\nHost: a.test\r\n\r\n")
	c.wantResponse(400, refuseGuardedRedirect.Detail+"\n")
}

// secret matches the guarded paths of rewriting, as an endpoint sees them that ignores case.
var secret = regexp.MustCompile(`^(/admin(/|$)|/only$|/v[0-9]+/secret(/|$))`)

// readings returns the paths that endpoints may take a path for: with escapes decoded, slashes merged, parameters removed, and in
// lower case, in each order.
func readings(path string) []string {
	all := []string{path}
	for i := 0; i < len(all); i++ {
		for _, read := range []func(string) string{decoded, merged, unparameterized, strings.ToLower} {
			if next := read(all[i]); next != all[i] && !(strings.Contains(next, "%") && strings.Contains(path, "%25")) {
				all = append(all, next)
			}
		}
	}
	return all
}

var (
	escapes    = regexp.MustCompile("%[0-9a-fA-F]{2}")
	repeats    = regexp.MustCompile("//+")
	parameters = regexp.MustCompile(";[^/]*")
)

func decoded(path string) string {
	return escapes.ReplaceAllStringFunc(path, func(e string) string {
		hex := "0123456789abcdef"
		e = strings.ToLower(e)
		return string([]byte{byte(strings.IndexByte(hex, e[1])<<4 | strings.IndexByte(hex, e[2]))})
	})
}

func merged(path string) string { return repeats.ReplaceAllString(path, "/") }

func unparameterized(path string) string {
	return parameters.ReplaceAllString(path, "")
}

// mute is a wire to a client that gets nothing.
type mute struct{ wire }

func (mute) WriteHead(*message.Request, *message.Response) {}
func (mute) WriteBody([]byte) error                        { return nil }
func (mute) Flush() error                                  { return nil }

var anyProxy = &Proxy{Metrics: NewMetrics(prometheus.NewRegistry())}

// forwarded returns the route of a request to the listener web, and the path for the endpoint; "": weir refuses the request.
func (table *Table) forwarded(host, target string) (*Route, string) {
	x := &exchange{wire: mute{}, clientSide: clientSide{edge: table.edges["web"], proxy: anyProxy, origin: new(conn.Origin)}}
	x.reset(x.started)
	x.req.Host, x.req.Method = x.req.StoreString(host), x.req.StoreString("GET")
	if x.req.SetTarget(x.req.StoreString(target)) != nil {
		return nil, "" // the codec refuses it
	}
	r, refusal := x.routeOf(&x.req)
	if refusal != nil || r.config.Clients != nil {
		return nil, ""
	}
	x.route = r
	if r.filters.Answer(x) || r.config.Rewrite != nil && x.entersGuarded(r) {
		return nil, ""
	}
	path, _, _ := bytes.Cut(x.req.EndpointTarget(), []byte{'?'})
	return r, string(path)
}

// checkForwarded reports an error if a request reaches a guarded path of a backend without its guard.
func checkForwarded(t *testing.T, table *Table, host, target string) {
	r, path := table.forwarded(host, target)
	if r == nil || r.name == "other" || r.name == "free" {
		return
	}
	for _, p := range readings(path) {
		if secret.MatchString(p) && !strings.HasPrefix(p, "/admin/free") {
			t.Errorf("%s%s goes to the endpoint as %s by the route %s, which is read as %s", host, target, path, r.name, p)
		}
	}
}

func rewritingTable(t testing.TB) *Table {
	return tableOf(t, strings.NewReplacer("@0", "127.0.0.1:1", "@b", "127.0.0.1:2", "@c", "127.0.0.1:3").Replace(rewriting))
}

func TestNoSpellingEntersGuardedPaths(t *testing.T) {
	table, r := rewritingTable(t), rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("/ / / // %2f %2F admin Admin %61dmin adm%49n ;a=b ; %3b only secret SECRET v1 V2 %761 pub g other away free deep w m fixed x .")
	for range 20000 {
		target := "/"
		for range 1 + r.IntN(7) {
			target += words[r.IntN(len(words))]
		}
		checkForwarded(t, table, []string{"a.test", "alias.test"}[r.IntN(2)], target)
	}
}

// Whatever the path, no request reaches a guarded path of an endpoint by a route without the guard.
func FuzzGuardedPaths(f *testing.F) {
	for _, target := range []string{"/admin", "/pub//admin", "/pub/%61dmin;x", "/g/x/admin", "/V1/secret", "/;a/admin", "/pub/;a/admin", "/w/only?x", "/g/%2fadmin/"} {
		f.Add("a.test", target)
		f.Add("alias.test", target)
	}
	table := rewritingTable(f)
	f.Fuzz(func(t *testing.T, host, target string) {
		if len(target) > 200 {
			return
		}
		checkForwarded(t, table, host, target)
	})
}

// HTTP headers that an entry of auth sets are dropped on all routes of all listeners, before the route is
// chosen. So are those that the client's Connection names.
func TestAssertedHeadersReachNoRoute(t *testing.T) {
	seen := newHandler(t, func(w http.ResponseWriter, r *http.Request) {
		for name := range r.Header {
			if strings.Contains(strings.ToLower(name), "user") || name == "X-Tenant" {
				w.Write([]byte(name + " "))
			}
		}
	})
	r := newRig(t, `
listeners: {web: {address: '@0', protocol: http}}
auth: {sso: {forward: {url: 'http://127.0.0.1:1/', headers: [X-Auth-User]}}}
routes:
- {name: open, listeners: [web], backend: b}
- {name: tenant, listeners: [web], match: {headers: {X-Tenant: blue}}, respond: {status: 200, body: blue}}
backends: {b: {endpoints: ['@b']}}
`, nil, "@b", seen)
	c := r.dial("web")
	f := func(want, fields string) {
		t.Helper()
		c.write("%s", "GET / HTTP/1.1\r\nHost: a.test\r\n"+fields+"\r\n")
		if _, got := c.response("GET"); got != want {
			t.Errorf("the answer to %q is %q, want %q", fields, got, want)
		}
	}
	for _, name := range []string{"X-Auth-User", "x-auth-user", "X_Auth_User", "X.AUTH-USER"} {
		f("", name+": root\r\n")
	}
	f("X-Users ", "X-Users: root\r\n")
	f("blue", "X-Tenant: blue\r\n")
	f("", "X-Tenant: blue\r\nConnection: x-tenant\r\n")
}

// left is a wire to a client that has gone.
type left struct{ mute }

func (left) Flush() error                        { return errClientGone }
func (left) Transferred() (received, sent int64) { return 0, 0 }
func (left) Version() string                     { return "1.1" }

// The log of a guard that could not decide has the cause, even if the reply did not reach the client.
func TestCauseOfFailedGuards(t *testing.T) {
	table, cause, logged := rewritingTable(t), errors.New("the server did not answer"), error(nil)
	p := &Proxy{Metrics: anyProxy.Metrics, GuardFailed: func(_ string, r *accesslog.Record) { logged = r.Err }}
	x := &exchange{wire: left{}, clientSide: clientSide{edge: table.edges["web"], proxy: p, origin: &conn.Origin{Header: new(header.Header)}}}
	x.reset(x.started)
	x.route = table.routes[0]
	x.GuardFailed("auth", &message.Refusal{Status: 503, Reason: "auth_unavailable"}, cause)
	if logged != cause || !x.ended {
		t.Errorf("the cause is %v; the connection ends: %t", logged, x.ended)
	}
}
