package filter

import (
	"bytes"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// rewritten returns the target for the endpoint, or the answer.
func rewritten(t testing.TB, r *config.Route, target string) string {
	t.Helper()
	x := newExchange("GET", "/")
	if err := x.req.SetTarget(x.req.StoreString(target)); err != nil {
		t.Fatal(err)
	}
	c := Compile(r, nil)
	if c.Answer(x) {
		return x.answer
	}
	c.EditRequest(x)
	return string(x.req.EndpointTarget())
}

func paths(all ...string) (paths []config.Path) {
	for _, p := range all {
		if text, is := strings.CutPrefix(p, "~"); is {
			paths = append(paths, config.Path{Value: text, Expression: true})
			continue
		}
		value, exact := strings.CutPrefix(p, "=")
		paths = append(paths, config.Path{Value: value, Exact: exact})
	}
	return paths
}

func TestRewrites(t *testing.T) {
	f := func(w config.Rewrite, at []config.Path, target, want string) {
		t.Helper()
		if got := rewritten(t, &config.Route{Backend: "b", Paths: at, Rewrite: &w}, target); got != want {
			t.Errorf("%+v of %v makes %q from %q, not %q", w, at, got, target, want)
		}
	}
	to := config.Rewrite{Prefix: "/new"}
	f(to, paths("/old"), "/old/a?b", "/new/a?b")
	f(to, paths("/old"), "/old", "/new")
	f(to, paths("/old"), "/old/", "/new/")
	f(to, paths("/old"), "/old?a=/old", "/new?a=/old")
	f(to, paths("/old/"), "/old/a", "/new/a")
	f(to, paths("=/old"), "/old", "/new")
	f(to, paths("/a", "/a/b", "/c"), "/a/b/c", "/new/c")
	f(to, paths("/a", "/a/b", "/c"), "/a/bc", "/new/bc")
	f(to, paths("/"), "/a", "/new/a")
	f(to, nil, "/a", "/new/a")
	f(to, nil, "//a", "/new//a")
	f(to, nil, "/", "/new/")
	strip := config.Rewrite{Prefix: "/"}
	f(strip, paths("/old"), "/old/a?b", "/a?b")
	f(strip, paths("/old"), "/old", "/")
	f(strip, paths("/old"), "/old?a", "/?a")
	f(strip, paths("/old"), "/old//evil.example", "400 rewrite")
	f(config.Rewrite{Path: "/fixed"}, paths("/any"), "/any/a?b", "/fixed?b")
	f(config.Rewrite{Path: "/fixed"}, paths("/any"), "/any", "/fixed")
	f(config.Rewrite{Path: "/{host}{path}"}, nil, "/a?b", "/app.example.org/a?b")
	f(config.Rewrite{Path: "/x/{path}"}, nil, "/a", "/x/a")
	f(config.Rewrite{Path: "/x/{path}"}, nil, "//a", "/x//a")
	f(config.Rewrite{Path: "{path}"}, nil, "//evil.example/", "400 rewrite")
	f(config.Rewrite{Host: "c.example"}, nil, "//a/?b", "//a/?b")
}

func TestRewritesOfOtherTargets(t *testing.T) {
	x := newExchange("OPTIONS", "*")
	c := Compile(&config.Route{Backend: "b", Rewrite: &config.Rewrite{Prefix: "/new"}}, nil)
	if c.Answer(x) || string(x.req.EndpointTarget()) != "*" {
		t.Errorf("%q, %q", x.answer, x.req.EndpointTarget())
	}
	x = newExchange("GET", "/a") // HTTP/1.0 needs no host
	x.req.Host = x.req.StoreString("")
	if c := Compile(&config.Route{Backend: "b", Rewrite: &config.Rewrite{Path: "/x/{host}{path}"}}, nil); c.Answer(x) || string(x.req.EndpointTarget()) != "/x/a" {
		t.Errorf("%q, %q", x.answer, x.req.EndpointTarget())
	}
	// A host may be such that a path with it is not safe.
	x = newExchange("GET", "/a")
	x.req.Host = x.req.StoreString("..")
	if c := Compile(&config.Route{Backend: "b", Rewrite: &config.Rewrite{Path: "/{host}{path}"}}, nil); !c.Answer(x) {
		t.Errorf("the target is %q", x.req.EndpointTarget())
	}
}

func TestRewriteSetsTheHost(t *testing.T) {
	x := newExchange("GET", "/a")
	x.req.AddField("Host", "App.example.org")
	Compile(&config.Route{Backend: "b", Rewrite: &config.Rewrite{Host: "c.example"}}, nil).EditRequest(x)
	if got := lines(&x.req.Head); len(got) != 1 || got[0] != "Host: c.example" || string(x.req.Bytes(x.req.Host)) != "App.example.org:80" {
		t.Errorf("the headers are %q, and the client's host is %q", got, x.req.Bytes(x.req.Host))
	}
}

func TestRewriteAllocatesNothing(t *testing.T) {
	for _, w := range []config.Rewrite{{Prefix: "/new", Host: "a"}, {Path: "/x/{host}{path}", Host: "a"}} {
		c := Compile(&config.Route{Backend: "b", Paths: paths("/a"), Rewrite: &w}, nil)
		x := newExchange("GET", "/a")
		n := testing.AllocsPerRun(100, func() {
			x.req.Reset()
			x.req.SetTarget(x.req.StoreString("/a/b?c"))
			x.req.Host = x.req.StoreString("app.example.org")
			c.Answer(x)
			c.EditRequest(x)
		})
		if n != 0 {
			t.Errorf("rewriting allocates %v times", n)
		}
	}
}

// Whatever a client sends, the endpoint gets a target that weir would accept from a client, with
// no two slashes at its beginning.
func FuzzRewrite(f *testing.F) {
	f.Add("/old/a?b", "a.example", uint8(0))
	f.Add("/old//evil.example", "..", uint8(1))
	f.Add("//evil.example/..;/", "a:80", uint8(2))
	f.Add("/old/%2e%2e/%5c", "", uint8(3))
	f.Add("/g//a//evil.example%2", "a", uint8(8))
	f.Add("/g/./a/.", "a", uint8(9))
	chains := []*Chain{}
	for _, w := range []config.Rewrite{{Prefix: "/new"}, {Prefix: "/"}, {Path: "/x/{host}{path}"}, {Path: "{path}.{method}"}} {
		chains = append(chains, Compile(&config.Route{Backend: "b", Paths: paths("/old", "/old/older/"), Rewrite: &w}, nil), Compile(&config.Route{Backend: "b", Rewrite: &w}, nil))
	}
	for _, path := range []config.Template{"/x/$2/$1", "/$1$2", "/$2.$1"} {
		chains = append(chains, Compile(&config.Route{Backend: "b", Paths: paths("~/g/([^/]*)/(.*)", "~/([^/]+).*"), Rewrite: &config.Rewrite{Path: path}}, nil))
	}
	f.Fuzz(func(t *testing.T, target, host string, which uint8) {
		x := newExchange("GET", "/")
		x.req.Host = x.req.StoreString(host)
		if x.req.SetTarget(x.req.StoreString(target)) != nil || !message.ValidHost([]byte(host)) {
			return // a codec refuses the request
		}
		if chains[int(which)%len(chains)].Answer(x) {
			return
		}
		got := bytes.Clone(x.req.EndpointTarget())
		var again message.Request
		if err := again.SetTarget(again.Store(got)); err != nil || bytes.HasPrefix(got, twoSlashes) {
			t.Errorf("%q becomes %q: %v", target, got, err)
		}
		if theirs, _, _ := strings.Cut(target, "?"); strings.Count(string(got), "//") > strings.Count(target, "//") && !strings.Contains(theirs, "//") {
			t.Errorf("%q becomes %q, with two slashes that nobody wrote", target, got)
		}
	})
}
