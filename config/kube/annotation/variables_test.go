package annotation

import (
	"strings"
	"testing"
)

func TestNginxText(t *testing.T) {
	f := func(text, want, wrong string) {
		t.Helper()
		got, err := nginxText(text, context{namespace: "shop", name: "a{b"}.constants())
		if err != nil && (wrong == "" || err.Error() != wrong) || err == nil && (wrong != "" || got != want) {
			t.Errorf("%q is %q, %v", text, got, err)
		}
	}
	f("", "", "")
	f("plain { text }", "plain {{ text }", "")
	f("https://$host/oauth2/start?rd=$escaped_request_uri", "https://{host}/oauth2/start?rd={uri_encoded}", "")
	f("${scheme}x$http_x_forwarded_host-$cookie_a_b.$ARG_q$args", "{scheme}x{header.x-forwarded-host}-{cookie.a_b}.{param.q}{query}", "")
	f("$namespace/$ingress_name$literal_dollar", "shop/a{{b$", "")
	f("$http_host$HOST", "{authority}{host}", "")
	f(strings.Repeat("$uri", 33), "", "more than 32 variables")
	f(strings.Repeat("$host", 32), strings.Repeat("{host}", 32), "")
	f("$1", "", "the variable $1")
	f("$server_name", "", "the variable $server_name")
	f("$http_", "", "the variable $http_")
	f("a$", "", "a dollar sign without the name of a variable")
	f("${}", "", "a dollar sign without the name of a variable")
	f("${host", "", "a dollar sign without the name of a variable")
	f("$-", "", "a dollar sign without the name of a variable")
}
