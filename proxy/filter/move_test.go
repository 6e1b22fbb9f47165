package filter

import (
	"bytes"
	"net/url"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// movedTo returns the answer, and the Location if there is one.
func movedTo(t testing.TB, r *config.Route, x *exchange) string {
	t.Helper()
	if !Compile(r, nil).Answer(x) {
		t.Fatalf("%+v does not answer", r.Redirect)
	}
	return strings.TrimSpace(strings.TrimSuffix(x.answer, "redirect this has moved")) + " " + string(x.res.GetName("location"))
}

func TestMoves(t *testing.T) {
	f := func(d config.Redirect, host, target, want string) {
		t.Helper()
		d.Status = 308
		x := newExchange("GET", "/")
		x.req.Host = x.req.StoreString(host)
		if err := x.req.SetTarget(x.req.StoreString(target)); err != nil {
			t.Fatal(err)
		}
		if got := movedTo(t, &config.Route{Paths: paths("/old", "=/one"), Redirect: &d}, x); got != want {
			t.Errorf("%+v answers %s of %s with %q, not %q", d, target, host, got, want)
		}
	}
	to := config.Redirect{To: "https://www.shop.test/here{uri}"}
	f(to, "a", "/old/a?b", "308 https://www.shop.test/here/old/a?b")
	f(to, "", "/old", "308 https://www.shop.test/here/old")
	f(config.Redirect{To: "{scheme}://{host}/new"}, "A.example.:80", "/old?b", "308 http://a.example/new")
	f(config.Redirect{To: "{scheme}://{host}/new"}, "", "/old?b", "400 no_host ")
	f(config.Redirect{To: "https://b.example{uri}"}, "a", "//evil.example/", "308 https://b.example//evil.example/")
	f(config.Redirect{To: "https://b.example/{path}"}, "a", "/old", "308 https://b.example/old")
	f(config.Redirect{To: "https://b.example/{host}"}, "..", "/old", "400 rewrite ")

	f(config.Redirect{Host: "b.example"}, "a", "/old/a?b", "308 http://b.example/old/a?b")
	f(config.Redirect{Host: "b.example"}, "a:8080", "/old", "308 http://b.example:8080/old")
	f(config.Redirect{Host: "b.example"}, "", "/old", "308 http://b.example/old")
	f(config.Redirect{Host: "b.example", Scheme: "https"}, "a:8080", "/old", "308 https://b.example/old")
	f(config.Redirect{Host: "b.example", Scheme: "https", Port: 443}, "a", "/old", "308 https://b.example/old")
	f(config.Redirect{Host: "b.example", Scheme: "http", Port: 443}, "a", "/old", "308 http://b.example:443/old")
	f(config.Redirect{Host: "b.example", Port: 80}, "a", "/old", "308 http://b.example/old")
	f(config.Redirect{Host: "b.example"}, "a", "//x", "308 http://b.example//x")
	f(config.Redirect{Prefix: "/new"}, "[::1]:81", "/old/a?b", "308 http://[::1]:81/new/a?b")
	f(config.Redirect{Prefix: "/new"}, "", "/old", "400 no_host ")
	f(config.Redirect{Prefix: "/"}, "a", "/old", "308 http://a/")
	f(config.Redirect{Prefix: "/"}, "a", "/old//evil.example", "400 rewrite ")
	f(config.Redirect{Prefix: "/new"}, "a", "/one", "308 http://a/new")
	f(config.Redirect{Path: "/x{path}", Scheme: "https", Port: 8443}, "a", "/old?b", "308 https://a:8443/x/old?b")

	f(config.Redirect{Always: true, Scheme: "https"}, "a:8080", "/old?b", "308 https://a/old?b")
	f(config.Redirect{Always: true, Scheme: "https", Port: 8443}, "a", "/old", "308 https://a:8443/old")
	f(config.Redirect{Always: true, Port: 8080}, "a", "/old", "308 http://a:8080/old")
	f(config.Redirect{Always: true, Port: 80}, "a:8080", "/old", "308 http://a/old")
	f(config.Redirect{Path: "/app", DropQuery: true}, "a:8080", "/?b", "308 http://a:8080/app")

	x := newExchange("OPTIONS", "*")
	if got := movedTo(t, &config.Route{Redirect: &config.Redirect{Host: "b.example", Status: 307}}, x); got != "307 http://b.example" {
		t.Errorf("OPTIONS * is answered with %q", got)
	}
	x = newExchange("OPTIONS", "*")
	if got := movedTo(t, &config.Route{Redirect: &config.Redirect{To: "https://b.example{uri}", Status: 307}}, x); got != "400 rewrite " {
		t.Errorf("OPTIONS * is answered with %q", got)
	}
}

// A redirect to another spelling of a guarded path is refused if the client would return to the same
// origin. Other URLs may lead to other servers.
func TestMovesToGuardedPaths(t *testing.T) {
	f := func(d config.Redirect, secure bool, host, want string) {
		t.Helper()
		d.Status = 308
		x := newExchange("GET", "/old")
		x.req.Host, x.secure, x.guarded = x.req.StoreString(host), secure, "/STAFF"
		if got := movedTo(t, &config.Route{Paths: paths("/old"), Redirect: &d}, x); !strings.HasPrefix(got, want) {
			t.Errorf("%+v answers a request to %s (TLS: %t) with %q, not %q", d, host, secure, got, want)
		}
	}
	staff := config.Redirect{Path: "/STAFF"}
	f(staff, false, "a.test", "400 guarded_path")
	f(staff, true, "a.test:8443", "400 guarded_path")
	f(config.Redirect{Prefix: "/STAFF"}, true, "[::1]:8443", "400 guarded_path")
	f(config.Redirect{To: "{scheme}://{host}/STAFF"}, false, "A.test.", "400 guarded_path")
	f(config.Redirect{To: "{scheme}://{host}/STAFF?a=b"}, false, "A.test:80", "400 guarded_path")
	f(config.Redirect{To: "https://A.TEST/STAFF"}, true, "a.test:443", "400 guarded_path")
	f(config.Redirect{Host: "a.test", Path: "/STAFF"}, true, "a.test", "400 guarded_path")

	f(config.Redirect{Path: "/staff"}, false, "a.test", "308 http://a.test/staff")
	f(config.Redirect{Host: "b.test", Path: "/STAFF"}, false, "a.test", "308 http://b.test/STAFF")
	f(config.Redirect{To: "https://a.test/STAFF"}, false, "a.test", "308 https://a.test/STAFF")
	f(config.Redirect{To: "{scheme}://{host}/STAFF"}, false, "a.test:8080", "308 http://a.test/STAFF")
	f(config.Redirect{Path: "/STAFF", Port: 8443}, true, "a.test", "308 https://a.test:8443/STAFF")
}

// Whatever a client sends, it cannot choose the host to which a redirect leads, and cannot end the
// header.
func FuzzMove(f *testing.F) {
	f.Add("/old/a?b", "a.example:80", uint8(0))
	f.Add("//evil.example/..;/", "..", uint8(1))
	f.Add("/old//evil.example", "[::1]", uint8(2))
	f.Add("/old?@evil.example/%0d%0a", "", uint8(3))
	routes := []*config.Route{}
	for _, d := range []config.Redirect{{To: "https://b.example{uri}"}, {To: "https://b.example/x{path}?y={query}"}, {Host: "b.example"}, {Host: "b.example", Prefix: "/"}, {Host: "b.example", Path: "/x/{host}{path}"}} {
		d.Status = 308
		routes = append(routes, &config.Route{Paths: paths("/old"), Redirect: &d})
	}
	f.Fuzz(func(t *testing.T, target, host string, which uint8) {
		x := newExchange("GET", "/")
		x.req.Host = x.req.StoreString(host)
		if x.req.SetTarget(x.req.StoreString(target)) != nil || !message.ValidHost([]byte(host)) {
			return // a codec refuses the request
		}
		if movedTo(t, routes[int(which)%len(routes)], x); strings.HasPrefix(x.answer, "400") {
			return
		}
		location := x.res.GetName("location")
		path, _, _ := bytes.Cut(location, question)
		if bytes.ContainsAny(location, "\r\n\x00 ") || bytes.ContainsRune(path, '\\') || bytes.HasPrefix(location, twoSlashes) {
			t.Errorf("%q leads to %q", target, location)
		}
		end := bytes.IndexAny(location[len("https://"):], "/?")
		authority := string(location)
		if end >= 0 {
			authority = authority[:len("https://")+end]
		}
		u, err := url.Parse(authority)
		if err != nil || u.Hostname() != "b.example" || u.User != nil {
			t.Errorf("%q leads to %q: %v", target, location, err)
		}
	})
}
