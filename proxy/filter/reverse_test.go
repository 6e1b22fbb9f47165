package filter

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

// Names in responses of endpoints become those of the client, as with proxy_redirect, proxy_cookie_domain
// and proxy_cookie_path of nginx.
func TestReverse(t *testing.T) {
	f := func(c config.Reverse, theirs, want string) {
		t.Helper()
		for _, own := range []bool{false, true} {
			x := newExchange("GET", "/")
			x.generated = own
			x.res.Status = 200
			for _, line := range strings.Split(theirs, "|") {
				name, value, _ := strings.Cut(line, ": ")
				x.res.AddField(name, value)
			}
			Compile(&config.Route{Backend: "b", Reverse: &c}, nil).EditResponse(x, &x.res)
			got, wanted := strings.Join(lines(&x.res.Head), "|"), want
			if own {
				wanted = theirs
			}
			if got != wanted {
				t.Errorf("%+v, own: %v\nis   %s\nwant %s", c, own, got, wanted)
			}
		}
	}
	replace := func(from, to string) config.Replacement { return config.Replacement{From: from, To: to} }
	location := config.Reverse{Location: replace("http://app/", "https://a.example/x/")}
	f(location, "Location: http://app/b?c", "Location: https://a.example/x/b?c")
	f(location, "location: http://APP/b", "location: http://APP/b")
	f(location, "X: http://app/b", "X: http://app/b")
	f(location, "Refresh: 5; URL=http://app/b", "Refresh: 5; URL=https://a.example/x/b")
	f(location, "Refresh: 5", "Refresh: 5")
	f(config.Reverse{Location: replace("http://app/", "/")}, "Location: http://app/b|Refresh: 0;url=http://app/c", "Location: http://app.example.org/b|Refresh: 0;url=/c")
	f(config.Reverse{Location: replace("http://app/", "/"), Relative: true}, "Location: http://app/b", "Location: /b")
	domain := config.Reverse{CookieDomain: replace("app.internal", "a.example")}
	f(domain, "Set-Cookie: a=Domain=app.internal; domain=.App.Internal; Path=/|Set-Cookie: b=c; Domain=b.app.internal", "Set-Cookie: a=Domain=app.internal; domain=.a.example; Path=/|Set-Cookie: b=c; Domain=b.app.internal")
	path := config.Reverse{CookiePath: replace("/", "/app/")}
	f(path, "Set-Cookie: a=b; HttpOnly; Path=/x; Secure|Set-Cookie: a=b", "Set-Cookie: a=b; HttpOnly; Path=/app/x; Secure|Set-Cookie: a=b")
	f(config.Reverse{CookiePath: replace("/b", "/"), CookieDomain: replace("a", "b")}, "Set-Cookie: a=b; path=/a; domain=a", "Set-Cookie: a=b; path=/a; domain=b")
}
