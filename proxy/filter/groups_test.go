package filter

import (
	"testing"

	"github.com/weirproxy/weir/config"
)

func TestGroupsOfExpressions(t *testing.T) {
	f := func(to config.Template, at []config.Path, target, want string) {
		t.Helper()
		if got := rewritten(t, &config.Route{Backend: "b", Paths: at, Rewrite: &config.Rewrite{Path: to}}, target); got != want {
			t.Errorf("%s of %v makes %q from %q, not %q", to, at, got, target, want)
		}
	}
	swap := paths("~/g/([^/]+)/(.*)")
	f("/x/$2/$1", swap, "/g/a/b?c", "/x/b/a?c")
	f("/x/$2/$1", swap, "/g/a/b/c", "/x/b/c/a")
	f("/x/$2/$1", swap, "/g/a/", "/x/a")
	f("/x/$1.$1/{method}", swap, "/g/a/", "/x/a.a/GET")
	f("/$10$", swap, "/g/a/", "/a0$")
	f("/$1", paths("~/strip(/.*)"), "/strip/a", "/a")
	f("/$1", paths("~/strip(/.*)"), "/strip//evil.example", "400 rewrite")
	f("/x/$1", paths("~/a(/b)?"), "/a", "/x/")
	f("/x/$1", paths("~(?i)/a/(.*)"), "/A/b", "/x/b")
	// Text of the client cannot become a dot segment, or half of an escape.
	f("/x/.$1", paths("~/a/(.*)"), "/a/.b", "/x/..b")
	f("/x/.$1", paths("~/a/(.)"), "/a/.b", "400 rewrite")
	f("/x/.$1/y", paths("~/a(.)b"), "/a.b", "400 rewrite")
	f("/x/$1e/", paths("~/a/(..)."), "/a/%2f", "400 rewrite")
	// The groups are those of the expression that has the request: the longer one.
	two := paths("~/a/(.*)", "~/a/b/(.*)$")
	f("/x/$1", two, "/a/b/c", "/x/c")
	f("/x/$1", two, "/a/c", "/x/c")
	f("/x/$1", paths("~/(a)b", "~/a(b)"), "/ab", "/x/b")
}

func TestGroupsInRedirects(t *testing.T) {
	x := newExchange("GET", "/")
	if err := x.req.SetTarget(x.req.StoreString("/g/a/b?c")); err != nil {
		t.Fatal(err)
	}
	Compile(&config.Route{Paths: paths("~/g/([^/]+)/(.*)"), Redirect: &config.Redirect{Path: "/x/$2/$1", Host: "b.example", Status: 302}}, nil).Answer(x)
	if got := lines(&x.res.Head); len(got) == 0 || got[len(got)-1] != "Location: http://b.example/x/b/a?c" {
		t.Errorf("%s with %q", x.answer, got)
	}
}
