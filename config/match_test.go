package config_test

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
)

func TestMatch(t *testing.T) {
	c := mustParse(t, small+`routes:
- {listeners: [web], hosts: ["**.EU.example."], paths: ["~/v[0-9]+(/|$)", "~=?/x*", =/x], backend: app}
- listeners: [web]
  paths: [/cart]
  match: {methods: [PUT, POST], headers: {X-Canary: always, A: "~a|b"}, query: {v: "~", "a b": "*"}, cookies: {tester: "yes"}, clients: [203.0.113.0/24, "2001:db8::/32"]}
  backend: app
- {listeners: [web], paths: ["~/cart"], match: {methods: [brew]}, backend: app}
`)
	reloads(t, c)
	for _, w := range c.Warnings {
		if strings.Contains(w.Message, "star") { // the star is in paths that are plain text
			t.Error(w)
		}
	}
	deep, match := c.Routes[0], c.Routes[1]
	if want := []config.Path{{Expression: true, Value: "/v[0-9]+(/|$)"}, {Expression: true, Value: "=?/x*"}, {Exact: true, Value: "/x"}}; !slices.Equal(deep.Paths, want) || !slices.Equal(deep.Hosts, []string{"**.eu.example"}) {
		t.Errorf("%+v", deep)
	}
	want := &config.Match{
		Methods: []string{"PUT", "POST"},
		Headers: []config.Condition{{"A", config.ConditionLike, "a|b"}, {"X-Canary", config.ConditionEqual, "always"}},
		Query:   []config.Condition{{"a b", config.ConditionPresent, ""}, {"v", config.ConditionLike, ""}},
		Cookies: []config.Condition{{"tester", config.ConditionEqual, "yes"}},
		Clients: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8::/32")},
	}
	if !reflect.DeepEqual(match.Match, want) {
		t.Errorf("%+v, want %+v", match.Match, want)
	}
	for i, name := range []string{"web/**.eu.example/~/v[0-9]+(/|$)", "web/*/cart[PUT,POST,A,X-Canary,a b,v,tester,clients]", "web/*/~/cart[brew]"} {
		if got := c.Routes[i].Name; got != name {
			t.Errorf("the route is called %s, want %s", got, name)
		}
	}
}

// Routes that differ in a condition are different, whatever the order of conditions.
func TestMatchesThatDiffer(t *testing.T) {
	all := []string{"methods: [GET]", "methods: [GET, PUT]", "headers: {A: b}", "headers: {B: b}", "headers: {A: c}", `headers: {A: "*"}`, `headers: {A: "~b"}`,
		"query: {A: b}", "cookies: {A: b}", "clients: [10.0.0.0/8]", "clients: [10.0.0.0/9]", "headers: {A: b}, query: {A: b}"}
	routes := "routes:\n"
	for i, one := range all {
		routes += "- {name: r" + string(rune('a'+i)) + ", listeners: [web], backend: app, match: {" + one + "}}\n"
	}
	mustParse(t, small+routes+"- {listeners: [web], backend: app}\n")
	same := func(a, b string) {
		t.Helper()
		_, err := file.Parse("weir.yaml", []byte(small+"routes:\n- {name: a, listeners: [web], backend: app, match: {"+a+"}}\n- {name: b, listeners: [web], backend: app, match: {"+b+"}}\n"), environment)
		if err == nil || !strings.Contains(err.Error(), "already matches the same on listener \"web\" (every host, every path, the same conditions)") {
			t.Errorf("%s and %s: %v", a, b, err)
		}
	}
	same("methods: [GET, PUT]", "methods: [PUT, GET]")
	same("headers: {A: b, C: d}", "headers: {c: d, a: b}")
	same("query: {A: b, C: d}", "query: {C: d, A: b}")
	same("clients: [10.0.0.0/8, 192.0.2.0/24]", "clients: [192.0.2.0/24, 10.0.0.0/8]")
}

func TestLessSpecific(t *testing.T) {
	f := func(host string, want ...string) {
		t.Helper()
		if got := config.LessSpecific(host); !slices.Equal(got, want) {
			t.Errorf("%s is covered by %q, want %q", host, got, want)
		}
	}
	f("a.b.c", "*.b.c", "**.b.c", "**.c", "")
	f("*.b.c", "**.b.c", "**.c", "")
	f("**.b.c", "**.c", "")
	f("**.c", "")
	f("c", "")
	f("", "")
}

// If "**." requires a client certificate, plain HTTP does not bypass it.
func TestClientAuthOfAnyDepth(t *testing.T) {
	const auth = "  corp: {client_auth: {mode: require, ca: testdata/ca.pem}}\n"
	refused := func(secure, plain string) bool {
		_, err := file.Parse("weir.yaml", []byte(small+auth+"routes:\n- {listeners: [secure], hosts: ['"+secure+"'], tls_policy: corp, backend: app}\n- {listeners: [web], hosts: ['"+plain+"'], backend: app}\n"), environment)
		return err != nil && strings.Contains(err.Error(), "protects with client certificates")
	}
	for _, hosts := range [][2]string{{"**.a.example", "x.y.a.example"}, {"**.a.example", "*.a.example"}, {"x.y.a.example", "**.a.example"}, {"*.y.a.example", "**.a.example"}} {
		if !refused(hosts[0], hosts[1]) {
			t.Errorf("%s needs a certificate, and %s is served without TLS", hosts[0], hosts[1])
		}
	}
	if refused("**.a.example", "a.example") {
		t.Error("**.a.example covers a.example")
	}
}

// weir gets no certificate for hosts of any depth.
func TestAnyDepthHasNoACME(t *testing.T) {
	c := mustParse(t, `listeners: {secure: {address: ":443", protocol: tls}}
certificates: [{acme: {storage: /tmp}}]
routes: [{listeners: [secure], hosts: [a.example.org, "**.example.org"], backend: app}]
backends: {app: {endpoints: ["127.0.0.1:9000"]}}
`)
	if got := c.Certificates[0].ACME.Hosts; !slices.Equal(got, []string{"a.example.org"}) {
		t.Errorf("certificates for %q", got)
	}
}
