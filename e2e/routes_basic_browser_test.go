package e2e

import (
	"net"
	"slices"
	"strings"
	"testing"
)

// A browser asks for the password of a route with basic authentication, shows the page for a right
// one, asks again after a wrong one, and remembers the right one for other pages.
func TestChromiumSignsInByBasicAuthentication(t *testing.T) {
	w := startAuth(t)
	b := newBrowser(t, "MAP guard.shop.test 127.0.0.1")
	const question = "basic Staff"
	for scheme, listener := range map[string]string{"http": "web", "https": "websecure"} {
		_, port, err := net.SplitHostPort(w.at(listener))
		if err != nil {
			t.Fatal(err)
		}
		page := scheme + "://guard.shop.test:" + port + "/staff"
		f := func(p *tab, target string, status int, asked int, user string, passwords ...string) {
			t.Helper()
			got := p.visit(target, passwords...)
			if got.status != status || !slices.Equal(got.asked, slices.Repeat([]string{question}, asked)) {
				t.Errorf("%s with %q: status %d after the questions %q, not %d after %d: %s", target, passwords, got.status, got.asked, status, asked, got.text)
			}
			if named := strings.Contains(got.text, `"X-Forwarded-User":["`+user+`"]`); user != "" && !named || user == "" && strings.Contains(got.text, "X-Forwarded-User") {
				t.Errorf("%s with %q shows %s", target, passwords, got.text)
			}
		}
		f(b.tab(), page, 401, 1, "")
		f(b.tab(), page, 401, 3, "", "ada:wrong", "nobody:lovelace")
		ada := b.tab()
		f(ada, page, 200, 2, "ada", "ada:wrong", "ada:lovelace")
		f(ada, page+"/other", 200, 0, "ada")
		f(b.tab(), strings.Replace(page, "://", "://bob:builder@", 1), 200, 0, "bob")
		f(b.tab(), page, 401, 1, "") // another reader does not have the password
	}
}
