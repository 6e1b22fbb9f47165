package annotation

import (
	"maps"
	"strings"
	"testing"
)

func TestRedirects(t *testing.T) {
	f := checkSetting(t, func(s Settings) Redirects { return s.Redirects })
	f("ssl-redirect: true", Redirects{HTTPS: On}, Exact)
	f("ssl-redirect: F", Redirects{HTTPS: Off}, Exact)
	f("ssl-redirect: no", Redirects{}, Exact) // the default, as with ingress-nginx
	f("force-ssl-redirect: true", Redirects{Force: true}, Exact)
	f("force-ssl-redirect: false", Redirects{}, Exact)
	f("permanent-redirect: https://a.example/b?c=d", Redirects{Permanent: "https://a.example/b?c=d"}, Exact)
	f("permanent-redirect: http://a.example:8080", Redirects{Permanent: "http://a.example:8080"}, Exact)
	f("permanent-redirect: /new-location", Redirects{Permanent: "/new-location"}, Exact)
	f("permanent-redirect: https://a.example$request_uri", Redirects{Permanent: "https://a.example{uri}"}, Near)
	f("permanent-redirect: $scheme://${host}/x?$args", Redirects{Permanent: "{scheme}://{host}/x?{query}"}, Near)
	f("permanent-redirect: https://a.example/$cookie_x", Redirects{}, No)
	f("permanent-redirect: https://a.example/"+strings.Repeat("$uri", 33), Redirects{}, No)
	f("permanent-redirect: https://a.example/"+strings.Repeat("$uri", 32), Redirects{Permanent: "https://a.example/" + strings.Repeat("{path}", 32)}, Near)
	f("permanent-redirect: https://$http_x/", Redirects{}, No)
	f("permanent-redirect: https://a.example/{uri}", Redirects{}, No)
	f("permanent-redirect: https://a.example@b.example/", Redirects{}, No)
	f("permanent-redirect: https://{host}.evil.example/", Redirects{}, No)
	f("permanent-redirect: https://$host.evil.example/", Redirects{}, No)
	f("permanent-redirect: https://a.example/ b", Redirects{}, No)
	f("permanent-redirect: //evil.example", Redirects{}, No)
	f("permanent-redirect: javascript:alert", Redirects{}, No)
	f("permanent-redirect: ", Redirects{}, Exact)
	f("temporal-redirect: https://a.example", Redirects{Temporal: "https://a.example"}, Exact)
	f("temporal-redirect: /new", Redirects{}, No)
	f("permanent-redirect-code: 308", Redirects{PermanentStatus: 308}, Exact)
	f("permanent-redirect-code: 302", Redirects{PermanentStatus: 302}, Exact)
	f("permanent-redirect-code: 309", Redirects{}, Exact)
	f("permanent-redirect-code: 305", Redirects{}, No)
	f("permanent-redirect-code: many", Redirects{}, No)
	f("temporal-redirect-code: 307", Redirects{TemporalStatus: 307}, Exact)
	f("temporal-redirect-code: 308", Redirects{}, Exact) // ingress-nginx applies its default
	f("from-to-www-redirect: true", Redirects{WWW: true}, Near)
	f("from-to-www-redirect: false", Redirects{}, Exact)
	f("relative-redirects: true", Redirects{Relative: true}, Near)
	f("app-root: /app", Redirects{Root: "/app"}, Exact)
	f("app-root: /app/index.html", Redirects{Root: "/app/index.html"}, Exact)
	f("app-root: app", Redirects{}, No)
	f("app-root: /$1", Redirects{}, No)
	f("app-root: /", Redirects{}, No) // a loop
	f("app-root: //a.example", Redirects{}, No)
	f("app-root: https://a.example", Redirects{}, No)
}

func init() {
	maps.Copy(samples, map[string][]sample{
		"ssl-redirect":            {{"`true`, `false`", "false", true}},
		"force-ssl-redirect":      {{"`true`, `false`", "true", false}},
		"permanent-redirect":      {{"a URL or a path", "https://a.example", false}, {"with variables that weir knows", "https://a.example$request_uri", false}, {"with another variable", "https://a.example/$cookie_a", false}, {"other values", "ftp://a", false}},
		"temporal-redirect":       {{"a URL", "https://a.example", false}, {"with variables that weir knows", "https://a.example$request_uri", false}, {"with another variable", "https://a.example/$cookie_a", false}, {"other values", "ftp://a", false}},
		"permanent-redirect-code": {{"`301`, `302`, `303`, `307`, `308`", "308", false}, {"`300`, `304`, `305`, `306`", "305", false}, {"other values", "a", false}},
		"temporal-redirect-code":  {{"`301`, `302`, `303`, `307`", "307", false}, {"`300`, `304`, `305`, `306`", "305", false}, {"other values", "a", false}},
		"from-to-www-redirect":    {{"`true`", "true", false}, {"`false`", "false", false}},
		"relative-redirects":      {{"`true`", "true", false}, {"`false`", "false", false}},
		"app-root":                {{"a path", "/app", false}, {"other values", "app", false}},
	})
}
