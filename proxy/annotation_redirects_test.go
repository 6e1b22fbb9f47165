package proxy

import (
	"strings"
	"testing"
)

// The redirects of ingress-nginx, with the cases of its e2e tests: redirect.go, forcesslredirect.go,
// preservetrailingslash.go, approot.go, fromtowwwredirect.go and relativeredirects.go.
func TestIngressRedirects(t *testing.T) {
	i := newIngressRig(t, "",
		ingress("a/permanent", 1, "permanent.test Prefix /something none", "permanent-redirect: http://redirect.example.com")+
			ingress("a/custom", 1, "custom.test Prefix / none", "permanent-redirect: http://redirect.example.com", "permanent-redirect-code: 302")+
			ingress("a/temporal", 1, "temporal.test Prefix / none", "temporal-redirect: https://t.example/x", "permanent-redirect: https://p.example", "temporal-redirect-code: 307")+
			ingress("a/variables", 1, "variables.test Prefix / none", "permanent-redirect: https://www.example.com$request_uri")+
			ingress("a/absolute", 1, "absolute.test Prefix /something none", "permanent-redirect: /new-location")+
			ingress("a/relative", 1, "relative.test Prefix /something none", "permanent-redirect: /new-location", "relative-redirects: true")+
			ingress("a/overtls", 1, "a.example Prefix / none", "permanent-redirect: https://new.example", "tls: a.example", "whitelist-source-range: 10.0.0.0/8")+
			strings.Replace(ingress("a/nopaths", 1, "nopaths.test Prefix /x none", "temporal-redirect: https://nopaths.example/"),
				`http: {paths: [{pathType: Prefix, path: "/x", backend: {service: {name: none, port: {number: 80}}}}]}`, "", 1)+
			ingress("a/younger", 2, "younger.test Prefix /old none", "permanent-redirect: http://redirect.example.com")+
			ingress("a/elder", 1, "younger.test Prefix /x root")+
			ingress("a/older", 1, "older.test Prefix /old none", "permanent-redirect: http://redirect.example.com")+
			ingress("a/newer", 2, "older.test Prefix / root")+
			ingress("a/root", 1, "root.test Prefix / root", "app-root: /foo")+
			ingress("a/rootpatterns", 1, "patterns.test ImplementationSpecific /.* root", "app-root: /foo", "use-regex: true")+
			ingress("a/roottls", 1, "b.example Prefix / root", "app-root: /foo", "tls: b.example")+
			ingress("a/force", 1, "force.test Prefix / root", "force-ssl-redirect: true")+
			ingress("a/keep", 1, "x.c.example Prefix / root", "ssl-redirect: true", "tls: x.c.example")+
			ingress("a/kept", 1, "y.c.example Prefix / root", "ssl-redirect: false", "tls: y.c.example")+
			ingress("a/away", 1, "away.test ImplementationSpecific /(.*) none", "rewrite-target: https://new.example/x/$1")+
			ingress("a/awayport", 1, "awayport.test ImplementationSpecific /old(/.*)? none", "rewrite-target: http://new.example:8080$1")+
			ingress("a/awayplain", 1, "c.c.example Prefix /x none", "rewrite-target: https://new.example", "tls: c.c.example", "whitelist-source-range: 10.0.0.0/8")+
			ingress("a/awayfirst", 1, "awayfirst.test Prefix / none", "rewrite-target: https://new.example/", "temporal-redirect: https://t.example/x")+
			ingress("a/www", 1, "fromtowwwredirect.bar.com Prefix / root", "from-to-www-redirect: true")+
			ingress("a/bare", 1, "www.bare.com Prefix /x root", "from-to-www-redirect: true", "tls: www.bare.com")+
			ingress("a/both", 1, "both.com Prefix / root, www.both.com Prefix /x root", "from-to-www-redirect: true"))
	for request, want := range map[string]string{
		"http://permanent.test/something":          "301 http://redirect.example.com",
		"http://permanent.test/something/else?a":   "301 http://redirect.example.com",
		"http://permanent.test/":                   "301 http://redirect.example.com", // and so are all paths that no Ingress has
		"http://nopaths.test/a":                    "302 https://nopaths.example/",
		"http://younger.test/a":                    "404", // the oldest Ingress of the host decides about other paths
		"http://younger.test/old":                  "301 http://redirect.example.com",
		"http://younger.test/x":                    "root GET /x",
		"http://older.test/a":                      "root GET /a",
		"http://older.test/old":                    "301 http://redirect.example.com",
		"http://custom.test/something":             "302 http://redirect.example.com",
		"http://temporal.test/a?b":                 "307 https://t.example/x",
		"http://variables.test/a/?b=c":             "301 https://www.example.com/a/?b=c",
		"http://absolute.test:8080/something":      "301 http://absolute.test/new-location",
		"http://relative.test/something?a":         "301 /new-location",
		"http://a.example/x":                       "301 https://new.example", // before the redirect to https and before the list
		"https://a.example/x":                      "301 https://new.example",
		"http://root.test/":                        "302 http://root.test/foo",
		"http://root.test:8080/?a=b":               "302 http://root.test:8080/foo",
		"http://root.test/bar":                     "root GET /bar",
		"http://patterns.test/":                    "302 http://patterns.test/foo",
		"http://patterns.test/bar":                 "root GET /bar",
		"http://b.example/":                        "302 http://b.example/foo",
		"http://b.example/foo":                     "308 https://b.example/foo",
		"https://b.example/":                       "302 https://b.example/foo",
		"http://force.test/a/?b":                   "308 https://force.test/a/?b",
		"http://x.c.example/":                      "308 https://x.c.example/",
		"http://y.c.example/a":                     "root GET /a",
		"http://away.test/":                        "302 https://new.example/x/",
		"http://away.test/a/b?c=d":                 "302 https://new.example/x/a/b?c=d",
		"http://away.test/%2e/":                    "400",
		"http://awayport.test/old/a?b":             "302 http://new.example:8080/a?b",
		"http://awayport.test/old":                 "302 http://new.example:8080/",
		"http://awayport.test/old@evil":            "302 http://new.example:8080/",
		"http://c.c.example/x/y":                   "302 https://new.example/", // before the redirect to https and before the list
		"https://c.c.example/x":                    "302 https://new.example/",
		"http://awayfirst.test/":                   "302 https://t.example/x",
		"http://www.fromtowwwredirect.bar.com/foo": "308 http://fromtowwwredirect.bar.com/foo",
		"http://fromtowwwredirect.bar.com/foo":     "root GET /foo",
		"http://bare.com/any/path?q":               "308 http://www.bare.com/any/path?q",
		"http://both.com/":                         "root GET /",
		"http://www.both.com/":                     "404", // some Ingress has the host
		"http://www.both.com/x":                    "root GET /x",
	} {
		if got := i.ask("GET " + request).short(); got != want {
			t.Errorf("%s: %q, want %q", request, got, want)
		}
	}
}
