package filter

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
)

// Each name is a key of the route, and the names have the order of effect.
func TestNamesOfFilters(t *testing.T) {
	f := func(route string, want ...string) {
		t.Helper()
		cfg, err := file.Parse("test", []byte("listeners: {web: {address: ':80', protocol: http}, secure: {address: ':443', protocol: tls}}\ncertificates: [{self_signed: {hosts: [a]}}]\nbackends: {app: {endpoints: ['a:1']}}\nroutes:\n- {listeners: [web, secure], "+route+"}\n"), os.LookupEnv)
		if err != nil {
			t.Fatal(err)
		}
		r := cfg.Routes[0]
		names := Compile(r, nil).Names()
		if !slices.Equal(names, want) {
			t.Errorf("%s has the filters %v, want %v", route, names, want)
		}
		for _, name := range names {
			if r.Setting(name) == "" {
				t.Errorf("%s is no key of the route %s", name, route)
			}
		}
	}
	f("backend: app")
	f("hosts: [a], hsts: 1h, response: {set: {A: b}}, rewrite: {prefix: /b}, paths: [/a], request: {set: {A: b}}, max_body: 1KiB, backend: app",
		"max_body", "request", "rewrite", "response", "hsts")
	f("cors: {origins: ['*']}, backend: app, max_body: 1KiB", "cors", "max_body")
	f("redirect: {to: 'https://b.test/'}", "redirect")
	f("respond: {status: 404}, max_body: 1KiB", "max_body", "respond")
}

// A filter without a name of its own has that of its type; a guard has its own.
func TestNamesOfTypes(t *testing.T) {
	f := func(filter any, want string) {
		t.Helper()
		if got := keyOf(filter); got != want {
			t.Errorf("%T is called %s, want %s", filter, got, want)
		}
	}
	f(maxBody(1), "max_body")
	f(&rewrite{}, "rewrite")
	f(newHSTS(&config.HSTS{MaxAge: time.Hour}), "hsts")
	f(new(move), "redirect")
	f(named{}, "rate_limit")
}

type named struct{}

func (named) Answer(Exchange) bool { return false }
func (named) GuardName() string    { return "rate_limit" }
